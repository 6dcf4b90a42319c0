"""The published scenario, measured: urgent jobs in front of 2,000 batch jobs.

Ten workers; batch jobs of 100 to 300 ms (uniform), all queued at the start; urgent
jobs of 20 ms that arrive evenly or at random; runs of 8 s. Four arrangements, each
with ten slots in all:

fifo
    one lane for both kinds of job; 10 slots.
strict
    two lanes, the urgent one always first; 10 slots that serve both.
dedicated
    2 slots that serve the urgent lane alone, 8 that serve the batch lane alone.
reserved
    2 slots reserved for the urgent lane, 8 shared ones.

Two more on request, each with ten shared slots and a reserve over the fleet (`Lane(reserve=…)`):

auto
    ``reserve="auto"``: sized by the workers from what they measure, so that at most 1 % of
    the urgent jobs wait longer than `Plan.slo_s`.
fixed N
    N slots, for comparison: `smallest_fixed` finds the least that holds the same target.

In these the urgent jobs come for `Plan.settle_s` before anything is measured, so that the reserve
has been sized; and the rate may step from one to another half-way (`Plan.has_step`).

"10 workers" is ten slots of one worker process, where an arrangement treats all alike,
else two worker processes of 2 and 8 slots (`split`). On request the reserved arrangement
is one process too (`one`), or each arrangement is ten processes of one slot (`ten`). The
jobs sleep without blocking, so ten of them do not need ten cores.

How it is measured: the workers are ready, then all batch jobs are enqueued in bulk. A
second later (`Plan.warm_up`), when the slots are at batch jobs and no longer in step, a
process of its own begins to submit urgent ones. A job writes down when it was submitted
(before the enqueue call, by the producer), when it started and when it ended, all on
the monotonic clock of this host. What ended within so many seconds from the first
arrival counts as done, urgent and batch alike.

The published simulation begins both kinds at once: all slots then start a batch job at
the same moment, none ends for 100 ms, and the urgent jobs of that time wait; at 150/s they
are over 1 % of all, so they are the p99. With a warm-up of 0 the same is measured here.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from laneq.bench import jobs
from laneq.bench.crew import Crew
from laneq.bench.figures import combine, percentile
from laneq.bench.rig import Rig, Space
from laneq.calls.lanes import read_lanes
from laneq.errors import OptionError
from laneq.worker.sizer import SHARE

Row = dict[str, Any]
Arrivals = Literal["even", "poisson"]
Layout = Literal["split", "one", "ten"]

#: Figures of the published scenario: urgent jobs per second → arrangement → (p50 ms,
#: p99 ms, batch jobs per second).
PUBLISHED: Final[Mapping[int, Mapping[str, tuple[float | None, float | None, float]]]] = {
    30: {
        "fifo": (None, None, 52.6),
        "strict": (32.4, 104.0, 48.1),
        "dedicated": (20.2, 21.4, 41.5),
        "reserved": (20.2, 21.4, 41.2),
    },
    150: {
        "fifo": (None, None, 53.6),
        "strict": (24.4, 129.5, 37.4),
        "dedicated": (1487.0, 2924.0, 42.5),
        "reserved": (22.5, 54.0, 35.4),
    },
}

#: Urgent jobs done, of those that arrived in 8 s, where the published figure is not all.
PUBLISHED_DONE: Final[Mapping[tuple[int, str], int]] = {
    (30, "fifo"): 0,
    (150, "fifo"): 0,
    (150, "dedicated"): 832,
}

URGENT_S: Final = 0.02
BATCH_S: Final = (0.1, 0.3)

_LEAD_NS: Final = 10_000_000
_SLOTS: Final = 10
_LEAST_BATCH: Final = 2_000
_LOOK_S: Final = 0.1
_LATE_US: Final = 2_000

#: Seconds between two looks at the reserve in force.
_RESERVE_LOOK_S: Final = 0.25

#: Seconds that a fixed reserve settles: it is in force from the first claim on.
_FIXED_SETTLE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How the ten slots are laid out.

    Attributes:
        name: as in the rows.
        workers: slots and options of each worker process.
        urgent_lane: the lane that urgent jobs go to.
        together: options of one process of ten slots that does the same; empty where none does.
        reserve: of the urgent lane over the fleet; None where the arrangement has none to speak of.
    """

    name: str
    workers: tuple[tuple[int, tuple[str, ...]], ...]
    urgent_lane: str = "urgent"
    together: tuple[str, ...] = ()
    reserve: int | Literal["auto"] | None = None

    def commands(self, layout: Layout) -> list[tuple[str, ...]]:
        """Return the options of each ``laneq worker``."""
        if layout == "ten":
            return [("-c", "1", *options) for slots, options in self.workers for _ in range(slots)]
        if layout == "one" and self.together:
            return [("-c", "10", *self.together)]
        return [("-c", str(slots), *options) for slots, options in self.workers]


