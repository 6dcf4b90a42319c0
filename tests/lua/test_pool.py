"""pool.lua: what a pool that sizes itself is told of its lanes and of the fleet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from laneq import Lane
from laneq.calls import workers
from laneq.calls.pool import LaneNow, PoolNow, look_at_pool
from laneq.calls.workers import Sample, WorkerInfo
from laneq.elastic import Fleet
from laneq.histogram import bucket_of
from laneq.keys import FINE_US
from laneq.model import PoolView
from tests.lua.test_beat import beat
from tests.stage import SECOND, START_US, Stage

NAMES = ("critical", "urgent", "normal", "batch")


@pytest.fixture
def stage(bare: Stage) -> Stage:
    bare.publish(
        Lane("critical", priority=10_000),
        Lane("urgent", priority=1_000, slo=0.5, reserve=2),
        Lane("normal", priority=100),
        Lane("batch", priority=10),
    )
    return bare


def enlist(
    stage: Stage,
    worker_id: str,
    slots: int,
    *,
    limits: tuple[int, int] | None = None,
    lanes: Sequence[str] = NAMES,
    reserve: dict[str, int] | None = None,
) -> None:
    pool = limits and PoolView(*limits, tuple(lanes), None, None, None, "")
    info = WorkerInfo("n", "h", 1, slots, reserve or {}, lanes, ["t"], pool=pool)
    stage.run(workers.register(stage.keys, worker_id, info))


def look(
    stage: Stage, worker_id: str = "w", lanes: Sequence[str] = NAMES, now_us: int = START_US
) -> PoolNow:
    return stage.run(look_at_pool(stage.keys, worker_id, lanes, now_us=now_us))


def lane(found: PoolNow, name: str) -> LaneNow:
    return next(each for each in found.lanes if each.name == name)


def test_the_settings_in_force_are_told(stage):
    urgent = lane(look(stage), "urgent")
    assert (urgent.slo_s, urgent.priority, urgent.is_paused) == (0.5, 1000, False)
    assert lane(look(stage), "batch").slo_s is None
    stage.set_lane("urgent", {"slo_us": 2_000_000, "paused": True})
    urgent = lane(look(stage), "urgent")
    assert (urgent.slo_s, urgent.is_paused) == (2.0, True)
    stage.set_lane("urgent", {"slo_us": None})
    assert lane(look(stage), "urgent").slo_s is None


def test_what_waits_and_was_started_is_told_of_lanes_with_an_objective_and_higher_ones(stage):
    for name in NAMES:
        stage.put(f"{name}1", f"{name}2", lane=name)
    stage.put("due", lane="urgent", when="+3")
    stage.put("later", lane="urgent", when=f"+{99 * SECOND}")
    stage.worker(serves=["urgent"]).take()
    stage.forward(2 * SECOND)
    found = look(stage)
    urgent = lane(found, "urgent")
    assert (urgent.waiting, urgent.started) == (2, 1)
    assert urgent.head_age_s == pytest.approx(2, abs=0.001)
    assert lane(found, "critical").waiting == 2
    assert (lane(found, "normal").waiting, lane(found, "batch").waiting) == (0, 0)


def test_a_due_job_may_be_the_head(stage):
    stage.put("due", lane="urgent", when="+3")
    stage.forward(SECOND)
    urgent = lane(look(stage), "urgent")
    assert urgent.waiting == 1
    assert urgent.head_age_s == pytest.approx(1, abs=0.001)


def test_a_head_has_waited_since_it_became_ready_whatever_its_place(stage):
    stage.put("boosted", lane="urgent", boost_us=50 * SECOND)
    stage.forward(SECOND)
    assert lane(look(stage), "urgent").head_age_s == pytest.approx(1, abs=0.001)


def test_a_head_of_a_fair_lane_has_waited_since_it_became_ready(bare):
    bare.publish(Lane("urgent", priority=1_000, slo=0.5, fair_by="tenant"))
    for n in range(3):
        bare.put(f"{n}", lane="urgent")
    bare.worker(serves=["urgent"]).take()
    bare.forward(SECOND)
    assert lane(look(bare, lanes=["urgent"]), "urgent").head_age_s == pytest.approx(1, abs=0.001)


def test_without_an_objective_nothing_is_counted(stage):
    stage.set_lane("urgent", {"slo_us": None})
    stage.put("a", lane="critical")
    assert [each.waiting for each in look(stage).lanes] == [0, 0, 0, 0]


def test_the_mean_run_time_is_of_the_last_seconds_else_of_the_last_minute(stage):
    def measure(us: float, n: int) -> None:
        beat(stage, samples=[Sample("urgent", f"r{bucket_of(us)}", n), Sample("urgent", "w9", 5)])

    assert lane(look(stage), "urgent").runs == 0
    measure(100_000, 3)
    measure(200_000, 1)
    urgent = lane(look(stage), "urgent")
    assert urgent.runs == 4
    assert urgent.run_s == pytest.approx(0.125, rel=0.05)
    before = lane(look(stage, now_us=START_US + FINE_US), "urgent")
    assert (before.runs, before.run_s) == (4, urgent.run_s)
    of_minute = lane(look(stage, now_us=START_US + 3 * FINE_US), "urgent")
    assert of_minute.runs == 4


def test_the_slots_that_serve_a_lane_are_added_up(stage):
    enlist(stage, "fixed", 4, reserve={"urgent": 1})
    enlist(stage, "grows", 6, limits=(2, 32), lanes=["urgent", "normal"])
    enlist(stage, "kept", 3, lanes=["urgent", "batch"], reserve={"urgent": 3})
    found = look(stage)
    assert lane(found, "urgent").fleet == Fleet(13, 7, 2, 32)
    assert lane(found, "urgent").kept == 4
    assert lane(found, "normal").fleet == Fleet(10, 4, 2, 32)
    # All slots of one that serves it are kept for another lane.
    assert lane(found, "batch").fleet == Fleet(4, 4, 0, 0)


def test_dead_workers_do_not_count(stage):
    enlist(stage, "dead", 4)
    stage.forward(31 * SECOND)
    enlist(stage, "alive", 2)
    assert lane(look(stage), "urgent").fleet.slots == 2


def test_the_fleet_is_counted_once_a_second_for_all_workers_together(stage):
    enlist(stage, "a", 2, limits=(2, 8))
    enlist(stage, "b", 2, limits=(2, 8))
    assert lane(look(stage, "a"), "urgent").fleet.slots == 4
    enlist(stage, "a", 8, limits=(2, 8))
    stage.forward(SECOND // 2)
    assert lane(look(stage, "b"), "urgent").fleet.slots == 4
    stage.forward(SECOND // 2)
    assert lane(look(stage, "b"), "urgent").fleet.slots == 10


def test_a_worker_that_just_came_is_counted_at_its_first_look(stage):
    enlist(stage, "a", 2, limits=(2, 8))
    look(stage, "a")
    enlist(stage, "b", 3, limits=(2, 8))
    assert lane(look(stage, "b"), "urgent").fleet.slots == 5


def test_workers_that_can_grow_have_places_by_their_ids(stage):
    enlist(stage, "fixed", 2)
    for worker_id in ("c", "a", "b"):
        enlist(stage, worker_id, 2, limits=(2, 8))
    places = {worker_id: look(stage, worker_id).place for worker_id in "abc"}
    assert places == {"a": pytest.approx(1 / 6), "b": 0.5, "c": pytest.approx(5 / 6)}


def test_only_the_state_is_written(stage):
    enlist(stage, "a", 2, limits=(2, 8))
    before: list[Any] = sorted(stage.client.keys("*"))
    look(stage, "a")
    assert sorted(stage.client.keys("*")) == before
