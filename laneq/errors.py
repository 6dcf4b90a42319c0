"""Every exception that laneq raises, the tree on top.

::

    LaneqError
    ├── UsageError          the call is wrong; nothing was stored
    │   ├── OptionError       an option has a wrong name, type or value
    │   ├── UnknownLane       no such lane; names the known ones
    │   ├── UnknownTask       no such task; names the known ones
    │   ├── WrongArguments    the arguments do not fit the task's function
    │   ├── NotSerializable   a value cannot make the trip; names its path
    │   ├── PayloadTooLarge   the payload is over `max_payload`
    │   ├── UnreadablePayload stored bytes are no payload that laneq wrote
    │   │   └── UnknownEnvelope a newer laneq wrote them
    │   ├── NoRunningJob      `current_job()` where no job runs
    │   ├── WaitRefused       a job would wait for another while it holds a slot
    │   └── ConfigError       address, app or environment cannot be used
    ├── Refused             the queue said no
    │   ├── LaneFull          the lane is at its `max_depth`
    │   ├── JobNotFound       no job with this id, or its record has run out
    │   ├── WrongState        the job is not in a state that allows this
    │   └── KeyHeld           another job holds the unique key
    ├── LeaseLost           this attempt no longer holds its lease
    ├── JobEnded            asked for a result that is not one
    │   ├── JobFailed         the job is dead; has the remote error
    │   ├── JobCancelled
    │   └── JobExpired
    ├── BenchFailed         a benchmark could not be carried out
    └── StoreError          Redis; with cause, and whether to try again
        ├── RedisUnavailable  no connection, or it broke
        └── RedisRefused      the server answered with an error

Job control (`JobControl` and below) derives from `BaseException` instead, so
that ``except Exception`` inside a job cannot swallow it.

Messages have the form *what, which, what to do*.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LaneqError(Exception):
    """Root of every error that laneq raises."""


# --- the call is wrong ------------------------------------------------------


class UsageError(LaneqError, ValueError):
    """The call is wrong; nothing was stored."""


class OptionError(UsageError):
    """An option has an unknown name, a wrong type or a wrong value.

    Attributes:
        option: the name of the option at fault.
    """

    def __init__(self, option: str, message: str) -> None:
        """Name the option and say what is wrong with it."""
        super().__init__(f"{option}: {message}")
        self.option = option


def suggest(name: str, known: Iterable[str]) -> str:
    """Return a sentence that lists the known names and offers the nearest."""
    names = sorted(known)
    listed = ", ".join(names) if names else "none"
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"Known: {listed}.{hint}"


class UnknownLane(UsageError):
    """No lane has this name; a lane is never made by a typo.

    Attributes:
        lane: the name that was asked for.
        known: the names that exist.
    """

    def __init__(self, lane: str, known: Iterable[str]) -> None:
        """List the known lanes and suggest the nearest."""
        self.lane = lane
        self.known = tuple(known)
        super().__init__(f"unknown lane {lane!r}. {suggest(lane, self.known)}")


class UnknownTask(UsageError):
    """No task has this name.

    Attributes:
        task: the name that was asked for.
        known: the names that exist.
    """

    def __init__(self, task: str, known: Iterable[str]) -> None:
        """List the known tasks and suggest the nearest."""
        self.task = task
        self.known = tuple(known)
        super().__init__(f"unknown task {task!r}. {suggest(task, self.known)}")


class WrongArguments(UsageError, TypeError):
    """The arguments do not fit the task's function.

    Attributes:
        task: the task.
    """

    def __init__(self, task: str, problem: str, signature: str) -> None:
        """Name the task, say what does not fit and show what it takes."""
        super().__init__(f"task {task}: {problem}. It takes {signature}.")
        self.task = task


class NotSerializable(UsageError):
    """A value is of no type that survives the trip to another process.

    Attributes:
        path: where the value is, for example ``args[0]['when']``.
    """

    def __init__(self, path: str, message: str) -> None:
        """Name the path to the value and the reason."""
        super().__init__(f"{path}: {message}")
        self.path = path


class PayloadTooLarge(UsageError):
    """The encoded arguments or result are larger than the limit.

    Attributes:
        size: bytes of the payload.
        limit: bytes allowed.
    """

    def __init__(self, what: str, size: int, limit: int) -> None:
        """Name the payload, its size and the limit, in bytes."""
        super().__init__(
            f"{what} is {size:,} bytes, over the limit of {limit:,}. "
            "Store the data elsewhere and pass a reference to it."
        )
        self.size = size
        self.limit = limit


class UnreadablePayload(UsageError):
    """Stored bytes are no payload, record or error that laneq wrote."""

    def __init__(self, what: str, reason: str) -> None:
        """Name what was being read and why it cannot be."""
        super().__init__(f"{what} cannot be read: {reason}")
        self.what = what


class UnknownEnvelope(UnreadablePayload):
    """Stored bytes have a form or a type of a newer laneq; they are to be kept for it."""

    def __init__(self, what: str, form: str) -> None:
        """Name what was being read and the form it has."""
        super().__init__(what, f"it has {form}, which a newer laneq writes. Update this one.")
        self.form = form


class NoRunningJob(UsageError):
    """`current_job()` was called where no job runs."""

    def __init__(self) -> None:
        """Say where it may be called."""
        super().__init__(
            "no job is running here: call current_job() inside a task's function, while a worker "
            "runs it. A thread that the function starts by itself does not see the job: hand the "
            "value of current_job() to it."
        )


class WaitRefused(UsageError):
    """A job asked to wait for another one while it holds a slot.

    Jobs that wait for jobs can fill every slot, and then none of them ever ends.

    Attributes:
        job_id: the job that was to be waited for.
        waiting_id: the job that asked.
    """

    def __init__(self, job_id: str, waiting_id: str) -> None:
        """Name both jobs and say how to do it instead."""
        super().__init__(
            f"job {waiting_id} cannot wait for job {job_id}: it holds a slot, and jobs that wait "
            "for jobs can fill every slot for ever. Let the other job enqueue what comes next, or "
            "ask job.state() and come back later with current_job().snooze(seconds)."
        )
        self.job_id = job_id
        self.waiting_id = waiting_id


class ConfigError(UsageError):
    """The address, the app or another setting cannot be used."""


# --- the queue said no ------------------------------------------------------


class Refused(LaneqError):
    """The queue understood the call and said no; nothing was changed."""


class LaneFull(Refused):
    """The lane already holds `max_depth` jobs.

    Attributes:
        lane: the full lane.
        max_depth: jobs that it may hold.
    """

    def __init__(self, lane: str, max_depth: int) -> None:
        """Name the lane and its limit."""
        super().__init__(
            f"lane {lane!r} is full: it holds max_depth={max_depth} jobs. "
            "Try again later, or raise max_depth."
        )
        self.lane = lane
        self.max_depth = max_depth


class JobNotFound(Refused):
    """No job has this id, or its record has run out.

    Attributes:
        job_id: the id that was asked for.
    """

    def __init__(self, job_id: str) -> None:
        """Name the id."""
        super().__init__(f"job {job_id}: not found, or its record has run out")
        self.job_id = job_id


class WrongState(Refused):
    """The job's state does not allow what was asked.

    Attributes:
        job_id: the job.
        state: the state it is in.
    """

    def __init__(self, job_id: str, state: str, verb: str) -> None:
        """Name the job, its state and what cannot be done."""
        super().__init__(f"job {job_id} is {state}: cannot {verb} it")
        self.job_id = job_id
        self.state = state


class KeyHeld(Refused):
    """Another job holds the unique key.

    Attributes:
        key: the key.
        holder: the id of the job that holds it.
    """

    def __init__(self, key: str, holder: str) -> None:
        """Name the key and its holder."""
        super().__init__(f"key {key!r} is held by job {holder}")
        self.key = key
        self.holder = holder


class LeaseLost(LaneqError):
    """This attempt no longer holds its lease; what it reports is discarded.

    Attributes:
        job_id: the job.
    """

    def __init__(self, job_id: str) -> None:
        """Name the job."""
        super().__init__(f"job {job_id}: lease lost, another attempt may be running")
        self.job_id = job_id


# --- asked for a result that is not one -------------------------------------


class JobEnded(LaneqError):
    """The job ended without a result.

    Attributes:
        job_id: the job.
    """

    def __init__(self, job_id: str, message: str) -> None:
        """Name the job and how it ended."""
        super().__init__(f"job {job_id} {message}")
        self.job_id = job_id


class JobFailed(JobEnded):
    """The job is dead: its last attempt failed, or it gave up.

    Attributes:
        job_id: the job.
        type: class name of the remote error, for example ``ValueError``.
        message: text of the remote error.
        traceback: the remote traceback as text; empty where there is none.
    """

    def __init__(self, job_id: str, type: str, message: str, traceback: str) -> None:
        """Carry the remote error's type, message and traceback text."""
        text = f"failed with {type}: {message}" if message else f"failed with {type}"
        super().__init__(job_id, f"{text}\n{traceback}" if traceback else text)
        self.type = type
        self.message = message
        self.traceback = traceback


