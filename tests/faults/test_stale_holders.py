"""Faults B: the same job runs twice; holders of a claim that is no longer theirs."""

from __future__ import annotations

import time

import pytest

from laneq import State
from tests.faults.conftest import NewField
from tests.faults.field import FACTOR, Field, L, two_sizes, wait_until


def leases(field: Field) -> dict[str, float]:
    """Return the jobs of lane normal that are leased, and until when."""
    rows = field.raw.zrange(field.keys.of_lane("leases", "normal"), 0, -1, withscores=True)
    return {member.decode(): deadline for member, deadline in rows}


@two_sizes("workers, delay_s, run_s", ci=(2, 6, 8), full=(4, 20, 30))
def test_fault_B1_no_window_of_time_delivers_a_job_again(
    new_field: NewField, workers: int, delay_s: float, run_s: float
) -> None:
    field = new_field(lease=2)
    for _ in range(workers):
        field.worker(slots=80 // workers)
    scheduled = {}
    for _ in range(50):
        job = field.tasks.nap.using(delay=delay_s).enqueue(0.01)
        scheduled[job.id] = field.now_us() + delay_s * 1e6
    running = {field.tasks.nap.enqueue(run_s).id for _ in range(20)}
    field.until_started(20)
    first_due_us = min(scheduled.values())
    while field.now_us() < first_due_us - 1e6:
        assert set(leases(field)) == running
        (shown,) = (row for row in field.laneq_json("lanes") if row["name"] == "normal")
        if field.now_us() < first_due_us - 1e6:  # the command may take long
            assert (shown["running"], shown["scheduled"]) == (20, 50)
    ids = [*scheduled, *running]
    field.until_settled(ids, 2 * run_s)
    field.assert_once(ids)
    assert field.assert_conserved(ids) == {State.SUCCEEDED: 70}
    starts = {entry.id: entry for entry in field.starts()}
    assert {entry.attempt for entry in starts.values()} == {1}
    for job_id, due_us in scheduled.items():
        # It was stored a moment before its due time was noted here.
        assert -0.2e6 < starts[job_id].at_us - due_us < FACTOR * 1e6


@two_sizes("lease, run_s", ci=(2.0, 6.0), full=(L, 20.0))
def test_fault_B2_a_job_that_blocks_the_loop_keeps_its_lease_and_is_named(
    new_field: NewField, lease: float, run_s: float
) -> None:
    field = new_field(lease=lease)
    workers = [field.worker(slots=1) for _ in range(2)]
    jobs = [field.tasks.spin.enqueue(run_s), field.tasks.block.enqueue(run_s)]
    field.until_started(2)
    deadlines: dict[str, set[float]] = {job.id: set() for job in jobs}

    def are_over() -> bool:
        held = leases(field)
        for job_id, deadline in held.items():
            deadlines[job_id].add(deadline)
        return not held

    wait_until(are_over, FACTOR * run_s, "the end of both jobs")
    ids = [job.id for job in jobs]
    field.until_settled(ids)
    field.assert_once(ids)
    assert field.assert_conserved(ids) == {State.SUCCEEDED: 2}
    for job in jobs:
        assert len(deadlines[job.id]) > 4, "renewed too rarely"
        assert job.info().attempt == 1
    for task in ("spin", "block"):
        said = [worker.count(f"task {task} blocks the event loop") for worker in workers]
        assert sorted(said) == [0, 1]


@two_sizes("lease, run_s", ci=(2.0, 4.0), full=(L, 10.0))
@pytest.mark.parametrize(
    ("kind", "fails"),
    [
        pytest.param("async", "", id="async-returns"),
        pytest.param("async", "A", id="async-raises", marks=pytest.mark.long),
        pytest.param("thread", "", id="thread-returns", marks=pytest.mark.long),
        pytest.param("thread", "A", id="thread-raises"),
        pytest.param("process", "", id="process-returns"),
        pytest.param("process", "A", id="process-raises", marks=pytest.mark.long),
    ],
)
def test_fault_B3_a_worker_that_lost_its_claim_changes_nothing_and_says_so(
    new_field: NewField, kind: str, fails: str, lease: float, run_s: float
) -> None:
    field = new_field(lease=lease)
    first = field.worker(slots=1, environment={"LANEQ_FAULT_WHO": "A"})
    job = getattr(field.tasks, f"who_{kind}").enqueue(run_s, fails)
    field.until_started(1)
    first.stop()
    stopped_at = time.monotonic()
    second = field.worker(slots=1, environment={"LANEQ_FAULT_WHO": "B"})
    assert job.result(FACTOR * (lease + 2)) == "B"
    time.sleep(max(0.0, stopped_at + 3 * lease - time.monotonic()))
    first.cont()
    first.until("lease lost")
    second.term()
    assert second.wait() == 0
    following = field.tasks.nap.enqueue(0.01)
    assert following.result(20) == "slept"
    assert field.starts(following.id)[0].pid == first.pid

    view = job.info()
    assert (view.state, job.result(0), view.attempt) == (State.SUCCEEDED, "B", 2)
    assert [entry.outcome for entry in view.history] == ["worker lost"]
    (lane,) = (row for row in field.laneq_json("lanes") if row["name"] == "normal")
    counts = lane["counts"]
    assert (counts["succeeded"], counts["retried"], counts["dead"]) == (2, 0, 0)
    assert (counts["started"], counts["lost_leases"]) == (3, 1)
    assert (lane["scheduled"], lane["depth"], lane["running"]) == (0, 0, 0)
    # Whoever was first to tell, the reply to its outcome or the heartbeat: it told once.
    told = [line for line in first.lines if job.id in line and "lease lost" in line]
    assert len(told) == 1, told
    assert counts["stale"] == told[0].count("its outcome here is discarded")
    assert first.is_running
    wait_until(lambda: field.laneq_json("workers")[0]["running"] == 0, 10)
