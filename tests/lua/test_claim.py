"""claim.lua: which jobs start, in which order, on which slots."""

from __future__ import annotations

import pytest

from laneq.options import Lane
from tests.stage import SECOND, START_US, new

LEASE_US = 15 * SECOND


def test_a_claim_moves_a_job_from_its_lane_to_a_lease(stage):
    stage.put("a")
    stage.forward(SECOND)
    before = stage.snapshot()
    reply = stage.worker().claim(fence_floor=0)
    now = START_US + 1 + SECOND
    (job,) = reply.jobs
    assert job == ("a", b"t\npayload of a", "normal", now + 1, 1, START_US + 1, START_US + 1)
    assert (reply.now_us, reply.is_more, reply.stale, reply.closed) == (now, False, [], frozenset())
    after = stage.snapshot()
    assert "waiting:normal" not in after
    assert after["leases:normal"] == [(b"a", now + LEASE_US)]
    score = b"%d" % (START_US + 1)
    assert after["runs"] == {
        b"a": b"%d w normal 1 %s %d %s 0 0 t" % (now + 1, score, now, score),
    }
    assert after["jobs"] == before["jobs"]
    assert after["counts:normal"] == {b"enqueued": b"1", b"started": b"1"}
    assert after["call:w"] == b"1 a:%d" % (now + 1)


def test_a_claim_of_nothing_brings_nothing(stage):
    reply = stage.worker(slots=3).claim()
    assert reply.jobs == []
    assert reply.wake_after_us == -1
    assert stage.tokens() == []


def test_a_worker_without_a_free_slot_gets_nothing(stage):
    stage.put("a")
    assert stage.worker().take(free=0) == []
    assert stage.order() == ["a"]


def test_fences_rise_from_claim_to_claim(stage):
    stage.put(*"abcd")
    worker = stage.worker(slots=4)
    fences = [job.fence for n in (1, 2, 1) for job in worker.claim(free=n).jobs]
    assert fences == sorted(set(fences))
    assert len(fences) == 4


def test_a_fence_is_above_what_its_worker_has_seen_after_a_failover_lost_the_clock(stage):
    stage.put("a", "b")
    worker = stage.worker(slots=2)
    (first,) = worker.claim(free=1).jobs
    stage.set_clock(first.fence - SECOND)
    (second,) = worker.claim(fence_floor=first.fence).jobs
    assert second.fence > first.fence


# --- order ------------------------------------------------------------------


def test_a_higher_lane_goes_first(stage):
    stage.put("b", lane="batch")
    stage.put("n", lane="normal")
    stage.put("u", lane="urgent")
    stage.put("c", lane="critical")
    worker = stage.worker(slots=4)
    assert [worker.take(free=1) for _ in range(4)] == [["c"], ["u"], ["n"], ["b"]]


@pytest.mark.parametrize(
    ("waited_us", "first"), [(44 * SECOND, "n"), (45 * SECOND, "n"), (45 * SECOND + 1, "b")]
)
def test_batch_that_has_waited_45_s_overtakes_fresh_normal(stage, waited_us, first):
    stage.put("b", lane="batch")
    # normal waits since now; batch since waited_us before that: at the same value, the higher
    # priority wins.
    stage.set_clock(START_US + waited_us)
    stage.put("n")
    assert stage.places("waiting")["n"] == START_US + 1 + waited_us
    assert stage.worker().take() == [first]


def test_urgent_beats_normal_and_batch_however_long_they_have_waited(stage):
    stage.put("n")
    stage.put("b", lane="batch")
    stage.forward(10_000_000 * SECOND)
    stage.put("u", lane="urgent")
    worker = stage.worker(slots=3)
    assert worker.take(free=1) == ["u"]
    # Both are at the cap: the higher priority leads.
    assert worker.take(free=1) == ["n"]


