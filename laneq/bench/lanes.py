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
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from laneq.bench import jobs
from laneq.bench.crew import Crew
from laneq.bench.figures import combine, percentile
from laneq.bench.rig import Rig
from laneq.errors import OptionError

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
_LOOK_S: Final = 0.1
_LATE_US: Final = 2_000


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How the ten slots are laid out.

    Attributes:
        name: as in the rows.
        workers: slots and options of each worker process.
        urgent_lane: the lane that urgent jobs go to.
        together: options of one process of ten slots that does the same; empty where none does.
    """

    name: str
    workers: tuple[tuple[int, tuple[str, ...]], ...]
    urgent_lane: str = "urgent"
    together: tuple[str, ...] = ()

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


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure.

    Attributes:
        arrivals: of urgent jobs: evenly, or at random (Poisson).
        seconds: length of a run.
        warm_up: seconds that the workers have been at the batch jobs when urgent ones begin.
        rates: urgent jobs per second.
        only: names of arrangements.
        batch: batch jobs queued at the start.
        runs: how often each is measured; a row has medians and ranges.
        workers: how the slots are spread over processes: as the arrangement says, in one
            process where that can be, or in ten of one slot.
        seed: of arrivals and batch jobs; run n adds n.
    """

    arrivals: Arrivals = "even"
    seconds: float = 8.0
    warm_up: float = 1.0
    rates: Sequence[float] = (30, 150)
    only: Sequence[str] = tuple(ARRANGEMENTS)
    batch: int = 2_000
    runs: int = 1
    workers: Layout = "split"
    seed: int = 1

    def __post_init__(self) -> None:
        """Check what a command line may have got wrong."""
        for name in self.only:
            if name == "auto":
                raise OptionError(
                    "only",
                    "auto is the arrangement in which the reserve sizes itself, and this laneq "
                    f"has fixed reserves alone. Measure {', '.join(ARRANGEMENTS)}.",
                )
            if name not in ARRANGEMENTS:
                raise OptionError(
                    "only", f"no arrangement {name!r}. There are {', '.join(ARRANGEMENTS)}."
                )

    @property
    def cases(self) -> list[tuple[Arrangement, float]]:
        """Every arrangement at every rate, in the order in which they are measured."""
        return [(ARRANGEMENTS[name], rate) for rate in self.rates for name in self.only]


@dataclass(slots=True)
class State:
    """How far the run of one case is, for a live table.

    Attributes:
        row: the figures so far, or those of all runs at the end.
        run: which run it is, counted from 1.
        share: how much of it is over, 0 to 1.
        is_final: whether `row` is the result.
        notes: what a reader must know about the figures.
    """

    row: Row
    run: int = 1
    share: float = 0.0
    is_final: bool = False
    notes: list[str] = field(default_factory=list)


_DIGITS: Final = {
    "urgent_sent": 0,
    "urgent_done": 0,
    "p50_ms": 1,
    "p99_ms": 1,
    "batch_per_s": 1,
    "wait_p99_ms": 1,
    "run_p50_ms": 2,
}


def measure(rig: Rig, plan: Plan) -> Iterator[State]:
    """Measure each case and yield its state several times a second, at last the result."""
    for arrangement, rate in plan.cases:
        fixed = {
            "arrangement": arrangement.name,
            "urgent_per_s": rate,
            "arrivals": plan.arrivals,
        }
        found: list[Row] = []
        notes: list[str] = []
        for run in range(1, plan.runs + 1):
            one = _Run(plan, arrangement, rate, seed=plan.seed + run - 1)
            for share in one.carry_out(rig):
                yield State(fixed | one.figures() | published(plan, arrangement, rate), run, share)
            found.append(one.figures())
            notes += one.notes
        row = fixed | combine(found, _DIGITS) | {"seconds": plan.seconds}
        yield State(
            row | published(plan, arrangement, rate),
            plan.runs,
            1.0,
            is_final=True,
            notes=notes,
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

    def __init__(self, plan: Plan, arrangement: Arrangement, rate: float, *, seed: int) -> None:
        self._plan = plan
        self._arrangement = arrangement
        self._after_ns = arrivals_ns(plan.arrivals, rate, plan.seconds, seed=seed)
        draw = random.Random(seed)
        self._batch_s = [draw.uniform(*BATCH_S) for _ in range(plan.batch)]
        self._length_ns = int(plan.seconds * 1e9)
        self._from_ns = 0
        self._now_ns = 0
        self._latencies: list[float] = []
        self._waits: list[float] = []
        self._run_times: list[float] = []
        self._batch_done = 0
        self.notes: list[str] = []

    def carry_out(self, rig: Rig) -> Iterator[float]:
        """Do it; yield now and then which share of it is over."""
        plan = self._plan
        with rig.space() as space, Crew(space) as crew:
            workers = [
                crew.start_worker(*options, "--grace", "1")
                for options in self._arrangement.commands(plan.workers)
            ]
            producer = crew.start(
                ["-m", "laneq.bench.producer", "bench.urgent",
                 self._arrangement.urgent_lane, str(URGENT_S)],
                what="producer",
            )  # fmt: skip
            for child in (*workers, producer):
                child.wait_ready()
            with jobs.build(url=space.url, namespace=space.namespace) as app:
                work = app.tasks["bench.work"]
                batch = [work.call(seconds) for seconds in self._batch_s]
                from_ns = time.monotonic_ns()
                app.enqueue_many(batch)
            from_ns += int(plan.warm_up * 1e9)
            self._from_ns = max(from_ns, time.monotonic_ns() + _LEAD_NS)
            producer.tell(json.dumps({"start_ns": self._from_ns, "after_ns": self._after_ns}))
            end_ns = self._from_ns + self._length_ns
            while (left_ns := end_ns - time.monotonic_ns()) > 0:
                time.sleep(min(left_ns / 1e9, _LOOK_S))
                crew.check()
                self._take_in(crew)
                yield max(1 - left_ns / self._length_ns, 0.0)
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
            elif kind == jobs.URGENT:
                self._latencies.append((end_ns - submitted_ns) / 1e6)
                self._waits.append((start_ns - submitted_ns) / 1e6)
                self._run_times.append((end_ns - start_ns) / 1e6)
        self._now_ns = time.monotonic_ns()

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
        return {
            "urgent_sent": sum(after < since_ns for after in self._after_ns),
            "urgent_done": len(self._latencies),
            "p50_ms": percentile(self._latencies, 0.5),
            "p99_ms": percentile(self._latencies, 0.99),
            "batch_per_s": self._batch_done / (since_ns / 1e9) if since_ns else 0.0,
            "wait_p99_ms": percentile(self._waits, 0.99),
            "run_p50_ms": percentile(self._run_times, 0.5),
        }
