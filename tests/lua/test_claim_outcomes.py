"""claim.lua: what becomes of a job when its worker reports how an attempt ended."""

from __future__ import annotations

from typing import Any

import pytest

from laneq.calls import jobs
from laneq.calls.workers import Ended
from laneq.codec import encode_error, encode_value
from laneq.model import RemoteError
from laneq.options import Lane
from tests.stage import SECOND, START_US, new

ERROR = encode_error(RemoteError("ValueError", "no", "Traceback"))


def running(stage, *ids, **options):
    """Put jobs and have a worker run them."""
    stage.put(*ids, **options)
    worker = stage.worker(slots=len(ids))
    assert worker.take() == list(ids)
    return worker


def test_a_success_is_kept_for_its_time_and_then_leaves_no_trace(stage):
    worker = running(stage, "a")
    job = worker.held["a"]
    stage.forward(SECOND)
    worker.finish("a", number=60 * SECOND, body=encode_value(7))
    now = stage.now()
    head = b"succeeded normal 1 %d %d %d %d w %d t\n" % (
        job.enqueued_us, job.score_us, job.fence - 1, now, job.fence,
    )  # fmt: skip
    after = stage.snapshot()
    assert after["outcomes"] == {b"a": head + encode_value(7)}
    assert after["ended"] == [(b"a", now + 60 * SECOND)]
    assert "runs" not in after
    assert "leases:normal" not in after
    view = stage.look("a")
    assert (view.state, view.result, view.attempt, view.worker) == ("succeeded", 7, 1, "w")
    stage.forward(60 * SECOND - 1)
    worker.claim(free=0, is_look=True)
    assert stage.state("a") == "succeeded"
    stage.forward(1)
    worker.claim(free=0, is_look=True)
    assert stage.state("a") is None
    assert set(stage.snapshot()) == {
        "state", "lanes", "counts:normal", "task_counts", "call:w", "session:s", "wake:normal",
    }  # fmt: skip
    assert stage.counts() == {"enqueued": 1, "started": 1, "succeeded": 1}


def test_a_success_of_which_nothing_is_kept_is_gone_at_once(stage):
    worker = running(stage, "a")
    worker.finish("a", number=0)
    assert stage.state("a") is None
    for word in ("jobs", "runs", "outcomes", "history", "progress"):
        assert stage.hash(word) == {}


def test_a_success_after_failures_and_progress_leaves_no_trace_either(stage):
    worker = running(stage, "a")
    worker.finish("a", "retried", number=0, body=ERROR)
    worker.take()
    fence = worker.held["a"].fence
    stage.run(jobs.report_progress(stage.keys, "a", fence=fence, value=encode_value({"done": 1})))
    worker.finish("a", number=0)
    for word in ("jobs", "runs", "outcomes", "history", "progress"):
        assert stage.hash(word) == {}


@pytest.mark.parametrize("kind", ["snoozed", "handed_back"])
def test_history_goes_with_its_job_also_when_the_count_of_attempts_went_back(stage, kind):
    worker = running(stage, "a", "b")
    fail = [worker.ended(i, "retried", number=0, body=ERROR) for i in "ab"]
    worker.claim(outcomes=fail, free=0)
    stage.forward(1)
    worker.take()
    worker.claim(free=0, outcomes=[worker.ended(i, kind) for i in "ab"])
    stage.cancel("a", keep_us=0)
    stage.forward(1)
    worker.take()
    worker.finish("b", number=0)
    assert stage.hash("history") == {}


