"""A job queue on Redis with priority lanes: urgent work at once, batch work all the same.

The public names, and nothing else. Each is imported when it is first used: what only
needs a part, the command line above all, then starts quickly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from laneq.app import LaneQ
    from laneq.errors import (
        ConfigError,
        JobCancelled,
        JobEnded,
        JobExpired,
        JobFailed,
        JobNotFound,
        KeyHeld,
        LaneFull,
        LaneqError,
        LeaseLost,
        NoRunningJob,
        NotSerializable,
        OptionError,
        PayloadTooLarge,
        RedisRefused,
        RedisUnavailable,
        Refused,
        StoreError,
        UnknownLane,
        UnknownTask,
        UsageError,
        WaitRefused,
        WrongArguments,
        WrongState,
    )
    from laneq.job import Job
    from laneq.middleware import Middleware
    from laneq.model import JobView, RemoteError, State
    from laneq.options import DEFAULT_LANES, Lane, Retry
    from laneq.running import RunningJob, current_job
    from laneq.task import PreparedTask, Task, TaskCall, TaskRef

__all__ = [
    "DEFAULT_LANES",
    "ConfigError",
    "Job",
    "JobCancelled",
    "JobEnded",
    "JobExpired",
    "JobFailed",
    "JobNotFound",
    "JobView",
    "KeyHeld",
    "Lane",
    "LaneFull",
    "LaneQ",
    "LaneqError",
    "LeaseLost",
    "Middleware",
    "NoRunningJob",
    "NotSerializable",
    "OptionError",
    "PayloadTooLarge",
    "PreparedTask",
    "RedisRefused",
    "RedisUnavailable",
    "Refused",
    "RemoteError",
    "Retry",
    "RunningJob",
    "State",
    "StoreError",
    "Task",
    "TaskCall",
    "TaskRef",
    "UnknownLane",
    "UnknownTask",
    "UsageError",
    "WaitRefused",
    "WrongArguments",
    "WrongState",
    "current_job",
]

#: Module → its names that are public here. A test compares them with the imports above.
_HOMES: Final = {
    "laneq.app": ("LaneQ",),
    "laneq.errors": (
        "ConfigError",
        "JobCancelled",
        "JobEnded",
        "JobExpired",
        "JobFailed",
        "JobNotFound",
        "KeyHeld",
        "LaneFull",
        "LaneqError",
        "LeaseLost",
        "NoRunningJob",
        "NotSerializable",
        "OptionError",
        "PayloadTooLarge",
        "RedisRefused",
        "RedisUnavailable",
        "Refused",
        "StoreError",
        "UnknownLane",
        "UnknownTask",
        "UsageError",
        "WaitRefused",
        "WrongArguments",
        "WrongState",
    ),
    "laneq.job": ("Job",),
    "laneq.middleware": ("Middleware",),
    "laneq.model": (
        "JobView",
        "RemoteError",
        "State",
    ),
    "laneq.options": (
        "DEFAULT_LANES",
        "Lane",
        "Retry",
    ),
    "laneq.running": (
        "RunningJob",
        "current_job",
    ),
    "laneq.task": (
        "PreparedTask",
        "Task",
        "TaskCall",
        "TaskRef",
    ),
}
_HOME_OF: Final = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name's module when the name is first used."""
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'laneq' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(module), name)
    return value


def __dir__() -> list[str]:
    """Return the public names too, imported or not."""
    return sorted({*globals(), *__all__})