def test_equal_values_of_equal_lanes_start_by_the_earlier_ready_time(bare):
    bare.publish(
        Lane("a", aging_cap=10), Lane("b", aging_cap=10), Lane("c", priority=99, aging_cap=10)
    )
    bare.put("b1", lane="b")
    bare.put("a1", lane="a")
    bare.put("c1", lane="c")
    bare.forward(100 * SECOND)
    worker = bare.worker(slots=3)
    assert [worker.take(free=1) for _ in range(3)] == [["b1"], ["a1"], ["c1"]]


def test_equal_values_and_instants_start_by_the_lanes_name(bare):
    bare.publish(Lane("b"), Lane("a"))
    at = START_US - SECOND
    bare.put("x", lane="b", when=f"@{at}")
    bare.put("y", lane="a", when=f"@{at}")
    assert bare.worker().take() == ["y"]


def test_without_aging_a_lower_lane_waits_for_ever(bare):
    bare.publish(Lane("high", priority=2, aging=0), Lane("low", priority=1, aging=0))
    bare.put("l", lane="low")
    bare.forward(10**15)
    bare.put("h", lane="high")
    assert bare.worker().take() == ["h"]


def test_inside_a_lane_the_order_is_first_in_first_out(stage):
    ids = [f"{n:03}" for n in range(300, 0, -1)]
    stage.put(*ids)
    worker = stage.worker(slots=1000)
    got = []
    while len(got) < 300:
        got += worker.take(free=7)
    assert got == ids


def test_a_boost_is_a_head_start_inside_its_lane(stage):
    stage.put("a")
    stage.put("b", boost_us=SECOND)
    worker = stage.worker(slots=2)
    jobs = worker.claim().jobs
    assert [job.id for job in jobs] == ["b", "a"]
    assert jobs[0].score_us == START_US + 2 - SECOND
    assert jobs[0].enqueued_us == START_US + 2


@pytest.mark.parametrize("slots", [1, 32, 33, 34, 128, 129, 130, 161, 162, 163, 255, 256])
def test_many_jobs_in_one_claim_come_in_order_over_the_borders_of_its_chunks(stage, slots):
    ids = [f"{n:04}" for n in range(300, 0, -1)]
    stage.put(*ids)
    worker = stage.worker(slots=slots)
    jobs = worker.claim().jobs
    assert [job.id for job in jobs] == ids[:slots]
    assert stage.order() == ids[slots:]
    assert len({job.fence for job in jobs}) == slots
    assert stage.tokens() == ["normal"]


@pytest.mark.parametrize("there", [1, 32, 33, 34, 161, 162, 163])
def test_a_claim_takes_all_that_is_there(stage, there):
    ids = [f"{n:04}" for n in range(there)]
    stage.put(*ids)
    assert stage.worker(slots=256).take() == ids
    assert stage.order() == []
    stage.put(*(f"n{job_id}" for job_id in ids))
    stage.put(*(f"b{job_id}" for job_id in ids[:50]), lane="batch")
    assert len(stage.worker("v", slots=256).take()) == there + min(there, 50)


def test_one_claim_mixes_lanes_by_value(stage):
    stage.put("b1", "b2", lane="batch")
    stage.forward(45 * SECOND + 10)
    stage.put("n1", "n2", "n3")
    stage.put("u1", lane="urgent")
    worker = stage.worker(slots=4)
    assert sorted(worker.take()) == ["b1", "b2", "n1", "u1"]
    assert stage.order() == ["n2", "n3"]


def test_a_large_claim_over_two_lanes_takes_of_each_what_its_value_says(bare):
    bare.publish(Lane("a", priority=0), Lane("b", priority=0))
    for n in range(100):
        bare.put(f"a{n}", lane="a")
        bare.put(f"b{n}", lane="b")
    got = bare.worker(slots=150).take()
    assert sorted(got) == sorted(f"{lane}{n}" for n in range(75) for lane in "ab")


def test_a_hundred_lanes_that_all_differ_keep_to_their_own_rules(bare):
    names = [f"l{n:03}" for n in range(130)]
    bare.publish(*(Lane(name, priority=n, max_running=1 + n % 2) for n, name in enumerate(names)))
    for name in names:
        bare.put(f"{name}a", f"{name}b", lane=name)
    worker = bare.worker("w", slots=150)
    expected = [
        f"{name}{letter}"
        for n, name in reversed(list(enumerate(names)))
        for letter in "ab"[: 1 + n % 2]
    ]
    assert sorted(worker.take()) == sorted(expected[:150])