def test_a_failure_is_retried_after_its_delay_with_its_history(stage):
    worker = running(stage, "a")
    stage.forward(SECOND)
    worker.finish("a", "retried", number=5 * SECOND, body=ERROR)
    due = stage.now() + 5 * SECOND
    assert stage.places("scheduled") == {"a": due}
    assert stage.run_line("a")[0] == "0"
    assert stage.hash("state")["next_due"] == b"%d" % due
    view = stage.look("a")
    assert (view.state, view.attempt, view.error.message) == ("scheduled", 1, "no")
    (entry,) = view.history
    assert (entry.attempt, entry.worker, entry.outcome) == (1, "w", "failed")
    assert entry.ended_at - entry.started_at == pytest.approx(1, abs=1e-5)
    stage.forward(5 * SECOND)
    (job,) = worker.claim().jobs
    assert (job.attempt, job.score_us, job.enqueued_us) == (2, due, START_US + 1)
    worker.finish("a", number=SECOND)
    assert stage.counts() == {
        "enqueued": 1, "started": 2, "failed_attempts": 1, "retried": 1, "succeeded": 1,
    }  # fmt: skip
    assert [entry.attempt for entry in stage.look("a").history] == [1]


def test_a_job_given_up_on_is_a_dead_letter(stage):
    worker = running(stage, "a")
    worker.finish("a", "dead", body=ERROR)
    assert stage.places("dead") == {"a": stage.now()}
    view = stage.look("a")
    assert (view.state, view.error, view.args) == (
        "dead",
        RemoteError("ValueError", "no", "Traceback"),
        None,
    )
    assert [entry.outcome for entry in view.history] == ["failed"]
    assert stage.hash("runs") == {}
    assert stage.counts() == {"enqueued": 1, "started": 1, "failed_attempts": 1, "dead": 1}


def test_a_job_handed_back_goes_to_the_front_and_spends_no_attempt(stage):
    worker = running(stage, "a", "b")
    stage.put("c")
    stage.client.delete(stage.key("wake", "normal"))
    worker.claim(free=0, outcomes=[worker.ended(i, "handed_back") for i in "ba"])
    assert stage.order() == ["a", "b", "c"]
    assert stage.tokens() == ["normal"]
    jobs_ = stage.worker("v", slots=2).claim().jobs
    assert [(job.id, job.attempt) for job in jobs_] == [("a", 1), ("b", 1)]
    assert stage.counts() == {"enqueued": 3, "started": 4, "handed_back": 2}


def test_a_snoozed_job_comes_back_later_and_spends_no_attempt(stage):
    worker = running(stage, "a")
    worker.finish("a", "snoozed", number=SECOND)
    assert stage.state("a") == "scheduled"
    assert stage.look("a").history == ()
    stage.forward(SECOND)
    assert worker.claim().jobs[0].attempt == 1
    assert stage.counts() == {"enqueued": 1, "started": 2, "handed_back": 1}


def test_a_job_that_its_worker_cancelled_is_cancelled(stage):
    worker = running(stage, "a")
    worker.finish("a", "cancelled", number=SECOND)
    assert stage.state("a") == "cancelled"
    assert stage.counts() == {"enqueued": 1, "started": 1, "stopped": 1, "cancelled": 1}


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("succeeded", "succeeded"),
        ("retried", "failed_attempts"),
        ("dead", "failed_attempts"),
        ("handed_back", "handed_back"),
        ("snoozed", "handed_back"),
        ("cancelled", "stopped"),
    ],
)
def test_a_job_whose_cancel_was_accepted_ends_as_cancelled_whatever_its_attempt_says(
    stage, kind, count
):
    worker = running(stage, "a")
    assert stage.cancel("a").word == "requested"
    worker.finish("a", kind, number=7, body=ERROR)
    view = stage.look("a")
    assert (view.state, view.error, view.result, view.history) == ("cancelled", None, None, ())
    assert stage.places("scheduled") == {}
    assert stage.order() == []
    assert stage.counts() == {"enqueued": 1, "started": 1, "stopped": 1, "cancelled": 1}


# --- stale and repeated reports ---------------------------------------------


