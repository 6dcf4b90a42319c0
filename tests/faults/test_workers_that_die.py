"""Faults A: work lost or stranded when a worker dies."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import defaultdict

import pytest

from laneq import Lane, State
from tests.faults.conftest import NewField
from tests.faults.field import FACTOR, Field, L, S, two_sizes, wait_until
from tests.processes import WorkerProcess

#: Seconds between two strikes of the killer.
STRIKE_EVERY_S = FACTOR * 0.2

#: Strikes, every other one a kill, below which more jobs are enqueued.
LEAST_STRIKES = 8


@two_sizes("jobs, run_s, workers, slots", ci=(400, 0.02, 3, 2), full=(10_000, 0.005, 8, 2))
def test_fault_A1_no_job_is_stranded_wherever_its_worker_is_hit(
    new_field: NewField, jobs: int, run_s: float, workers: int, slots: int
) -> None:
    lanes = [Lane(name) for name in ("a", "b", "c", "d", "e")]
    field = new_field(lanes=lanes)
    ids: list[str] = []

    def feed(n_jobs: int) -> None:
        calls = [
            field.tasks.survive.using(lane=lanes[n % 5].name, result_ttl=3600).call(run_s)
            for n in range(n_jobs)
        ]
        ids.extend(job.id for job in field.app.enqueue_many(calls))

    feed(jobs)

    def start() -> WorkerProcess:
        return field.worker(slots=slots, is_ready=False)

    crew = [start() for _ in range(workers)]
    killed: set[int] = set()
    told: set[int] = set()

    def are_empty() -> bool:
        return not any(
            field.raw.zcard(field.keys.of_lane(word, lane.name))
            for lane in lanes
            for word in ("waiting", "scheduled")
        )

    def strike() -> None:
        ready = [n for n, worker in enumerate(crew) if worker.count("is ready")]
        if len(ready) < 2:
            return  # a machine where a start takes long: one is left to get on with the work
        n = random.choice(ready)
        if len(killed) <= len(told):
            killed.add(crew[n].pid)
            crew[n].kill9()
        else:
            told.add(crew[n].pid)
            crew[n].term()
        crew[n] = start()

    strike_at = time.monotonic()
    while True:
        if are_empty():
            if len(killed) + len(told) >= LEAST_STRIKES:
                break
            feed(100)
        time.sleep(max(0.0, strike_at - time.monotonic()))
        strike()
        strike_at = time.monotonic() + STRIKE_EVERY_S
    wait_until(lambda: field.states() == {State.SUCCEEDED: len(ids)}, FACTOR * (L + 2 * S))
    assert field.assert_conserved(ids) == {State.SUCCEEDED: len(ids)}

    pids = defaultdict(list)
    for entry in field.starts():
        pids[entry.id].append(entry.pid)
    extra = [pid for found in pids.values() for pid in found[:-1]]
    assert set(extra) <= killed, "a job ran twice although its worker was not killed"
    assert len(extra) <= len(killed) * slots


def test_fault_A2_recovery_takes_a_lease_whatever_the_time_out_of_a_task(field: Field) -> None:
    # B is there first, and busy until the jobs have begun on A.
    second = field.worker(slots=2)
    gate = field.folder / "gate"
    for _ in range(2):
        field.tasks.hold_async.enqueue(str(gate))
    field.until_started(2)
    first = field.worker()
    jobs = [field.tasks.short.enqueue(), field.tasks.long.enqueue()]
    field.until_started(4)
    gate.touch()
    time.sleep(1)  # as the row says
    killed_us = field.now_us()
    first.kill9()
    limit_s = FACTOR * (L + 2 * S)
    starts = field.until_started(6, within_s=limit_s)[4:]
    assert {(entry.id, entry.attempt, entry.pid) for entry in starts} == {
        (job.id, 2, second.pid) for job in jobs
    }
    assert max(entry.at_us for entry in starts) - killed_us < limit_s * 1e6
    assert [job.result(10) for job in jobs] == [2, 2]
    for job in jobs:
        assert [entry.outcome for entry in job.info().history] == ["worker lost"]


needs_namespaces = pytest.mark.skipif(
    shutil.which("unshare") is None or os.geteuid() != 0,
    reason="needs a PID namespace of its own: unshare, as root",
)

#: A container as far as a worker can tell: it is PID 1, on a host that is always called so.
CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--uts",
             "sh", "-c", 'hostname box && exec "$@"', "sh")  # fmt: skip


@needs_namespaces
def test_fault_A3_a_worker_that_comes_back_under_its_name_is_another(field: Field) -> None:
    def start(is_ready: bool = True) -> WorkerProcess:
        return field.worker(name="w1", before=CONTAINER, is_ready=is_ready)

    def listed() -> list[tuple[str, str, int]]:
        rows = field.laneq_json("workers")
        return [(row["name"], row["host"], row["pid"]) for row in rows]

    began = time.monotonic()
    first = start()
    usual_s = time.monotonic() - began
    assert listed() == [("w1", "box", 1)]
    job = field.tasks.short.enqueue()
    field.until_started(1)
    killed_at = time.monotonic()
    first.kill9()
    second = start(is_ready=False)
    second.until("is ready", within_s=FACTOR * max(2, usual_s))
    field.until_started(2, within_s=killed_at + FACTOR * (L + 2 * S) - time.monotonic())
    assert job.result(10) == 2
    wait_until(lambda: len(listed()) == 1, FACTOR * (L + 2 * S), "the dead w1 off the list")

    third = start()
    assert listed() == [("w1", "box", 1)] * 2
    jobs = field.app.enqueue_many([field.tasks.nap.call(0.005) for _ in range(1_000)])
    ids = [job.id for job in jobs]
    field.until_settled(ids)
    field.assert_once(ids)
    assert field.assert_conserved(ids) == {State.SUCCEEDED: 1_000}
    assert {job.info().worker for job in jobs} == {row["id"] for row in field.laneq_json("workers")}
    assert second.is_running
    assert third.is_running
