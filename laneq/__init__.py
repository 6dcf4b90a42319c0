"""A job queue on Redis with priority lanes: urgent work at once, batch work all the same."""

from __future__ import annotations

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
