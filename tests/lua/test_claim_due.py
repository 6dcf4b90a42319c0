"""claim.lua: what time brings: due jobs, lost leases, records and workers that ran out."""

from __future__ import annotations

import pytest

from laneq.calls import workers
from laneq.calls.jobs import KEEP_US
from laneq.calls.lanes import PublishedTask
from laneq.options import Lane
from tests.stage import SECOND, START_US, new

LEASE_US = 15 * SECOND


# --- due jobs ---------------------------------------------------------------


def test_a_due_job_starts_and_not_a_microsecond_earlier(stage):
    stage.put("a", when="+5000000")
    worker = stage.worker()
    stage.set_clock(START_US + 5 * SECOND - 1)
    assert worker.take() == []
    assert stage.state("a") == "scheduled"
    stage.set_clock(START_US + 5 * SECOND)
    (job,) = worker.claim().jobs
    assert (job.score_us, job.enqueued_us) == (START_US + 5 * SECOND, START_US)
    assert "next_due" not in stage.hash("state")


def test_due_jobs_wait_in_the_order_in_which_they_became_due(stage):
    stage.put("c", when="+3")
    stage.put("a", when="+1")
    stage.put("z", "y", "x", when="+2")
    stage.forward(10)
    stage.worker().claim(free=0)
    assert stage.order() == ["a", "z", "c", "y", "x"]  # y is put after c, whose instant it met


def test_a_due_job_keeps_its_boost(stage):
    stage.put("a", when=f"@{START_US + 10}", boost_us=5)
    stage.put("b", when=f"@{START_US + 7}")
    stage.forward(20)
    stage.worker().claim(free=0)
    assert stage.places("waiting") == {"a": START_US + 5, "b": START_US + 7}


def test_a_due_job_takes_no_instant_that_another_waits_on(stage):
    stage.put("z")
    stage.put("a", when=f"@{START_US + 1}")
    stage.put("b", when="@5", boost_us=3)
    stage.put("c", when="@6", boost_us=4)
    stage.worker().claim(free=0)
    assert stage.places("waiting") == {"b": 2, "c": 3, "z": START_US + 1, "a": START_US + 2}


def test_no_later_job_gets_the_instant_of_a_due_job(stage):
    stage.put("y")
    stage.put("a", when=f"@{START_US + 1}")
    stage.worker().claim(free=0)
    stage.put("b")
    assert stage.places("waiting") == {"y": START_US + 1, "a": START_US + 2, "b": START_US + 3}


def test_due_jobs_are_promoted_five_hundred_a_call(stage):
    ids = [f"{n:04}" for n in range(1100, 0, -1)]
    stage.put(*ids[:600], when=f"@{START_US + 9}")
    stage.put(*ids[600:], when=f"@{START_US + 9}", lane="batch")
    stage.forward(5000)
    worker = stage.worker()
    for normal, batch, is_more in [(500, 0, True), (600, 400, True), (600, 500, False)]:
        assert worker.claim(free=0).is_more is is_more
        assert len(stage.order()) == normal
        assert len(stage.order(lane="batch")) == batch
    assert stage.order() + stage.order(lane="batch") == ids
    assert "next_due" not in stage.hash("state")


def test_the_next_due_instant_is_known_after_a_promotion(stage):
    stage.put("a", when="+5")
    stage.put("b", when="+9", lane="batch")
    stage.forward(5)
    stage.worker().claim(free=0)
    assert stage.hash("state")["next_due"] == b"%d" % (START_US + 9)


def test_a_due_job_in_a_paused_lane_waits(stage):
    stage.put("a", when="+5")
    stage.set_lane("normal", {"paused": True})
    stage.forward(5)
    assert stage.worker().take() == []
    assert stage.order() == ["a"]


def test_promotion_wakes_one_worker_for_each_lane_that_got_work(stage):
    stage.put("a", "b", when="+5")
    stage.put("c", when="+5", lane="batch")
    for lane in stage.lanes.names:
        stage.client.delete(stage.key("wake", lane))
    stage.forward(6)
    stage.worker().claim(free=0)
    assert stage.tokens() == ["normal", "batch"]


# --- leases -----------------------------------------------------------------


