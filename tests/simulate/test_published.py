"""What was published, and what plain simulations of the rules gave, comes out of this one."""

from __future__ import annotations

import time

import pytest

from laneq.bench.lanes import PUBLISHED
from laneq.simulate.outcome import Outcome, Range, simulate
from laneq.simulate.published import Case, cases, scenario
from laneq.simulate.scenario import ENDLESS, Scenario
from laneq.simulate.search import cheapest

SEEDS = range(1, 31)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def table() -> dict[tuple[int, str], Case]:
    return {(case.rate, case.arrangement): case for case in cases(SEEDS)}


ROWS = [(rate, name) for rate, rows in PUBLISHED.items() for name in rows]


@pytest.mark.parametrize(("rate", "name"), ROWS)
def test_each_published_latency_lies_in_the_range_over_30_seeds_or_2_ms_from_it(
    table: dict[tuple[int, str], Case], rate: int, name: str
) -> None:
    case = table[rate, name]
    if case.urgent is None:
        assert case.p50_ms is None
        return
    assert case.p50_ms is not None
    assert case.p99_ms is not None
    assert case.urgent.latency_p50_ms.has(case.p50_ms, give=2)
    assert case.urgent.latency_p99_ms.has(case.p99_ms, give=2)
    assert case.urgent.ended.has(case.done, give=2)


@pytest.mark.parametrize(("rate", "name"), ROWS)
def test_each_published_batch_rate_is_met_within_5_percent(
    table: dict[tuple[int, str], Case], rate: int, name: str
) -> None:
    case = table[rate, name]
    assert case.outcome.lane("batch").done_per_s.median == pytest.approx(case.batch_per_s, rel=0.05)


def test_in_one_queue_no_urgent_job_is_done(table: dict[tuple[int, str], Case]) -> None:
    for rate in PUBLISHED:
        batch = table[rate, "fifo"].outcome.lane("batch")
        assert batch.ended.high == 0
        assert batch.left.low is not None
        assert batch.left.low > rate * 8, "they all stand behind the backlog"


@pytest.mark.parametrize(
    ("name", "rate", "low", "median", "high"),
    [("strict", 30, 89, 107, 135), ("strict", 150, 108, 131, 168), ("reserved", 150, 36, 47, 65)],
)
def test_another_plain_simulation_of_the_rules_gave_the_same_spread(
    table: dict[tuple[int, str], Case],
    name: str,
    rate: int,
    low: float,
    median: float,
    high: float,
) -> None:
    urgent = table[rate, name].urgent
    assert urgent is not None
    found = urgent.latency_p99_ms
    assert found.median == pytest.approx(median, rel=0.06)
    assert found.has(low)
    assert found.has(high)


# --- the Poisson table ------------------------------------------------------


def pool(rate: float, reserve: int, *, kind: str = "poisson", seconds: float = 30) -> Scenario:
    from dataclasses import replace

    made = scenario("strict", rate, kind=kind, backlog=ENDLESS, seconds=seconds)  # type: ignore[arg-type]
    made = replace(made, drain=0, overhead=None, warm_up=5)
    return made.with_lane("urgent", reserve=reserve)


def latencies(outcome: Outcome) -> Range:
    return outcome.lane("urgent").latency_p99_ms


@pytest.mark.parametrize(
    ("rate", "reserve", "p99_ms", "batch_per_s"),
    [
        (30, 0, 99, 47), (30, 1, 57, 45), (30, 2, 35, 40), (30, 3, 28, 35), (30, 4, 20, 30),
        (150, 0, 144, 35), (150, 2, 77, 34), (150, 3, 54, 33), (150, 4, 41, 29), (150, 5, 34, 25),
        (150, 6, 30, 20), (150, 8, 22, 10),
    ],
)  # fmt: skip
def test_random_arrivals_cost_what_the_reference_says(
    rate: float, reserve: int, p99_ms: float, batch_per_s: float
) -> None:
    # Without a reserve runs differ most; over long ones the p99 at 150/s comes to 128 ms.
    outcome = simulate(pool(rate, reserve), range(1, 31 if reserve == 0 else 13))
    assert latencies(outcome).has(p99_ms, give=2)
    assert outcome.lane("batch").done_per_s.median == pytest.approx(batch_per_s, rel=0.025)


def test_ten_minutes_are_simulated_in_seconds() -> None:
    began = time.process_time()
    outcome = simulate(pool(150, 2, seconds=600), [1])
    assert time.process_time() - began < 10
    ended = outcome.lane("urgent").ended.median
    assert ended is not None
    assert ended > 88_000


def test_even_arrivals_flatter_a_reserve() -> None:
    outcome = simulate(pool(150, 3, kind="even"), range(1, 6))
    assert outcome.lane("urgent").latency_p50_ms.high == 20
    assert latencies(outcome).high == pytest.approx(20, abs=1)
    assert outcome.lane("batch").done_per_s.median == pytest.approx(35, rel=0.025)


@pytest.mark.parametrize(
    ("rate", "wait_s", "reserve"), [(30, 0.05, 1), (30, 0.02, 2), (150, 0.05, 3), (150, 0.02, 5)]
)
def test_the_cheapest_reserve_is_the_smallest_that_holds_the_objective(
    rate: float, wait_s: float, reserve: int
) -> None:
    found = cheapest(pool(rate, 0), {"urgent": wait_s}, range(1, 5))
    assert found.holds
    assert found.outcome.scenario.reserve == {"urgent": reserve}
    assert [(kept["urgent"], holds) for _, kept, holds in found.tried] == [
        (kept, kept == reserve) for kept in range(reserve + 1)
    ]
