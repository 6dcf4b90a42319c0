"""What one claim costs, as lanes and limits are added.

Claims as a worker makes them while there is work for all of its slots: each reports the
jobs of the one before as succeeded and brings as many new ones. Arrangements take turns in
short stretches of one run, so that what disturbs the machine disturbs them alike, and each
is set against two plain lanes of the same round.

All lanes are of one priority, with aging. Where all have work waiting, heads are compared in
all of them and jobs come from each in turn. A second worker holds a job of each of three
lanes, so that the reserves of the fleet are in force and met, whatever the slots of the
worker that is measured. Limits are so wide that none is reached.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

from laneq.bench.figures import Progress, combine
from laneq.bench.hand import Hand
from laneq.bench.rig import Meter, Rig, Space
from laneq.calls.workers import CLAIM_MAX, Claimed
from laneq.errors import BenchFailed, OptionError
from laneq.options import Lane

Row = dict[str, Any]

#: Where work waits: in every lane, or in one of them.
Waiting = Literal["all", "one"]
WAITING: Final[tuple[Waiting, ...]] = get_args(Waiting)

#: A claim with all of it is to cost so many times as much as with two plain lanes, at most.
ASKED_RATIO: Final = 2.0

_FEW: Final = 2
_MANY: Final = 20

#: Jobs that wait in a lane: at least these, and at least those of so many claims.
_DEPTH: Final = 1_000
_DEPTH_CLAIMS: Final = 20

#: Claims before each stretch that are not timed: caches are cold, and a look for lost jobs is
#: due that another arrangement's turn put off.
_WARM_UP: Final = 5

#: Jobs are held while others have their turn, and no lease is to end meanwhile.
_LEASE_S: Final = 3_600.0

_HELD_LANES: Final = 3

_DIGITS: Final = {
    "claim_us": 1,
    "ratio": 2,
    "redis_us": 1,
    "redis_ratio": 2,
    "commands": 1,
}


@dataclass(frozen=True, slots=True)
class Case:
    """One arrangement.

    Attributes:
        lanes: how many.
        has_limits: whether each has max_running, rate, max_depth and fair_by with weights, and
            two of them a reserve of the fleet.
        slots: of the worker: jobs that each claim ends and brings.
        waiting: where work waits.
    """

    lanes: int
    has_limits: bool
    slots: int
    waiting: Waiting

    def __str__(self) -> str:
        """Return it in words, for a progress line."""
        limits = " with limits" if self.has_limits else ""
        return f"{self.lanes} lanes{limits}, work in {self.waiting}, {self.slots} slots"

    @property
    def base(self) -> Case:
        """The one that it is set against."""
        return replace(self, lanes=_FEW, has_limits=False)

    def declared(self) -> list[Lane]:
        """Return its lanes."""
        lanes = [Lane(f"lane{i:02}", lease=_LEASE_S) for i in range(self.lanes)]
        if not self.has_limits:
            return lanes
        return [
            replace(
                lane,
                reserve=1 if 0 < i < _HELD_LANES else 0,
                max_running=100_000,
                rate="1000000/s",
                max_depth=1_000_000,
                fair_by="tenant",
                fair_weights={"a": 2.0, "b": 1.0, "c": 1.0, "d": 0.5},
            )
            for i, lane in enumerate(lanes)
        ]


def measure(
    rig: Rig,
    *,
    slots: Sequence[int] = (1, 10),
    waiting: Sequence[Waiting] = WAITING,
    claims: int = 500,
    runs: int = 5,
    progress: Progress,
) -> list[Row]:
    """Return a row for each arrangement.

    Args:
        rig: the server. Scripts that others run on it meanwhile are counted in.
        slots: jobs of a claim.
        waiting: where work waits.
        claims: how many are timed of each arrangement in a round.
        runs: rounds; the rows have medians and ranges over them.
        progress: told what goes on.

    Raises:
        OptionError: no claim can bring so many jobs.
        BenchFailed: a claim brought fewer jobs than there were slots for.
    """
    for n in slots:
        if n > CLAIM_MAX:
            raise OptionError("slots", f"can be {CLAIM_MAX} at most, as a claim brings no more")
    cases = [
        Case(lanes, has_limits, n, where)
        for where in waiting
        for n in slots
        for lanes, has_limits in ((_FEW, False), (_MANY, False), (_MANY, True))
    ]
    found: dict[Case, list[Row]] = {case: [] for case in cases}
    with ExitStack() as stack:
        stands = []
        for i, case in enumerate(cases):
            progress(f"{case}: enqueueing")
            space = stack.enter_context(rig.space(f"-{i}" if i else ""))
            stands.append(_Stand(rig, space, case))
        for run in range(1, runs + 1):
            for stand in stands if run % 2 else reversed(stands):
                progress(f"round {run} of {runs}: {stand.case}")
                found[stand.case].append(stand.run(claims))
        progress("clearing")
    return [_row(case, found[case], found[case.base]) | {"claims": claims} for case in cases]


def _row(case: Case, rows: Sequence[Row], base: Sequence[Row]) -> Row:
    beside = [
        row
        | {
            "ratio": row["claim_us"] / plain["claim_us"],
            "redis_ratio": row["redis_us"] / plain["redis_us"],
        }
        for row, plain in zip(rows, base, strict=True)
    ]
    return {
        "waiting": case.waiting,
        "slots": case.slots,
        "lanes": case.lanes,
        "limits": case.has_limits,
        "asked_ratio": ASKED_RATIO if case.has_limits else None,
    } | combine(beside, _DIGITS)


class _Stand:
    """An arrangement in a namespace of its own, and the worker that claims there."""

    def __init__(self, rig: Rig, space: Space, case: Case) -> None:
        """Make its lanes, and fill those that are to have work."""
        self.case = case
        self._rig = rig
        lanes = case.declared()
        names = [lane.name for lane in lanes]
        self._hand = Hand(space, lanes=lanes, serves=names)
        self._held: list[Claimed] = []
        neighbour = Hand(space, lanes=lanes, serves=names)
        kept = names[:_HELD_LANES]
        self._hand.enqueue_into(kept)
        self._check(neighbour.claim(len(kept)), len(kept))
        self._depth = max(_DEPTH, _DEPTH_CLAIMS * case.slots)
        filled = names if case.waiting == "all" else names[:1]
        self._hand.enqueue_into(name for _ in range(self._depth) for name in filled)

    def run(self, claims: int) -> Row:
        """Time so many claims, in stretches after which what was taken is enqueued anew."""
        took, done = 0.0, 0
        used: list[Meter] = []
        while done < claims:
            n = min(claims - done, self._depth // 2 // self.case.slots)
            brought = [self._claim() for _ in range(_WARM_UP)]
            before = self._rig.meter()
            start = time.perf_counter()
            brought += [self._claim() for _ in range(n)]
            took += time.perf_counter() - start
            used.append(self._rig.meter().since(before))
            done += n
            self._hand.enqueue_into(job.lane for jobs in brought for job in jobs)
        scripts = sum(meter.script_calls for meter in used)
        commands = sum(meter.commands - meter.calls["info"] for meter in used)
        return {
            "claim_us": took * 1e6 / claims,
            "redis_us": sum(meter.script_us for meter in used) / scripts,
            "commands": commands / scripts,
        }

    def _claim(self) -> list[Claimed]:
        self._held = self._hand.claim(self.case.slots, ended=self._held)
        self._check(self._held, self.case.slots)
        return self._held

    def _check(self, jobs: Sequence[Claimed], wanted: int) -> None:
        if len(jobs) != wanted:
            raise BenchFailed(
                f"{self.case}: a claim brought {len(jobs)} of {wanted} jobs: its cost cannot be "
                "compared. Does anything else use the benchmark's namespace?"
            )
