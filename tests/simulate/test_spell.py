"""Scenarios as people write them, on a command line and as TOML, and recorded ones."""

from __future__ import annotations

from typing import Any

import pytest

from laneq.calls.stats import Depths
from laneq.demand import Demand, counts_of
from laneq.errors import OptionError, UnknownLane
from laneq.histogram import bucket_of
from laneq.model import WorkerView
from laneq.options import Lane
from laneq.simulate.loads import Arrivals, Exponential, Fixed, Measured, RunTime, Uniform
from laneq.simulate.recorded import arrivals_of, scenario_of
from laneq.simulate.scenario import ENDLESS, Workers
from laneq.simulate.search import variation_of, vary
from laneq.simulate.spell import (
    rate_steps,
    read_scenario,
    read_toml,
    run_time,
    stream_of,
    workers_of,
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("20ms", Fixed(0.02)),
        ("1.5", Fixed(1.5)),
        (2, Fixed(2.0)),
        ("100-300ms", Uniform(0.1, 0.3)),
        ("100ms-1s", Uniform(0.1, 1)),
        ("exp:200ms", Exponential(0.2)),
    ],
)
def test_run_times(text: object, found: RunTime) -> None:
    assert run_time(text) == found


@pytest.mark.parametrize("wrong", ["", "soon", "0", "-1", "300-100ms", "exp:", "exp:0", True, "1y"])
def test_what_is_no_run_time_is_refused(wrong: object) -> None:
    with pytest.raises(OptionError, match=r"^run: "):
        run_time(wrong)


def test_rates_with_steps() -> None:
    assert rate_steps("30") == ((0, 30),)
    assert rate_steps("30/60s:150/2m:30") == ((0, 30), (60, 150), (120, 30))
    for wrong in ("30/s", "x", "30/60s", "30/60s:x"):
        with pytest.raises(OptionError, match=r"^rate: "):
            rate_steps(wrong)
    for wrong in ("30/60s:5/30s:5", "-1", "nan", "inf"):
        with pytest.raises(OptionError, match=r"^rate: "):
            Arrivals(rate_steps(wrong))


def test_a_lane_takes_the_options_of_lanes_and_the_priorities_of_the_defaults() -> None:
    options = {"rate": "30", "arrivals": "bursts:5", "run": "20ms", "slo": "50ms", "limit": "9/s"}
    stream = stream_of("urgent", options | {"aging": "3", "max_running": "4", "reserve": "auto"})
    assert stream.lane == Lane(
        "urgent", priority=1000, aging=3, max_running=4, rate="9/s", reserve="auto", slo=0.05
    )
    assert stream.arrivals == Arrivals.at(30, "bursts", 5)
    assert stream_of("x", {"backlog": "endless", "run": 1, "target": "30s"}).lane.priority == 940
    assert stream_of("x", {"backlog": "endless", "run": 1}).backlog == ENDLESS
    assert stream_of("x", {"backlog": 7, "run": 1}).backlog == 7


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"rate": 1}, "run"),
        ({"run": 1}, "rate"),
        ({"run": 1, "arrivals": "even"}, "arrivals"),
        ({"run": 1, "rate": 1, "arrivals": "bursts"}, "arrivals"),
        ({"run": 1, "rate": 1, "arrivals": "bursts:1.5"}, "arrivals"),
        ({"run": 1, "rate": 1, "arrivals": "sometimes"}, "arrivals"),
        ({"run": 1, "backlog": "-1"}, "backlog"),
        ({"run": 1, "rate": 1, "lease": 3}, "lease"),
        ({"run": 1, "rate": 1, "target": "30s", "priority": 3}, "priority"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], word: str) -> None:
    with pytest.raises(OptionError, match=rf"^{word}: "):
        stream_of("a", options)


def test_workers() -> None:
    assert workers_of("4") == Workers(4)
    assert workers_of("4x10,lanes=a+b,reserve=a=2") == Workers(4, 10, ("a", "b"), {"a": 2})
    assert workers_of("4,reserve=b") == Workers(4, 1, None, {"b": 4})


def test_reserves_of_a_worker_fit_into_its_slots() -> None:
    with pytest.raises(OptionError, match="6 slots are more than the 4"):
        workers_of("4,reserve=a=2,reserve=b=4")


@pytest.mark.parametrize("wrong", ["", "x", "4x", "4,lanes", "4,reserve=a=x", "0", "4x0"])
def test_what_is_no_worker_is_refused(wrong: str) -> None:
    with pytest.raises(OptionError):
        workers_of(wrong)


def test_toml_and_command_line_say_the_same() -> None:
    document = """
        seconds = 30
        warm_up = "2s"
        overhead = 0.001
        [lanes.urgent]
        rate = 30
        run = 0.02
        reserve = 2
        [lanes.batch]
        backlog = 2000
        run = "100-300ms"
        [[workers]]
        slots = 4
        count = 2
        lanes = ["urgent", "batch"]
        reserve = {urgent = 1}
    """
    lanes = ["urgent:rate=30,run=20ms,reserve=2", "batch:backlog=2000,run=100-300ms"]
    assert read_toml(document) == read_scenario(
        lanes,
        workers=["4x2,lanes=urgent+batch,reserve=urgent=1"],
        seconds=30,
        warm_up=2,
        overhead=Exponential(0.001),
    )


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ("lanes = 3", "lanes: must be a table"),
        ("x = 3", "x: unknown in a scenario"),
        ("= 3", "is no TOML"),
        ("[lanes]\na = 1", "lanes: must be a table"),
        ("slots = 'x'\n[lanes.a]\nrate=1\nrun=1", "slots: must be a whole number"),
        ("[lanes.a]\nrate=1\nrun=1\n[[workers]]\ncount=1", "need slots"),
        ("[lanes.a]\nrate=1\nrun=1\n[[workers]]\nslots=1\nlanes='a'", "list of names"),
        ("[lanes.a]\nrate=1\nrun=1\n[[workers]]\nslots=1\nx=1", "unknown in workers"),
        ("", "lane: there is none"),
    ],
)
def test_a_wrong_document_says_where(document: str, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        read_toml(document)


def test_lanes_that_are_none_are_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownLane, match="Did you mean 'urgent'"):
        read_scenario(["urgent:rate=1,run=1"], reserve=["urgnt=1"])
    with pytest.raises(UnknownLane):
        read_scenario(["urgent:rate=1,run=1"], workers=["4,lanes=batch"])


