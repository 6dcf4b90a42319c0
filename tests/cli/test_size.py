"""``laneq size``: both answers with their inputs, and the slots that a fleet is to have."""

from __future__ import annotations

import pytest

from laneq.histogram import bucket_of
from tests.cli.conftest import Commands
from tests.stage import Stage


def measure(stage: Stage, lane: str, *, rate: float, run_s: float, seconds: int = 60) -> None:
    """Leave what workers would have measured: a note each five seconds, and run times."""
    keys = stage.keys
    seconds_, micros = stage.client.time()
    now_us = seconds_ * 1_000_000 + micros
    total = int(stage.client.hget(keys.of_lane("counts", lane), "enqueued") or 0)
    for ago in range(seconds, 0, -5):
        noted = round(total - rate * ago)
        stage.client.rpush(
            keys.of_lane("rates", lane), f"{now_us - ago * 1_000_000} {max(noted, 0)} 0 0 0 0"
        )
    for key in (keys.fine(lane, now_us), keys.coarse(lane, now_us)):
        stage.client.hset(key, f"r{bucket_of(run_s * 1e6)}", 100)
        stage.client.expire(key, 300)


def test_a_lane_to_come_is_sized_both_ways_with_the_inputs(laneq: Commands):
    text = laneq.out("size", "--rate", "30", "--run", "20ms", "--slots", "2", "--slo", "50ms")
    assert text.splitlines() == [
        "load       30/s × 20 ms = 0.6 slots busy",
        "1.5 rule   1: 0.6 × 1.5, rounded up, at least 1",
        "Erlang C   4: at most 1% of random arrivals wait at all",
        "           chance of a wait with 2: 13.8%, 3: 2.47%, 4: 0.349%, 5: 0.0404% (1% may)",
        "objective  2: at most 1% wait over 50 ms, in a pool of their own",
        "2 slots    13.8% wait",
    ]


def test_the_chance_that_may_wait_can_be_said(laneq: Commands):
    def slots(chance: str) -> int:
        args = ("size", "--rate", "150", "--run", "20ms", "--chance", chance)
        found = laneq.json(*args, schema="size")
        return int(found["lanes"][0]["erlang"])

    assert [slots(chance) for chance in ("0.1", "0.01", "0.001")] == [6, 9, 11]


def test_a_pool_under_its_load_is_told_to_grow_without_end(laneq: Commands):
    text = laneq.out("size", "--rate", "150", "--run", "20ms", "--slots", "3")
    assert "3 slots   everybody waits, and the queue grows" in text


@pytest.mark.parametrize(
    "args",
    [
        ("--rate", "30"),
        ("--run", "20ms"),
        ("--slots", "3"),
        ("--slo", "50ms"),
        ("--rate", "-1", "--run", "20ms"),
        ("--rate", "nan", "--run", "20ms"),
        ("--rate", "30", "--run", "soon"),
        ("--rate", "30", "--run", "0"),
        ("--chance", "0"),
    ],
)
def test_what_says_nothing_is_wrong_usage(laneq: Commands, args: tuple[str, ...]):
    assert laneq("size", *args).status == 2


def test_each_lane_is_sized_from_what_was_measured(laneq: Commands, stage: Stage):
    stage.client.hset(stage.keys.of_lane("counts", "urgent"), "enqueued", 100_000)
    measure(stage, "urgent", rate=150, run_s=0.02)
    document = laneq.json("size", schema="size")
    lane = {one["name"]: one for one in document["lanes"]}["urgent"]
    assert lane["rate_per_s"] == pytest.approx(150, rel=0.05)
    assert lane["run_s"] == pytest.approx(0.02, rel=0.06)
    assert lane["measured_s"] == pytest.approx(60, abs=3)
    assert lane["rule"] == 5
    assert lane["erlang"] in {8, 9, 10}
    assert lane["waits"] is None, "it has no reserve"
    assert {one["name"]: one["rule"] for one in document["lanes"]}["batch"] is None
    laneq.out("lanes", "set", "urgent", "reserve=5")
    reserved = laneq.json("size", schema="size")["lanes"][1]
    assert (reserved["reserve"], reserved["reserve_slots"]) == (5, 5)
    assert reserved["waits"] == pytest.approx(0.236, abs=0.05)
    text = laneq.out("size")
    (row,) = [line for line in text.splitlines() if line.startswith("urgent")]
    assert "150" in row or "149" in row or "148" in row
    stage.client.hset(stage.keys.of_lane("counts", "urgent"), "enqueued", 0)


def test_the_slots_that_the_fleet_is_to_have_are_one_figure_with_its_reason(
    laneq: Commands, stage: Stage
):
    stage.client.hset(stage.keys.of_lane("counts", "urgent"), "enqueued", 100_000)
    measure(stage, "urgent", rate=150, run_s=0.1)
    laneq.out("lanes", "set", "urgent", "slo=0.5")
    document = laneq.json("size", schema="size")
    assert 15 < document["desired_slots"] < 30
    assert "lane urgent" in document["desired_reason"]
    assert document["slots"] == 0
    text = laneq.out("size")
    assert f"Slots over the fleet: 0 now, {document['desired_slots']} wanted" in text
    laneq.out("lanes", "pause", "urgent")
    assert laneq.json("size", schema="size")["desired_slots"] == 1
    stage.client.hset(stage.keys.of_lane("counts", "urgent"), "enqueued", 0)


def test_work_that_waits_wants_the_slots_that_end_it_in_time(laneq: Commands, stage: Stage):
    measure(stage, "normal", rate=0, run_s=0.1)
    laneq.out("lanes", "set", "normal", "slo=0.1")
    assert laneq.json("size", schema="size")["desired_slots"] == 1
    stage.put(*(f"job {n}" for n in range(50)))
    document = laneq.json("size", schema="size")
    assert 45 <= document["desired_slots"] <= 55
    assert "50 waiting" in document["desired_reason"]


def test_a_namespace_without_lanes_is_told_as_such(laneq: Commands):
    answer = laneq("size")
    assert answer.status == 0
    assert "has no lanes" in answer.err
    assert laneq.json("size", schema="size")["lanes"] == []
