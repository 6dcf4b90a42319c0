"""The published scenario, simulated, beside the figures that were published.

Two things about the published run are not said in its source and follow from its figures. Its
one queue did 52.6 to 53.6 batch jobs a second on 10 workers, which can do 50 at most: what ended
in half a second after the 8 s counted too. And its two dedicated workers did 832 urgent jobs in
those 8.5 s: 20.43 ms each, so the timers of one process took 0.43 ms beside the 20 ms. Both are
in the simulation (`DRAIN_S`, `OVERHEAD_S`); every other figure is then a test of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from laneq.bench.lanes import BATCH_S, PUBLISHED, PUBLISHED_DONE, URGENT_S
from laneq.options import Lane
from laneq.simulate.loads import Arrivals, Exponential, Fixed, Kind, Uniform
from laneq.simulate.outcome import LaneOutcome, Outcome, simulate
from laneq.simulate.scenario import Scenario, Stream, Workers

#: Seconds of arrivals, and seconds after them in which what ends still counts.
SECONDS: Final = 8.0
DRAIN_S: Final = 0.5

#: Mean time of a slot beside each job, exponential: 2 slots × 8.5 s / 832 jobs - 20 ms.
OVERHEAD_S: Final = 0.00043

_ARRANGEMENTS: Final[dict[str, tuple[Workers, ...]]] = {
    "fifo": (Workers(10),),
    "strict": (Workers(10),),
    "dedicated": (Workers(2, lanes=("urgent",)), Workers(8, lanes=("batch",))),
    "reserved": (Workers(2, reserve={"urgent": 2}), Workers(8)),
}


def scenario(
    arrangement: str,
    rate: float,
    *,
    kind: Kind = "even",
    backlog: float = 2_000,
    seconds: float = SECONDS,
) -> Scenario:
    """Return the published scenario in one of its arrangements.

    Args:
        arrangement: ``fifo``, ``strict``, ``dedicated`` or ``reserved``.
        rate: urgent jobs per second.
        kind: how they arrive.
        backlog: batch jobs that wait at the start.
        seconds: length of the run.
    """
    arrivals = Arrivals.at(rate, kind)
    urgent = Stream(Lane("urgent", priority=1000), Fixed(URGENT_S), arrivals)
    batch = Stream(Lane("batch", priority=10), Uniform(*BATCH_S), backlog=backlog)
    # In one lane urgent jobs stand behind the whole backlog, and none is reached.
    together = Stream(batch.lane, batch.run, arrivals, backlog)
    return Scenario(
        (together,) if arrangement == "fifo" else (urgent, batch),
        _ARRANGEMENTS[arrangement],
        seconds=seconds,
        warm_up=0,
        drain=DRAIN_S,
        overhead=Exponential(OVERHEAD_S),
    )


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the published table and what the simulation says of it.

    Attributes:
        arrangement: its name.
        rate: urgent jobs per second.
        outcome: what was simulated; of ``fifo`` all jobs are in lane ``batch``.
        p50_ms, p99_ms: published latency of urgent jobs; None where none was done.
        batch_per_s: published.
        done: urgent jobs done, published.
    """

    arrangement: str
    rate: int
    outcome: Outcome
    p50_ms: float | None
    p99_ms: float | None
    batch_per_s: float
    done: int

    @property
    def urgent(self) -> LaneOutcome | None:
        """Return the outcome of the urgent lane; None where there is none."""
        return None if self.arrangement == "fifo" else self.outcome.lane("urgent")


def cases(seeds: Sequence[int], *, progress: Callable[[], object] = lambda: None) -> Iterator[Case]:
    """Simulate every row of the published table."""
    for rate, rows in PUBLISHED.items():
        for name, (p50_ms, p99_ms, batch_per_s) in rows.items():
            yield Case(
                name,
                rate,
                simulate(scenario(name, rate), seeds, progress=progress),
                p50_ms,
                p99_ms,
                batch_per_s,
                PUBLISHED_DONE.get((rate, name), round(rate * SECONDS)),
            )
