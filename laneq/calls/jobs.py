"""Jobs: enqueue, look at, wait for, cancel and revive them; lists and dead letters."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, time
from functools import lru_cache
from typing import Any, Final, TypeVar

from laneq import codec
from laneq.calls.call import Call, Until
from laneq.calls.lanes import PublishedTask
from laneq.errors import (
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
    LaneFull,
    LaneqError,
    LeaseLost,
    UnknownLane,
)
from laneq.keys import Keys
from laneq.model import Attempt, JobView, RemoteError, State
from laneq.scripts import load

Reply = list[Any]
T = TypeVar("T")

#: Most jobs that one enqueue call carries; more go in several calls.
BATCH: Final = 1_000

#: How long an end is announced to a waiter after its last sign of life, in µs.
WATCH_US: Final = 600_000_000

#: Attempts of a task that says nothing (behaviour §6).
DEFAULT_ATTEMPTS: Final = 3

# An entry of a history, see lua/lib/note.lua.
_LENGTH: Final = re.compile(rb"(\d{1,9}):")
_ENTRY: Final = re.compile(rb"(\d+) (\d+) (\d+) ([!-~]+) ([a-z ]+)\n")

# Words of a run line, see lua/lib/run.lua.
_RUN_WORDS: Final = 10

#: How long the record of a cancelled job is kept unless its task says, in µs.
KEEP_US: Final = 300_000_000


@dataclass(slots=True)
class NewJob:
    """A job about to be stored.

    Attributes:
        record: head and payload, from `codec.encode_record`.
        when: empty for now, ``-N`` for now with a head start of N µs, ``+N``
            for N µs from now, ``@N`` for the instant N (µs since the epoch).
    """

    lane: str
    id: str
    record: bytes
    when: str = ""


_NONE_THERE: Final[frozenset[int]] = frozenset()


def enqueue(keys: Keys, jobs: Sequence[NewJob]) -> Call[frozenset[int] | None]:
    """Store up to `BATCH` jobs in one call, in this order.

    The value is the positions of those whose id was there already, or None
    where the call had been applied before its connection broke.

    Raises (on reading):
        UnknownLane: a lane is not published in this namespace; nothing was stored.
        LaneFull: a lane has no room for its jobs of this call; nothing was stored.
    """
    argv: tuple[bytes | str | int, ...]
    names: tuple[str, ...]
    if len(jobs) == 1:
        (job,) = jobs
        names = (job.lane,)
        argv = (1, job.lane, 1, 1, job.id, job.record, job.when)
    else:
        lanes: dict[str, int] = {}
        rows: list[bytes | str | int] = []
        for job in jobs:
            index = lanes.get(job.lane)
            if index is None:
                index = lanes[job.lane] = len(lanes) + 1
            rows += (index, job.id, job.record, job.when)
        names = tuple(lanes)
        argv = (len(names), *names, len(jobs), *rows)
    return Call(load("enqueue"), _enqueue_keys(keys, names), argv, _read_enqueue, once=True)


def _read_enqueue(reply: Reply) -> frozenset[int] | None:
    if reply[0] == b"ok":
        return frozenset([place - 1 for place in reply[1:]]) if len(reply) > 1 else _NONE_THERE
    if reply[0] == b"again":
        return None
    if reply[0] == b"full":
        raise LaneFull(reply[1].decode(), int(reply[2]))
    raise UnknownLane(reply[1].decode(), ())


@lru_cache(maxsize=256)
def _enqueue_keys(keys: Keys, lanes: tuple[str, ...]) -> tuple[bytes, ...]:
    stamped = 2  # the driver puts session and before in front
    return load("enqueue").bind_keys(keys, lanes, session=b"", before=b"")[stamped:]


# --- outcomes ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended, as its outcome line and body say. Instants in µs."""

    state: State
    lane: str
    attempt: int
    enqueued_us: int
    score_us: int
    started_us: int
    ended_us: int
    worker: str
    fence: int
    task: str
    body: bytes = field(repr=False)

    def error(self) -> RemoteError | None:
        """Return the error of a dead job, None for any other."""
        return read_error(self.body) if self.state is State.DEAD else None

    def value(self, job_id: str) -> Any:
        """Return the job's result.

        Raises:
            JobFailed: it is dead.
            JobCancelled: it was cancelled.
            JobExpired: it expired.
        """
        match self.state:
            case State.SUCCEEDED:
                return codec.decode_value(self.body)
            case State.CANCELLED:
                raise JobCancelled(job_id)
            case State.EXPIRED:
                raise JobExpired(job_id)
            case _:
                error = read_error(self.body)
                raise JobFailed(job_id, error.type, error.message, error.traceback)