def lose(stage, *ids, worker="w", lane="normal"):
    """Claim jobs and let their leases run out."""
    victim = stage.worker(worker, slots=len(ids))
    assert sorted(victim.take()) == sorted(ids)
    stage.set_clock(max(stage.places("leases", lane).values()))
    return victim


def test_a_lease_is_lost_at_its_deadline_and_not_earlier(stage):
    stage.put("a")
    worker = stage.worker()
    worker.take()
    deadline = stage.places("leases")["a"]
    assert deadline == worker.held["a"].fence - 1 + LEASE_US
    stage.set_clock(deadline - 1)
    other = stage.worker("v")
    assert other.take(is_look=True) == []
    stage.set_clock(deadline)
    assert other.take(is_look=True) == ["a"]


def test_leases_have_the_length_that_their_lane_says(bare):
    bare.publish(Lane("short", lease=2), Lane("long", lease=600))
    bare.put("s", lane="short")
    bare.put("l", lane="long")
    bare.worker(slots=2).claim()
    now = bare.now() - 2
    assert bare.places("leases", "short") == {"s": now + 2 * SECOND}
    assert bare.places("leases", "long") == {"l": now + 600 * SECOND}


def test_the_first_loss_puts_a_job_at_the_front_of_its_lane(stage):
    stage.put("a", "b")
    stage.put("c")
    lose(stage, "a", "b")
    stage.client.delete(stage.key("wake", "normal"))
    stage.worker("v").claim(free=0, is_look=True)
    assert stage.order() == ["a", "b", "c"]
    assert stage.tokens() == ["normal"]
    jobs = stage.worker("v", slots=2).claim().jobs
    assert [(job.id, job.attempt) for job in jobs] == [("a", 2), ("b", 2)]
    assert stage.counts() == {"enqueued": 3, "started": 4, "lost_leases": 2}
    (entry,) = stage.look("a").history
    assert (entry.attempt, entry.worker, entry.outcome) == (1, "w", "worker lost")
    assert entry.error.message == "worker lost"


