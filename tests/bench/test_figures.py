from __future__ import annotations

import pytest

from laneq.bench.figures import Spread, combine, percentile
from laneq.bench.lanes import ARRANGEMENTS, PUBLISHED, Plan, arrivals_ns, published
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
    ("name", "says"), [("auto", "fixed reserves"), ("reservd", "no arrangement 'reservd'")]
)
def test_an_arrangement_that_cannot_be_measured_is_refused(name, says):
    with pytest.raises(OptionError, match=says):
        Plan(only=("fifo", name))
