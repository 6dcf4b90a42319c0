"""States, moves and views of jobs, lanes and workers: the words of the system.

This is the only module that holds the state words as literals; Lua, CLI,
metrics and docs use the same spelling (a test compares them).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

#: What a lane may be called; it becomes part of keys and of command lines.
LANE_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")

#: What a task may be called: up to 200 characters, none of them white space or
#: a control character. Tab and line feed end fields in a stored record.
TASK_NAME: Final = re.compile(r"[^\s\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,200}")


class State(StrEnum):
    """Where a job is in its life."""

    SCHEDULED = "scheduled"
    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def is_final(self) -> bool:
        """Whether a job in this state has ended."""
        return self in FINAL


FINAL: Final = frozenset({State.SUCCEEDED, State.DEAD, State.CANCELLED, State.EXPIRED})

#: Which states each state may change to. A final state changes only by an
#: operator's retry, which gives the id a new life as a waiting job.
TRANSITIONS: Final[dict[State, frozenset[State]]] = {
    State.SCHEDULED: frozenset({State.WAITING, State.CANCELLED}),
    State.WAITING: frozenset({State.RUNNING, State.CANCELLED, State.EXPIRED, State.DEAD}),
    State.RUNNING: frozenset(
        {State.SUCCEEDED, State.SCHEDULED, State.WAITING, State.DEAD, State.CANCELLED}
    ),
    State.SUCCEEDED: frozenset({State.WAITING}),
    State.DEAD: frozenset({State.WAITING}),
    State.CANCELLED: frozenset({State.WAITING}),
    State.EXPIRED: frozenset({State.WAITING}),
}

#: Event counts that every lane and every task has, in the order shown.
EVENTS: Final = (
    "enqueued",
    "started",
    "succeeded",
    "failed_attempts",
    "retried",
    "dead",
    "cancelled",
    "expired",
    "lost_leases",
    "handed_back",
    "stale",
    "deduplicated",
    "purged",
)

#: Counts that are kept beside EVENTS: attempts ended by a cancel, jobs whose body was
#: gone, dead letters dropped for number or age, starts while a higher lane waited, starts
#: of jobs that a lower lane had overtaken.
SIDE_EVENTS: Final = ("stopped", "missing", "dropped", "inverted", "overtaken")

#: started = the sum of these and of what is running, at any instant.
ATTEMPT_ENDS: Final = (
    "succeeded",
    "failed_attempts",
    "lost_leases",
    "handed_back",
    "stopped",
)

#: enqueued = the sum of these, at any instant (behaviour §7).
BALANCE: Final = (
    "waiting",
    "scheduled",
    "running",
    "succeeded",
    "dead",
    "cancelled",
    "expired",
    "purged",
)


@dataclass(frozen=True, slots=True)
class RemoteError:
    """An error that a job raised, as text.

    Attributes:
        type: class name.
        message: text of the error.
        traceback: traceback as text; empty where there is none.
    """

    type: str
    message: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of a job, for its history. Instants are seconds since the epoch."""

    attempt: int
    started_at: float | None
    ended_at: float | None
    worker: str | None
    outcome: str
    error: RemoteError | None = None


@dataclass(frozen=True, slots=True)
class JobView:
    """All that Redis knows of one job. Instants are seconds since the epoch.

    Attributes:
        state: where the job is now.
        attempt: the current or last attempt, counted from 1; 0 before the first.
        ready_at: when the job became, or becomes, ready to start.
        args, kwargs: the decoded arguments; None where the body is gone or unreadable.
        result: the decoded result; None unless `state` is ``succeeded``.
        has_result: whether a result was kept.
    """

    id: str
    task: str
    lane: str
    state: State
    args: tuple[Any, ...] | None
    kwargs: dict[str, Any] | None
    attempt: int
    max_attempts: int
    enqueued_at: float | None
    ready_at: float | None
    started_at: float | None = None
    ended_at: float | None = None
    worker: str | None = None
    progress: dict[str, Any] | None = None
    cancel_requested: bool = False
    error: RemoteError | None = None
    history: tuple[Attempt, ...] = ()
    result: Any = None
    has_result: bool = False


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Median and 99th percentile in milliseconds; None where nothing was measured."""

    p50: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class LaneView:
    """What an operator sees of a lane; field names as in ``laneq lanes --json``."""

    name: str
    priority: float
    depth: int
    scheduled: int
    running: int
    oldest_wait_s: float | None
    wait_ms: Percentiles
    run_ms: Percentiles
    latency_ms: Percentiles
    arrivals_per_s: float | None
    completions_per_s: float | None
    reserve: int | str
    reserve_recommended: int | None
    priority_adherence: float | None
    overtaken_share: float | None
    paused: bool
    dead: int
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class PoolView:
    """How a worker that sizes itself did so last.

    Attributes:
        min: fewest slots that it may have.
        max: most.
        lanes: those that its slots may take.
        wanted: slots that the fleet is to have for the lane that decides; None while none does.
        slots_before: what it had before the last step; None before the first.
        changed_at: when that was; seconds since the epoch, by Redis's clock.
        reason: why, with the figures; where no lane has an objective it says that.
    """

    min: int
    max: int
    lanes: tuple[str, ...]
    wanted: int | None
    slots_before: int | None
    changed_at: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A live worker process.

    Attributes:
        id: the incarnation, random per process start.
        name: the label given by its operator.
        slots: jobs that it can run at a time.
        reserve: lane → reserved slots of this worker.
        last_heartbeat_at: seconds since the epoch, by Redis's clock.
        unwell: why it does not work although it lives; empty where it does.
        stuck: jobs that did not end when they were told to; they run on beside the slots.
        pool: how it sizes itself; None where its slots are fixed.
    """

    id: str
    name: str
    host: str
    pid: int
    slots: int
    reserve: dict[str, int]
    running: int
    lanes: tuple[str, ...]
    tasks: tuple[str, ...]
    started_at: float | None
    last_heartbeat_at: float | None
    unwell: str = ""
    stuck: int = 0
    pool: PoolView | None = None
