"""The harness of the fault tests can fail: what it asserts is so, and is noticed if not."""

from __future__ import annotations

import pytest

from laneq import State
from tests.faults.conftest import NewField
from tests.faults.field import Field


def test_jobs_run_in_a_worker_process_and_are_in_the_runlog(field: Field) -> None:
    worker = field.worker(name="left", reserve={"urgent": 1})
    before_us = field.now_us()
    jobs = [task.enqueue(0.01) for task in (field.tasks.nap, field.tasks.thread_nap)]
    assert [job.result(20) for job in jobs] == ["slept", "slept"]
    after_us = field.now_us()
    ids = [job.id for job in jobs]
    field.assert_once(ids)
    assert field.assert_conserved(ids) == {State.SUCCEEDED: 2}
    for entry in field.runlog():
        assert (entry.attempt, entry.pid) == (1, worker.pid)
        assert before_us < entry.at_us < after_us
    assert field.laneq_json("workers")[0]["name"] == "left"


def test_a_second_start_and_a_lost_job_are_noticed(field: Field) -> None:
    worker = field.worker()
    job = field.tasks.nap.enqueue(60)
    (start,) = field.until_started()
    worker.kill9()
    field.worker()
    field.until_started(2)
    with pytest.raises(AssertionError, match="not started once"):
        field.assert_once([job.id])
    with pytest.raises(AssertionError, match="not in exactly one place"):
        field.assert_conserved([job.id, start.id + "0"])
    with pytest.raises(AssertionError, match="not started once"):
        field.assert_once(["never"])


def test_a_server_that_keeps_its_data_has_it_after_a_kill(new_field: NewField) -> None:
    field = new_field(keeps_data=True, config={"appendfsync": "always"}, port=0)
    url = field.url
    job = field.tasks.nap.enqueue(0.01)
    field.stop_server(kill=True)
    field.start_server()
    assert field.server.url == url
    assert field.assert_conserved([job.id]) == {State.WAITING: 1}
    field.worker()
    assert job.result(20) == "slept"