def test_variations_are_every_combination() -> None:
    scenario = read_scenario(["a:rate=1,run=1", "b:rate=1,run=1"])
    found = list(vary(scenario, [variation_of("a.reserve=0-2"), variation_of("b.run=1s, 2s")]))
    assert [list(named.values()) for named, _ in found] == [
        [kept, run] for kept in "012" for run in ("1s", "2s")
    ]
    assert found[-1][1].stream("b").run == Fixed(2)
    assert found[-1][1].reserve == {"a": 2}
    with pytest.raises(OptionError, match="makes 404 arrangements"):
        list(vary(scenario, [variation_of("a.reserve=0-3"),
                             variation_of("b.reserve=0-100")]))  # fmt: skip


# --- recorded ---------------------------------------------------------------


def ring(counts: list[int], *, every_s: int = 5) -> list[bytes]:
    total, lines = 1_000, []
    for n, jobs in enumerate([0, *counts]):
        total += jobs
        lines.append(b"%d %d 0 0 0 0" % (10**15 + n * every_s * 1_000_000, total))
    return lines


def test_counts_are_those_between_two_notes_and_bad_notes_are_skipped() -> None:
    lines = ring([5, 10])
    assert counts_of(lines) == [(5.0, 5.0), (5.0, 10.0)]
    assert counts_of([b"x", *lines, b"", b"10 2"]) == [(5.0, 5.0), (5.0, 10.0)]


def test_a_steady_rate_is_recorded_as_one_and_a_varying_one_with_its_steps() -> None:
    steady = arrivals_of(ring([150, 160, 140, 155, 148] * 10), 60)
    assert steady is not None
    assert [at for at, _ in steady.steps] == [0]
    assert steady.mean_rate(60) == pytest.approx(30.1, abs=0.2)
    varying = arrivals_of(ring([150] * 6 + [750] * 6), 120)
    assert varying is not None
    assert varying.kind == "gamma"
    rates = [round(rate) for _, rate in varying.steps]
    assert rates == [30] * 6 + [150] * 6 + [30] * 6 + [150] * 6
    assert varying.steps[-1][0] == 115
    assert arrivals_of(ring([0, 0]), 60) is None
    assert arrivals_of([], 60) is None


def test_bursts_are_recorded_as_dispersion() -> None:
    import random

    rng = random.Random(1)
    found = arrivals_of(ring([20 * rng.randint(2, 12) for _ in range(60)]), 60)
    assert found is not None
    assert found.kind == "gamma"
    assert found.spread > 5


def worker(slots: int, lanes: tuple[str, ...], **reserve: int) -> WorkerView:
    return WorkerView(
        id="w",
        name="w",
        host="h",
        pid=1,
        slots=slots,
        reserve=reserve,
        running=0,
        lanes=lanes,
        tasks=(),
        started_at=None,
        last_heartbeat_at=None,
    )


def demand(lane: Lane, notes: list[bytes], runs: dict[int, int], *, waiting: int = 0) -> Demand:
    now = Depths(10**15, waiting, 0, 0, 0, None, {}, None)
    return Demand(
        lane.name, lane, now, None, None, None, 1.0, 0, 0, 0, None, notes=notes, runs=runs
    )


def test_a_recorded_scenario_has_the_lanes_that_did_something_and_the_workers_that_live() -> None:
    runs = {bucket_of(20_000): 9}
    found = [
        demand(Lane("urgent", reserve=1), ring([150] * 12), runs),
        demand(Lane("batch"), [], {}, waiting=40),
        demand(Lane("idle"), [], {}),
    ]
    scenario = scenario_of(found, [worker(4, ("urgent", "batch", "idle"), urgent=1, idle=1)])
    assert [stream.name for stream in scenario.streams] == ["urgent", "batch"]
    assert scenario.workers == (Workers(4, 1, ("urgent", "batch"), {"urgent": 1}),)
    arrivals = scenario.stream("urgent").arrivals
    assert arrivals is not None
    assert arrivals.mean_rate(60) == pytest.approx(30)
    batch = scenario.stream("batch")
    assert batch.backlog == 40
    assert batch.run == Measured(runs), "of a lane of which nothing ran, what all lanes ran"
    assert batch.run.mean_s == pytest.approx(0.02, rel=0.06)
    with pytest.raises(OptionError, match="no worker lives"):
        scenario_of(found, [worker(4, ("idle",))])
    assert scenario_of(found, [], pool=[Workers(3)]).slots == 3


def test_recorded_run_times_are_drawn_as_they_were_measured() -> None:
    import random

    rng = random.Random(1)
    counts = {bucket_of(20_000): 900, bucket_of(2_000_000): 100}
    drawn = [Measured(counts).draw_us(rng) for _ in range(5_000)]
    assert sum(us > 1_000_000 for us in drawn) / 5_000 == pytest.approx(0.1, abs=0.02)
    assert {bucket_of(us) for us in drawn} <= {b + d for b in counts for d in (-1, 0, 1)}
    with pytest.raises(OptionError, match="nothing was measured"):
        Measured({})
