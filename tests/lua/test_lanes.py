"""publish.lua, lanes.lua and set_lane.lua: declarations, overrides, and what is in force."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from laneq.calls import lanes
from laneq.calls.lanes import PublishedTask
from laneq.errors import ConfigError, UnknownLane
from laneq.options import Lane
from tests.stage import SECOND


def read(stage, task=""):
    return stage.run(lanes.read_lanes(stage.keys, task=task))


def test_a_namespace_in_which_nothing_was_published_has_no_lanes(bare):
    found = read(bare)
    assert (found.version, found.names, found.task_line) == (0, (), "")


def test_published_lanes_are_in_force_most_urgent_first(bare):
    bare.publish(
        Lane("b", priority=5),
        Lane("a", priority=5),
        Lane("c", priority=7.5, aging=0.25, aging_cap=12, reserve="auto", lease=2.5, max_running=3),
        Lane("d", priority=-3, dead_max=None, dead_age=None, reserve=4, paused=True),
    )
    found = read(bare)
    assert (found.version, found.names) == (1, ("c", "a", "b", "d"))
    lane = found.lane("c")
    assert (lane.priority, lane.aging_per_us, lane.aging_cap) == (7.5, 0.25e-6, 12)
    assert (lane.lease_us, lane.reserve, lane.max_running) == (2_500_000, "auto", 3)
    assert (lane.is_paused, lane.dead_max, lane.dead_age_us) == (False, 10_000, 30 * 86400 * SECOND)
    lane = found.lane("d")
    assert (lane.is_paused, lane.dead_max, lane.dead_age_us) == (True, -1, -1)
    assert (lane.reserve, lane.max_running) == (4, -1)


def test_publishing_the_same_again_changes_no_version(bare):
    bare.publish(Lane("a"), Lane("b"))
    assert bare.publish(Lane("b"), Lane("a")).version == 1
    assert bare.publish(Lane("a", priority=7)).version == 2


def test_that_a_lane_may_starve_is_stored_beside_what_claims_are_told(bare):
    bare.publish(Lane("a"), Lane("b", priority=1))
    config = bare.hash("state")["config"]
    assert bare.publish(Lane("a", may_starve=True)).version == 1
    bare.run(lanes.set_lane(bare.keys, "b", {"may_starve": True}))
    found = read(bare)
    assert (found.version, bare.hash("state")["config"]) == (1, config), "no worker is told"
    assert [rule.may_starve for rule in found.rules()] == [True, True]
    bare.run(lanes.set_lane(bare.keys, "b", None))
    # An older laneq publishes what it knows of.
    older = {key: value for key, value in Lane("a").to_wire().items() if key != "may_starve"}
    bare.run(lanes.publish(bare.keys, lanes=[("a", older)], tasks={}))
    assert [rule.may_starve for rule in read(bare).rules()] == [False, False]


def test_lanes_of_several_apps_add_up(bare):
    bare.publish(Lane("a"))
    bare.publish(Lane("b"))
    assert bare.lanes.names == ("a", "b")


def test_a_namespace_of_another_schema_is_refused(bare):
    bare.client.hset(bare.keys.state, "schema", 99)
    before = bare.snapshot()
    with pytest.raises(ConfigError, match="schema 99"):
        bare.publish()
    assert bare.snapshot() == before


def test_tasks_are_published_beside_the_lanes(bare):
    task = PublishedTask("batch", 5, 1, 2_000_000, 9_000_000)
    bare.publish(tasks={"shop.tasks.charge": task, "ünï": task})
    assert PublishedTask.from_line(read(bare, "ünï").task_line) == task
    assert PublishedTask.from_line("batch 5 1 2000000 9000000") == task, "of an older version"
    narrow = replace(task, max_running=2)
    assert PublishedTask.from_line("batch 5 1 2000000 9000000 1 2 3") == narrow, "of a newer one"
    assert PublishedTask.from_line(narrow.to_line()) == narrow
    assert read(bare, "other").task_line == ""


def test_an_override_wins_over_every_later_declaration_until_it_is_reset(bare):
    bare.publish(Lane("a", priority=5, reserve=1))
    bare.set_lane("a", {"priority": 9})
    bare.set_lane("a", {"paused": True, "dead_max": None})
    bare.publish(Lane("a", priority=6, reserve=2))
    lane = read(bare).lane("a")
    assert (lane.priority, lane.reserve, lane.is_paused, lane.dead_max) == (9, 2, True, -1)
    assert read(bare).overrides == {"a": {"priority": 9, "paused": True, "dead_max": None}}
    bare.set_lane("a", None)
    lane = read(bare).lane("a")
    assert (lane.priority, lane.reserve, lane.is_paused, lane.dead_max) == (6, 2, False, 10_000)
    assert read(bare).overrides == {}


def test_each_change_raises_the_version_and_no_change_does_not(bare):
    bare.publish(Lane("a", priority=5))
    versions = []
    for changes in ({"priority": 6}, {"priority": 6}, {"priority": 7}, None, None):
        bare.set_lane("a", changes)
        versions.append(bare.lanes.version)
    assert versions == [2, 2, 3, 4, 4]


def test_a_lane_that_nobody_declared_cannot_be_set(bare):
    bare.publish(Lane("a"))
    before = bare.snapshot()
    with pytest.raises(UnknownLane):
        bare.set_lane("typo", {"priority": 6})
    assert bare.snapshot() == before


def test_a_lane_with_work_that_is_set_wakes_a_worker(stage):
    stage.put("a")
    stage.set_lane("normal", {"paused": True})
    stage.client.delete(stage.key("wake", "normal"))
    stage.set_lane("normal", {"paused": False})
    assert stage.tokens() == ["normal"]
    stage.set_lane("batch", {"paused": False})
    assert stage.tokens() == ["normal"]


@pytest.mark.parametrize(
    ("option", "value", "field"),
    [
        ("lease", 86_399.123456, "lease_us"),
        ("dead_age", 1e9, "dead_age_us"),
        ("dead_age", 123_456_789.012345, "dead_age_us"),
        ("aging", 1 / 3, "aging_per_us"),
        ("priority", 999_999.999999, "priority"),
        ("max_running", 999_999_999, "max_running"),
    ],
)
def test_numbers_arrive_within_one_part_in_a_hundred_billion(bare, option, value, field):
    # Lua's JSON keeps 14 digits.
    bare.publish(Lane("a", **{option: value}))
    expected = {"lease_us": 1e6, "dead_age_us": 1e6, "aging_per_us": 1e-6}.get(field, 1) * value
    assert getattr(read(bare).lane("a"), field) == pytest.approx(expected, rel=1e-11)


def test_a_hundred_lanes_are_told_in_one_reply(bare):
    bare.publish(*(Lane(f"lane{n:03}", priority=n) for n in range(100)))
    assert len(read(bare).names) == 100
    bare.put("a", lane="lane000")
    assert bare.worker().take() == ["a"]


def test_an_option_of_a_newer_version_is_kept_and_changes_nothing_here(bare):
    bare.publish(Lane("a"))
    wire = Lane("a").to_wire() | {"newer": [1]}
    bare.run(lanes.publish(bare.keys, lanes=[("a", wire)], tasks={}))
    assert read(bare).version == 1
    assert json.loads(bare.hash("lanes")["a"])["newer"] == [1]


def test_publishing_after_the_state_was_lost_brings_scheduled_jobs_back(stage):
    stage.put("later", when=f"+{SECOND}")
    at = stage.now()
    stage.client.delete(stage.keys.state)
    stage.set_clock(at + 2 * SECOND)
    stage.publish()
    assert stage.worker().take() == ["later"]
