"""Reserves that size themselves, in a simulation: `sizing.decide_reserve` once a second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from laneq.simulate.engine import Run
from laneq.simulate.scenario import Scenario
from laneq.sizing import (
    ReserveAim,
    ReserveDecision,
    ReserveLook,
    ReserveState,
    Runs,
    decide_reserve,
)


@dataclass(slots=True)
class _Moments:
    """Mean and variation of what was measured so far."""

    n: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, us: int) -> None:
        self.n += 1
        self.total += us
        self.squares += us * us

    def runs(self) -> Runs | None:
        if not self.total:
            return None
        mean = self.total / self.n
        return Runs(mean / 1e6, max(0.0, self.squares / self.n / mean**2 - 1))


@dataclass(slots=True)
class _Steered:
    aim: ReserveAim
    state: ReserveState = field(default_factory=ReserveState)
    starts: int = 0
    late: int = 0
    steps: list[tuple[float, int]] = field(default_factory=list)


class AutoReserve:
    """Steers the reserves of a run; one for each run.

    Args:
        scenario: what is simulated.

    Attributes:
        decisions: lane → each decision that changed its reserve.
    """

    def __init__(self, scenario: Scenario) -> None:
        """Begin knowing nothing."""
        self._scenario = scenario
        self._lanes = {
            stream.name: _Steered(ReserveAim(within_s=stream.lane.slo_us / 1e6))
            if stream.lane.slo_us is not None
            else _Steered(ReserveAim())
            for stream in scenario.streams
            if stream.lane.reserve == "auto"
        }
        self._fixed = {
            stream.name: stream.lane.reserve
            for stream in scenario.streams
            if isinstance(stream.lane.reserve, int)
        }
        self._runs = {stream.name: _Moments() for stream in scenario.streams}
        self.decisions: dict[str, list[ReserveDecision]] = {name: [] for name in self._lanes}

    @staticmethod
    def is_wanted(scenario: Scenario) -> bool:
        """Tell whether a scenario has a reserve that sizes itself."""
        return any(stream.lane.reserve == "auto" for stream in scenario.streams)

    def __call__(self, now_us: int, run: Run) -> Mapping[str, int]:
        """Look at a run; return lane → slots to keep for it."""
        for name, at_us, wait_us, run_us in run.take_starts():
            self._runs[name].add(run_us)
            lane = self._lanes.get(name)
            if lane and at_us >= lane.state.observed_from * 1e6:
                lane.starts += 1
                lane.late += wait_us > lane.aim.within_s * 1e6
        return {
            **self._fixed,
            **{name: self._decide(name, now_us / 1e6, run) for name in self._lanes},
        }

    def _decide(self, name: str, at: float, run: Run) -> int:
        lane = self._lanes[name]
        others = _Moments()
        for other, measured in self._runs.items():
            if other != name:
                others.n += measured.n
                others.total += measured.total
                others.squares += measured.squares
        look = ReserveLook(
            at=at,
            arrived=run.lanes[name].arrived_by(run.now_us),
            slots=run.slots,
            run=self._runs[name].runs(),
            others=others.runs(),
            starts=lane.starts,
            late=lane.late,
        )
        before = lane.state
        lane.state, decision = decide_reserve(before, look, lane.aim)
        if lane.state.observed_from != before.observed_from:
            lane.starts = lane.late = 0
        if decision.is_change:
            self.decisions[name].append(decision)
        lane.steps.append((at, decision.value))
        return decision.value

    def mean(self, name: str) -> float | None:
        """Return the reserve of a lane on average over what was measured."""
        values = [value for at, value in self._lanes[name].steps if at >= self._scenario.warm_up]
        return sum(values) / len(values) if values else None
