"""Fault I4: who waits for a result gets it, also over a restart of Redis; jobs do not wait."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any, Final

import pytest

from laneq import Job, JobExpired, JobNotFound
from tests.faults.conftest import NewField
from tests.faults.field import FACTOR, Field, wait_until

ODD_JOBS: Final = Path(__file__).with_name("odd_jobs.py")


@pytest.fixture
def odd(new_field: NewField) -> Field:
    """A field with tasks that end in odd ways."""
    return new_field(app=ODD_JOBS)


def test_fault_I4_fifty_waiters_get_their_results_although_redis_is_restarted(
    new_field: NewField,
) -> None:
    field = new_field(app=ODD_JOBS, keeps_data=True)
    worker = field.worker(slots=50)
    # Some end while Redis is away, most after it is back.
    jobs = [field.tasks.nap.enqueue(1.5 + 0.1 * n) for n in range(50)]
    got: dict[str, tuple[str, int]] = {}
    wrong: list[BaseException] = []

    def wait_sync(job: Job[Any]) -> None:
        try:
            got[job.id] = job.result(30), field.now_us()
        except BaseException as error:  # noqa: BLE001  told below
            wrong.append(error)

    async def wait_async(job: Job[Any]) -> None:
        try:
            got[job.id] = await job.aresult(30), field.now_us()
        except BaseException as error:  # noqa: BLE001  told below
            wrong.append(error)

    async def wait_all() -> None:
        await asyncio.gather(*(wait_async(job) for job in jobs[1::2]))

    threads = [threading.Thread(target=wait_sync, args=(job,)) for job in jobs[::2]]
    threads.append(threading.Thread(target=asyncio.run, args=(wait_all(),)))
    for thread in threads:
        thread.start()
    field.until_started(50)
    wait_until(lambda: field.raw.zcard(field.keys.watchers) == 50, what="50 waiters")
    field.stop_server()
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        assert worker.is_running
    field.start_server()
    for thread in threads:
        thread.join(40)
    assert wrong == []
    assert {value for value, _ in got.values()} == {"slept"}
    late_s = {}
    for job in jobs:
        ended_at = job.info().ended_at
        assert ended_at is not None
        late_s[job.id] = got[job.id][1] / 1e6 - ended_at
    assert max(late_s.values()) <= 2.0 * FACTOR, late_s
    field.assert_once()


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_fault_I4_a_job_may_take_longer_than_its_end_is_announced(
    odd: Field, monkeypatch: pytest.MonkeyPatch, colour: str
) -> None:
    # Ten minutes, made a second: a waiter has to say in time that he is still there.
    monkeypatch.setattr("laneq.calls.jobs.WATCH_US", 1_000_000)
    odd.worker()
    job = odd.tasks.nap.enqueue(4)

    async def wait() -> Any:
        async with odd.app:
            return await job.aresult(30)

    value = job.result(30) if colour == "sync" else asyncio.run(wait())
    returned_s = odd.now_us() / 1e6
    assert value == "slept"
    ended_at = job.info().ended_at
    assert ended_at is not None
    assert returned_s - ended_at <= 2.0 * FACTOR


def test_fault_I4_unknown_and_expired_jobs_are_two_errors_at_once(odd: Field) -> None:
    expiring = odd.tasks.fine.using(expires=0.05).enqueue()
    due_us = odd.now_us() + 100_000
    wait_until(lambda: odd.now_us() > due_us)
    odd.worker()
    wait_until(lambda: expiring.state() == "expired")
    gone = odd.tasks.fine.using(result_ttl=0).enqueue()
    wait_until(lambda: gone.state() is None)

    async def ask(job: Job[Any]) -> None:
        try:
            await job.aresult(30)
        finally:
            await odd.app.aclose()

    for job, error in (
        (odd.app.job("no-such-job"), JobNotFound),
        (gone, JobNotFound),
        (expiring, JobExpired),
    ):
        began = time.monotonic()
        with pytest.raises(error, match=job.id):
            job.result(30)
        with pytest.raises(error, match=job.id):
            asyncio.run(ask(job))
        assert time.monotonic() - began <= FACTOR


@pytest.mark.parametrize("how", ["parent_waits", "thread_parent_waits", "process_parent_waits"])
def test_fault_I4_parents_that_wait_for_children_do_not_fill_the_slots_for_ever(
    odd: Field, how: str
) -> None:
    odd.worker(slots=4)
    parents = [getattr(odd.tasks, how).enqueue() for _ in range(4)]
    children = [odd.app.job(parent.result(30)) for parent in parents]
    assert len({child.id for child in children}) == 4
    assert [child.result(20) for child in children] == ["fine"] * 4
    for parent in parents:
        start, end = (entry.at_us for entry in odd.runlog() if entry.id == parent.id)
        assert end - start <= FACTOR * 1e6, "it was refused at once"


def test_fault_I4_parents_that_come_back_are_all_done(odd: Field, tmp_path: Path) -> None:
    odd.worker(slots=4)
    parents = [odd.tasks.parent_comes_back.enqueue(str(tmp_path)) for _ in range(4)]
    assert [parent.result(20) for parent in parents] == ["fine"] * 4
    assert all(parent.info().attempt == 1 for parent in parents), "a snooze spends no attempt"


def test_fault_I4_a_wait_that_is_not_seen_as_a_jobs_ends_at_its_timeout(odd: Field) -> None:
    odd.worker(slots=1)
    began = time.monotonic()
    assert odd.tasks.waits_in_own_thread.enqueue(1).result(20) == "timeout"
    assert time.monotonic() - began <= 2 * FACTOR + 1