def read_error(body: bytes) -> RemoteError:
    """Read an error's body: encoded by a worker, or ``!reason`` from a script.

    Of a body that was cut short for a list, what is left is read. One that only a newer
    laneq can read becomes an error that says so.
    """
    if body.startswith(b"!"):
        reason = body[1:].decode()
        return RemoteError(type="".join(word.title() for word in reason.split()), message=reason)
    try:
        return codec.decode_error(body)
    except LaneqError as unreadable:
        left = _or_none(lambda: codec.decode_cut_error(body))
        return left or RemoteError(type=type(unreadable).__name__, message=str(unreadable))


def read_outcome(text: bytes) -> Outcome:
    """Read an outcome line and its body."""
    line, _, body = text.partition(b"\n")
    state, lane, attempt, enqueued, score, started, ended, worker, fence, task = (
        line.decode().split(" ", 9)
    )
    return Outcome(
        state=State(state),
        lane=lane,
        attempt=int(attempt),
        enqueued_us=int(enqueued),
        score_us=int(score),
        started_us=int(started),
        ended_us=int(ended),
        worker=worker,
        fence=int(fence),
        task=task,
        body=body,
    )


def until_ended(keys: Keys, job_id: str, *, timeout_s: float | None) -> Until[Outcome]:
    """Wait for a job's outcome without polling.

    Raises (on reading):
        JobNotFound: no job has this id, or its record has run out.
    """
    script = load("watch")

    def read(reply: Reply) -> Outcome | None:
        if reply[0] == b"ended":
            return read_outcome(reply[1])
        if reply[0] == b"unknown":
            raise JobNotFound(job_id)
        return None

    call = Call(
        script,
        script.bind_keys(keys),
        script.bind_args({"id": job_id, "ttl": WATCH_US}),
        read,
    )
    # Who waits for longer than an end is announced says in time that he is still there.
    return Until(keys.ended_channel(job_id), call, _read_end, timeout_s, WATCH_US / 2e6)


def _read_end(message: bytes) -> Outcome | None:
    """Read an announcement; None for a word, as of a purge, after which to ask again."""
    return read_outcome(message) if b"\n" in message else None


# --- views ------------------------------------------------------------------


def _seconds(instant_us: int | str | bytes) -> float | None:
    us = int(instant_us)
    return us / 1e6 if us > 0 else None


def read_history(text: bytes) -> tuple[Attempt, ...]:
    """Read ended attempts, oldest first, from their length-prefixed form.

    It ends at what is no entry: damage to one job's history must not hide the job.
    """
    out: list[Attempt] = []
    at = 0
    while prefix := _LENGTH.match(text, at):
        at = prefix.end() + int(prefix[1])
        entry = text[prefix.end() : at]
        line = _ENTRY.match(entry)
        if not line:
            break
        attempt, started, ended, worker, outcome = (word.decode() for word in line.groups())
        body = entry[line.end() :]
        error = read_error(body) if body else None
        if outcome == "worker lost":
            error = RemoteError(type="WorkerLost", message="worker lost")
        out.append(
            Attempt(int(attempt), _seconds(started), _seconds(ended), worker, outcome, error)
        )
    return tuple(out)


def _or_none(decode: Callable[[], T]) -> T | None:
    """Return what is decoded; None for what only a newer laneq can read.

    A view shows the rest: one job must not keep a whole page from being seen.
    """
    try:
        return decode()
    except LaneqError:
        return None


