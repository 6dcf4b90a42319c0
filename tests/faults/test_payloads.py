"""Kind I: what jobs carry, raise and return, and what is shown of it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from laneq import JobFailed
from tests.faults.conftest import NewField
from tests.faults.field import FACTOR, Field

ODD_JOBS: Final = Path(__file__).with_name("odd_jobs.py")


@pytest.fixture
def odd(new_field: NewField) -> Field:
    """A field with tasks that end in odd ways."""
    return new_field(app=ODD_JOBS)


# --- I3: what is raised and returned --------------------------------------------------


@pytest.mark.parametrize("how", ["does", "thread_does", "process_does"])
def test_fault_I3_whatever_a_job_raises_or_returns_is_its_failure_alone(
    odd: Field, how: str
) -> None:
    worker = odd.worker(slots=1)
    pid = worker.pid
    for name in odd.tasks.DOES:
        job = getattr(odd.tasks, how).enqueue(name)
        odd.until_settled([job.id], 10)
        with pytest.raises(JobFailed) as caught:
            job.result(0)
        asked_us = odd.now_us()
        assert odd.tasks.fine.enqueue().result(10) == "fine", name
        assert odd.now_us() - asked_us <= FACTOR * 1e6, name
        assert caught.value.type, name
        text = f"{caught.value.message}{caught.value.traceback}"
        assert 0 < len(text.encode()) <= 65_536, name
        assert job.info().attempt == 1
        assert len(odd.starts(job.id)) == 1, name
    assert worker.pid == pid
    assert worker.is_running
    assert worker.count("CRITICAL") == 0, worker.text


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_fault_I3_what_ends_an_event_loop_does_not_end_the_worker(
    odd: Field, tmp_path: Path, loop: str
) -> None:
    environment = {}
    if loop == "asyncio":
        (tmp_path / "uvloop.py").write_text("raise ImportError")
        environment["PYTHONPATH"] = f"{tmp_path}:{odd.environment['PYTHONPATH']}"
    worker = odd.worker(slots=2, environment=environment)
    pid = worker.pid
    beside = odd.tasks.nap.enqueue(2)
    for how in odd.tasks.LOOPS:
        job = odd.tasks.ends_the_loop.enqueue(how)
        odd.until_settled([job.id], 20)
        assert odd.tasks.fine.enqueue().result(10) == "fine", how
        assert len(odd.starts(job.id)) == 1, how
        if how == "callback":
            assert job.result(0) == "went on"
        else:
            with pytest.raises(JobFailed) as caught:
                job.result(0)
            assert caught.value.type == "SystemExit", how
    assert beside.result(10) == "slept"
    assert worker.pid == pid
    assert worker.is_running
