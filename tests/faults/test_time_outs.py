"""Fault J1: a time-out ends what it can, and what it cannot end takes no slot with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from uuid import uuid4

import psutil
import pytest

from laneq import Job, State
from tests.faults.field import FACTOR, Field, L, S, two_sizes, wait_until
from tests.faults.test_stopping import environment_of
from tests.processes import WorkerProcess, is_alive

#: Bodies that do not end in their 2 s; see `tests.faults.jobs`.
BODIES = (
    "stuck_thread",
    "spinning_thread",
    "waiting",
    "stubborn",
    "waiting_process",
    "deaf_process",
)

#: Those that a time-out ends at once; the others it gives up a second later.
ENDED = frozenset(BODIES) - {"stuck_thread", "stubborn"}


def seconds() -> Iterator[int]:
    """Yield the number of each second from now on, at its beginning."""
    began = time.monotonic()
    n = 0
    while True:
        time.sleep(max(0.0, began + n - time.monotonic()))
        yield n
        n += 1


def size_of(worker: WorkerProcess) -> tuple[int, int]:
    """Return how many threads and how many child processes a worker has."""
    return psutil.Process(worker.pid).num_threads(), len(worker.family())


def fill_slots(field: Field, n: int) -> None:
    """Have so many jobs run at a time, in each executor; fails where fewer can."""
    for kind in ("async", "thread", "process"):
        gate = field.folder / f"gate-{uuid4().hex[:8]}"
        jobs = [getattr(field.tasks, f"hold_{kind}").enqueue(str(gate)) for _ in range(n)]
        ids = {job.id for job in jobs}
        wait_until(
            lambda ids=ids: ids <= {entry.id for entry in field.starts()},  # type: ignore[misc]
            what=f"{n} jobs at a time, {kind}",
        )
        gate.touch()
        field.until_settled(ids)


@two_sizes("feed_s, body_s", ci=(6, 6), full=(120, 60))
def test_fault_J1_a_time_out_ends_what_it_can_and_no_slot_is_lost(
    field: Field, feed_s: int, body_s: int
) -> None:
    worker = field.worker(slots=4)
    fill_slots(field, 4)
    at_first = size_of(worker)
    stuck: list[tuple[str, Job[object]]] = []
    quick: list[Job[object]] = []
    for n in seconds():
        if n == feed_s:
            break
        body = BODIES[n % len(BODIES)]
        stuck.append((body, getattr(field.tasks, body).enqueue(body_s)))
        quick.append(field.tasks.nap.enqueue(0))
        if n % 10 == 5:
            (shown,) = field.laneq_json("workers")
            assert shown["slots"] == 4
    ids = [job.id for _, job in stuck] + [job.id for job in quick]
    field.until_settled(ids)
    late = {job.id for body, job in stuck if body not in ENDED}
    # What could not be ended goes on, and ends by itself.
    wait_until(lambda: late <= {entry.id for entry in field.runlog("end")}, body_s + 10)

    for body, job in stuck:
        view = job.info()
        assert view.error is not None
        assert (view.state, view.error.type) == (State.DEAD, "JobTimeout"), body
        assert view.ended_at is not None
        # From the call of the function: a child process may take long to start.
        (began,) = field.starts(job.id)
        assert 1.9 < view.ended_at - began.at_us / 1e6 < 2 + FACTOR * 1, body
    for job in quick:
        view = job.info()
        assert view.state is State.SUCCEEDED
        assert view.started_at is not None
        assert view.enqueued_at is not None
        assert view.started_at - view.enqueued_at < FACTOR * 5
    field.assert_once(ids)
    counts = field.assert_conserved(ids)
    assert counts == {State.DEAD: feed_s, State.SUCCEEDED: feed_s}
    assert worker.count("did not end when it was told to (timeout)") == len(late)

    fill_slots(field, 4)
    wait_until(lambda: size_of(worker) <= at_first, what="threads and processes as at first")

    def shows_free_slots() -> bool:
        (shown,) = field.laneq_json("workers")
        return (shown["slots"], shown["running"]) == (4, 0)

    # As its heartbeats tell it.
    wait_until(shows_free_slots, what="four free slots in laneq workers")
    family = worker.family()
    worker.term()
    assert worker.wait() == 0
    assert [process for process in family if is_alive(process)] == []


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_fault_J1_a_coroutine_that_blocks_the_loop_ends_at_its_time_out(
    field: Field, loop: str
) -> None:
    worker = field.worker(slots=2, environment=environment_of(loop, field.folder))
    for body in ("timed_spin", "timed_block"):
        job = getattr(field.tasks, body).enqueue()
        field.until_started(1)
        quick = field.tasks.nap.enqueue(0)
        assert quick.result(10) == "slept"
        field.until_settled([job.id])
        view = job.info()
        assert view.error is not None
        assert (view.state, view.error.type) == (State.DEAD, "JobTimeout")
        assert view.error.message == "timed out after 2 s"
        assert f"in {body}" in view.error.traceback
        (began,) = field.starts(job.id)
        (ended,) = (e for e in field.runlog("raise") if e.id == job.id)
        assert 2e6 <= ended.at_us - began.at_us < (2 + FACTOR * 2) * 1e6
    assert worker.is_running
    assert worker.count("blocks the event loop") == 2


def test_fault_J1_a_worker_that_is_hung_for_good_is_replaced(field: Field) -> None:
    supervisor = field.worker(slots=1, processes=2)
    job = field.tasks.hung.enqueue()
    field.until_started(1)
    supervisor.until("cannot be interrupted", within_s=FACTOR * 15)
    supervisor.until("it is started again")
    field.until_settled([job.id], FACTOR * (L + 2 * S))
    view = job.info()
    assert view.error is not None
    assert (view.state, view.error.message) == (State.DEAD, "worker lost")
    supervisor.until("is ready", times=3)
    fill_slots(field, 2)
