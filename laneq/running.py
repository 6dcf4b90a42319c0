"""What a running job sees of itself, and how it steers its outcome.

Nothing here does I/O. Progress and the jobs that a job enqueues are handed to
callbacks, or kept, for the worker that runs it. The job that runs is known by a
context variable: a worker that runs a function in a thread enters a copy of the
context there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from math import isnan
from typing import Final, NoReturn, Protocol, TypeVar

from laneq import codec
from laneq.calls.jobs import BATCH, NewJob
from laneq.errors import (
    GiveUpRequested,
    LeaseLost,
    NoRunningJob,
    OptionError,
    RetryRequested,
    SnoozeRequested,
    UnknownLane,
    UsageError,
)
from laneq.options import Seconds, seconds_of

J_co = TypeVar("J_co", covariant=True)

_LONGEST_NOTE: Final = 1_000

#: Most jobs, and most bytes of them, that one job may enqueue with its outcome: the
#: script that commits them all must stay short.
MAX_CHILDREN: Final = BATCH
MAX_CHILDREN_BYTES: Final = 16 * 1024 * 1024

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ChildCall(Protocol[J_co]):
    """A call of a task that is not enqueued yet, as ``task.call(...)`` makes it."""

    def new_job(self) -> NewJob:
        """Return a job about to be stored, with an id of its own."""
        ...

    def handle(self, job_id: str) -> J_co:
        """Return the handle of the job with this id."""
        ...


def _at(instant_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=instant_us)


def _number(option: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or isnan(value):
        raise OptionError(option, f"must be a number, not {value!r}")


def _note(note: object) -> None:
    if not isinstance(note, str) or len(note) > _LONGEST_NOTE:
        raise OptionError("note", f"must be a str of up to {_LONGEST_NOTE:,} characters")


class RunningJob:
    """The job that runs here; `current_job()` returns it.

    Args:
        id: the job.
        task: its task's name.
        lane: the lane that it was claimed from.
        attempt: number of this attempt, from 1.
        max_attempts: attempts that it has in all.
        enqueued_us: when it was enqueued, µs since the epoch.
        fence: token of this attempt's claim.
        deadline_us: when its `timeout` ends, µs since the epoch; None without one.
        lanes: lanes that jobs may be enqueued in; None to leave that to Redis.
        on_progress: gets the encoded progress each time it is reported.

    Attributes:
        id: the job's id.
        task: its task's name.
        lane: the lane that it was claimed from.
        attempt: number of this attempt, from 1.
        max_attempts: attempts that it has in all.
        fence: grows with each claim; hand it to what the job writes to, so that a
            late write of an attempt which lost its lease can be refused there.
        is_cancelled: whether somebody asked for its end.
        lease_lost: whether another attempt may be running: what this one returns
            is discarded, and it should stop.
        children: jobs to be committed with its outcome.
    """

    __slots__ = (
        "_children_bytes",
        "_deadline_us",
        "_enqueued_us",
        "_lanes",
        "_on_progress",
        "attempt",
        "children",
        "fence",
        "id",
        "is_cancelled",
        "lane",
        "lease_lost",
        "max_attempts",
        "task",
    )

    def __init__(
        self,
        *,
        id: str,
        task: str,
        lane: str,
        attempt: int,
        max_attempts: int,
        enqueued_us: int,
        fence: int,
        deadline_us: int | None = None,
        lanes: Collection[str] | None = None,
        on_progress: Callable[[bytes], None] | None = None,
    ) -> None:
        """Note what a claim says of the job."""
        self.id = id
        self.task = task
        self.lane = lane
        self.attempt = attempt
        self.max_attempts = max_attempts
        self.fence = fence
        self.is_cancelled = False
        self.lease_lost = False
        self.children: list[NewJob] = []
        self._children_bytes = 0
        self._enqueued_us = enqueued_us
        self._deadline_us = deadline_us
        self._lanes = lanes
        self._on_progress = on_progress

    def __repr__(self) -> str:
        return f"<RunningJob {self.id} {self.task} attempt {self.attempt} in {self.lane}>"

    @property
    def enqueued_at(self) -> datetime:
        """When the job was enqueued, by Redis's clock."""
        return _at(self._enqueued_us)

    @property
    def deadline(self) -> datetime | None:
        """When this attempt's `timeout` ends, by Redis's clock; None without one."""
        return None if self._deadline_us is None else _at(self._deadline_us)

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Report how far the job is; shown by ``laneq jobs show``.

        Call it as often as you like: what is reported faster than a worker sends it is
        merged, and the last one wins.

        Args:
            done: how much is done, in a unit of your own.
            total: how much there is in all; None if that is not known.
            note: a short text, up to 1,000 characters.

        Raises:
            OptionError: a value is no number, or the note too long.
        """
        _number("done", done)
        if total is not None:
            _number("total", total)
        if note is not None:
            _note(note)
        if self._on_progress is not None:
            report = {"done": done, "total": total, "note": note}
            self._on_progress(codec.encode_value(report, what="progress"))

    def enqueue(self, call: ChildCall[J_co]) -> J_co:
        """Enqueue another job together with this one's outcome: both happen or neither.

        The job starts when this attempt has succeeded, failed, or put itself off. If the
        attempt is cancelled or handed back, loses its lease, or its worker dies, the job
        never exists.

        Args:
            call: ``task.call(...)``, or ``task.using(...).call(...)``.

        Returns:
            The handle of the job to be.

        Raises:
            UnknownLane: the call's lane does not exist.
            UsageError: it is no such call, or this job has enqueued too much.
            LeaseLost: this attempt has lost its lease, so that nothing of it counts.
        """
        if self.lease_lost:
            raise LeaseLost(self.id)
        if not hasattr(call, "new_job"):
            raise UsageError(
                f"current_job().enqueue takes task.call(...), not {call!r}. To enqueue at once, "
                "whatever becomes of this job, use task.enqueue(...)."
            )
        new = call.new_job()
        if self._lanes is not None and new.lane not in self._lanes:
            raise UnknownLane(new.lane, self._lanes)
        size = self._children_bytes + len(new.record)
        if len(self.children) >= MAX_CHILDREN or size > MAX_CHILDREN_BYTES:
            raise UsageError(
                f"job {self.id} would enqueue more than {MAX_CHILDREN:,} jobs or "
                f"{MAX_CHILDREN_BYTES:,} bytes of them with its outcome. Use "
                "app.enqueue_many(...), which does not wait for the outcome, or enqueue a few "
                "jobs that each enqueue a part."
            )
        self._children_bytes = size
        self.children.append(new)
        return call.handle(new.id)

    def retry(self, delay: Seconds | None = None) -> NoReturn:
        """End this attempt as failed, to be tried again; does not return.

        When it was the last attempt, the job becomes a dead letter.

        Args:
            delay: seconds until it is ready again; None for the task's own backoff.

        Raises:
            RetryRequested: always; no ``except Exception`` catches it.
            OptionError: the delay is no number of seconds from 0.
        """
        raise RetryRequested(None if delay is None else seconds_of("delay", delay))

    def snooze(self, seconds: Seconds) -> NoReturn:
        """End this attempt and run again later, without spending an attempt; does not return.

        Args:
            seconds: until it is ready again.

        Raises:
            SnoozeRequested: always; no ``except Exception`` catches it.
            OptionError: it is no number of seconds from 0.
        """
        raise SnoozeRequested(seconds_of("seconds", seconds))

    def give_up(self, reason: str) -> NoReturn:
        """Make this job a dead letter now, whatever attempts are left; does not return.

        Args:
            reason: why, for whoever reads the dead letter.

        Raises:
            GiveUpRequested: always; no ``except Exception`` catches it.
        """
        raise GiveUpRequested(str(reason))


class Unseen(Protocol):
    """A running job that is made when somebody first asks for it: most jobs never do."""

    def seen(self) -> RunningJob:
        """Return the job; always the same, in any thread."""
        ...


_current: ContextVar[RunningJob | Unseen | None] = ContextVar("laneq_running_job", default=None)

#: Make a job the one that `current_job()` returns, to the end of the context it is called in.
enter: Final[Callable[[RunningJob | Unseen], object]] = _current.set


def current_job() -> RunningJob:
    """Return the job that runs here: in a coroutine, a thread or a process of a worker.

    Raises:
        NoRunningJob: no job runs here.
    """
    job = running_here()
    if job is None:
        raise NoRunningJob
    return job


def running_here() -> RunningJob | None:
    """Return the job that runs here, or None."""
    job = _current.get()
    return job if job is None or isinstance(job, RunningJob) else job.seen()


@contextmanager
def running(job: RunningJob) -> Iterator[None]:
    """Make `job` the one that `current_job()` returns, for a block."""
    token = _current.set(job)
    try:
        yield
    finally:
        _current.reset(token)