def _view(job_id: str, row: Reply, lanes: Sequence[str]) -> JobView | None:
    place, lane_index, score, record, run, outcome_text, history_text, progress, task_line = row
    if place == b"unknown":
        return None
    task, args, kwargs, boost_us = "?", None, None, 0
    max_attempts = DEFAULT_ATTEMPTS
    if task_line:
        max_attempts = PublishedTask.from_line(task_line.decode()).max_attempts
    enqueued_us: int | None = None
    head = _or_none(lambda: codec.decode_record(record)) if record else None
    if head is not None:
        task, boost_us, enqueued_us = head.task, head.boost_us, head.enqueued_us
        max_attempts = head.max_attempts or max_attempts
        payload = head.payload
        args, kwargs = _or_none(lambda: codec.decode_call(payload)) or (None, None)
    history = read_history(history_text)
    decoded_progress = _or_none(lambda: codec.decode_value(progress)) if progress else None
    if place == b"ended":
        end = read_outcome(outcome_text)
        has_result, result = end.state is State.SUCCEEDED, None
        if has_result:
            result = _or_none(lambda: codec.decode_value(end.body))
        return JobView(
            id=job_id,
            task=end.task,
            lane=end.lane,
            state=end.state,
            args=args,
            kwargs=kwargs,
            attempt=end.attempt,
            max_attempts=max_attempts,
            enqueued_at=_seconds(end.enqueued_us),
            ready_at=_seconds(end.score_us + boost_us),
            started_at=_seconds(end.started_us),
            ended_at=_seconds(end.ended_us),
            worker=end.worker if end.worker != "-" else None,
            progress=decoded_progress,
            error=end.error(),
            history=history,
            result=result,
            has_result=has_result,
        )
    score_us = int(score)
    attempt, started_us, worker, cancel_requested = 0, 0, None, False
    words = run.decode(errors="replace").split(" ", 9)
    if len(words) == _RUN_WORDS:
        attempt, enqueued_us, cancel_requested = (
            int(words[3]),
            int(words[6]),
            int(words[8]) % 2 == 1,
        )
        task = words[9]
        if place == b"running":
            worker, started_us, score_us = words[1], int(words[5]), int(words[4])
    ready_us = score_us if place == b"scheduled" else score_us + boost_us
    return JobView(
        id=job_id,
        task=task,
        lane=lanes[lane_index - 1],
        state=State(place.decode()),
        args=args,
        kwargs=kwargs,
        attempt=attempt,
        max_attempts=max_attempts,
        enqueued_at=_seconds(enqueued_us or ready_us),
        ready_at=_seconds(ready_us),
        started_at=_seconds(started_us),
        worker=worker,
        progress=decoded_progress,
        cancel_requested=cancel_requested,
        error=history[-1].error if history else None,
        history=history,
    )


def look(
    keys: Keys, ids: Sequence[str], *, lanes: Sequence[str], most: int = 0
) -> Call[list[JobView | None]]:
    """Read what is known of up to 100 jobs; None for an id that is unknown.

    Args:
        keys: the namespace.
        ids: the jobs.
        lanes: the lanes to look in; pass all that the namespace has.
        most: for lists: leave out arguments, result and progress over so many bytes, and cut
            errors and history that are over four times that; 0 leaves out nothing.
    """
    script = load("look")

    def read(reply: Reply) -> list[JobView | None]:
        return [_view(job_id, row, lanes) for job_id, row in zip(ids, reply[1:], strict=True)]

    return Call(
        script,
        script.bind_keys(keys, lanes),
        script.bind_args({"most": most}, job=[(i,) for i in ids]),
        read,
    )


def state_of(keys: Keys, job_id: str, *, lanes: Sequence[str]) -> Call[State]:
    """Read where a job is in its life, and nothing else of it.

    Raises (on reading):
        JobNotFound: no job of these lanes has this id, or its record has run out.
    """
    script = load("look")

    def read(reply: Reply) -> State:
        place, outcome = reply[1][0], reply[1][5]
        if place == b"unknown":
            raise JobNotFound(job_id)
        return State((outcome.split(b" ", 1)[0] if place == b"ended" else place).decode())

    return Call(
        script,
        script.bind_keys(keys, lanes),
        script.bind_args({"most": 1}, job=[(job_id,)]),
        read,
    )


