"""``laneq plan``: tables, charts and documents of what a pool will do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Commands
from tests.cli.test_size import measure
from tests.stage import Stage

URGENT = ("--lane", "urgent:rate=30,run=20ms")
BATCH = ("--lane", "batch:backlog=endless,run=100-300ms")
QUICK = ("--seconds", "20", "--seeds", "2")


def test_a_pool_is_told_as_a_table_and_as_bars(laneq: Commands):
    lines = laneq.out("plan", *URGENT, *BATCH, *QUICK, "--reserve", "urgent=4").splitlines()
    assert lines[0].split()[:3] == ["lane", "arrived", "done/s"]
    assert [line.split()[0] for line in lines[1:3]] == ["urgent", "batch"]
    assert any(line.startswith("batch done/s   ####") for line in lines)
    assert lines[-2].startswith("10 slots, reserve urgent=4, 6.")


def test_the_document_has_ranges_over_the_seeds(laneq: Commands):
    found = laneq.json("plan", *URGENT, *BATCH, *QUICK, schema="plan")
    (row,) = found["rows"]
    assert (found["seeds"], row["slots"], row["set"]) == (2, 10, {})
    urgent = row["lanes"][0]
    p99 = urgent["wait_ms"]["p99"]
    assert p99["low"] <= p99["median"] <= p99["high"]
    assert urgent["late"] is None
    assert row["lanes"][1]["wait_ms"]["p99"]["median"] is None, "a backlog has no arrivals"


def test_variations_are_rows_with_the_same_jobs(laneq: Commands):
    args = ("plan", *URGENT, *BATCH, *QUICK, "--vary", "urgent.reserve=0-2", "--vary", "slots=8,10")
    rows = laneq.json(*args, schema="plan")["rows"]
    assert [row["set"] for row in rows] == [
        {"urgent.reserve": str(kept), "slots": slots} for kept in range(3) for slots in ("8", "10")
    ]
    assert len({row["lanes"][0]["arrived"]["median"] for row in rows}) == 1
    waits = [row["lanes"][0]["wait_ms"]["p99"]["median"] for row in rows]
    assert waits[0] > waits[2] > waits[4]
    text = laneq.out(*args)
    assert "urgent.reserve=2 slots=10" in text
    assert "batch: done/s" in text


def test_the_cheapest_arrangement_that_holds_an_objective_is_found(laneq: Commands):
    args = ("plan", *URGENT, *BATCH, *QUICK, "--slots", "10", "--slo", "urgent=50ms")
    found = laneq.json(*args, schema="plan")
    assert found["rows"][0]["reserve"] == {"urgent": 1}
    assert [one["holds"] for one in found["tried"]] == [False, True]
    assert "Cheapest that holds urgent 50 ms: 10 slots with urgent=1 reserved." in laneq.out(*args)


def test_slots_are_searched_within_their_range(laneq: Commands):
    lanes = ("--lane", "urgent:rate=50,run=100ms", "--lane", "batch:rate=10,run=200ms")
    args = ("plan", *lanes, *QUICK, "--slo", "urgent=0.2s", "--slots")
    found = laneq.json(*args, "1-64", schema="plan")
    slots = found["rows"][0]["slots"]
    assert 7 < slots < 14
    assert (slots - 1, False) in [(one["slots"], one["holds"]) for one in found["tried"]]
    missed = laneq.json(*args, f"1-{slots - 1}", schema="plan", status=1)
    assert not missed["rows"][0]["holds"]
    assert "None holds urgent 200 ms" in laneq(*args, f"1-{slots - 1}").out


def test_a_reserve_that_sizes_itself_can_be_simulated(laneq: Commands):
    args = ("plan", "--lane", "urgent:rate=30,run=20ms,slo=50ms", *BATCH, "--seeds", "2",
            "--seconds", "40", "--warm-up", "20", "--reserve", "urgent=auto")  # fmt: skip
    (row,) = laneq.json(*args, schema="plan")["rows"]
    assert row["holds"]
    assert row["lanes"][0]["auto_reserve"]["median"] == pytest.approx(1, abs=0.5)
    assert "auto: reserve on average" in laneq.out(*args)


def test_a_scenario_can_be_a_file(laneq: Commands, tmp_path: Path):
    file = tmp_path / "pool.toml"
    file.write_text(
        """
        seconds = "20s"
        overhead = "0.4ms"

        [lanes.urgent]
        rate = 30
        run = "20ms"
        slo = "50ms"

        [lanes.batch]
        backlog = "endless"
        run = "100-300ms"

        [[workers]]
        slots = 2
        reserve = { urgent = 2 }

        [[workers]]
        slots = 4
        count = 2
        lanes = ["urgent", "batch"]
        """
    )
    found = laneq.json("plan", "--file", str(file), "--seeds", "2", schema="plan")
    assert found["seconds"] == 20
    (row,) = found["rows"]
    assert (row["slots"], row["reserve"], row["holds"]) == (10, {"urgent": 2}, True)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ((), "one of three ways"),
        (("--live", *URGENT), "one of three ways"),
        (("--lane", "urgent:rate=30"), "run: of lane 'urgent' is missing"),
        (("--lane", "urgent:run=20ms"), "rate: of lane 'urgent' is missing"),
        (("--lane", "urgent:rate=30,run=20ms,lease=3"), "unknown in a lane"),
        (("--lane", "urgent:rate=30,run=20ms,slots"), "KEY=VALUE"),
        ((*URGENT, *URGENT), "is there twice"),
        ((*URGENT, "--reserve", "ugent=2"), "Did you mean 'urgent'?"),
        ((*URGENT, "--slots", "4-8"), "a range is for --slo"),
        ((*URGENT, "--slots", "0"), "at least one slot"),
        (("--lane", "urgent:rate=1e9,run=1ms"), "at most 10,000,000 are simulated"),
        ((*URGENT, "--slots", "4", "--worker", "4"), "give one"),
        ((*URGENT, "--worker", "4,lane=urgent"), "worker: has lanes="),
        ((*URGENT, "--vary", "urgent.reserve"), "LANE.OPTION=VALUES"),
        ((*URGENT, "--vary", "urgent.colour=1,2"), "unknown in a lane"),
        ((*URGENT, "--vary", "slots=1-300"), "it needs 1 to 200"),
        ((*BATCH, "--slo", "batch=50ms"), "it has only a backlog"),
        ((*URGENT, "--slo", "urgent"), "LANE=WAIT"),
        ((*URGENT, "--slo", "urgent=1s", "--vary", "slots=1,2"), "without --vary"),
        ((*URGENT, "--seconds", "0"), "seconds"),
        (("--file", "no.toml"), "file: 'no.toml' cannot be read"),
    ],
)
def test_what_cannot_be_simulated_is_wrong_usage(laneq: Commands, args: tuple[str, ...], told: str):
    answer = laneq("plan", *args)
    assert answer.status == 2
    assert told in answer.err


def test_a_live_namespace_is_simulated_as_it_was_measured(laneq: Commands, stage: Stage):
    for name in ("urgent", "batch"):
        stage.client.hset(stage.keys.of_lane("counts", name), "enqueued", 100_000)
    measure(stage, "urgent", rate=100, run_s=0.02, seconds=300)
    measure(stage, "batch", rate=20, run_s=0.2, seconds=300)
    found = laneq.json("plan", "--live", "--slots", "8", *QUICK, schema="plan")
    (row,) = found["rows"]
    assert [lane["name"] for lane in row["lanes"]] == ["urgent", "batch"]
    urgent, batch = row["lanes"]
    assert urgent["done_per_s"]["median"] == pytest.approx(100, rel=0.1)
    assert batch["busy"]["median"] == pytest.approx(4, rel=0.15)
    more = laneq.json(
        "plan", "--live", "--slots", "8", *QUICK, "--vary", "urgent.rate=100,150", schema="plan"
    )
    assert more["rows"][1]["lanes"][0]["arrived"]["median"] > 2_700
    for name in ("urgent", "batch"):
        stage.client.hset(stage.keys.of_lane("counts", name), "enqueued", 0)


def test_a_live_namespace_in_which_nothing_ran_or_no_worker_lives_is_told(
    laneq: Commands, stage: Stage
):
    answer = laneq("plan", "--live")
    assert answer.status == 2
    assert "no jobs ran and arrived" in answer.err
    stage.client.hset(stage.keys.of_lane("counts", "urgent"), "enqueued", 10_000)
    measure(stage, "urgent", rate=10, run_s=0.02)
    answer = laneq("plan", "--live")
    assert answer.status == 2
    assert "no worker lives" in answer.err
    stage.client.hset(stage.keys.of_lane("counts", "urgent"), "enqueued", 0)


def test_the_published_scenario_stands_beside_its_figures(laneq: Commands):
    found = laneq.json("plan", "--published", "--seeds", "2", schema="plan-published")
    assert len(found["rows"]) == 8
    assert found["rows"][0]["published"]["urgent_done"] == 0
    text = laneq.out("plan", "--published", "--seeds", "2")
    assert text.splitlines()[0].split()[0] == "arrangement"
    assert len([line for line in text.splitlines() if line.startswith("reserved")]) == 2
