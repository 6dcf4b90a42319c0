"""depths.lua, spread.lua and task_counts.lua: what is read of lanes and tasks."""

from __future__ import annotations

from laneq.calls import stats
from laneq.calls.workers import Sample
from tests.lua.test_beat import beat
from tests.lua.test_claim_outcomes import ERROR, running
from tests.stage import SECOND, START_US, new


def depths(stage, *lanes, window_s=60):
    return stage.run(stats.depths(stage.keys, lanes or ["normal"], window_s=window_s))


def test_the_present_of_each_lane_is_told(stage):
    worker = running(stage, "d", "r")
    worker.finish("d", "dead", body=ERROR)
    stage.put("a", "b")
    stage.put("s", when="+50")
    stage.put("x", lane="batch")
    normal, batch = depths(stage, "normal", "batch")
    assert (normal.waiting, normal.scheduled, normal.running, normal.dead_letters) == (2, 1, 1, 1)
    assert normal.head_ready_us == stage.places("waiting")["a"]
    assert normal.counts == stage.counts()
    assert (batch.waiting, batch.counts, batch.past) == (1, {"enqueued": 1}, None)
    assert depths(stage, "urgent")[0].head_ready_us is None


def test_due_jobs_count_as_waiting_and_the_oldest_is_the_head(stage):
    stage.put("s", when="+2")
    stage.forward(9)
    assert (depths(stage)[0].waiting, depths(stage)[0].scheduled) == (1, 0)
    assert depths(stage)[0].head_ready_us == START_US + 2
    stage.put("w")
    assert depths(stage)[0].head_ready_us == START_US + 2


def test_a_head_start_is_no_wait(stage):
    stage.put("boosted", boost_us=600 * SECOND)
    ready = stage.places("waiting")["boosted"] + 600 * SECOND
    assert START_US < ready <= stage.now()
    assert depths(stage)[0].head_ready_us == ready


def test_the_past_is_the_oldest_note_within_the_window(stage):
    for n in range(20):
        stage.put(f"{n}")
        beat(stage)
        stage.forward(5 * SECOND)
    (lane,) = depths(stage, window_s=60)
    assert lane.past is not None
    assert lane.now_us - lane.past[0] <= 60 * SECOND
    assert lane.now_us - lane.past[0] > 50 * SECOND
    assert lane.past[1] == 10
    stage.forward(3600 * SECOND)
    assert depths(stage)[0].past is None


def test_counts_of_every_task_are_told(stage):
    stage.enqueue(new("a"), new("b", task="other"), new("a"))
    assert stage.run(stats.task_counts(stage.keys)) == {
        "t": {"enqueued": 1, "deduplicated": 1},
        "other": {"enqueued": 1},
    }


def test_counts_of_very_many_tasks_fit_a_reply(stage):
    fields = {f"t{n}\tenqueued": 1 for n in range(9000)}
    stage.client.hset(stage.keys.task_counts, mapping=fields)
    assert len(stage.run(stats.task_counts(stage.keys))) == 9000
    stage.allow("balance of a task", "balance of tasks")


def test_what_only_a_newer_laneq_measures_is_passed_over(stage):
    beat(stage, samples=[Sample("normal", "w1", 2), Sample("normal", "new", 7)])
    call = stats.spread(stage.keys, "normal", now_us=stage.now(), window_s=60)
    assert stage.run(call) == {"w": {1: 2}, "r": {}, "l": {}}


def test_slices_that_are_not_there_add_nothing(stage):
    call = stats.spread(stage.keys, "normal", now_us=START_US, window_s=3600)
    assert stage.run(call) == {"w": {}, "r": {}, "l": {}}
