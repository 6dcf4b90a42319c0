"""How a job is to be run: its task, and what its record says otherwise.

A record's head (task and options) is the same for many jobs, so it is read once and kept.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from laneq import codec
from laneq.options import EXECUTOR_NUMBERS, Executor, Retry, TaskOptions

_EXECUTORS: Final[Mapping[int, Any]] = {number: name for name, number in EXECUTOR_NUMBERS.items()}

#: Heads kept. Heads of delayed jobs each have an instant of their own and are not kept.
_MOST_HEADS: Final = 2_000


#: What heads say that are not of one job or key alone: when it was enqueued, expires and
#: became ready, and its fair key.
_SHARED: Final = (None, None, None, None)


class RunnableTask(Protocol):
    """What a worker needs of a task."""

    @property
    def name(self) -> str:
        """Its name in Redis."""
        ...

    @property
    def options(self) -> TaskOptions:
        """Its options."""
        ...

    @property
    def function(self) -> Callable[..., Any]:
        """The function that runs."""
        ...


class Plan:
    """How the jobs of one head run.

    Attributes:
        task: the task's name.
        function: what to call, in the way that `executor` calls it.
        executor: ``async``, ``thread`` or ``process``.
        is_coroutine: whether calling the function gives something to await.
        timeout_s: most seconds of an attempt; None for no limit.
        timeout_us: the same in microseconds.
        keep_us: how long the record of the ended job is kept.
        retry: the rule for failures.
        max_attempts: of that rule.
        boost_us: the head start that is part of the job's score.
    """

    __slots__ = (
        "boost_us",
        "executor",
        "function",
        "is_coroutine",
        "keep_us",
        "max_attempts",
        "retry",
        "task",
        "timeout_s",
        "timeout_us",
    )

    def __init__(self, task: RunnableTask, record: codec.Record) -> None:
        options = task.options
        self.task = task.name
        timeout_us = record.timeout_us if record.timeout_us is not None else options.timeout_us
        # A call that takes its task's limit away says 0.
        self.timeout_us = timeout_us or None
        self.timeout_s = None if self.timeout_us is None else self.timeout_us / 1e6
        self.keep_us = record.ttl_us if record.ttl_us is not None else options.result_ttl_us
        self.retry: Retry = options.retry.with_record(**codec.retry_options(record))
        self.max_attempts = self.retry.max_attempts
        self.boost_us = record.boost_us
        self.is_coroutine = inspect.iscoroutinefunction(task.function)
        executor = options.executor
        if record.executor is not None:
            executor = _EXECUTORS.get(record.executor, executor)
        self.executor: Executor = executor or ("async" if self.is_coroutine else "thread")
        self.function = task.function
        if self.is_coroutine and self.executor == "thread":
            self.function = functools.partial(run_coroutine, task.function)


def run_coroutine(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run an asynchronous function where there is no loop: in a thread or a child process."""
    return asyncio.run(function(*args, **kwargs))


class Plans:
    """The plans of an app's tasks, by record head.

    Args:
        tasks: name → task; looked at when a head is new.
    """

    def __init__(self, tasks: Mapping[str, RunnableTask]) -> None:
        self._tasks = tasks
        #: The plans by head; the hot path looks here first.
        self.by_head: dict[bytes, Plan] = {}

    def make(self, record: bytes) -> Plan | str:
        """Return the plan of a record, or the name of its task if that is unknown here.

        Raises:
            UnreadablePayload: the bytes are no record.
        """
        read = codec.decode_record(record)
        task = self._tasks.get(read.task)
        if task is None:
            return read.task
        plan = Plan(task, read)
        if (read.enqueued_us, read.expires_at_us, read.ready_us, read.fair_key) == _SHARED:
            if len(self.by_head) >= _MOST_HEADS:
                self.by_head.clear()
            self.by_head[record.partition(b"\n")[0]] = plan
        return plan
