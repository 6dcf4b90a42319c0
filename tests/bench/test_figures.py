from __future__ import annotations

import pytest

from laneq.bench.figures import Spread, combine, percentile
from laneq.bench.lanes import (
    ARRANGEMENTS,
    PUBLISHED,
    Plan,
    arrivals_ns,
    followed,
    over_the_fleet,
    published,
    smallest_fixed,
)
from laneq.errors import OptionError


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.5, None),
        ([7.0], 0.5, 7.0),
        ([7.0], 0.99, 7.0),
        ([3.0, 1.0, 2.0], 0.5, 2.0),
        ([float(i) for i in range(1, 101)], 0.99, 99.0),
        ([float(i) for i in range(1, 101)], 1.0, 100.0),
        ([1.0, 2.0], 0.0, 1.0),
    ],
)
def test_a_percentile_is_a_value_that_occurred(values, share, expected):
    assert percentile(values, share) == expected


def test_a_spread_leaves_out_runs_without_the_figure():
    assert Spread.of([None, 3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0, 3)
    assert Spread.of([None]) == Spread(None, None, None, 0)


def test_combined_rows_have_medians_and_ranges():
    rows: list[dict[str, float | None]] = [
        {"a": 1.26, "b": 10.4},
        {"a": 3.0, "b": None},
        {"a": 2.0, "b": 11.0},
    ]
    assert combine(rows, {"a": 1, "b": 0}) == {
        "a": 2.0,
        "b": 11,
        "runs": 3,
        "ranges": {"a": [1.3, 3.0], "b": [10, 11]},
    }


def test_even_arrivals_are_all_within_the_run():
    found = arrivals_ns("even", 30, 8, seed=1)
    assert len(found) == 240
    assert found[0] == 0
    assert found[-1] == pytest.approx(239 / 30 * 1e9, abs=1)


def test_random_arrivals_have_the_rate_and_repeat_with_the_seed():
    found = arrivals_ns("poisson", 150, 100, seed=3)
    assert found == arrivals_ns("poisson", 150, 100, seed=3)
    assert found != arrivals_ns("poisson", 150, 100, seed=4)
    assert found == sorted(found)
    assert found[-1] < 100e9
    assert len(found) == pytest.approx(15_000, rel=0.05)


@pytest.mark.parametrize("arrangement", list(ARRANGEMENTS.values()), ids=list(ARRANGEMENTS))
@pytest.mark.parametrize("layout", ["split", "one", "ten"])
def test_every_arrangement_has_ten_slots(arrangement, layout):
    commands = arrangement.commands(layout)
    assert sum(int(command[1]) for command in commands) == 10
    expected = {"split": len(arrangement.workers), "one": 1, "ten": 10}
    if arrangement.name == "dedicated":
        expected["one"] = 2
    assert len(commands) == expected[layout]


def test_published_figures_stand_beside_even_arrivals_only():
    reserved = ARRANGEMENTS["reserved"]
    assert published(Plan(), reserved, 150) == {
        "published": {"p50_ms": 22.5, "p99_ms": 54.0, "batch_per_s": 35.4}
    }
    assert published(Plan(arrivals="poisson"), reserved, 150) == {"published": None}
    assert published(Plan(), reserved, 40) == {"published": None}
    assert published(Plan(), reserved, 30.5) == {"published": None}
    assert all(set(row) == set(ARRANGEMENTS) for row in PUBLISHED.values())


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"only": ("fifo", "reservd")}, "no arrangement 'reservd'"),
        ({"only": ("fixed",), "reserves": (2, 10)}, "10 of ten slots"),
        ({"only": ("fixed",), "reserves": (-1,)}, "Give 0 to 9"),
        ({"only": ("strict",), "has_step": True}, "--only auto, fixed or both"),
        ({"only": ("auto",), "has_step": True, "rates": (30,)}, "two of --rates"),
    ],
)
def test_what_cannot_be_measured_is_refused(wanted, says):
    with pytest.raises(OptionError, match=says):
        Plan(**wanted)


@pytest.mark.parametrize("layout", ["split", "one", "ten"])
def test_a_reserve_over_the_fleet_has_ten_shared_slots(layout):
    commands = over_the_fleet("auto").commands(layout)
    assert sum(int(command[1]) for command in commands) == 10
    assert not any("--reserve" in command for command in commands)


def test_fixed_stands_for_one_arrangement_of_each_reserve():
    plan = Plan(only=("auto", "fixed"), reserves=(4, 2), rates=(30, 150))
    assert [(case.arrangement.name, case.rate) for case in plan.cases] == [
        ("auto", 30), ("fixed 2", 30), ("fixed 4", 30),
        ("auto", 150), ("fixed 2", 150), ("fixed 4", 150),
    ]  # fmt: skip
    assert len(Plan(only=("fixed",), rates=(30,)).cases) == 9


def test_a_step_is_one_run_of_both_rates():
    (case,) = Plan(only=("auto",), has_step=True).cases
    assert case.rates == (30, 150)
    assert case.rate == 150


def test_a_long_run_has_batch_jobs_to_its_end():
    auto = over_the_fleet("auto")
    assert Plan().backlog_of(ARRANGEMENTS["strict"]) == 2_000
    assert Plan(seconds=60, only=("auto",)).backlog_of(auto) >= (60 + 20 + 1) * 50
    assert Plan(seconds=60, batch=10).backlog_of(auto) == 10


@pytest.mark.parametrize(
    ("seen", "before", "after", "seconds"),
    [
        ([], None, None, None),
        ([(-1.0, 1), (0.5, 1), (1.5, 3), (3.0, 4), (9.0, 4)], 1, 4, 3.0),
        ([(-1.0, 1), (0.5, 5), (9.0, 4)], 1, 4, 0.5),
        ([(-1.0, 4), (0.5, 4), (9.0, 4)], 4, 4, 0.0),
        ([(0.5, 4)], None, 4, 0.5),
    ],
)
def test_a_step_is_followed_once_the_reserve_is_as_large_as_at_the_end(
    seen, before, after, seconds
):
    assert followed(seen) == {
        "reserve_before": before,
        "reserve_after": after,
        "followed_s": seconds,
    }


def test_the_smallest_fixed_reserve_that_holds_is_of_the_same_rate():
    def row(arrangement: str, rate: int, *, holds: bool) -> dict[str, object]:
        return {"arrangement": arrangement, "urgent_per_s": rate, "holds": holds}

    auto = row("auto", 150, holds=True)
    three = row("fixed 3", 150, holds=True)
    rows = [
        auto, row("fixed 1", 30, holds=True), row("fixed 2", 150, holds=False),
        row("fixed 4", 150, holds=True), three,
    ]  # fmt: skip
    assert smallest_fixed(rows, auto) == three
    assert smallest_fixed(rows[:3], auto) is None
