"""size.lua and decide.lua: one worker at a time sizes the automatic reserves."""

from __future__ import annotations

import pytest

from laneq.calls.lanes import set_lane
from laneq.calls.reserves import Duty, decide, take_duty
from laneq.options import Lane
from tests.stage import SECOND, Stage

TTL_US = 5 * SECOND


@pytest.fixture
def auto(stage: Stage) -> Stage:
    stage.publish(Lane("urgent", priority=1000, reserve="auto"), Lane("batch", priority=10))
    return stage


def take(stage: Stage, worker: str) -> Duty:
    names = stage.lanes.names
    return stage.run(take_duty(stage.keys, worker, names, now_us=stage.now(), ttl_us=TTL_US))


def put(stage: Stage, worker: str, term: int | None, value: int) -> bool:
    assert term is not None
    return stage.run(
        decide(stage.keys, worker, term=term, decisions={"urgent": {"value": value, "at": 1.5}})
    )


def test_the_first_who_asks_has_the_duty_and_keeps_it(auto):
    first = take(auto, "a")
    assert first.term == 1
    other = take(auto, "b")
    assert other.term is None
    assert other.until_us == first.now_us + TTL_US
    auto.forward(TTL_US - SECOND)
    assert take(auto, "a").term == 1
    auto.forward(TTL_US - SECOND)
    assert take(auto, "b").term is None


def test_a_worker_that_falls_silent_loses_the_duty_and_its_word(auto):
    take(auto, "a")
    auto.forward(TTL_US)
    assert put(auto, "a", 1, 3) is False
    assert take(auto, "b").term == 2
    assert put(auto, "a", 1, 3) is False
    assert put(auto, "b", 1, 3) is False
    assert put(auto, "b", 2, 3) is True
    auto.forward(TTL_US + SECOND)
    assert take(auto, "b").term == 3, "it may have missed another's tenure"


def test_a_decision_is_in_force_at_the_next_claim(auto):
    version = auto.lanes.version
    assert auto.lanes.lane("urgent").reserve_slots == 0
    term = take(auto, "a").term
    assert put(auto, "a", term, 2)
    auto.publish(Lane("urgent", priority=1000, reserve="auto"), Lane("batch", priority=10))
    lane = auto.lanes.lane("urgent")
    assert (lane.reserve, lane.reserve_slots) == ("auto", 2)
    assert auto.lanes.version == version + 1
    assert auto.lanes.decisions["urgent"]["value"] == 2
    auto.put(*"abcd", lane="batch")
    assert len(auto.worker(slots=5).take()) == 3
    assert put(auto, "a", term, 2)
    auto.publish(Lane("urgent", priority=1000, reserve="auto"), Lane("batch", priority=10))
    assert auto.lanes.version == version + 1, "the same again changes nothing"


def test_a_reserve_that_an_operator_sets_goes_before_what_was_decided(auto):
    put(auto, "a", take(auto, "a").term, 4)
    auto.run(set_lane(auto.keys, "urgent", {"reserve": 1}))
    auto.set_lane("urgent", {"reserve": 1})
    assert auto.lanes.lane("urgent").reserve_slots == 1
    auto.set_lane("urgent", None)
    assert auto.lanes.lane("urgent").reserve_slots == 4


def test_what_was_measured_is_told_by_lane(auto):
    auto.put(*"abc", lane="urgent")
    auto.client.hset(auto.keys.fine("urgent", auto.now()), mapping={"w5": 2, "r9": 3, "l1": 1})
    auto.client.expire(auto.keys.fine("urgent", auto.now()), 60)
    auto.worker(slots=4).claim(free=0)
    found = take(auto, "a").lanes["urgent"]
    assert (found.enqueued, found.slots, found.decision) == (3, 0, None)
    assert found.now == {"w": {5: 2}, "r": {9: 3}}
    assert found.before == {"w": {}, "r": {}}
    put(auto, "a", 1, 1)
    auto.publish(Lane("urgent", priority=1000, reserve="auto"))
    auto.worker(slots=4).claim()
    found = take(auto, "a").lanes["urgent"]
    assert found.slots == 4
    assert found.decision is not None
    assert found.decision["value"] == 1
