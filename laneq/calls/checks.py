"""Checks: read the books and slices of what a namespace has, and put right what is wrong with it.

Which calls make a check, and what must hold, is in `laneq.check`. Indexes of lanes hold for one
version of them: each call but `lives` has the value None where the lanes have changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from laneq.calls.call import Call
from laneq.calls.lanes import LanesInForce
from laneq.keys import Keys
from laneq.scripts import load

Reply = list[Any]

#: Entries that one slice looks at, at most; fewer where there are many lanes.
SLICE: Final = 200

#: Jobs that one call mends, at most.
MEND: Final = 50

#: A slice is to cost no more than with this many lanes and `SLICE` entries.
_LANES: Final = 6

#: What one worker has: slots, free ones, the lanes that it serves; see lua/lib/fleet.lua.
_LINE: Final = re.compile(r"(\d+) (\d+) (\S+)")

#: The sets and hashes whose sizes `books` tells, in its order.
_SIZED: Final = (
    "jobs", "runs", "outcomes", "history", "progress", "ended", "watchers", "workers", "beats",
)  # fmt: skip


class Problem(NamedTuple):
    """A broken invariant.

    Attributes:
        kind: one of `laneq.check.KINDS`.
        id: the job or worker, empty where it is of none.
        lane: the lane, or the task for what is counted per task; empty where it is of none.
        detail: what is wrong, in words.
    """

    kind: str
    id: str
    lane: str
    detail: str


class Repair(NamedTuple):
    """What a repair did.

    Attributes:
        kind, id, lane: of the problem that was there.
        did: what was done, in words.
    """

    kind: str
    id: str
    lane: str
    did: str


@dataclass(frozen=True, slots=True)
class LaneBooks:
    """What one lane has and counts, at the instant of `Books`.

    Attributes:
        first_due_us: when its first scheduled job is due; None without one.
        wake: wake-up tokens.
        rates: notes of its counts.
    """

    waiting: int
    scheduled: int
    running: int
    dead_letters: int
    first_due_us: int | None
    wake: int
    rates: int
    counts: Mapping[str, int]

    @property
    def present(self) -> dict[str, int]:
        """Return the open jobs by state."""
        return {"waiting": self.waiting, "scheduled": self.scheduled, "running": self.running}


class FleetSums(NamedTuple):
    """What the workers of a lane with a reserve have, as it is kept and as their lines add up."""

    slots: int
    free: int
    slots_of_lines: int
    free_of_lines: int


@dataclass(frozen=True, slots=True)
class Books:
    """Every count and size of a namespace at one instant.

    Attributes:
        next_due_us, watched_us: the hints; None for none.
        watched_until_us: when the last watcher's time is over; 0 without one.
        unknown_overrides: lanes that have overrides and no declaration.
        sizes: entries of each hash and sorted set of the namespace.
        tasks: task → its event counts.
        fleet: lane with a reserve over the fleet → its sums.
        lanes: lane → what it has.
    """

    now_us: int
    next_due_us: int | None
    watched_us: int | None
    watched_until_us: int
    unknown_overrides: tuple[str, ...]
    sizes: Mapping[str, int]
    tasks: Mapping[str, Mapping[str, int]]
    fleet: Mapping[str, FleetSums]
    lanes: Mapping[str, LaneBooks]

    @property
    def entries(self) -> int:
        """Return how many entries a walk has before it."""
        of_lanes = (
            lane.waiting + lane.scheduled + lane.running + lane.dead_letters
            for lane in self.lanes.values()
        )
        return sum(self.sizes.values()) + sum(of_lanes)


def names_of(lanes: LanesInForce) -> tuple[str, ...]:
    """Return all lanes of a namespace, also where those in force are lost."""
    return lanes.names + tuple(sorted(set(lanes.declared) - set(lanes.names)))


def _words(texts: Sequence[bytes]) -> list[str]:
    return [text.decode(errors="backslashreplace") for text in texts]


def _counts(flat: Sequence[Any]) -> dict[str, int]:
    names = _words(flat[0::2])
    return dict(zip(names, (int(n) for n in flat[1::2]), strict=True))


def _threes(flat: Sequence[Any]) -> list[tuple[str, str, Any]]:
    last = (n if isinstance(n, int) else _words([n])[0] for n in flat[2::3])
    return list(zip(_words(flat[0::3]), _words(flat[1::3]), last, strict=True))


def _rows(flat: Sequence[bytes]) -> list[tuple[str, str, str, str]]:
    words = iter(_words(flat))
    return list(zip(words, words, words, words, strict=True))


def _fleet_sums(flat: Sequence[bytes], reserved: Sequence[str]) -> dict[str, FleetSums]:
    fields = dict(zip(_words(flat[0::2]), _words(flat[1::2]), strict=True))
    lines = [_LINE.fullmatch(text) for name, text in fields.items() if name.startswith("worker:")]
    out = {}
    for lane in reserved:
        serving = [line for line in lines if line and f",{lane}," in line[3]]
        out[lane] = FleetSums(
            int(fields.get(f"slots:{lane}", 0)),
            int(fields.get(f"free:{lane}", 0)),
            sum(int(line[1]) for line in serving),
            sum(int(line[2]) for line in serving),
        )
    return out


def books(keys: Keys, lanes: LanesInForce) -> Call[Books | None]:
    """Read every count and size at one instant."""
    script = load("books")
    names = names_of(lanes)

    def read(reply: Reply) -> Books | None:
        if reply[0] == b"config":
            return None
        tasks: dict[str, dict[str, int]] = {}
        for field, n in _counts(reply[7]).items():
            task, _, event = field.rpartition("\t")
            tasks.setdefault(task, {})[event] = n
        return Books(
            now_us=int(reply[1]),
            next_due_us=int(reply[2]) if reply[2] else None,
            watched_us=int(reply[3]) if reply[3] else None,
            watched_until_us=int(reply[4]),
            unknown_overrides=tuple(_words(reply[5])),
            sizes=dict(zip(_SIZED, reply[6], strict=True)),
            tasks=tasks,
            fleet=_fleet_sums(
                reply[8],
                [
                    lane.name
                    for lane in lanes.lanes
                    if lane.reserve_slots > 0 and not lane.is_paused
                ],
            ),
            lanes={
                name: LaneBooks(
                    waiting=row[0],
                    scheduled=row[1],
                    running=row[2],
                    dead_letters=row[3],
                    first_due_us=int(row[4]) if row[4] else None,
                    wake=row[5],
                    rates=row[6],
                    counts=_counts(row[7]),
                )
                for name, row in zip(names, reply[9:], strict=True)
            },
        )

    return Call(
        script, script.bind_keys(keys, names), script.bind_args({"version": lanes.version}), read
    )


class Place(NamedTuple):
    """Where a walk is: which source, see lua/check.lua, and the cursor in it. Source 0: over."""

    source: int
    cursor: bytes


#: Where a walk begins.
START: Final = Place(1, b"0")


@dataclass(frozen=True, slots=True)
class Slice:
    """What one slice of a walk brought.

    Attributes:
        next: where to go on.
        seen: entries looked at.
        problems: what is broken.
        open: task, state and number of open jobs seen.
        wanted: task, state and id of those of the tasks that were asked for.
    """

    next: Place
    seen: int
    problems: list[Problem]
    open: list[tuple[str, str, int]]
    wanted: list[tuple[str, str, str]]


_STATES: Final = {"waiting": "waiting", "scheduled": "scheduled", "leases": "running"}


def check(
    keys: Keys, lanes: LanesInForce, place: Place, *, wanted: Sequence[str] = ()
) -> Call[Slice | None]:
    """Judge the next slice of a walk.

    Args:
        keys: the namespace.
        lanes: its lanes.
        place: `START`, then what the slice before says.
        wanted: tasks whose open jobs are to be named.
    """
    script = load("check")
    names = names_of(lanes)

    def read(reply: Reply) -> Slice | None:
        if reply[0] == b"config":
            return None
        return Slice(
            next=Place(reply[1], reply[2]),
            seen=reply[3],
            problems=[Problem(*row) for row in _rows(reply[4])],
            open=[(task, _STATES[word], int(n)) for task, word, n in _threes(reply[5])],
            wanted=[(task, _STATES[word], job_id) for task, word, job_id in _threes(reply[6])],
        )

    most = SLICE if len(names) <= _LANES else max(20, SLICE * _LANES // len(names))
    return Call(
        script,
        script.bind_keys(keys, names),
        script.bind_args(
            {
                "version": lanes.version,
                "source": place.source,
                "cursor": place.cursor,
                "most": most,
            },
            wanted=[(task,) for task in wanted],
        ),
        read,
    )


@dataclass(frozen=True, slots=True)
class Life:
    """A key as Redis knows it: its type (``none`` when it is gone), and ms to live, -1 for ever."""

    type: str
    ttl_ms: int


def lives(keys: Sequence[bytes]) -> Call[list[Life]]:
    """Read the type and the time to live of up to 1,000 keys of one namespace."""
    script = load("lives")

    def read(reply: Reply) -> list[Life]:
        return [
            Life(kind.decode(), ttl) for kind, ttl in zip(reply[1::2], reply[2::2], strict=True)
        ]

    return Call(script, tuple(keys), (), read)


@dataclass(frozen=True, slots=True)
class Mended:
    """What a mend did, and what it found and had to leave."""

    done: list[Repair]
    left: list[Problem]


def mend(keys: Keys, lanes: LanesInForce, ids: Sequence[str]) -> Call[Mended | None]:
    """Judge up to `MEND` jobs again, and put right what is wrong with them."""
    script = load("mend")

    def read(reply: Reply) -> Mended | None:
        if reply[0] == b"config":
            return None
        return Mended(
            [Repair(*row) for row in _rows(reply[1])], [Problem(*row) for row in _rows(reply[2])]
        )

    return Call(
        script,
        script.bind_keys(keys, names_of(lanes)),
        script.bind_args({"version": lanes.version}, job=[(job_id,) for job_id in ids]),
        read,
    )


@dataclass(frozen=True, slots=True)
class Tidied:
    """What tidying did; `is_more` when there may be more leases that have run out."""

    is_more: bool
    done: list[Repair]


def tidy(
    keys: Keys, lanes: LanesInForce, *, workers: Sequence[str] = (), watchers: Sequence[str] = ()
) -> Call[Tidied | None]:
    """Put right what is wrong beside the jobs: hints, tokens, workers, watchers, run-out leases."""
    script = load("tidy")

    def read(reply: Reply) -> Tidied | None:
        if reply[0] == b"config":
            return None
        return Tidied(reply[1] == 1, [Repair(*row) for row in _rows(reply[2])])

    return Call(
        script,
        script.bind_keys(keys, names_of(lanes)),
        script.bind_args(
            {"version": lanes.version},
            worker=[(worker,) for worker in workers],
            watcher=[(job_id,) for job_id in watchers],
        ),
        read,
    )
