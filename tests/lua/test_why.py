"""why.lua: where a job stands, and what stands beside it."""

from __future__ import annotations

from laneq.calls import jobs
from laneq.calls.jobs import JobPlace
from laneq.calls.lanes import PublishedTask
from laneq.options import DEFAULT_LANES
from tests.stage import SECOND, Stage, new


def why(stage: Stage, job_id: str) -> JobPlace:
    return stage.run(jobs.why(stage.keys, job_id, lanes=stage.lanes.names))


def test_a_waiting_job_has_its_place_and_score(stage):
    stage.put(*"abc")
    stage.put("u", lane="urgent")
    place = why(stage, "c")
    assert (place.place, place.lane, place.ahead, place.task) == ("waiting", "normal", 2, "t")
    assert place.score_us == stage.places("waiting")["c"]
    assert place.now_us >= place.score_us
    assert place.lanes["normal"].waiting == 3
    assert place.lanes["urgent"].head_score_us == stage.places("waiting", "urgent")["u"]
    assert place.lanes["batch"].head_score_us is None


def test_a_scheduled_job_has_the_instant_when_it_is_due(stage):
    stage.put("soon", when=f"+{SECOND}")
    stage.put("later", when=f"+{9 * SECOND}")
    place = why(stage, "later")
    assert (place.place, place.ahead) == ("scheduled", 1)
    assert place.score_us == stage.places("scheduled")["later"]
    assert not place.is_parked


def test_a_scheduled_job_that_is_due_waits_before_any_claim_takes_it_in(stage):
    stage.put("due", when=f"+{SECOND}", boost_us=3)
    stage.put("first")
    stage.forward(2 * SECOND)
    stage.put("last")
    place = why(stage, "due")
    assert (place.place, place.ahead) == ("waiting", 1)
    assert place.score_us == stage.places("scheduled")["due"] - 3
    assert place.lanes["normal"].waiting == 3


def test_a_running_job_has_the_end_of_its_lease(stage):
    stage.put("a")
    stage.worker().claim()
    place = why(stage, "a")
    assert (place.place, place.lane) == ("running", "normal")
    assert place.lease_ends_us == stage.places("leases")["a"]
    assert place.lanes["normal"].running == 1


def test_a_job_that_has_ended_or_is_unknown_has_no_place(stage):
    stage.put("a")
    worker = stage.worker()
    worker.claim()
    worker.finish("a")
    for job_id in ("a", "ghost"):
        place = why(stage, job_id)
        assert (place.place, place.lane, place.lease_ends_us) == ("none", "", None)


def test_a_job_whose_task_is_at_its_limit_is_told_with_its_place_among_them(stage):
    limit = PublishedTask("normal", 3, 0, SECOND, SECOND, max_running=2)
    stage.publish(tasks={"narrow": limit})
    stage.enqueue(*(new(f"n{n}", task="narrow") for n in range(5)))
    stage.worker(slots=8).claim()
    assert why(stage, "n1").place == "running"
    place = why(stage, "n4")
    assert (place.place, place.is_parked, place.parked_before) == ("scheduled", True, 2)
    assert (place.task_most, place.task_running, place.task_parked) == (2, 2, 3)
    # The place that it will have again, not the instant at which it is weighed again.
    assert place.score_us < place.now_us
    stage.put("delayed", when=f"+{SECOND}")
    assert not why(stage, "delayed").is_parked


def test_far_down_in_the_line_of_a_task_the_place_is_known_too(stage):
    limit = PublishedTask("normal", 3, 0, SECOND, SECOND, max_running=1)
    stage.publish(tasks={"narrow": limit})
    stage.enqueue(*(new(f"n{n:03}", task="narrow") for n in range(250)))
    worker = stage.worker(slots=200)
    for _ in range(3):
        worker.claim()
    place = why(stage, "n245")
    assert (place.is_parked, place.parked_before) == (True, 244)
    assert place.task_parked == 249


def test_a_lane_with_a_reserve_tells_what_the_fleet_has_for_it(stage):
    urgent, batch = DEFAULT_LANES[1], DEFAULT_LANES[3]
    stage.publish(urgent.changed(reserve=2), batch.changed(rate="2/s"))
    stage.worker(slots=5).claim()
    stage.put("b0", "b1", lane="batch")
    stage.worker(slots=5).claim()
    place = why(stage, "b1")
    assert (place.lanes["urgent"].slots, place.lanes["urgent"].free) == (5, 4)
    assert place.lanes["batch"].slots is None
    due_us = place.lanes["batch"].next_start_us
    assert due_us is not None
    assert 0 <= place.now_us + SECOND // 2 - due_us < 1000
    assert place.lanes["urgent"].next_start_us is None


def test_a_look_changes_nothing(stage):
    stage.put(*"ab")
    before = stage.snapshot()
    why(stage, "b")
    assert stage.snapshot() == before