def test_leases_are_as_long_as_each_lane_says(bare):
    bare.publish(Lane("a", lease=2.0), Lane("b", lease=30.0))
    bare.put("a1", lane="a")
    bare.put("b1", lane="b")
    now = bare.now()
    bare.worker("w", slots=2).take()
    length = bare.places("leases", "b")["b1"] - bare.places("leases", "a")["a1"]
    assert length == 28 * SECOND
    assert bare.places("leases", "a")["a1"] >= now + 2 * SECOND


def test_order_stands_when_the_clock_steps_back_after_the_enqueue(stage):
    stage.put("z")
    stage.forward(5)
    stage.put("a")
    assert stage.worker(slots=2).take() == ["z", "a"]


# --- which lanes ------------------------------------------------------------


def test_a_lane_that_the_worker_does_not_serve_is_left_alone(stage):
    stage.put("u", lane="urgent")
    stage.put("b", lane="batch")
    stage.client.delete(*(stage.key("wake", lane) for lane in ("urgent", "batch")))
    assert stage.worker(slots=5, serves=["batch"]).take() == ["b"]
    assert stage.tokens() == ["urgent"]


def test_a_paused_lane_gives_nothing_and_is_named(stage):
    stage.put("n")
    stage.set_lane("normal", {"paused": True})
    worker = stage.worker(slots=2)
    reply = worker.claim()
    assert reply.jobs == []
    assert reply.closed == {"normal"}
    stage.set_lane("normal", None)
    reply = worker.claim()
    assert [job.id for job in reply.jobs] == ["n"]
    assert reply.closed == frozenset()


def test_a_lane_whose_priority_is_changed_takes_its_new_place_at_once(stage):
    stage.put("n")
    stage.put("b", lane="batch")
    stage.set_lane("batch", {"priority": 5000})
    assert stage.lanes.names == ("critical", "batch", "urgent", "normal")
    assert stage.worker().take() == ["b"]


def test_a_claim_with_other_lanes_than_those_in_force_does_nothing(stage):
    stage.put("a", "b")
    worker = stage.worker(slots=2)
    worker.take(free=1)
    old = stage.lanes
    stage.set_lane("normal", {"priority": 7})
    before = stage.snapshot()
    call = worker.call(outcomes=[worker.ended("a")], lanes=old, is_look=True)
    assert stage.run(call) is None
    assert stage.snapshot() == before


def test_a_claim_in_a_namespace_without_lanes_does_nothing(bare):
    before = bare.snapshot()
    call = bare.worker().call(is_look=True)
    assert bare.run(call) is None
    assert bare.snapshot() == before


# --- reserves ---------------------------------------------------------------


def test_a_reserved_slot_waits_idle_for_its_lane(stage):
    stage.put(*"abcde", lane="batch")
    worker = stage.worker(slots=4, reserve={"urgent": 2})
    assert worker.take() == ["a", "b"]
    assert worker.take() == []
    stage.put("u", "v", "w", lane="urgent")
    assert worker.take() == ["u", "v"]


def test_a_lane_uses_shared_slots_beyond_its_reserve(stage):
    stage.put(*"uvwxyz", lane="urgent")
    worker = stage.worker(slots=4, reserve={"urgent": 2})
    assert worker.take() == ["u", "v", "w", "x"]


def test_aging_never_opens_a_reserved_slot(stage):
    stage.put("a", "b", lane="batch")
    stage.forward(10**6 * SECOND)
    worker = stage.worker(slots=2, reserve={"urgent": 1})
    assert worker.take() == ["a"]
    assert worker.take() == []