@dataclass(frozen=True, slots=True)
class LaneBeside:
    """A lane at the moment at which a job's place was read.

    Attributes:
        head_score_us: of its first waiting job; None where none waits.
        slots, free: of the live workers that serve it; None while nobody counts them, since it
            has no reserve over the fleet.
        next_start_us: when its rate lets the next job start; None without a rate, or a start.
    """

    waiting: int
    running: int
    head_score_us: int | None
    slots: int | None = None
    free: int | None = None
    next_start_us: int | None = None


@dataclass(frozen=True, slots=True)
class JobPlace:
    """Where a job that is open stands. Instants in µs.

    Attributes:
        place: ``waiting``, ``scheduled``, ``running`` or ``none`` (it has ended, or is unknown).
        lane: its lane; empty for no place.
        ahead: jobs of the lane that come before it in that place.
        score_us: its place among them: when it became ready, or is due, less its boost.
        lease_ends_us: of one that runs.
        task: its task.
        task_most: the task's own `max_running`; None for none.
        task_running, task_parked: jobs of such a task.
        is_parked: whether it steps aside, scheduled, since its task is at that limit.
        parked_before: how many of these came before it; None where that is not known.
        lanes: by name, all lanes.
    """

    now_us: int
    place: str
    lane: str
    ahead: int
    score_us: int
    lease_ends_us: int | None
    task: str
    task_most: int | None
    task_running: int
    task_parked: int
    is_parked: bool
    parked_before: int | None
    lanes: Mapping[str, LaneBeside]


def why(keys: Keys, job_id: str, *, lanes: Sequence[str]) -> Call[JobPlace]:
    """Read where a job stands in its lane, and what stands beside it.

    Args:
        keys: the namespace.
        job_id: the job.
        lanes: all lanes of the namespace.

    Redis: why, one round trip, O(lanes + log N).
    """
    script = load("why")

    def read(reply: Reply) -> JobPlace:
        place, lane, ahead, score, ends, task = reply[2]
        most, running, parked, is_parked, before = reply[3]
        return JobPlace(
            now_us=int(reply[1]),
            place=place.decode(),
            lane=lanes[lane - 1] if lane else "",
            ahead=ahead,
            score_us=int(score),
            lease_ends_us=int(ends) if ends else None,
            task=task.decode(errors="replace"),
            task_most=most if most >= 0 else None,
            task_running=running,
            task_parked=parked,
            is_parked=is_parked == 1,
            parked_before=before if before >= 0 else None,
            lanes={name: _beside(row) for name, row in zip(lanes, reply[4:], strict=True)},
        )

    return Call(script, script.bind_keys(keys, lanes), script.bind_args({"id": job_id}), read)


def _beside(row: Reply) -> LaneBeside:
    waiting, running, *texts = row
    head, slots, free, next_start = (int(float(text)) if text else None for text in texts)
    return LaneBeside(waiting, running, head, slots, free, next_start)


@dataclass(frozen=True, slots=True)
class Page:
    """A page of ids and how many there are in all."""

    total: int
    ids: tuple[str, ...]


def page(
    keys: Keys, place: bytes, *, offset: int, limit: int, newest_first: bool = False
) -> Call[Page]:
    """List ids of one sorted set, in its order.

    Args:
        keys: the namespace.
        place: key of the set: ``waiting``, ``scheduled``, ``leases`` or ``dead`` of a lane,
            or ``ended`` of the namespace.
        offset: ids to leave out first.
        limit: most ids to return.
        newest_first: turn the order around.
    """
    script = load("list")

    def read(reply: Reply) -> Page:
        return Page(reply[1], tuple(reply[i].decode() for i in range(2, len(reply), 2)))

    return Call(
        script,
        script.bind_keys(keys, place=place),
        script.bind_args(
            {"from": offset, "upto": offset + limit - 1, "newest_first": int(newest_first)}
        ),
        read,
    )


