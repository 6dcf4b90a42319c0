"""What if: vary a scenario, and find the cheapest arrangement that holds wait objectives.

Cheapest means the fewest slots, and with those the fewest reserved ones, since a reserved slot
that idles is work of other lanes not done. The search goes by two facts: more slots never make
waits longer, and neither does a larger reserve for the lane that has it. So the slots are found by
bisection, with reserves as they must be; and reserves grow one slot at a time, for the lane that
is furthest from its objective. All arrangements get the same jobs (the same seeds).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

from laneq.errors import OptionError
from laneq.simulate.outcome import LaneOutcome, Outcome, simulate
from laneq.simulate.scenario import MAX_SLOTS, Scenario
from laneq.simulate.spell import changed
from laneq.sizing import servers_for_wait

#: Most arrangements that one command simulates.
MOST_ROWS: Final = 200

#: Told before each arrangement is simulated, in words.
Told = Callable[[str], None]


# --- vary -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Variation:
    """One thing that is varied: a lane's option, or the pool's slots, and its values.

    Attributes:
        what: ``urgent.reserve`` or ``slots``.
        values: as text.
    """

    what: str
    values: tuple[str, ...]


def variation_of(text: str) -> Variation:
    """Read ``urgent.reserve=0-4`` or ``slots=8,10,12``.

    Raises:
        OptionError: it is not of that form.
    """
    what, equals, listed = text.partition("=")
    what = what.strip()
    if not equals or (what != "slots" and "." not in what):
        raise OptionError("vary", f"must be LANE.OPTION=VALUES or slots=VALUES, not {text!r}")
    low, dash, high = listed.partition("-")
    if dash and low.strip().isdecimal() and high.strip().isdecimal():
        values = tuple(map(str, range(int(low), int(high) + 1)))
    else:
        values = tuple(part.strip() for part in listed.split(",") if part.strip())
    if not values or len(values) > MOST_ROWS:
        raise OptionError("vary", f"{text!r} has {len(values)} values; it needs 1 to {MOST_ROWS}")
    return Variation(what, values)


def apply(scenario: Scenario, what: str, value: str) -> Scenario:
    """Return a scenario with one thing changed.

    Raises:
        OptionError: there is no such thing, or the value is wrong.
    """
    if what == "slots":
        return with_slots(scenario, value)
    lane, _, option = what.partition(".")
    return scenario.with_stream(changed(scenario.stream(lane), {option: value}))


def with_slots(scenario: Scenario, value: str) -> Scenario:
    """Return a scenario of one worker with so many slots."""
    if not value.isdecimal():
        raise OptionError("slots", f"must be a whole number, not {value!r}")
    if len(scenario.workers) != 1 or scenario.workers[0].count != 1:
        raise OptionError("slots", "can be varied where the pool is one worker; vary that instead")
    return replace(scenario, workers=(replace(scenario.workers[0], slots=int(value)),))


def vary(
    scenario: Scenario, variations: Sequence[Variation]
) -> Iterator[tuple[dict[str, str], Scenario]]:
    """Yield each combination of values, and the scenario with it.

    Raises:
        OptionError: there are more than `MOST_ROWS`, or a value is wrong.
    """
    rows = math.prod(len(variation.values) for variation in variations)
    if rows > MOST_ROWS:
        raise OptionError("vary", f"makes {rows:,} arrangements; the most is {MOST_ROWS}")
    for values in product(*(variation.values for variation in variations)):
        found, named = scenario, dict(zip((v.what for v in variations), values, strict=True))
        for what, value in named.items():
            found = apply(found, what, value)
        yield named, found


# --- the cheapest arrangement -----------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came to.

    Attributes:
        outcome: of the cheapest arrangement that holds; of the best one where none does.
        tried: every arrangement simulated: slots, lane → reserve, whether it holds.
    """

    outcome: Outcome
    tried: tuple[tuple[int, Mapping[str, int], bool], ...]

    @property
    def holds(self) -> bool:
        """Whether an arrangement was found that holds all objectives."""
        return self.outcome.holds