def test_reserves_of_two_lanes_are_both_kept(stage):
    stage.put(*"abcdef", lane="batch")
    stage.put("n1", "n2", "n3")
    worker = stage.worker(slots=6, reserve={"urgent": 2, "normal": 1})
    # Four slots are not urgent's; of these batch may have those that normal does not lack.
    assert sorted(worker.take()) == ["a", "n1", "n2", "n3"]
    worker = stage.worker("v", slots=6, reserve={"urgent": 2, "normal": 1})
    assert worker.take() == ["b", "c", "d"]


def test_a_worker_whose_slots_are_all_reserved_takes_only_that_lane(stage):
    stage.put("a", lane="batch")
    worker = stage.worker(slots=2, reserve={"urgent": 2})
    assert worker.take() == []
    stage.put("u", lane="urgent")
    assert worker.take() == ["u"]


def test_a_reserve_that_is_filled_frees_no_more_than_it_holds(stage):
    stage.put("u", "v", lane="urgent")
    worker = stage.worker(slots=3, reserve={"urgent": 1})
    assert worker.take() == ["u", "v"]
    stage.put("a", lane="batch")
    assert worker.take() == ["a"]


# --- jobs that cannot start -------------------------------------------------


def test_a_job_that_is_past_its_expiry_ends_and_never_runs(stage):
    stage.put("a", expires_us=SECOND)
    stage.put("b")
    stage.forward(SECOND)
    assert stage.worker().take() == ["b"]
    assert stage.state("a") == "expired"
    assert stage.counts() == {"enqueued": 2, "started": 1, "expired": 1}
    assert stage.task_counts() == {"enqueued": 2, "started": 1, "expired": 1}


@pytest.mark.parametrize(("late_us", "state"), [(-1, "running"), (0, "expired"), (1, "expired")])
def test_a_job_expires_at_its_instant(stage, late_us, state):
    stage.put("a", expires_at_us=START_US + SECOND)
    stage.set_clock(START_US + SECOND + late_us)
    stage.worker().claim()
    assert stage.state("a") == state


def test_the_time_to_expiry_counts_from_the_enqueue_not_from_the_delay(stage):
    stage.put("late", when="+10000000", expires_us=5 * SECOND)
    stage.put("fine", when="+10000000", expires_us=15 * SECOND)
    stage.put("boosted", boost_us=20 * SECOND, expires_us=15 * SECOND)
    stage.forward(10 * SECOND)
    assert stage.worker(slots=3).take() == ["boosted", "fine"]
    assert stage.state("late") == "expired"


def test_an_expired_job_without_a_result_to_keep_leaves_no_trace(stage):
    stage.put("a", expires_us=1, ttl_us=0)
    stage.forward(1)
    stage.worker().claim()
    assert stage.state("a") is None
    assert stage.hash("jobs") == {}
    assert stage.counts() == {"enqueued": 1, "expired": 1}


def test_expired_jobs_give_their_slots_to_those_behind_them(stage):
    stage.put(*(f"x{n:03}" for n in range(100)), expires_us=1)
    stage.put(*"abc")
    stage.forward(1)
    worker = stage.worker(slots=40)
    assert worker.take() == ["a", "b", "c"]
    assert stage.counts()["expired"] == 100


def test_a_flood_of_expired_jobs_is_ended_in_bounded_steps(stage):
    ids = [f"x{n:04}" for n in range(60)]
    stage.put(*ids, expires_us=1)
    stage.put("a")
    stage.forward(1)
    worker = stage.worker(slots=1)
    steps = 0
    reply = worker.claim()
    while reply.is_more:
        assert reply.jobs == []
        steps += 1
        reply = worker.claim()
    assert [job.id for job in reply.jobs] == ["a"]
    assert 5 <= steps <= 60


def test_a_job_that_was_started_before_it_expired_may_start_again(stage):
    stage.put("lost", "back", "failed", expires_us=SECOND, max_attempts=9)
    worker = stage.worker(slots=3)
    worker.take()
    worker.claim(
        free=0,
        outcomes=[worker.ended("back", "handed_back"), worker.ended("failed", "retried", number=1)],
    )
    stage.forward(LEASE_US + 1)
    assert sorted(stage.worker("v", slots=3).take(is_look=True)) == ["back", "failed", "lost"]