@pytest.mark.parametrize("kind", ["succeeded", "retried", "dead", "handed_back", "snoozed"])
def test_a_report_under_an_old_fence_changes_nothing_and_is_counted(stage, kind):
    worker = running(stage, "a")
    old = worker.ended("a", kind, number=5, body=ERROR)
    worker.finish("a", "handed_back")
    other = stage.worker("v")
    other.take()
    before = stage.snapshot()
    reply = worker.claim(free=0, outcomes=[old])
    assert reply.stale == ["a"]
    after = stage.snapshot()
    assert after.pop("counts:normal") == before.pop("counts:normal") | {b"stale": b"1"}
    assert after.pop("task_counts") == before.pop("task_counts") | {b"t\tstale": b"1"}
    assert after.pop("call:w") != before.pop("call:w")
    assert after == before


def test_a_report_of_a_job_that_nobody_knows_is_stale(stage):
    reply = stage.worker().claim(outcomes=[Ended("normal", "ghost", 5, "succeeded", 9, b"\xc0")])
    assert reply.stale == ["ghost"]
    assert stage.counts() == {"stale": 1}
    assert stage.hash("outcomes") == {}


def test_a_report_of_a_waiting_job_is_stale(stage):
    worker = running(stage, "a")
    worker.finish("a", "handed_back")
    reply = worker.claim(free=0, outcomes=[Ended("normal", "a", 0, "succeeded", 9, b"\xc0")])
    assert reply.stale == ["a"]
    assert stage.state("a") == "waiting"


def test_a_worker_that_lost_its_lease_is_told_and_the_new_holders_outcome_stands(stage):
    worker = running(stage, "a")
    late = worker.ended("a", body=encode_value("A"), number=SECOND)
    stage.forward(15 * SECOND)
    other = stage.worker("v")
    assert other.take(is_look=True) == ["a"]
    assert worker.claim(free=0, outcomes=[late]).stale == ["a"]
    other.finish("a", body=encode_value("B"), number=SECOND)
    view = stage.look("a")
    assert (view.result, view.attempt, view.worker) == ("B", 2, "v")
    assert stage.counts()["succeeded"] == 1


def test_a_late_report_of_a_job_that_was_given_up_as_lost_is_stale(stage):
    worker = running(stage, "a", max_attempts=1)
    late = worker.ended("a", number=SECOND)
    stage.forward(15 * SECOND)
    stage.worker("v").claim(is_look=True)
    assert stage.state("a") == "dead"
    assert worker.claim(free=0, outcomes=[late]).stale == ["a"]
    assert stage.state("a") == "dead"


def test_an_outcome_reported_twice_in_one_call_counts_once(stage):
    worker = running(stage, "a", "b", "c")
    twice = [
        worker.ended("a", number=SECOND),
        worker.ended("a", "dead", body=ERROR),
        worker.ended("b", "retried", number=5, body=ERROR),
        worker.ended("b", "retried", number=9, body=ERROR),
    ]
    assert worker.claim(free=0, outcomes=twice).stale == []
    assert stage.state("a") == "succeeded"
    assert stage.counts() == {
        "enqueued": 3, "started": 3, "succeeded": 1, "failed_attempts": 1, "retried": 1,
    }  # fmt: skip


def test_an_outcome_reported_again_much_later_is_accepted_and_counts_once(stage):
    worker = running(stage, "a", "b")
    ends = [worker.ended("a", number=300 * SECOND), worker.ended("b", "dead", body=ERROR)]
    worker.claim(free=0, outcomes=ends)
    before = stage.counts()
    stage.client.delete(stage.keys.call("w"))  # its time has run out
    assert worker.claim(free=0, outcomes=ends).stale == []
    assert stage.counts() == before


# --- children ---------------------------------------------------------------


def test_children_are_committed_with_the_outcome_of_their_parent(stage):
    worker = running(stage, "a", "b")
    stage.client.delete(stage.key("wake", "normal"))
    ends = [
        worker.ended("a", children=[new("c1"), new("c2", lane="batch"), new("c3", when="+5")]),
        worker.ended("b", "retried", number=9, children=[new("c4", boost_us=7)]),
    ]
    worker.claim(free=0, outcomes=ends)
    assert sorted(stage.order()) == ["c1", "c4"]
    assert stage.order(lane="batch") == ["c2"]
    assert sorted(stage.places("scheduled")) == ["b", "c3"]
    assert stage.tokens() == ["normal", "batch"]
    assert stage.counts()["enqueued"] == 5


