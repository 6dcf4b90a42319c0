"""progress.lua: how far a job is, told by the attempt that has it."""

from __future__ import annotations

import pytest

from laneq.calls import jobs
from laneq.codec import encode_value
from laneq.errors import LeaseLost
from tests.lua.test_claim_outcomes import ERROR, running


def report(stage, job_id, fence, value=None):
    data = encode_value(value or {"done": 1, "total": 2})
    stage.run(jobs.report_progress(stage.keys, job_id, fence=fence, value=data))


def test_progress_of_the_running_attempt_is_shown(stage):
    worker = running(stage, "a")
    report(stage, "a", worker.held["a"].fence)
    report(stage, "a", worker.held["a"].fence, {"done": 2})
    assert stage.look("a").progress == {"done": 2}
    assert stage.look("a").cancel_requested is False


def test_progress_after_a_cancel_was_asked_for_keeps_the_request(stage):
    worker = running(stage, "a")
    stage.cancel("a")
    report(stage, "a", worker.held["a"].fence)
    assert stage.look("a").cancel_requested is True
    worker.finish("a", number=0)
    assert stage.hash("progress") == {}


@pytest.mark.parametrize("kind", ["handed_back", "retried", "succeeded", "dead"])
def test_progress_under_an_old_fence_changes_nothing(stage, kind):
    worker = running(stage, "a")
    fence = worker.held["a"].fence
    worker.finish("a", kind, number=5, body=ERROR)
    before = stage.snapshot()
    with pytest.raises(LeaseLost):
        report(stage, "a", fence)
    assert stage.snapshot() == before


def test_progress_of_a_job_that_is_not_running_changes_nothing(stage):
    stage.put("a")
    for job_id, fence in (("a", 0), ("ghost", 5)):
        with pytest.raises(LeaseLost):
            report(stage, job_id, fence)
    worker = stage.worker()
    worker.take()
    worker.finish("a", "handed_back")
    with pytest.raises(LeaseLost):
        report(stage, "a", 0)
    assert stage.hash("progress") == {}


def test_progress_of_a_job_whose_run_line_is_odd_changes_nothing(stage):
    stage.put("a")
    stage.client.hset(stage.keys.runs, "a", "garbage")
    with pytest.raises(LeaseLost):
        report(stage, "a", 5)
    stage.allow("run line")