def test_a_job_whose_body_is_gone_becomes_a_letter_that_says_so(stage):
    stage.put(*(f"{n:03}" for n in range(50)))
    lost = [f"{n:03}" for n in range(0, 50, 2)]
    stage.client.hdel(stage.keys.jobs, *lost)
    worker = stage.worker(slots=256)
    assert worker.take() == [f"{n:03}" for n in range(1, 50, 2)]
    assert stage.order("dead") == lost
    view = stage.look("000")
    assert (view.state, view.error.message, view.args) == ("dead", "body missing", None)
    assert stage.counts() == {"enqueued": 50, "started": 25, "dead": 25, "missing": 25}


def test_a_body_that_goes_between_two_attempts_keeps_its_task_and_attempts(stage):
    stage.put("a")
    worker = stage.worker()
    worker.take()
    worker.finish("a", "retried", number=0)
    stage.client.hdel(stage.keys.jobs, "a")
    assert worker.take() == []
    view = stage.look("a")
    assert (view.state, view.task, view.attempt) == ("dead", "t", 1)


def test_a_run_line_that_cannot_be_read_is_as_none(stage):
    stage.put("a")
    stage.client.hset(stage.keys.runs, "a", "garbage")
    (job,) = stage.worker().claim().jobs
    assert job.attempt == 1
    assert stage.run_line("a")[3] == "1"


# --- adherence --------------------------------------------------------------


def inverted(stage) -> dict[str, int]:
    return {
        lane: stage.counts(lane)["inverted"]
        for lane in stage.lanes.names
        if "inverted" in stage.counts(lane)
    }


def test_a_start_while_a_strictly_higher_lane_waits_is_counted(stage):
    stage.put("u", lane="urgent")
    stage.put("n")
    stage.put("b", lane="batch")
    stage.worker(serves=["normal"]).take()
    stage.worker("v", serves=["batch"]).take()
    assert inverted(stage) == {"normal": 1, "batch": 1}
    stage.worker("x").take()
    assert inverted(stage) == {"normal": 1, "batch": 1}


def test_a_claim_that_takes_the_higher_job_too_keeps_the_order(stage):
    stage.put("u", lane="urgent")
    stage.put("b", "c", lane="batch")
    assert len(stage.worker(slots=3).take()) == 3
    assert inverted(stage) == {}


def test_a_job_that_aged_past_a_higher_lane_is_counted_as_out_of_order(stage):
    stage.put("b", lane="batch")
    stage.forward(100 * SECOND)
    stage.put("n")
    assert len(stage.worker(slots=2).take()) == 2
    assert inverted(stage) == {"batch": 1}


def test_a_paused_lane_does_not_wait(stage):
    stage.put("u", lane="urgent")
    stage.put("b", lane="batch")
    stage.set_lane("urgent", {"paused": True})
    assert stage.worker().take() == ["b"]
    assert inverted(stage) == {}


def test_a_lane_of_the_same_priority_is_not_a_higher_one(bare):
    bare.publish(Lane("a"), Lane("b"))
    bare.put("1", lane="a")
    bare.put("2", lane="b")
    assert bare.worker(serves=["b"]).take() == ["2"]
    assert inverted(bare) == {}


# --- overtaking -------------------------------------------------------------


def overtaken(stage) -> dict[str, int]:
    names = stage.lanes.names
    return {n: stage.counts(n)["overtaken"] for n in names if "overtaken" in stage.counts(n)}


def aged(stage) -> None:
    """Have a job of `batch` go first although one of `normal` waits."""
    stage.put("old", "older", lane="batch")
    stage.forward(100 * SECOND)
    stage.put("n1", "n2")
    assert stage.worker().take() == ["old"]


def test_a_job_is_overtaken_when_a_lower_one_starts_on_a_slot_that_it_could_have_had(stage):
    aged(stage)
    assert overtaken(stage) == {}  # it is told at the start
    stage.forward(SECOND)
    stage.put("later")
    assert stage.worker("v", slots=9).take() == ["older", "n1", "n2", "later"]
    assert overtaken(stage) == {"normal": 2}