def test_a_worker_may_get_a_child_in_the_call_that_commits_it(stage):
    worker = running(stage, "a")
    assert worker.take(free=1, outcomes=[worker.ended("a", children=[new("c")])]) == ["c"]


def test_children_of_a_stale_outcome_do_not_exist(stage):
    worker = running(stage, "a")
    late = worker.ended("a", children=[new("c")])
    stage.forward(15 * SECOND)
    stage.worker("v").claim(is_look=True)
    assert worker.claim(free=0, outcomes=[late]).stale == ["a"]
    assert stage.state("c") is None
    assert stage.counts()["enqueued"] == 1


def test_children_of_an_outcome_reported_twice_exist_once(stage):
    worker = running(stage, "a")
    end = worker.ended("a", number=SECOND, children=[new("c")])
    worker.claim(free=0, outcomes=[end, end])
    worker.claim(free=0, outcomes=[end])
    assert stage.order() == ["c"]
    assert stage.counts()["enqueued"] == 2


@pytest.mark.parametrize("kind", ["succeeded", "retried", "dead", "snoozed"])
def test_children_of_a_job_whose_cancel_was_confirmed_do_not_exist(stage, kind):
    # Its worker had not heard of the cancel when it reported how the attempt ended.
    worker = running(stage, "a", "b")
    stage.cancel("a")
    ends = [
        worker.ended("a", kind, number=1, body=ERROR, children=[new("c")]),
        worker.ended("b", children=[new("d")]),
    ]
    worker.claim(free=0, outcomes=ends)
    assert stage.state("a") == "cancelled"
    assert stage.state("c") is None
    assert stage.state("d") == "waiting"


# --- announcements ----------------------------------------------------------


def heard(stage, channel):
    listener = stage.client.pubsub(ignore_subscribe_messages=True)
    listener.subscribe(channel)
    while listener.get_message(timeout=1) is not None or not listener.subscribed:
        pass
    return listener


def message(listener) -> Any:
    for _ in range(5):
        found = listener.get_message(timeout=0.2)
        if found is not None and found["type"] == "message":
            return found["data"]
    return None


@pytest.mark.parametrize("keep", [0, SECOND])
@pytest.mark.parametrize("kind", ["succeeded", "cancelled", "dead"])
def test_who_watches_is_told_the_outcome_although_nothing_is_kept(stage, kind, keep):
    worker = running(stage, "a")
    until: Any = jobs.until_ended(stage.keys, "a", timeout_s=None)
    assert stage.run(until.call) is None
    with heard(stage, until.channel) as listener:
        worker.finish(
            "a", kind, number=keep, body=encode_value(7) if kind == "succeeded" else ERROR
        )
        outcome = until.read(message(listener))
    assert outcome.state == kind
    assert stage.client.exists(stage.keys.watchers) == 0
    if kind == "succeeded":
        assert outcome.value("a") == 7


def test_the_end_of_an_expired_job_is_told_too(stage):
    stage.put("a", expires_us=1, ttl_us=0)
    until: Any = jobs.until_ended(stage.keys, "a", timeout_s=None)
    stage.run(until.call)
    stage.forward(1)
    with heard(stage, until.channel) as listener:
        stage.worker().claim()
        assert until.read(message(listener)).state == "expired"


# --- dead letters -----------------------------------------------------------


def test_dead_letters_beyond_the_lanes_number_are_dropped_oldest_first(bare):
    bare.publish(Lane("normal", dead_max=3))
    ids = list("abcdefgh")
    worker = running(bare, *ids)
    for job_id in ids:
        bare.forward(1)
        worker.finish(job_id, "dead", body=ERROR)
    assert bare.order("dead") == ["f", "g", "h"]
    assert sorted(bare.hash("outcomes")) == sorted(bare.hash("jobs")) == ["f", "g", "h"]
    counts = bare.counts()
    assert (counts["dead"], counts["dropped"]) == (8, 5)


