"""Tasks with a max_running of their own: jobs step aside, and come back to their place."""

from __future__ import annotations

import pytest

from laneq.calls import lanes
from laneq.calls.lanes import PublishedTask
from laneq.options import Lane
from tests.stage import SECOND, Stage, new


def task(most: int | None) -> PublishedTask:
    return PublishedTask("normal", 3, 0, SECOND, SECOND, max_running=most)


@pytest.fixture
def capped(stage: Stage) -> Stage:
    stage.publish(tasks={"narrow": task(2), "wide": task(None)})
    return stage


def put(stage: Stage, kind: str, n: int, **options) -> None:
    stage.enqueue(*(new(f"{kind[0]}{i}", task=kind, **options) for i in range(n)))


def test_no_more_jobs_of_a_task_run_than_its_max_running(capped):
    put(capped, "narrow", 5)
    one, two = capped.worker("one", slots=4), capped.worker("two", slots=4)
    assert one.take() == ["n0", "n1"]
    assert two.take() == []
    assert one.take(outcomes=[one.ended("n0")]) == ["n2"]


def test_those_behind_in_the_lane_start(capped):
    put(capped, "narrow", 20)
    put(capped, "wide", 3)
    worker = capped.worker(slots=5)
    got = worker.take()
    while len(worker.held) < 5 and (more := worker.take()):
        got += more
    assert sorted(got) == ["n0", "n1", "w0", "w1", "w2"]


def test_jobs_come_back_in_their_order_to_the_front(capped):
    put(capped, "narrow", 6)
    put(capped, "wide", 40)
    worker = capped.worker(slots=3)
    worker.claim()
    assert worker.held.keys() == {"n0", "n1", "w0"}
    done = []
    while any(job_id[0] == "n" for job_id in worker.held):
        first = next(job_id for job_id in worker.held if job_id[0] == "n")
        done.append(first)
        worker.claim(outcomes=[worker.ended(first)])
    assert done == [f"n{i}" for i in range(6)]
    assert not capped.client.exists(capped.keys.parked)


@pytest.mark.parametrize("kind", ["dead", "retried", "handed_back", "snoozed", "cancelled"])
def test_every_end_of_an_attempt_makes_room(capped, kind):
    put(capped, "narrow", 3)
    worker = capped.worker(slots=2)
    worker.claim()
    other = capped.worker("other", slots=1)
    assert other.take() == []
    number = SECOND if kind in {"retried", "snoozed", "cancelled"} else 0
    worker.claim(free=0, outcomes=[worker.ended("n0", kind, number=number)])
    assert other.take() == ["n0" if kind == "handed_back" else "n2"]


def test_a_lost_lease_makes_room(capped):
    put(capped, "narrow", 3)
    capped.worker("gone", slots=2).claim()
    other = capped.worker("other", slots=3)
    assert other.take() == []
    capped.forward(16 * SECOND)
    assert other.take(is_look=True) == ["n0", "n1"]


def test_a_job_that_steps_aside_can_be_cancelled_and_purged(capped):
    put(capped, "narrow", 6)
    worker = capped.worker(slots=2)
    worker.claim()
    worker.claim(free=2)
    assert capped.state("n2") == "scheduled"
    capped.cancel("n2")
    assert capped.state("n2") == "cancelled"
    assert worker.take(outcomes=[worker.ended("n0")]) == ["n3"]
    while capped.run(lanes.purge(capped.keys, "normal")):
        pass
    worker.claim(outcomes=[worker.ended("n1"), worker.ended("n3")])
    assert not capped.client.exists(capped.keys.parked)


def test_a_job_that_is_parked_is_weighed_again_by_itself(capped):
    put(capped, "narrow", 3)
    worker = capped.worker(slots=3)
    worker.claim()
    capped.client.delete(capped.keys.parked)
    capped.forward(14 * SECOND)
    worker.claim(free=0, outcomes=[worker.ended("n0")])
    assert worker.take() == []
    capped.forward(61 * SECOND)
    assert worker.take(outcomes=[worker.ended("n1")] if "n1" in worker.held else []) != []


def test_a_limit_changes_live(capped):
    put(capped, "narrow", 6)
    worker = capped.worker(slots=6)
    worker.claim()
    assert len(worker.held) == 2
    capped.publish(tasks={"narrow": task(4)})
    worker.claim(is_look=True)
    assert len(worker.held) == 4
    capped.publish(tasks={"narrow": task(None)})
    worker.claim()
    assert len(worker.held) == 6
    capped.publish(tasks={"narrow": task(None)})
    assert "capped" not in capped.hash("state")


def test_jobs_that_expire_take_none_of_the_starts(capped):
    put(capped, "narrow", 2, expires_us=SECOND)
    capped.forward(2 * SECOND)
    capped.enqueue(*(new(f"good{i}", task="narrow") for i in range(3)))
    worker = capped.worker(slots=4)
    worker.claim()
    worker.claim()
    assert sorted(worker.held) == ["good0", "good1"]


@pytest.fixture
def slow_lane(stage: Stage) -> Stage:
    stage.publish(Lane("normal", lease=3600), tasks={"narrow": task(1)})
    return stage


def test_jobs_that_step_aside_for_long_keep_their_place_and_stay_one_in_the_index(slow_lane):
    put(slow_lane, "narrow", 4)
    worker = slow_lane.worker(slots=3)
    assert worker.take() == ["n0"]
    worker.claim()
    for minute in range(3):
        slow_lane.forward(61 * SECOND)
        slow_lane.put(f"late{minute}", task="narrow")
        while worker.claim().is_more:
            pass
    # A line by name and one by id, for each of the three and the three late ones.
    assert slow_lane.client.zcard(slow_lane.keys.parked) == 12
    done = []
    while worker.held:
        done += worker.held
        worker.claim(outcomes=[worker.ended(done[-1])])
    assert done == ["n0", "n1", "n2", "n3", "late0", "late1", "late2"]
    assert not slow_lane.client.exists(slow_lane.keys.parked)


def test_a_retry_of_a_job_that_once_stepped_aside_waits_for_its_backoff(slow_lane):
    put(slow_lane, "narrow", 3)
    worker = slow_lane.worker(slots=3)
    worker.claim()
    worker.claim()
    slow_lane.forward(61 * SECOND)
    worker.claim()
    worker.claim(outcomes=[worker.ended("n0")])
    assert list(worker.held) == ["n1"]
    failed = worker.ended("n1", "retried", number=100 * SECOND, body=b"x")
    worker.claim(outcomes=[failed])
    assert list(worker.held) == ["n2"]
    worker.claim(outcomes=[worker.ended("n2")])
    assert worker.held == {}
    assert slow_lane.state("n1") == "scheduled"
    slow_lane.forward(101 * SECOND)
    assert worker.take() == ["n1"]


def test_a_job_behind_many_that_were_purged_starts_at_once(slow_lane):
    put(slow_lane, "narrow", 260)
    worker = slow_lane.worker(slots=200)
    worker.claim()
    while worker.claim().is_more:
        pass
    slow_lane.run(lanes.purge(slow_lane.keys, "normal", limit=1000))
    slow_lane.put("last", task="narrow")
    worker.claim()
    assert slow_lane.state("last") == "scheduled"
    reply = worker.claim(outcomes=[worker.ended("n0")])
    while reply.is_more and not reply.jobs:
        reply = worker.claim()
    assert list(worker.held) == ["last"]