def test_what_starts_in_the_same_call_lost_nothing(stage):
    stage.put("old", lane="batch")
    stage.forward(100 * SECOND)
    stage.put("n")
    assert stage.worker(slots=2).take() == ["old", "n"]
    stage.put("m")
    assert stage.worker("v").take() == ["m"]
    assert overtaken(stage) == {}


def test_a_slot_that_the_waiting_job_could_not_have_had_does_not_count(stage):
    stage.put("u", lane="urgent")
    stage.put("b", "c", lane="batch")
    stage.worker(serves=["batch"]).take()
    # The one free slot is kept for `batch`.
    stage.worker("v", slots=1, reserve={"batch": 1}).take()
    assert inverted(stage) == {"batch": 2}
    assert stage.worker("x").take() == ["u"]
    assert overtaken(stage) == {}


def test_a_lower_job_that_has_expired_overtakes_nobody(stage):
    stage.put("old", lane="batch", expires_us=SECOND)
    stage.forward(100 * SECOND)
    stage.put("n", "m")
    assert stage.worker().take() == ["n"]
    assert stage.worker("v").take() == ["m"]
    assert overtaken(stage) == {}


def test_a_retried_job_was_overtaken_if_it_was_in_this_wait(stage):
    aged(stage)
    worker = stage.worker("v")
    stage.worker("x").take()  # "older"
    assert worker.take() == ["n1"]
    worker.finish("n1", "retried", number=SECOND, body=b"!no")
    stage.forward(SECOND)
    assert stage.worker("y", slots=2).take() == ["n2", "n1"]
    assert overtaken(stage) == {"normal": 2}


def test_a_boosted_job_that_came_later_was_not_overtaken(stage):
    aged(stage)
    stage.forward(SECOND)
    stage.put("boosted", boost_us=50 * SECOND)
    stage.worker("x").take()  # "older", which overtakes it too
    stage.forward(SECOND)
    stage.put("another", boost_us=50 * SECOND)
    assert set(stage.worker("v", slots=9).take()) == {"n1", "n2", "boosted", "another"}
    assert overtaken(stage) == {"normal": 3}


def test_marks_of_lanes_that_have_changed_places_are_forgotten(stage):
    aged(stage)
    stage.set_lane("critical", {"priority": 1})
    stage.worker("v", slots=9).take()
    assert overtaken(stage) == {}


def test_a_namespace_may_be_called_like_a_key(raw, request):
    from tests.conftest import drop_namespace
    from tests.stage import Stage

    stage = Stage(raw, "waiting:counts:x", is_fake=False)
    try:
        stage.set_clock(START_US)
        stage.publish()
        stage.put("a", "b")
        worker = stage.worker()
        worker.take()
        assert stage.run_line("a")[2] == "normal"
        stage.cancel("b")
        assert stage.look("b").lane == "normal"
        assert stage.problems() == []
    finally:
        drop_namespace(raw, stage.namespace)


def test_claiming_two_hundred_and_fifty_six_jobs_with_options_fits_a_reply(stage):
    stage.enqueue(*(new(f"{n:03}", timeout_us=5, boost_us=1) for n in range(300)))
    worker = stage.worker(slots=256)
    assert len(worker.claim().jobs) == 256
    ends = [worker.ended(job_id, body=b"x" * 100, number=SECOND) for job_id in worker.held]
    assert len(worker.claim(free=256, outcomes=ends).jobs) == 44


def test_more_slots_than_one_claim_fills_count_for_reserves(stage):
    # A reserve of 500 of 1,000 slots leaves 500 to the rest, though a reply has 256 jobs.
    for n in range(600):
        stage.put(f"{n:03}", lane="batch")
    worker = stage.worker(slots=1_000, reserve={"urgent": 500})
    assert [len(worker.take()) for _ in range(3)] == [256, 244, 0]