def cheapest(
    scenario: Scenario,
    slo: Mapping[str, float],
    seeds: Sequence[int],
    *,
    slots: tuple[int, int] | None = None,
    told: Told = lambda _: None,
) -> Found:
    """Find the cheapest arrangement that holds wait objectives.

    Args:
        scenario: lanes and their load; its workers are kept, unless `slots` says otherwise.
        slo: lane → seconds that at most 1 % of its jobs may wait longer.
        seeds: of the runs of each arrangement.
        slots: fewest and most slots that may be used; None keeps the scenario's pool.
        told: hears of each arrangement.

    Raises:
        OptionError: an objective is of no lane, or of one that no jobs arrive in.
    """
    for lane, seconds in slo.items():
        scenario = scenario.with_lane(lane, slo=seconds, reserve=0)
        if scenario.stream(lane).arrivals is None:
            raise OptionError("slo", f"no jobs arrive in lane {lane!r}: it has only a backlog")
    search = _Search(scenario, tuple(slo), seeds, told)
    if slots is None:
        return Found(search.best_reserves(scenario), tuple(search.tried))
    fewest, most = slots
    if not 1 <= fewest <= most <= MAX_SLOTS:
        raise OptionError("slots", f"must be from 1 to {MAX_SLOTS:,}, the fewest first")
    outcomes: dict[int, Outcome] = {}

    def holds(n: int) -> bool:
        outcomes[n] = search.best_reserves(scenario.with_slots(n))
        return outcomes[n].holds

    # Fewer than what arrives keeps busy would never do. From there in growing steps, so that
    # large pools, which take longest to simulate, are tried last.
    load = sum(stream.load(scenario.seconds) for stream in scenario.streams)
    n, step = min(max(fewest, math.floor(load)), most), 1
    failing = n - 1
    while not holds(n):
        if n == most:
            return Found(outcomes[n], tuple(search.tried))
        failing, n, step = n, min(most, n + step), step * 2
    while n - failing > 1:
        middle = (failing + n) // 2
        if holds(middle):
            n = middle
        else:
            failing = middle
    return Found(outcomes[n], tuple(search.tried))


class _Search:
    """Finds reserves for one pool after another, and remembers what was tried."""

    def __init__(
        self, scenario: Scenario, lanes: tuple[str, ...], seeds: Sequence[int], told: Told
    ) -> None:
        self._scenario = scenario
        self._lanes = lanes
        self._seeds = seeds
        self._told = told
        self.tried: list[tuple[int, Mapping[str, int], bool]] = []

    def best_reserves(self, scenario: Scenario) -> Outcome:
        """Return the outcome with the smallest reserves that hold, or else with the largest."""
        reserve = dict.fromkeys(self._lanes, 0)
        while True:
            outcome = self._simulate(scenario, reserve)
            missed = [
                lane
                for lane in (outcome.lane(name) for name in self._lanes)
                if not lane.holds and reserve[lane.name] < self._most(scenario, lane.name)
            ]
            # Another lane that falls behind is not helped by reserves.
            if outcome.holds or not missed or sum(reserve.values()) >= scenario.slots - 1:
                return outcome
            reserve[max(missed, key=_missed_by).name] += 1

    def _most(self, scenario: Scenario, lane: str) -> int:
        stream = scenario.stream(lane)
        rate = stream.arrivals.mean_rate(scenario.seconds) if stream.arrivals else 0.0
        # With twice what Erlang's formula wants, more of the same does not help.
        return 2 * servers_for_wait(rate, stream.run.mean_s, 1e-3) + 1

    def _simulate(self, scenario: Scenario, reserve: Mapping[str, int]) -> Outcome:
        for lane, kept in reserve.items():
            scenario = scenario.with_lane(lane, reserve=kept)
        words = ", ".join(f"{lane}={kept}" for lane, kept in reserve.items())
        self._told(f"{scenario.slots} slots, reserve {words}")
        outcome = simulate(scenario, self._seeds)
        self.tried.append((scenario.slots, dict(reserve), outcome.holds))
        return outcome


def _missed_by(lane: LaneOutcome) -> float:
    return (lane.late or 0.0) + (0.0 if lane.keeps_up else 1.0)
