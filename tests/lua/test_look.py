"""look.lua, list.lua and watch.lua: what is read of jobs."""

from __future__ import annotations

import pytest

from laneq.calls import jobs, stats
from laneq.errors import JobNotFound
from laneq.model import State
from tests.lua.test_claim_outcomes import ERROR, running
from tests.stage import SECOND, START_US


def test_a_job_is_shown_in_each_state(stage):
    stage.put("w")
    stage.put("s", when="+5000000")
    worker = running(stage, *"rkdc", lane="urgent")
    worker.claim(
        free=0,
        outcomes=[
            worker.ended("k", number=SECOND),
            worker.ended("d", "dead", body=ERROR),
            worker.ended("c", "cancelled", number=SECOND),
        ],
    )
    views = stage.run(jobs.look(stage.keys, [*"wsrkdcx"], lanes=stage.lanes.names))
    assert views.pop() is None
    states = {view.id: (view.state.value, view.lane) for view in views}
    assert states == {
        "w": ("waiting", "normal"), "s": ("scheduled", "normal"), "r": ("running", "urgent"),
        "k": ("succeeded", "urgent"), "d": ("dead", "urgent"), "c": ("cancelled", "urgent"),
    }  # fmt: skip


def test_a_scheduled_job_that_is_due_is_shown_as_waiting(stage):
    stage.put("a", when="+5", boost_us=2)
    stage.forward(5)
    view = stage.look("a")
    assert (view.state, view.ready_at) == ("waiting", pytest.approx((START_US + 5) / 1e6, abs=1e-9))


def test_times_of_a_job_are_those_of_its_enqueue_and_readiness(stage):
    stage.put("a", boost_us=SECOND)
    stage.put("b", when="+5000000")
    stage.put("c")
    at = {i: (stage.look(i).enqueued_at, stage.look(i).ready_at) for i in "abc"}
    start = START_US / 1e6
    assert at["a"] == pytest.approx((start, start), abs=1e-5)
    assert at["b"] == pytest.approx((start, start + 5), abs=1e-5)
    stage.worker(slots=2).take()
    assert stage.look("a").ready_at == pytest.approx(start, abs=1e-5)
    assert stage.look("a").started_at == pytest.approx(start, abs=1e-5)


def test_odd_data_of_one_job_does_not_hide_a_page(stage):
    worker = running(stage, *"abcd")
    worker.claim(free=0, outcomes=[worker.ended(i, "dead", body=b"\xc1odd") for i in "ab"])
    stage.client.hset(stage.keys.jobs, "a", b"\xff\xfe")
    stage.client.hset(stage.keys.progress, "c", b"\xc1")
    stage.client.hset(stage.keys.runs, "d", b"\xff garbage")
    views = stage.run(jobs.look(stage.keys, [*"abcd"], lanes=stage.lanes.names))
    assert [view.state for view in views] == ["dead", "dead", "running", "running"]
    assert views[1].error.type == "UnknownEnvelope"
    stage.allow("run line")


def test_a_page_lists_one_place_in_order(stage):
    stage.put(*"edcba")
    key = stage.key("waiting", "normal")

    def page(**options):
        return stage.run(jobs.page(stage.keys, key, **options))

    assert page(offset=0, limit=2) == jobs.Page(5, ("e", "d"))
    assert page(offset=2, limit=9) == jobs.Page(5, ("c", "b", "a"))
    assert page(offset=0, limit=2, newest_first=True) == jobs.Page(5, ("a", "b"))
    assert page(offset=7, limit=2) == jobs.Page(5, ())


def test_a_page_is_bounded_whatever_is_asked_for(stage):
    stage.client.zadd(stage.keys.ended, {f"{n:05}": n for n in range(9000)})
    page = stage.run(jobs.page(stage.keys, stage.keys.ended, offset=10, limit=9000))
    assert (page.total, len(page.ids), page.ids[0]) == (9000, 1000, "00010")
    stage.allow("outcome")


def test_a_watch_is_told_what_is_so_and_asks_to_be_told_what_will_be(stage):
    worker = running(stage, "a")
    until = jobs.until_ended(stage.keys, "a", timeout_s=None)
    assert stage.run(until.call) is None
    assert stage.places_of("watchers") == {"a": stage.now() + jobs.WATCH_US}
    stage.forward(SECOND)
    stage.run(until.call)
    assert stage.places_of("watchers") == {"a": stage.now() + jobs.WATCH_US}
    worker.finish("a", number=SECOND)
    assert stage.run(until.call).state is State.SUCCEEDED
    assert stage.places_of("watchers") == {}
    with pytest.raises(JobNotFound):
        stage.run(jobs.until_ended(stage.keys, "ghost", timeout_s=None).call)
    assert stage.places_of("watchers") == {}


def test_a_watch_never_gets_shorter(stage):
    stage.put("a")
    stage.client.zadd(stage.keys.watchers, {"a": stage.now() + 10 * jobs.WATCH_US})
    before = stage.places_of("watchers")
    stage.run(jobs.until_ended(stage.keys, "a", timeout_s=None).call)
    assert stage.places_of("watchers") == before
    stage.allow("hint")  # the state does not know of the watcher that was put there by hand


@pytest.mark.parametrize("most", [0, 20])
@pytest.mark.parametrize(
    "history", [b"x" * 200, b"9999:" + b"y" * 200, b"5:1 2 3", b"7:1 2 3 4" + b"z" * 200, b":"]
)
def test_a_history_that_cannot_be_read_is_shown_as_far_as_it_can(stage, history, most):
    stage.put("a", "b")
    stage.client.hset(stage.keys.history, "a", history)
    call = jobs.look(stage.keys, ["a", "b"], lanes=stage.lanes.names, most=most)
    views = stage.run(call)
    assert [view.state for view in views] == ["waiting", "waiting"]
    assert views[0].history == ()
    stage.allow("run line")  # which does not tell of the history


def test_a_ring_of_counts_that_cannot_be_read_is_passed_over(stage):
    stage.client.rpush(stage.key("rates", "normal"), "garbage")
    assert stage.run(stats.depths(stage.keys, ["normal"]))[0].past is None