class JobCancelled(JobEnded):
    """The job was cancelled."""

    def __init__(self, job_id: str) -> None:
        """Name the job."""
        super().__init__(job_id, "was cancelled")


class JobExpired(JobEnded):
    """The job had not started by the time it was to expire."""

    def __init__(self, job_id: str) -> None:
        """Name the job."""
        super().__init__(job_id, "expired before it was started")


# --- Redis ------------------------------------------------------------------


class BenchFailed(LaneqError):
    """A benchmark could not be carried out: a process of it ended, or jobs did not run."""


class StoreError(LaneqError):
    """Redis could not do what was asked; the cause is the client's error.

    Attributes:
        is_retryable: whether the same call may succeed later.
    """

    is_retryable: bool = False


class RedisUnavailable(StoreError):
    """No connection to Redis could be made, or it broke."""

    is_retryable = True


class RedisRefused(StoreError):
    """Redis answered with an error: OOM, MISCONF, READONLY, NOAUTH, LOADING.

    Attributes:
        word: the server's first word, for example ``OOM``.
        is_retryable: whether the state that the word names can pass.
    """

    def __init__(self, word: str, message: str, *, is_retryable: bool = False) -> None:
        """Carry the server's word and text."""
        super().__init__(message)
        self.word = word
        self.is_retryable = is_retryable


# --- job control ------------------------------------------------------------


class JobControl(BaseException):
    """Raised inside a job to steer its outcome; not an `Exception`."""


class RetryRequested(JobControl):
    """The job asked to be retried after `delay_s` seconds (None: its backoff)."""

    def __init__(self, delay_s: float | None) -> None:
        """Carry the delay in seconds."""
        super().__init__(delay_s)
        self.delay_s = delay_s


class SnoozeRequested(JobControl):
    """The job asked to run again in `delay_s` seconds without spending an attempt."""

    def __init__(self, delay_s: float) -> None:
        """Carry the delay in seconds."""
        super().__init__(delay_s)
        self.delay_s = delay_s


class GiveUpRequested(JobControl):
    """The job asked to become a dead letter now."""

    def __init__(self, reason: str) -> None:
        """Carry the reason."""
        super().__init__(reason)
        self.reason = reason


class JobTimeout(JobControl):
    """The job's run time is over; raised in a thread job by its worker."""
