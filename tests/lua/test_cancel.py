"""cancel.lua: in each state, what is said and what is left."""

from __future__ import annotations

from typing import Any

import pytest

from laneq.calls import jobs
from laneq.errors import JobNotFound
from laneq.model import State
from tests.lua.test_claim_outcomes import ERROR, heard, message
from tests.stage import SECOND, START_US


def test_a_waiting_job_is_cancelled_and_never_starts(stage):
    stage.put("a", "b")
    assert stage.cancel("a") == jobs.Cancelled("cancelled")
    view = stage.look("a")
    assert (view.state, view.attempt, view.started_at, view.worker) == ("cancelled", 0, None, None)
    assert view.enqueued_at == pytest.approx((START_US + 1) / 1e6)
    assert stage.worker(slots=2).take() == ["b"]
    assert stage.counts() == {"enqueued": 2, "started": 1, "cancelled": 1}
    assert stage.task_counts()["cancelled"] == 1


def test_a_scheduled_job_is_cancelled_and_never_starts(stage):
    stage.put("a", when="+5", boost_us=3)
    assert stage.cancel("a").word == "cancelled"
    assert stage.places("scheduled") == {}
    stage.forward(10)
    assert stage.worker().take() == []
    assert stage.look("a").enqueued_at == pytest.approx(START_US / 1e6)


@pytest.mark.parametrize("kind", ["retried", "handed_back", "snoozed"])
def test_a_job_between_two_attempts_is_cancelled(stage, kind):
    stage.put("a")
    worker = stage.worker()
    worker.take()
    worker.finish("a", kind, number=5, body=ERROR)
    assert stage.cancel("a").word == "cancelled"
    view = stage.look("a")
    assert (view.state, view.attempt) == ("cancelled", 1 if kind == "retried" else 0)
    assert len(view.history) == (1 if kind == "retried" else 0)
    assert stage.hash("runs") == {}


def test_the_record_is_kept_for_the_time_asked_for(stage):
    stage.put("a", "b")
    stage.cancel("a", keep_us=5 * SECOND)
    stage.cancel("b", keep_us=0)
    assert stage.places_of("ended") == {"a": stage.now() + 5 * SECOND}
    assert stage.state("b") is None
    stage.forward(5 * SECOND)
    stage.worker().claim(is_look=True)
    assert stage.hash("jobs") == {}


@pytest.mark.parametrize("when", ["", "+5"], ids=["waiting", "scheduled"])
def test_the_record_is_kept_as_long_as_the_job_says(stage, when):
    stage.put("a", when=when, ttl_us=7 * SECOND)
    stage.put("b", when=when, ttl_us=0)
    stage.cancel("a", keep_us=5 * SECOND)
    stage.cancel("b", keep_us=5 * SECOND)
    assert stage.places_of("ended") == {"a": stage.now() + 7 * SECOND}
    assert list(stage.hash("jobs")) == ["a"]


def test_a_job_between_two_attempts_is_kept_as_long_as_it_says(stage):
    stage.put("a", ttl_us=7 * SECOND)
    worker = stage.worker()
    worker.take()
    worker.finish("a", "retried", number=5, body=ERROR)
    stage.cancel("a", keep_us=5 * SECOND)
    assert stage.places_of("ended") == {"a": stage.now() + 7 * SECOND}


@pytest.mark.parametrize("kind", ["retried", "dead", "handed_back"])
def test_a_job_that_ends_otherwise_than_it_was_told_is_kept_as_long_as_it_says(stage, kind):
    stage.put("a", ttl_us=7 * SECOND)
    stage.put("b", ttl_us=0)
    stage.put("c")
    worker = stage.worker()
    worker.take(free=3)
    for an_id in "abc":
        stage.cancel(an_id)
        worker.finish(an_id, kind, number=5, body=ERROR)
    assert stage.places_of("ended") == {
        "a": stage.now() + 7 * SECOND,
        "c": stage.now() + jobs.KEEP_US,
    }


def test_a_running_job_is_asked_to_end_and_its_worker_is_told(stage):
    stage.put("a")
    worker = stage.worker()
    worker.take()
    with heard(stage, stage.keys.control_channel("w")) as listener:
        assert stage.cancel("a") == jobs.Cancelled("requested")
        assert message(listener) == b"cancel a %d" % worker.held["a"].fence
    view = stage.look("a")
    assert (view.state, view.cancel_requested) == ("running", True)
    before = stage.snapshot()
    assert stage.cancel("a").word == "requested"
    assert stage.snapshot() == before
    worker.finish("a", "cancelled", number=SECOND)
    assert stage.state("a") == "cancelled"


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.DEAD, State.CANCELLED])
def test_an_ended_job_stays_as_it_is(stage, state):
    stage.put("a")
    worker = stage.worker()
    worker.take()
    worker.finish("a", state.value, number=SECOND, body=ERROR)
    before = stage.snapshot()
    assert stage.cancel("a") == jobs.Cancelled("ended", state)
    assert stage.snapshot() == before


def test_an_unknown_job_is_said_to_be_unknown(stage):
    before = stage.snapshot()
    with pytest.raises(JobNotFound):
        stage.cancel("ghost")
    assert stage.snapshot() == before


def test_who_watches_a_job_is_told_of_its_cancel(stage):
    stage.put("a")
    until: Any = jobs.until_ended(stage.keys, "a", timeout_s=None)
    stage.run(until.call)
    with heard(stage, until.channel) as listener:
        stage.cancel("a", keep_us=0)
        assert until.read(message(listener)).state is State.CANCELLED


def test_a_job_whose_body_or_run_line_is_odd_can_be_cancelled(stage):
    stage.put("a", "b", "c")
    stage.client.hset(stage.keys.jobs, "a", "no line feed")
    stage.client.hset(stage.keys.runs, "b", "garbage")
    stage.client.hdel(stage.keys.jobs, "c")
    assert [stage.cancel(i, keep_us=0).word for i in "abc"] == ["cancelled"] * 3
    assert stage.order() == []