def test_later_losses_wait_for_a_backoff(stage):
    stage.put("a", max_attempts=9, base_us=4 * SECOND, jitter=0)
    lose(stage, "a")
    lose_again = stage.worker("v")
    lose_again.claim(is_look=True)
    stage.forward(LEASE_US)
    lost_at = stage.now()
    stage.worker("x").claim(is_look=True)
    # The second attempt is over: twice the base.
    assert stage.places("scheduled") == {"a": lost_at + 8 * SECOND}
    assert stage.counts() == {"enqueued": 1, "started": 2, "lost_leases": 2, "retried": 1}


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [(0, [4, 4, 4]), (1, [8, 12, 16]), (2, [8, 16, 20])],
    ids=["fixed", "linear", "exponential"],
)
def test_the_backoff_of_a_lost_job_is_that_of_its_retry(stage, backoff, delays):
    stage.put(
        "a", max_attempts=9, base_us=4 * SECOND, cap_us=20 * SECOND, backoff=backoff, jitter=0
    )
    worker = stage.worker()
    got = []
    for _ in range(4):
        worker.take(is_look=True)
        worker.held.clear()
        stage.forward(LEASE_US)
        lost_at = stage.now()
        worker.claim(free=0, is_look=True)
        for due in stage.places("scheduled").values():
            got.append((due - lost_at) // SECOND)
            stage.set_clock(due)
    assert got == delays


def test_jitter_draws_each_backoff_by_itself_between_nothing_and_the_whole(stage):
    ids = [f"{n:03}" for n in range(100)]
    stage.put(*ids, max_attempts=9, backoff=0, base_us=1000 * SECOND, cap_us=1000 * SECOND)
    lose(stage, *ids)
    again = stage.worker("v", slots=100)
    assert len(again.take(is_look=True)) == 100
    stage.forward(LEASE_US)
    lost_at = stage.now()
    stage.worker("x").claim(free=0, is_look=True)
    delays = [(due - lost_at) / SECOND for due in stage.places("scheduled").values()]
    assert len(delays) == 100
    assert all(0 <= delay <= 1001 for delay in delays)
    assert min(delays) < 150
    assert max(delays) > 850
    assert 350 < sum(delays) / 100 < 650


def test_the_backoff_stays_finite_after_a_million_attempts(stage):
    stage.put("a", max_attempts=1_000_000, jitter=0)
    worker = stage.worker()
    worker.take()
    line = stage.run_line("a")
    line[3], line[7] = "900000", "899999"
    stage.client.hset(stage.keys.runs, "a", " ".join(line))
    stage.forward(LEASE_US)
    lost_at = stage.now()
    stage.worker("v").claim(is_look=True)
    assert stage.places("scheduled") == {"a": lost_at + 600 * SECOND}


def test_the_last_attempt_that_is_lost_makes_a_dead_letter(stage):
    stage.put("a", max_attempts=2)
    lose(stage, "a")
    lose(stage, "a", worker="v")
    stage.worker("x").claim(is_look=True)
    view = stage.look("a")
    assert (view.state, view.error.message, view.attempt) == ("dead", "worker lost", 2)
    assert [entry.worker for entry in view.history] == ["w", "v"]
    assert stage.counts() == {"enqueued": 1, "started": 2, "lost_leases": 2, "dead": 1}


def test_a_job_of_one_attempt_never_runs_twice(stage):
    stage.put("a", max_attempts=1)
    lose(stage, "a")
    assert stage.worker("v").take(is_look=True) == []
    assert stage.state("a") == "dead"


def test_what_a_task_has_published_holds_where_the_job_says_nothing(bare):
    bare.publish(tasks={"t": PublishedTask("normal", 1, 0, 7 * SECOND, 9 * SECOND)})
    bare.put("a")
    bare.put("b", max_attempts=2)
    lose(bare, "a", "b")
    bare.worker("v").claim(free=0, is_look=True)
    assert bare.state("a") == "dead"
    assert bare.state("b") == "waiting"


def test_the_backoff_that_a_task_has_published_is_exact_without_jitter(bare):
    bare.publish(tasks={"t": PublishedTask("normal", 9, 0, 7 * SECOND, 9 * SECOND, jitter=0)})
    bare.put("a")
    lose(bare, "a")
    lose(bare, "a", worker="v")
    bare.worker("x").claim(free=0, is_look=True)
    assert bare.places("scheduled") == {"a": bare.now() + 7 * SECOND}


def test_failures_and_losses_spend_the_same_attempts(stage):
    stage.put("a", max_attempts=3)
    worker = stage.worker()
    worker.take()
    worker.finish("a", "retried", number=0)
    lose(stage, "a")
    lose(stage, "a", worker="v")
    stage.worker("x").claim(is_look=True)
    view = stage.look("a")
    assert view.state == "dead"
    assert [(entry.attempt, entry.outcome) for entry in view.history] == [
        (1, "failed"), (2, "worker lost"), (3, "worker lost"),
    ]  # fmt: skip


def test_a_lost_job_whose_cancel_was_accepted_is_cancelled(stage):
    stage.put("a")
    worker = stage.worker()
    worker.take()
    stage.cancel("a")
    stage.forward(LEASE_US)
    assert stage.worker("v").take(is_look=True) == []
    assert stage.state("a") == "cancelled"
    assert stage.counts() == {"enqueued": 1, "started": 1, "lost_leases": 1, "cancelled": 1}


def test_a_lost_job_that_is_cancelled_is_kept_as_long_as_it_says(stage):
    stage.put("a", ttl_us=7_000_000)
    stage.put("b", ttl_us=0)
    stage.put("c")
    stage.worker().take(free=3)
    for an_id in "abc":
        stage.cancel(an_id)
    stage.forward(LEASE_US)
    assert stage.worker("v").take(is_look=True) == []
    assert stage.places_of("ended") == {"a": stage.now() + 7_000_000, "c": stage.now() + KEEP_US}


@pytest.mark.parametrize("line", [None, "garbage"])
def test_a_lease_without_a_readable_run_line_comes_back(stage, line):
    stage.put("a")
    worker = stage.worker()
    worker.take()
    if line is None:
        stage.client.hdel(stage.keys.runs, "a")
    else:
        stage.client.hset(stage.keys.runs, "a", line)
    stage.forward(LEASE_US)
    assert worker.claim(free=0, outcomes=[worker.ended("a")]).stale == ["a"]
    (job,) = stage.worker("v").claim(is_look=True).jobs
    assert job.attempt == 2


def test_a_lease_of_a_job_that_has_neither_line_nor_body_ends_as_a_letter(stage):
    stage.put("a")
    stage.worker().take()
    stage.client.delete(stage.keys.runs, stage.keys.jobs)
    stage.forward(LEASE_US)
    stage.worker("v").claim(is_look=True)
    assert stage.state("a") == "dead"
    assert stage.counts()["missing"] == 1


def test_leases_that_end_together_come_back_a_hundred_a_call_and_lane(stage):
    ids = [f"{n:03}" for n in range(250)]
    stage.put(*ids)
    lose(stage, *ids)
    other = stage.worker("v")
    left = []
    while True:
        is_more = other.claim(free=0).is_more
        left.append(len(stage.places("leases")))
        if not is_more:
            break
    assert left == [150, 50, 0]
    assert stage.order() == ids


def test_expired_leases_are_looked_for_every_quarter_of_a_second(stage):
    stage.put("a")
    worker = stage.worker()
    worker.take()
    deadline = stage.places("leases")["a"]
    stage.set_clock(deadline - 100_000)
    other = stage.worker("v")
    assert other.take() == []  # it looked, and found nothing
    stage.set_clock(deadline + 149_999)
    assert other.take() == []
    stage.set_clock(deadline + 150_000)
    assert other.take() == ["a"]


def test_a_look_at_demand_does_not_wait_for_its_turn(stage):
    stage.put("a")
    stage.worker().take()
    stage.set_clock(stage.places("leases")["a"] - 1)
    other = stage.worker("v")
    other.claim()
    stage.forward(1)
    assert other.take(is_look=True) == ["a"]


# --- records, workers, watchers that ran out --------------------------------


def test_records_that_have_run_out_are_dropped_two_hundred_and_fifty_a_call(stage):
    ids = [f"{n:03}" for n in range(600)]
    worker = stage.worker(slots=256)
    for part in (ids[:200], ids[200:400], ids[400:]):
        stage.put(*part)
        worker.take()
        worker.claim(free=0, outcomes=[worker.ended(i, number=SECOND) for i in part])
    stage.forward(SECOND)
    left = []
    is_more = True
    while is_more:
        is_more = worker.claim(free=0, is_look=True).is_more
        left.append(stage.client.zcard(stage.keys.ended))
    assert left == [350, 100, 0]
    assert stage.hash("jobs") == stage.hash("outcomes") == {}


def test_a_worker_that_has_been_silent_for_its_time_is_off_the_list(stage):
    info = workers.WorkerInfo("n", "h", 1, 2, {}, ["normal"], ["t"])
    for name in ("old", "new"):
        stage.run(workers.register(stage.keys, name, info))
        stage.forward(SECOND)
    stage.set_clock(stage.places_of("beats")["old"])
    stage.worker().claim(free=0, is_look=True)
    assert list(stage.hash("workers")) == ["new"]
    assert list(stage.places_of("beats")) == ["new"]


def test_watches_that_have_run_out_are_forgotten(stage):
    stage.client.zadd(stage.keys.watchers, {"x": START_US, "y": START_US + SECOND})
    stage.worker().claim(free=0, is_look=True)
    assert list(stage.places_of("watchers")) == ["y"]
    stage.client.zadd(stage.keys.watchers, {f"{n}": 5 for n in range(300)})
    stage.worker().claim(free=0, is_look=True)
    assert stage.client.zcard(stage.keys.watchers) == 51
    stage.allow("hint", "watcher")


def test_the_clock_never_goes_back(stage):
    stage.put("a")
    worker = stage.worker()
    seen = worker.claim().now_us
    for _ in range(3):
        now = worker.claim(free=0).now_us
        assert now >= seen
        seen = now
    assert worker.claim(free=0, fence_floor=seen + SECOND).now_us == seen + SECOND
    stage.enqueue(new("b"))
    assert stage.places("waiting")["b"] == seen + SECOND + 1
