"""A reserve that sizes itself, against every fixed one, in the same simulated load."""

from __future__ import annotations

from dataclasses import replace

import pytest

from laneq.simulate.engine import Run
from laneq.simulate.loads import Arrivals
from laneq.simulate.outcome import Outcome, simulate
from laneq.simulate.scenario import Scenario
from laneq.simulate.spell import read_scenario
from laneq.simulate.steering import AutoReserve

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SEEDS = range(1, 5)


def pool(rate: str, *, slo: str = "none", seconds: float = 60) -> Scenario:
    return read_scenario(
        [f"urgent:rate={rate},run=20ms,slo={slo}", "batch:backlog=endless,run=100-300ms"],
        seconds=seconds,
        warm_up=10,
    )


def with_reserve(scenario: Scenario, reserve: int | str) -> Outcome:
    return simulate(scenario.with_lane("urgent", reserve=reserve), SEEDS)


def holds(outcome: Outcome, slo_s: float) -> bool:
    late = outcome.lane("urgent").late
    if late is not None:
        return late <= 0.01
    p99 = outcome.lane("urgent").wait_p99_ms.median
    assert p99 is not None
    return p99 <= slo_s * 1e3


@pytest.mark.parametrize(
    ("rate", "slo"),
    [("30", "none"), ("30", "50ms"), ("30", "20ms"), ("150", "none"), ("150", "50ms"),
     ("150", "20ms")],
)  # fmt: skip
def test_auto_holds_its_aim_and_costs_no_more_than_the_smallest_fixed_reserve_that_does(
    rate: str, slo: str
) -> None:
    scenario = pool(rate, slo=slo)
    auto = with_reserve(scenario, "auto")
    assert holds(auto, 0)
    for reserve in range(10):
        fixed = with_reserve(scenario, reserve)
        if holds(fixed, 0):
            break
    done, least = auto.lane("batch").done_per_s.median, fixed.lane("batch").done_per_s.median
    assert done is not None
    assert least is not None
    assert done >= 0.95 * least


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_from_30_to_150_a_second_is_followed_within_5_s_and_does_not_flap(
    seed: int,
) -> None:
    scenario = pool("30/30s:150/90s:30", slo="50ms", seconds=200).with_lane(
        "urgent", reserve="auto"
    )
    steering = AutoReserve(scenario)
    Run(scenario, seed, steer=steering).carry_out()
    decisions = steering.decisions["urgent"]
    ups = [d for d in decisions if 30 <= d.at <= 35 and d.value > d.before]
    assert ups
    assert ups[-1].value >= 2
    assert all(d.value <= 4 for d in decisions)
    assert len(decisions) <= 7
    downs = [d.at for d in decisions if d.value < d.before]
    assert all(at > 90 for at in downs), "not while the load is high"
    assert decisions[-1].value == 1


def test_bursts_get_more_than_random_arrivals_and_even_ones_less() -> None:
    reserves = {}
    for kind, spread in (("even", 1.0), ("poisson", 1.0), ("bursts", 4.0)):
        scenario = replace(pool("60", seconds=80), warm_up=100)
        stream = scenario.stream("urgent")
        scenario = scenario.with_stream(
            replace(stream, arrivals=Arrivals.at(60, kind, spread))  # type: ignore[arg-type]
        )
        found = with_reserve(scenario, "auto").lane("urgent").reserve
        assert found is not None
        reserves[kind] = found.median or 0.0
    assert reserves["even"] < reserves["poisson"] < reserves["bursts"]