# --- steering ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What a cancel did.

    Attributes:
        word: ``cancelled`` (it will never start), ``requested`` (it runs; its
            worker was told) or ``ended`` (too late).
        state: the final state, if it had ended.
    """

    word: str
    state: State | None = None


def cancel(keys: Keys, job_id: str, *, lanes: Sequence[str], keep_us: int) -> Call[Cancelled]:
    """Cancel a job.

    The record of one that never starts is kept for its ``result_ttl``, or `keep_us` where it
    names none.

    Raises (on reading):
        JobNotFound: no job has this id.
    """
    script = load("cancel")

    def read(reply: Reply) -> Cancelled:
        word = reply[0].decode()
        if word == "unknown":
            raise JobNotFound(job_id)
        return Cancelled(word, State(reply[1].decode()) if word == "ended" else None)

    return Call(
        script,
        script.bind_keys(keys, lanes),
        script.bind_args({"id": job_id, "keep": keep_us}),
        read,
    )


def revive(keys: Keys, ids: Sequence[str], *, lanes: Sequence[str]) -> Call[list[str]]:
    """Give up to 100 ended jobs a new life.

    The value has a word for each: ``revived``, ``no_body``, ``unknown`` or
    ``open`` (it has not ended).
    """
    script = load("revive")
    return Call(
        script,
        script.bind_keys(keys, lanes),
        script.bind_args(job=[(i,) for i in ids], lane=[(lane,) for lane in lanes]),
        lambda reply: [word.decode() for word in reply[1:]],
    )


def purge_dead(
    keys: Keys, *, lanes: Sequence[str], ids: Sequence[str] = (), limit: int = 500
) -> Call[int]:
    """Drop dead letters: those named, else up to `limit`; the value says how many."""
    script = load("purge_dead")
    return Call(
        script,
        script.bind_keys(keys, lanes),
        script.bind_args({"limit": limit}, job=[(i,) for i in ids]),
        lambda reply: int(reply[1]),
    )


def report_progress(keys: Keys, job_id: str, *, fence: int, value: bytes) -> Call[None]:
    """Note how far a running job is.

    Raises (on reading):
        LeaseLost: another attempt has the job, or none.
    """
    script = load("progress")

    def read(reply: Reply) -> None:
        if reply[0] == b"lost":
            raise LeaseLost(job_id)

    return Call(
        script,
        script.bind_keys(keys),
        script.bind_args({"id": job_id, "fence": fence, "value": value}),
        read,
    )


def job_json(view: JobView) -> dict[str, Any]:
    """Return a job as ``laneq jobs --json`` shows it; values JSON lacks become text."""
    out: dict[str, Any] = {}
    for name in (
        "id", "task", "lane", "state", "args", "kwargs", "attempt", "max_attempts",
        "enqueued_at", "ready_at", "started_at", "ended_at", "worker", "progress",
        "cancel_requested",
    ):  # fmt: skip
        out[name] = getattr(view, name)
    out["state"] = view.state.value
    out["error"] = error_json(view.error)
    out["history"] = [
        {
            "attempt": entry.attempt,
            "started_at": entry.started_at,
            "ended_at": entry.ended_at,
            "worker": entry.worker,
            "outcome": entry.outcome,
            "error": error_json(entry.error),
        }
        for entry in view.history
    ]
    out["result"] = view.result
    readable: dict[str, Any] = as_json(out)
    return readable


def as_json(value: Any) -> Any:
    """Return a value in JSON's types; what JSON lacks becomes text."""
    kind = type(value)
    if kind in {bool, int, str, type(None)} or (kind is float and math.isfinite(value)):
        return value
    if isinstance(value, Mapping):
        return {_as_name(name): as_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(item) for item in value]
    if kind is bytes:
        return value.decode("utf-8", "backslashreplace")
    return value.isoformat() if isinstance(value, date | time) else str(value)


def _as_name(name: Any) -> str:
    readable = as_json(name)
    return readable if type(readable) is str else str(readable)


def error_json(error: RemoteError | None) -> dict[str, str] | None:
    """Return an error as ``laneq jobs --json`` shows it."""
    if error is None:
        return None
    return {"type": error.type, "message": error.message, "traceback": error.traceback}
