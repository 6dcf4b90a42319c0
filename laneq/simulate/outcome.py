"""What simulated runs came to: waits and rates of each lane, over all seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from laneq.simulate.engine import LaneRun, Run
from laneq.simulate.scenario import Scenario, by_priority
from laneq.simulate.steering import AutoReserve

#: Share of a lane's jobs that may wait longer than its objective.
MAY_MISS: Final = 0.01

#: Share of what arrived that a lane which keeps up may leave undone at the end.
_LEFT: Final = 0.02

#: Jobs that a lane may leave undone however few arrived.
_LEFT_JOBS: Final = 20


@dataclass(frozen=True, slots=True)
class Range:
    """A figure over all seeds; None where no run had one.

    Attributes:
        low, median, high: the least, the middle one and the greatest.
    """

    low: float | None
    median: float | None
    high: float | None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Range:
        """Take the figures of all runs together."""
        known = [value for value in values if value is not None]
        if not known:
            return cls(None, None, None)
        return cls(min(known), median(known), max(known))

    def has(self, value: float, *, give: float = 0.0) -> bool:
        """Tell whether a value lies within the range, or at most `give` beside it."""
        if self.low is None or self.high is None:
            return False
        return self.low - give <= value <= self.high + give


@dataclass(frozen=True, slots=True)
class LaneOutcome:
    """A lane over all runs. Waits are from ready to start, latencies from ready to end.

    Attributes:
        name: the lane.
        arrived: jobs that arrived in a run; those of a backlog do not count.
        done_per_s: jobs that ended, also those of a backlog.
        wait_p50_ms, wait_p90_ms, wait_p99_ms, wait_max_ms: of the jobs that arrived.
        latency_p50_ms, latency_p99_ms: of those of them that ended.
        ended: jobs that arrived and ended in a run.
        busy: slots that it kept busy on average.
        left: jobs that waited at the end.
        slo_s: its wait objective; None for none.
        late: share of all jobs, of all runs, that waited longer than that; None for none.
        keeps_up: whether next to nothing of what arrived was left.
        reserve: slots of the fleet that sized itself kept for it on average; None for a fixed one.
    """

    name: str
    arrived: Range
    done_per_s: Range
    wait_p50_ms: Range
    wait_p90_ms: Range
    wait_p99_ms: Range
    wait_max_ms: Range
    latency_p50_ms: Range
    latency_p99_ms: Range
    ended: Range
    busy: Range
    left: Range
    slo_s: float | None
    late: float | None
    keeps_up: bool
    reserve: Range | None

    @property
    def holds(self) -> bool:
        """Whether it keeps up, and its objective is met where it has one."""
        return self.keeps_up and (self.late is None or self.late <= MAY_MISS)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a scenario came to.

    Attributes:
        scenario: what was simulated.
        seeds: how many runs there were.
        lanes: most urgent first.
        busy: slots busy on average, of all lanes.
    """

    scenario: Scenario
    seeds: int
    lanes: tuple[LaneOutcome, ...]
    busy: Range

    def lane(self, name: str) -> LaneOutcome:
        """Return one lane's outcome.

        Raises:
            KeyError: there is no such lane.
        """
        return {lane.name: lane for lane in self.lanes}[name]

    @property
    def holds(self) -> bool:
        """Whether each lane that jobs arrive in keeps up, and every objective is met."""
        return all(lane.holds for lane in self.lanes)


def simulate(
    scenario: Scenario,
    seeds: Sequence[int],
    *,
    progress: Callable[[], object] = lambda: None,
) -> Outcome:
    """Simulate a scenario once for each seed.

    Args:
        scenario: what to simulate.
        seeds: one run each; the same seeds give the same jobs to every arrangement of a pool,
            so that arrangements are compared and not luck.
        progress: called after each run.
    """
    runs: list[dict[str, LaneRun]] = []
    steered: list[AutoReserve] = []
    for seed in seeds:
        steering = AutoReserve(scenario) if AutoReserve.is_wanted(scenario) else None
        runs.append(Run(scenario, seed, steer=steering).carry_out())
        if steering:
            steered.append(steering)
        progress()
    names = [stream.name for stream in by_priority(scenario.streams)]
    lanes = tuple(_lane(scenario, name, [run[name] for run in runs], steered) for name in names)
    length_us = (scenario.seconds + scenario.drain) * 1e6
    busy = Range.of(sum(lane.busy_us for lane in run.values()) / length_us for run in runs)
    return Outcome(scenario, len(seeds), lanes, busy)


def percentile(ordered: Sequence[int], share: float) -> float | None:
    """Return the nearest-rank percentile of µs in order, as ms; None where there are none."""
    if not ordered:
        return None
    return ordered[max(math.ceil(share * len(ordered)), 1) - 1] / 1e3


def _lane(
    scenario: Scenario, name: str, runs: Sequence[LaneRun], steered: Sequence[AutoReserve]
) -> LaneOutcome:
    stream = scenario.stream(name)
    slo_s = stream.lane.wait_objective
    waits = [sorted(run.waits_us) for run in runs]
    latencies = [sorted(run.latencies_us) for run in runs]
    total = sum(map(len, waits))
    late = None
    if slo_s is not None and total:
        late = sum(wait > slo_s * 1e6 for found in waits for wait in found) / total
    arrived = Range.of(run.arrived for run in runs)
    left = Range.of(run.left for run in runs)
    keeps_up = stream.arrivals is None or (left.median or 0) - stream.backlog <= max(
        _LEFT * (arrived.median or 0), _LEFT_JOBS
    )
    return LaneOutcome(
        name=name,
        arrived=arrived,
        done_per_s=Range.of(run.done / scenario.seconds for run in runs),
        wait_p50_ms=Range.of(percentile(found, 0.5) for found in waits),
        wait_p90_ms=Range.of(percentile(found, 0.9) for found in waits),
        wait_p99_ms=Range.of(percentile(found, 0.99) for found in waits),
        wait_max_ms=Range.of(percentile(found, 1.0) for found in waits),
        latency_p50_ms=Range.of(percentile(found, 0.5) for found in latencies),
        latency_p99_ms=Range.of(percentile(found, 0.99) for found in latencies),
        ended=Range.of(len(found) for found in latencies),
        busy=Range.of(run.busy_us / (scenario.seconds + scenario.drain) / 1e6 for run in runs),
        left=left,
        slo_s=slo_s,
        late=late,
        keeps_up=keeps_up,
        reserve=Range.of(one.mean(name) for one in steered)
        if stream.lane.reserve == "auto"
        else None,
    )