ARRANGEMENTS: Final = {
    arrangement.name: arrangement
    for arrangement in (
        Arrangement("fifo", ((10, ("--lanes", "batch")),), urgent_lane="batch"),
        Arrangement("strict", ((10, ("--lanes", "urgent,batch")),)),
        Arrangement("dedicated", ((2, ("--lanes", "urgent")), (8, ("--lanes", "batch")))),
        Arrangement(
            "reserved",
            (
                (2, ("--lanes", "urgent,batch", "--reserve", "urgent")),
                (8, ("--lanes", "urgent,batch")),
            ),
            together=("--lanes", "urgent,batch", "--reserve", "urgent=2"),
        ),
    )
}

_BOTH: Final = ("--lanes", "urgent,batch")


def over_the_fleet(reserve: int | Literal["auto"]) -> Arrangement:
    """Return the arrangement of ten shared slots with a reserve over the fleet."""
    return Arrangement(
        name="auto" if reserve == "auto" else f"fixed {reserve}",
        workers=((2, _BOTH), (8, _BOTH)),
        together=_BOTH,
        reserve=reserve,
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure.

    Attributes:
        arrivals: of urgent jobs: evenly, or at random (Poisson).
        seconds: length of a run.
        warm_up: seconds that the workers have been at the batch jobs when urgent ones begin.
        rates: urgent jobs per second.
        only: names of arrangements; ``fixed`` stands for one of each of `reserves`.
        batch: batch jobs queued at the start; None for 2,000, or as many as a long run needs.
        runs: how often each is measured; a row has medians and ranges.
        workers: how the slots are spread over processes: as the arrangement says, in one
            process where that can be, or in ten of one slot.
        seed: of arrivals and batch jobs; run n adds n.
        slo_s: wait in seconds that at most 1 % of the urgent jobs may exceed; of ``auto`` the
            lane's `slo`.
        settle_s: seconds that ``auto`` sizes itself, urgent jobs coming, before it is measured.
        reserves: of ``fixed``, in slots; None for 1, 2, 3 … up to the first that holds `slo_s`.
        has_step: one run whose rate goes from the first of `rates` to the second half-way; of
            ``auto`` and ``fixed`` alone.
    """

    arrivals: Arrivals = "even"
    seconds: float = 8.0
    warm_up: float = 1.0
    rates: Sequence[float] = (30, 150)
    only: Sequence[str] = tuple(ARRANGEMENTS)
    batch: int | None = None
    runs: int = 1
    workers: Layout = "split"
    seed: int = 1
    slo_s: float = 0.05
    settle_s: float = 20.0
    reserves: Sequence[int] | None = None
    has_step: bool = False

    def __post_init__(self) -> None:
        """Check what a command line may have got wrong."""
        for name in self.only:
            if name not in NAMES:
                raise OptionError("only", f"no arrangement {name!r}. There are {', '.join(NAMES)}.")
        for reserve in self.reserves or ():
            if not 0 <= reserve < _SLOTS:
                raise OptionError(
                    "reserve",
                    f"{reserve} of ten slots cannot be kept: one stays open to others. "
                    f"Give 0 to {_SLOTS - 1}.",
                )
        if self.has_step and (len(self.rates) != 2 or not set(self.only) <= set(SIZED)):  # noqa: PLR2004
            raise OptionError(
                "step",
                "goes from one rate to another, with a reserve over the fleet. Give two of --rates "
                "and --only auto, fixed or both.",
            )

    @property
    def cases(self) -> list[Case]:
        """Every arrangement at every rate, in the order in which they are measured."""
        rates = [tuple(self.rates)] if self.has_step else [(rate,) for rate in self.rates]
        return [
            Case(arrangement, rate, name)
            for rate in rates
            for name in self.only
            for arrangement in self._arrangements(name)
        ]

    def _arrangements(self, name: str) -> list[Arrangement]:
        if name == "auto":
            return [over_the_fleet("auto")]
        if name != "fixed":
            return [ARRANGEMENTS[name]]
        wanted = range(1, _SLOTS) if self.reserves is None else sorted(self.reserves)
        return [over_the_fleet(reserve) for reserve in wanted]

    def settle_of(self, arrangement: Arrangement) -> float:
        """Return the seconds that urgent jobs come before anything is measured."""
        if arrangement.reserve is None:
            return 0.0
        return (
            self.settle_s if arrangement.reserve == "auto" else min(self.settle_s, _FIXED_SETTLE_S)
        )

    def backlog_of(self, arrangement: Arrangement) -> int:
        """Return the batch jobs that are queued at the start."""
        if self.batch is not None:
            return self.batch
        seconds = self.warm_up + self.settle_of(arrangement) + self.seconds
        mean_s = sum(BATCH_S) / 2
        return max(_LEAST_BATCH, math.ceil(1.2 * _SLOTS * seconds / mean_s))


#: Arrangements with a reserve over the fleet.
SIZED: Final = ("auto", "fixed")

#: All names that a plan takes.
NAMES: Final = (*ARRANGEMENTS, *SIZED)


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table.

    Attributes:
        arrangement: of the slots.
        rates: urgent jobs per second; two where the second follows half-way.
        name: as the plan's `only` has it.
    """

    arrangement: Arrangement
    rates: tuple[float, ...]
    name: str

    @property
    def rate(self) -> float:
        """The rate at the end."""
        return self.rates[-1]


@dataclass(slots=True)
class State:
    """How far the run of one case is, for a live table.

    Attributes:
        row: the figures so far, or those of all runs at the end.
        run: which run it is, counted from 1.
        share: how much of it is over, 0 to 1.
        is_final: whether `row` is the result.
        notes: what a reader must know about the figures.
        ahead: cases that may still come, in order.
    """

    row: Row
    run: int = 1
    share: float = 0.0
    is_final: bool = False
    notes: list[str] = field(default_factory=list)
    ahead: Sequence[Case] = ()


_DIGITS: Final = {
    "urgent_sent": 0,
    "urgent_done": 0,
    "p50_ms": 1,
    "p99_ms": 1,
    "batch_per_s": 1,
    "wait_p99_ms": 1,
    "run_p50_ms": 2,
}


_SIZED_DIGITS: Final = {"late_share": 5, "reserve_min": 0, "reserve_max": 0}


def measure(rig: Rig, plan: Plan) -> Iterator[State]:
    """Measure each case and yield its state several times a second, at last the result.

    Where the plan names no fixed reserves, those after the first that holds are left out.
    """
    ahead = plan.cases
    while ahead:
        case, ahead = ahead[0], ahead[1:]
        state = State({})
        for state in _measure_case(rig, plan, case):
            yield replace(state, ahead=ahead) if not state.is_final else state
        if case.name == "fixed" and plan.reserves is None and state.row["holds"]:
            ahead = [one for one in ahead if (one.name, one.rates) != ("fixed", case.rates)]


def _measure_case(rig: Rig, plan: Plan, case: Case) -> Iterator[State]:
    arrangement, rate = case.arrangement, case.rate
    is_sized = arrangement.reserve is not None
    fixed = {
        "arrangement": arrangement.name,
        "urgent_per_s": rate,
        "arrivals": plan.arrivals,
    }
    told = published(plan, arrangement, rate)
    found: list[Row] = []
    notes: list[str] = []
    step: Row = {}
    for run in range(1, plan.runs + 1):
        one = _Run(plan, case, seed=plan.seed + run - 1)
        for share in one.carry_out(rig):
            yield State(fixed | one.figures() | told, run, share)
        found.append(one.figures())
        notes += one.notes
        if plan.has_step:
            step = {"step": one.step()}
    row: Row = fixed | combine(found, _DIGITS | (_SIZED_DIGITS if is_sized else {}))
    if is_sized:
        late = row["late_share"]
        row |= {
            "slo_ms": round(plan.slo_s * 1e3, 3),
            "settle_s": plan.settle_of(arrangement),
            "holds": late is not None and late <= SHARE,
        }
    row |= {"seconds": plan.seconds} | step | told
    yield State(row, plan.runs, 1.0, is_final=True, notes=notes)


def smallest_fixed(rows: Sequence[Row], row: Row) -> Row | None:
    """Return the row of the smallest fixed reserve measured that holds the target at its rate."""
    return min(
        (
            one
            for one in rows
            if one["arrangement"].startswith("fixed ")
            and one["urgent_per_s"] == row["urgent_per_s"]
            and one["holds"]
        ),
        key=lambda one: int(one["arrangement"].removeprefix("fixed ")),
        default=None,
    )


def published(plan: Plan, arrangement: Arrangement, rate: float) -> Row:
    """Return the figures that were published for a case, under the key of a row."""
    found = PUBLISHED.get(int(rate), {}).get(arrangement.name) if rate == int(rate) else None
    if found is None or plan.arrivals != "even":
        return {"published": None}
    return {"published": dict(zip(("p50_ms", "p99_ms", "batch_per_s"), found, strict=True))}


def arrivals_ns(kind: Arrivals, rate: float, seconds: float, *, seed: int) -> list[int]:
    """Return when urgent jobs arrive, in ns from the start of a run."""
    if kind == "even":
        return [int(i / rate * 1e9) for i in range(round(seconds * rate))]
    draw = random.Random(seed)
    found = []
    at = draw.expovariate(rate)
    while at < seconds:
        found.append(int(at * 1e9))
        at += draw.expovariate(rate)
    return found


class _Run:
    """One run of one case."""

    def __init__(self, plan: Plan, case: Case, *, seed: int) -> None:
        self._plan = plan
        self._arrangement = case.arrangement
        self._rates = case.rates
        self._settle_ns = int(plan.settle_of(case.arrangement) * 1e9)
        # From the first arrival on; what is measured begins `_settle_ns` later.
        self._after_ns = self._arrivals(plan.arrivals, seed)
        draw = random.Random(seed)
        self._batch_s = [draw.uniform(*BATCH_S) for _ in range(plan.backlog_of(case.arrangement))]
        self._length_ns = int(plan.seconds * 1e9)
        self._from_ns = 0
        self._now_ns = 0
        self._urgent: list[_Urgent] = []
        self._batch_done = 0
        self._reserves: list[tuple[int, int]] = []
        self.notes: list[str] = []

    def _arrivals(self, kind: Arrivals, seed: int) -> list[int]:
        settle_s, seconds = self._settle_ns / 1e9, self._plan.seconds
        if len(self._rates) == 1:
            return arrivals_ns(kind, self._rates[0], settle_s + seconds, seed=seed)
        step_s = settle_s + seconds / 2
        before = arrivals_ns(kind, self._rates[0], step_s, seed=seed)
        after = arrivals_ns(kind, self._rates[1], seconds / 2, seed=seed + 1)
        return [*before, *(int(step_s * 1e9) + at for at in after)]

    def _lanes(self) -> dict[str, str]:
        reserve = self._arrangement.reserve
        if reserve is None:
            return {}
        urgent = {"reserve": reserve, "slo": self._plan.slo_s}
        return {jobs.URGENT_LANE: json.dumps(urgent)}

    def carry_out(self, rig: Rig) -> Iterator[float]:
        """Do it; yield now and then which share of it is over."""
        plan = self._plan
        lanes = self._lanes()
        with rig.space() as space, Crew(space) as crew:
            workers = [
                crew.start_worker(*options, "--grace", "1", **lanes)
                for options in self._arrangement.commands(plan.workers)
            ]
            producer = crew.start(
                ["-m", "laneq.bench.producer", "bench.urgent",
                 self._arrangement.urgent_lane, str(URGENT_S)],
                what="producer",
                **lanes,
            )  # fmt: skip
            for child in (*workers, producer):
                child.wait_ready()
            with jobs.build(url=space.url, namespace=space.namespace, environment=lanes) as app:
                work = app.tasks["bench.work"]
                batch = [work.call(seconds) for seconds in self._batch_s]
                from_ns = time.monotonic_ns()
                app.enqueue_many(batch)
            from_ns += int(plan.warm_up * 1e9)
            from_ns = max(from_ns, time.monotonic_ns() + _LEAD_NS)
            producer.tell(json.dumps({"start_ns": from_ns, "after_ns": self._after_ns}))
            self._from_ns = from_ns + self._settle_ns
            end_ns = self._from_ns + self._length_ns
            while (left_ns := end_ns - time.monotonic_ns()) > 0:
                time.sleep(min(left_ns / 1e9, _LOOK_S))
                crew.check()
                self._take_in(crew)
                self._look_at_reserve(space)
                yield max(1 - left_ns / (self._length_ns + self._settle_ns), 0.0)
            self._take_in(crew)
            producer.wait()
            self._look_at(producer.tail)

    def _take_in(self, crew: Crew) -> None:
        last_ns = self._from_ns + self._length_ns
        for kind, submitted_ns, start_ns, end_ns in crew.book.read_new():
            if not self._from_ns <= end_ns <= last_ns:
                continue
            if kind == jobs.WORK:
                self._batch_done += 1
            elif kind == jobs.URGENT and submitted_ns >= self._from_ns:
                self._urgent.append(_Urgent(submitted_ns, start_ns, end_ns))
        self._now_ns = time.monotonic_ns()

    def _look_at_reserve(self, space: Space) -> None:
        if self._arrangement.reserve is None:
            return
        last_ns = self._reserves[-1][0] if self._reserves else 0
        if self._now_ns - last_ns >= _RESERVE_LOOK_S * 1e9:
            reserve = space.driver.call(read_lanes(space.keys)).lane("urgent").reserve_slots
            self._reserves.append((self._now_ns, reserve))

    def _look_at(self, told: str) -> None:
        words = told.split()
        if "late_us" in words and int(words[words.index("late_us") + 1]) > _LATE_US:
            self.notes.append(
                f"{self._arrangement.name}: the producer was up to "
                f"{int(words[-1]) / 1e3:.1f} ms late (p99): this machine was busy"
            )

    def figures(self) -> Row:
        """Return the figures so far."""
        since_ns = min(max(self._now_ns - self._from_ns, 0), self._length_ns)
        until_ns = self._settle_ns + since_ns
        latencies = [(one.end_ns - one.submitted_ns) / 1e6 for one in self._urgent]
        row: Row = {
            "urgent_sent": sum(self._settle_ns <= after < until_ns for after in self._after_ns),
            "urgent_done": len(self._urgent),
            "p50_ms": percentile(latencies, 0.5),
            "p99_ms": percentile(latencies, 0.99),
            "batch_per_s": self._batch_done / (since_ns / 1e9) if since_ns else 0.0,
            "wait_p99_ms": percentile([one.wait_ns / 1e6 for one in self._urgent], 0.99),
            "run_p50_ms": percentile(
                [(one.end_ns - one.start_ns) / 1e6 for one in self._urgent], 0.5
            ),
        }
        if self._arrangement.reserve is not None:
            seen = [slots for at_ns, slots in self._reserves if at_ns >= self._from_ns]
            row |= {
                "late_share": self._late_share(since_ns),
                "reserve_min": min(seen, default=None),
                "reserve_max": max(seen, default=None),
            }
        return row

    def _late_share(self, since_ns: int) -> float | None:
        """Return the share of the jobs that waited longer than the target, or wait that long."""
        slo_ns = int(self._plan.slo_s * 1e9)
        # Jobs that must have ended, had they not been late.
        old_ns = since_ns - slo_ns - int(2 * URGENT_S * 1e9)
        due = sum(0 <= after - self._settle_ns < old_ns for after in self._after_ns)
        ended = sum(one.submitted_ns - self._from_ns < old_ns for one in self._urgent)
        late = sum(one.wait_ns > slo_ns for one in self._urgent) + max(due - ended, 0)
        return late / (len(self._urgent) + max(due - ended, 0)) if due else None

    def step(self) -> Row:
        """Return how the step of the rate was followed."""
        step_ns = self._from_ns + self._length_ns // 2
        return {
            "from_per_s": self._rates[0],
            "to_per_s": self._rates[-1],
            **followed([((at_ns - step_ns) / 1e9, slots) for at_ns, slots in self._reserves]),
            "seconds": [self._second(step_ns, second) for second in self._seconds()],
        }

    def _seconds(self) -> range:
        half_s = self._plan.seconds / 2
        return range(-math.floor(half_s), math.ceil(half_s))

    def _second(self, step_ns: int, second: int) -> Row:
        first_ns, slo_ns = step_ns + second * 1_000_000_000, self._plan.slo_s * 1e9
        last_ns = first_ns + 1_000_000_000
        waits = [one.wait_ns for one in self._urgent if first_ns <= one.submitted_ns < last_ns]
        reserves = [slots for at_ns, slots in self._reserves if at_ns < last_ns]
        return {
            "second": second,
            "done": len(waits),
            "late": sum(wait > slo_ns for wait in waits),
            "longest_wait_ms": round(max(waits) / 1e6, 1) if waits else None,
            "reserve": reserves[-1] if reserves else None,
        }


@dataclass(frozen=True, slots=True)
class _Urgent:
    """An urgent job that has ended."""

    submitted_ns: int
    start_ns: int
    end_ns: int

    @property
    def wait_ns(self) -> int:
        """From before the enqueue call to the first line."""
        return self.start_ns - self.submitted_ns


def followed(seen: Sequence[tuple[float, int]]) -> Row:
    """Return how soon a reserve was as large as it is at the end.

    Args:
        seen: seconds after the step (below 0 before it) and slots, in order.

    Returns:
        ``reserve_before`` the step, ``reserve_after`` at the end, and ``followed_s``: seconds
        after the step at which it was first seen as large, 0 where it was before; None where
        nothing was seen.
    """
    before = [slots for at, slots in seen if at < 0]
    last = seen[-1][1] if seen else None
    after = [at for at, slots in seen if last is not None and at >= 0 and slots >= last]
    is_there = bool(before) and last is not None and before[-1] >= last
    return {
        "reserve_before": before[-1] if before else None,
        "reserve_after": last,
        "followed_s": 0.0 if is_there else round(after[0], 2) if after else None,
    }