def test_a_lane_may_keep_no_dead_letter_or_all(bare):
    bare.publish(Lane("none", dead_max=0), Lane("all", dead_max=None, dead_age=None))
    for lane in ("none", "all"):
        bare.put(f"{lane}1", f"{lane}2", lane=lane)
    worker = bare.worker(slots=4)
    worker.take()
    worker.claim(free=0, outcomes=[worker.ended(i, "dead", body=ERROR) for i in worker.held])
    assert bare.order("dead", "none") == []
    assert sorted(bare.order("dead", "all")) == ["all1", "all2"]
    bare.forward(10**15)
    worker.claim(free=0, is_look=True)
    assert sorted(bare.order("dead", "all")) == ["all1", "all2"]


def test_a_number_of_letters_that_is_lowered_live_holds_in_steps(bare):
    bare.publish(Lane("normal"))
    ids = [f"{n:03}" for n in range(256)]
    worker = running(bare, *ids)
    worker.claim(free=0, outcomes=[worker.ended(i, "dead", body=ERROR) for i in ids])
    bare.set_lane("normal", {"dead_max": 2})
    rounds = 0
    while worker.claim(free=0, is_look=True).is_more:
        rounds += 1
    assert len(bare.order("dead")) == 2
    assert rounds == 2
    assert bare.counts()["dropped"] == 254


def test_dead_letters_are_dropped_at_their_age(bare):
    bare.publish(Lane("normal", dead_age=7 * 86400))
    worker = running(bare, "a", "b")
    worker.finish("a", "dead", body=ERROR)
    bare.forward(SECOND)
    worker.finish("b", "dead", body=ERROR)
    bare.set_clock(bare.places("dead")["a"] + 7 * 86400 * SECOND)
    worker.claim(free=0, is_look=True)
    assert bare.order("dead") == ["b"]
    assert list(bare.hash("history")) == ["b"]
    assert bare.counts()["dropped"] == 1


# --- history ----------------------------------------------------------------


def test_a_history_keeps_its_newest_64_kb(stage):
    worker = running(stage, "a", max_attempts=1000)
    big = encode_error(RemoteError("E", "m", "x" * 20_000))
    for _ in range(9):
        worker.finish("a", "retried", number=0, body=big)
        worker.take()
    entries = [entry.attempt for entry in stage.look("a").history]
    assert entries == [6, 7, 8, 9]
    assert len(stage.hash("history")["a"]) < 65536 + 21_000


def test_a_history_that_cannot_be_read_starts_again(stage):
    worker = running(stage, "a")
    stage.client.hset(stage.keys.history, "a", b"x" * 70_000)
    worker.finish("a", "retried", number=0, body=ERROR)
    assert [entry.attempt for entry in stage.look("a").history] == [1]


# --- many at once -----------------------------------------------------------


@pytest.mark.parametrize("kind", ["succeeded", "retried", "dead", "handed_back", "cancelled"])
def test_two_hundred_and_fifty_six_outcomes_with_as_many_new_jobs_fit_one_call(stage, kind):
    ids = [f"{n:03}" for n in range(256)]
    worker = running(stage, *ids)
    more = [f"n{n:03}" for n in range(256)]
    stage.put(*more, lane="urgent")
    body = ERROR if kind != "succeeded" else b"\xc0"
    ends = [worker.ended(i, kind, number=3600 * SECOND, body=body) for i in ids]
    assert worker.take(free=256, outcomes=ends) == more


def test_an_outcome_of_a_mebibyte_is_kept_as_it_is(stage):
    worker = running(stage, "a")
    body = encode_value(b"\x00\xff\n" * 349_525)
    worker.finish("a", number=SECOND, body=body)
    assert stage.look("a").result == b"\x00\xff\n" * 349_525
