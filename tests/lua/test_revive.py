"""revive.lua: ended jobs get a new life."""

from __future__ import annotations

import pytest

from tests.lua.test_claim_outcomes import ERROR, running
from tests.stage import SECOND, START_US


def dead(stage, *ids, **options):
    worker = running(stage, *ids, **options)
    ends = [worker.ended(i, "dead", body=ERROR) for i in ids]
    worker.claim(free=0, outcomes=ends)
    return worker


def test_a_dead_letter_becomes_a_waiting_job_with_all_its_attempts_and_its_history(stage):
    worker = dead(stage, "a", max_attempts=2)
    stage.client.delete(stage.key("wake", "normal"))
    stage.forward(SECOND)
    assert stage.revive("a") == ["revived"]
    assert stage.order("dead") == []
    assert stage.hash("outcomes") == {}
    assert stage.tokens() == ["normal"]
    view = stage.look("a")
    assert (view.state, view.attempt, len(view.history)) == ("waiting", 0, 1)
    assert view.enqueued_at == pytest.approx(stage.now() / 1e6)
    (job,) = worker.claim().jobs
    assert (job.attempt, job.enqueued_us) == (1, job.score_us)
    worker.finish("a", number=SECOND)
    assert [entry.attempt for entry in stage.look("a").history] == [1]
    assert stage.counts() == {
        "enqueued": 2, "started": 2, "failed_attempts": 1, "dead": 1, "succeeded": 1,
    }  # fmt: skip


def test_nothing_stays_of_a_revived_job_that_succeeds_and_keeps_nothing(stage):
    worker = dead(stage, "a")
    stage.revive("a")
    worker.take()
    worker.finish("a", number=0)
    for word in ("jobs", "runs", "outcomes", "history", "progress"):
        assert stage.hash(word) == {}


@pytest.mark.parametrize("kind", ["succeeded", "cancelled"])
def test_any_ended_job_can_be_revived_while_its_record_is_kept(stage, kind):
    worker = running(stage, "a")
    worker.finish("a", kind, number=SECOND)
    assert stage.revive("a") == ["revived"]
    assert stage.places_of("ended") == {}
    stage.forward(5 * SECOND)
    assert worker.take(is_look=True) == ["a"]


def test_a_revived_job_does_not_expire_again(stage):
    stage.put("a", expires_us=SECOND)
    stage.put("b", expires_at_us=START_US + SECOND)
    stage.forward(SECOND)
    worker = stage.worker(slots=2)
    assert worker.take() == []
    assert stage.revive("a", "b") == ["revived", "revived"]
    assert worker.take() == ["a", "b"]


def test_revived_jobs_keep_the_order_in_which_they_are_named_and_their_boost(stage):
    dead(stage, *"zyx")
    dead(stage, "b", boost_us=10 * SECOND)
    stage.put("n")
    stage.revive("z", "y", "x", "b")
    assert stage.order() == ["b", "n", "z", "y", "x"]
    assert stage.look("b").enqueued_at == pytest.approx(stage.now() / 1e6)


def test_a_job_that_was_delayed_in_its_first_life_is_enqueued_now(stage):
    stage.put("a", when="+10")
    stage.forward(10)
    worker = stage.worker()
    worker.take()
    worker.finish("a", "dead", body=ERROR)
    stage.forward(SECOND)
    stage.revive("a")
    assert worker.claim().jobs[0].enqueued_us > START_US + SECOND


def test_what_cannot_be_revived_is_said_for_each(stage):
    stage.put("open")
    stage.put("x")
    worker = stage.worker("w2")
    stage.put("run", lane="urgent")
    worker.take()
    dead(stage, "gone", lane="critical")
    stage.client.hdel(stage.keys.jobs, "gone")
    before = stage.snapshot()
    assert stage.revive("open", "run", "gone", "ghost") == ["open", "open", "no_body", "unknown"]
    assert stage.snapshot() == before
    stage.allow("no body")


def test_an_id_named_twice_is_revived_once(stage):
    dead(stage, "a")
    assert stage.revive("a", "a") == ["revived", "open"]
    assert stage.counts()["enqueued"] == 2


def test_revived_jobs_are_of_the_lane_that_they_ended_in(stage):
    dead(stage, "a", lane="batch")
    dead(stage, "b", lane="urgent")
    assert stage.revive("a", "b") == ["revived", "revived"]
    assert stage.order(lane="batch") == ["a"]
    assert stage.order(lane="urgent") == ["b"]


def test_progress_of_the_first_life_is_forgotten(stage):
    dead(stage, "a")
    stage.client.hset(stage.keys.progress, "a", "x")
    stage.revive("a")
    assert stage.hash("progress") == {}
