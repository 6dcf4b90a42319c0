"""Faults J2 and J3: stopping a worker loses no job and runs none twice."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest

from laneq import State
from laneq.worker.process import DOUBLED_S
from tests.faults.conftest import NewField
from tests.faults.field import FACTOR, Field, L, two_sizes, wait_until
from tests.faults.test_workers_that_die import needs_namespaces
from tests.processes import WorkerProcess, is_alive

#: PID 1 without a container: it has no default actions for signals, and adopts orphans.
PID_1 = ("unshare", "--pid", "--fork", "--kill-child")

#: Seconds that a worker on a loaded machine may take to wind up, beside what its jobs take.
SPARE_S = FACTOR * 1.0


def environment_of(loop: str, folder: Path) -> dict[str, str]:
    """Return variables under which a worker has this kind of event loop."""
    if loop == "uvloop":
        pytest.importorskip("uvloop")
        return {}
    hiding = folder / "without_uvloop"
    hiding.mkdir(exist_ok=True)
    (hiding / "uvloop.py").write_text("raise ImportError")
    return {"PYTHONPATH": f"{hiding}:{Path(__file__).parents[2]}"}


def stop(worker: WorkerProcess, number: str) -> float:
    """Send a signal by name, and return when."""
    getattr(worker, number)()
    return time.monotonic()


@needs_namespaces
@two_sizes("short_s, grace_s", ci=(1.0, 2.0), full=(5.0, 10.0))
@pytest.mark.parametrize(
    ("number", "loop", "kind"),
    [
        pytest.param("term", "uvloop", "thread_nap"),
        pytest.param("int", "asyncio", "family_nap"),
        pytest.param("term", "asyncio", "nap"),
        pytest.param("term", "asyncio", "thread_nap", marks=pytest.mark.long),
        pytest.param("int", "uvloop", "thread_nap", marks=pytest.mark.long),
        pytest.param("int", "asyncio", "thread_nap", marks=pytest.mark.long),
        pytest.param("term", "uvloop", "family_nap", marks=pytest.mark.long),
        pytest.param("term", "asyncio", "family_nap", marks=pytest.mark.long),
        pytest.param("int", "uvloop", "family_nap", marks=pytest.mark.long),
        pytest.param("int", "uvloop", "nap", marks=pytest.mark.long),
    ],
)
def test_fault_J2_a_worker_that_is_pid_1_stops_in_its_grace_and_hands_back_what_does_not_end(
    field: Field, number: str, loop: str, kind: str, short_s: float, grace_s: float
) -> None:
    environment = environment_of(loop, field.folder)

    def start(lanes: str) -> WorkerProcess:
        return field.worker(grace=grace_s, lanes=lanes, before=PID_1, environment=environment)

    def took_s(worker: WorkerProcess, since: float, within_s: float) -> float:
        assert worker.wait(within_s) == 0
        return time.monotonic() - since

    task = getattr(field.tasks, kind)
    # Three workers at a time, each with a lane of its own: one with a job that ends in its
    # grace, one with a job that does not, and one that has nothing to do.
    ends, does_not, idle = start("urgent"), start("normal"), start("batch")
    assert "(pid 1," in ends.text
    short = task.using(lane="urgent").enqueue(short_s)
    long = task.using(lane="normal").enqueue(60)
    field.until_started(2)
    # A worker that has tasks for child processes keeps one of these warm.
    members = 2 if kind == "family_nap" else 1
    family = wait_until(
        lambda: found if len(found := does_not.family()) == members else [], what="its children"
    )

    began = stop(idle, number)
    assert took_s(idle, began, 20) < SPARE_S

    began = stop(ends, number)
    ends.until("no further jobs")
    later = field.tasks.nap.using(lane="urgent").enqueue(0.01)
    assert took_s(ends, began, 60) < short_s + 1 + SPARE_S
    assert short.result(0) == "slept"
    assert later.state() is State.WAITING
    assert field.starts(later.id) == []

    elsewhere = field.worker(slots=4)
    began = stop(does_not, number)
    _, again = wait_until(
        lambda: found if len(found := field.starts(long.id)) == 2 else [], grace_s + 10
    )
    handed_back_after_s = time.monotonic() - began
    assert grace_s - 0.1 < handed_back_after_s < grace_s + 1 + SPARE_S
    assert again.attempt == 1, "being handed back spends no attempt"
    assert took_s(does_not, began, 60) < grace_s + 1.5 + SPARE_S
    assert [process for process in family if is_alive(process)] == []
    assert long.info().attempt == 1
    (lane,) = (row for row in field.laneq_json("lanes") if row["name"] == "normal")
    assert lane["counts"]["handed_back"] == 1
    assert later.result(10) == "slept"
    assert psutil.pid_exists(elsewhere.pid)


@two_sizes("lease, run_s", ci=(2.0, 7.0), full=(L, 20.0))
def test_fault_J3_a_job_is_kept_and_its_end_recorded_while_its_worker_stops(
    new_field: NewField, lease: float, run_s: float
) -> None:
    field = new_field(lease=lease)
    worker = field.worker(grace=60)
    job = field.tasks.parent.enqueue(run_s)
    field.until_started(1)
    second = field.worker(is_ready=False)
    worker.term()
    deadlines = set()
    leases = field.keys.of_lane("leases", "normal")

    def has_ended() -> bool:
        deadline = field.raw.zscore(leases, job.id)
        if deadline is not None:
            assert deadline > field.now_us(), "the lease ran out"
            deadlines.add(deadline)
        return deadline is None

    wait_until(has_ended, FACTOR * run_s, "the end of the job")
    assert worker.wait() == 0
    assert len(deadlines) > 2 * run_s / lease, "renewed too rarely"
    second.until_ready()
    children = job.result(0)
    field.until_settled(children)
    ids = [job.id, *children]
    field.assert_once(ids)
    assert field.assert_conserved(ids) == {State.SUCCEEDED: 3}
    assert len(field.places()) == 3


def test_fault_J3_jobs_that_end_as_their_worker_stops_are_all_done_once(field: Field) -> None:
    worker = field.worker(slots=100, grace=20)
    ends_at = time.monotonic() + 2
    jobs = []
    for n in range(100):
        left_s = ends_at - time.monotonic()
        jobs.append(field.tasks.nap.enqueue(left_s + (n % 20 - 10) * 0.01))
    field.worker(slots=100)
    time.sleep(max(0.0, ends_at - time.monotonic()))
    worker.term()
    assert worker.wait() == 0
    ids = [job.id for job in jobs]
    assert field.states(ids) == {State.SUCCEEDED: 100}
    field.assert_once(ids)
    assert field.assert_conserved(ids) == {State.SUCCEEDED: 100}
    assert {entry.pid for entry in field.starts()} == {worker.pid}


@two_sizes("grace_s", ci=(2.0,), full=(10.0,))
@pytest.mark.parametrize(
    ("number", "loop"), [("term", "uvloop"), ("int", "asyncio")], ids=["uvloop", "asyncio"]
)
def test_fault_J2_a_job_that_blocks_the_loop_does_not_keep_its_worker_from_stopping(
    field: Field, number: str, loop: str, grace_s: float
) -> None:
    worker = field.worker(grace=grace_s, environment=environment_of(loop, field.folder))
    job = field.tasks.block.enqueue(60)
    field.until_started(1)
    elsewhere = field.worker()
    began = stop(worker, number)
    field.until_started(2, within_s=grace_s + 10)
    assert grace_s - 0.1 < time.monotonic() - began < grace_s + 2 + SPARE_S
    assert worker.wait() == 0
    assert time.monotonic() - began < grace_s + 3 + SPARE_S
    assert job.info().attempt == 1
    # A second signal ends the grace.
    began = stop(elsewhere, number)
    elsewhere.hurry(signal.Signals[f"SIG{number.upper()}"])
    assert elsewhere.wait() == 0
    assert time.monotonic() - began < DOUBLED_S + 2 + SPARE_S
    assert (job.state(), job.info().attempt) == (State.WAITING, 0)


SLOW_TO_IMPORT = """
import os, time
from laneq import LaneQ
from tests.faults.body import lanes

app = LaneQ(lanes=lanes())

@app.task(name="t")
async def t() -> None:
    pass

if "LANEQ_FAULT_IS_SLOW" in os.environ:
    print("importing", flush=True)
    try:
        time.sleep(60)
    except BaseException:
        time.sleep(60)
"""


@needs_namespaces
@pytest.mark.parametrize("number", ["term", "int"])
def test_fault_J2_a_worker_that_is_told_to_stop_while_its_app_is_imported_ends_at_once(
    new_field: NewField, number: str
) -> None:
    field = new_field(app=SLOW_TO_IMPORT)
    worker = field.worker(before=PID_1, environment={"LANEQ_FAULT_IS_SLOW": "1"}, is_ready=False)
    worker.until("importing")
    began = stop(worker, number)
    assert worker.wait() == 0
    assert time.monotonic() - began < SPARE_S
    assert "stopped before it was ready" in worker.text
