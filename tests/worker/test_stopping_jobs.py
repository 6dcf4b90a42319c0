"""Jobs that are told to end: time-outs, cancels, leases that are lost."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from laneq import JobCancelled, JobFailed, Lane, LaneQ, Retry, State, current_job
from laneq.worker import Worker
from tests.patience import await_until
from tests.worker.conftest import Crew, Gate, ThreadGate, info

ONCE = Retry(1)


async def test_a_coroutine_is_cancelled_at_its_time_out(crew: Crew, app: LaneQ, gate: Gate) -> None:
    @app.task(name="slow", timeout=0.1, retry=ONCE)
    async def slow() -> None:
        await gate.hold()

    await crew.start(app)
    job = await slow.aenqueue()
    with pytest.raises(JobFailed, match=r"timed out after 0\.1 s") as caught:
        await job.aresult(10)
    assert caught.value.type == "JobTimeout"
    assert "in slow" in caught.value.traceback
    assert gate.cancelled.is_set()


async def test_a_time_out_spends_an_attempt_and_is_retried(crew: Crew, app: LaneQ) -> None:
    @app.task(name="slow_at_first", timeout=0.1, retry=Retry(2, base=0.001))
    async def slow_at_first() -> int:
        if current_job().attempt == 1:
            await asyncio.Event().wait()
        return current_job().attempt

    await crew.start(app)
    assert await (await slow_at_first.aenqueue()).aresult(10) == 2


async def test_a_rule_may_name_time_outs(crew: Crew, app: LaneQ) -> None:
    @app.task(name="slow", timeout=0.05, retry=Retry(5, never_on=TimeoutError))
    async def slow() -> None:
        await asyncio.Event().wait()

    await crew.start(app)
    job = await slow.aenqueue()
    with pytest.raises(JobFailed):
        await job.aresult(10)
    assert (await info(app, job)).attempt == 1


async def test_a_call_may_have_another_limit_or_none(crew: Crew, app: LaneQ) -> None:
    @app.task(name="sleeps", timeout=0.05, retry=ONCE)
    async def sleeps() -> bool:
        await asyncio.sleep(0.1)
        return current_job().deadline is None

    await crew.start(app)
    assert await (await sleeps.using(timeout=None).aenqueue()).aresult(10) is True
    with pytest.raises(JobFailed, match="timed out"):
        await (await sleeps.aenqueue()).aresult(10)


@pytest.mark.slow
async def test_fault_J1_a_coroutine_that_swallows_its_cancel_gives_its_slot_back(
    crew: Crew, app: LaneQ
) -> None:
    is_over = asyncio.Event()

    @app.task(name="stubborn", timeout=0.1, retry=ONCE)
    async def stubborn() -> str:
        while not is_over.is_set():
            try:
                await is_over.wait()
            except BaseException:  # noqa: BLE001  what this test is about
                continue
        return "late"

    @app.task(name="quick")
    async def quick() -> str:
        return "quick"

    worker = await crew.start(app, slots=1)
    job = await stubborn.aenqueue()
    following = await quick.aenqueue()
    with pytest.raises(JobFailed, match="timed out"):
        await job.aresult(10)
    assert await following.aresult(10) == "quick"
    assert len(worker.runner.stuck) == 1
    is_over.set()
    await worker.until_idle()
    assert not worker.runner.stuck
    assert await job.astate() is State.DEAD


async def test_a_thread_that_runs_python_code_ends_at_its_time_out(crew: Crew, app: LaneQ) -> None:
    @app.task(name="spins", timeout=0.1, retry=ONCE)
    def spins() -> None:
        while True:
            time.sleep(0.001)

    worker = await crew.start(app)
    with pytest.raises(JobFailed, match="timed out") as caught:
        await (await spins.aenqueue()).aresult(10)
    assert "in spins" in caught.value.traceback
    await worker.until_idle()
    assert not worker.runner.stuck


async def test_an_except_clause_does_not_catch_a_time_out_in_a_thread(
    crew: Crew, app: LaneQ
) -> None:
    @app.task(name="catches", timeout=0.1, retry=ONCE)
    def catches() -> None:
        while True:
            try:
                time.sleep(0.001)
            except Exception:  # noqa: BLE001  what this test is about
                continue

    await crew.start(app)
    with pytest.raises(JobFailed, match="timed out"):
        await (await catches.aenqueue()).aresult(10)


@pytest.mark.slow
async def test_fault_J1_a_thread_that_is_stuck_is_replaced_and_its_return_discarded(
    crew: Crew, app: LaneQ, thread_gate: ThreadGate
) -> None:
    @app.task(name="stuck", timeout=0.1, retry=ONCE)
    def stuck() -> str:
        thread_gate.hold()
        return "late"

    @app.task(name="quick")
    def quick() -> str:
        return "quick"

    worker = await crew.start(app, slots=1)
    job = await stuck.aenqueue()
    following = await quick.aenqueue()
    with pytest.raises(JobFailed, match="timed out"):
        await job.aresult(10)
    assert await following.aresult(10) == "quick"
    assert len(worker.runner.stuck) == 1
    thread_gate.let_go.set()
    await await_until(lambda: not worker.runner.stuck)
    assert await job.astate() is State.DEAD
    assert await (await quick.aenqueue()).aresult(10) == "quick"


@pytest.mark.slow
async def test_a_worker_with_too_many_stuck_jobs_stops(
    crew: Crew, app: LaneQ, thread_gate: ThreadGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("laneq.worker.worker.MOST_STUCK", 2)

    @app.task(name="stuck", timeout=0.1, retry=ONCE)
    def stuck() -> None:
        thread_gate.hold()

    worker = await crew.start(app, slots=1)
    jobs = [await stuck.aenqueue() for _ in range(2)]
    for job in jobs:
        with pytest.raises(JobFailed, match="timed out"):
            await job.aresult(10)
    async with asyncio.timeout(10):
        await worker.until_asked_to_stop()
    assert worker.has_failed


async def test_fault_H3_a_cancel_reaches_a_running_coroutine(
    crew: Crew, app: LaneQ, gate: Gate
) -> None:
    @app.task(name="slow")
    async def slow() -> str:
        try:
            await gate.hold()
        except asyncio.CancelledError:
            assert current_job().is_cancelled
        return "what is returned now is discarded"

    await crew.start(app)
    job = await slow.aenqueue()
    await gate.begun.wait()
    assert await job.acancel()
    with pytest.raises(JobCancelled):
        await job.aresult(2)
    assert gate.cancelled.is_set()
    view = await info(app, job)
    assert (view.state, view.attempt, view.error) == (State.CANCELLED, 1, None)


async def test_fault_H3_a_cancel_is_shown_to_a_thread_and_its_return_discarded(
    crew: Crew, app: LaneQ, thread_gate: ThreadGate
) -> None:
    @app.task(name="slow")
    def slow() -> str:
        thread_gate.hold()
        assert current_job().is_cancelled
        return "discarded"

    worker = await crew.start(app)
    job = await slow.aenqueue()
    await thread_gate.begun.wait()
    assert await job.acancel()
    view = await info(app, job)
    assert (view.state, view.cancel_requested) == (State.RUNNING, True)
    await await_until(lambda: all(run.job.is_cancelled for run in worker.runner.running.values()))
    thread_gate.let_go.set()
    with pytest.raises(JobCancelled):
        await job.aresult(10)


async def test_a_cancel_that_arrives_before_the_coroutine_began_is_a_cancel(
    crew: Crew, app: LaneQ
) -> None:
    has_run = False

    @app.task(name="never")
    async def never() -> None:
        nonlocal has_run
        has_run = True

    worker = await crew.start(app)
    start = worker.runner.start

    def start_and_cancel(reply: Any) -> None:
        start(reply)
        for run in list(worker.runner.running.values()):
            worker.runner.stop(run, "cancel")

    worker.runner.start = start_and_cancel  # type: ignore[method-assign]
    job = await never.aenqueue()
    with pytest.raises(JobCancelled):
        await job.aresult(10)
    assert not has_run


async def test_a_cancel_that_overtakes_the_claims_reply_is_not_forgotten(
    crew: Crew, app: LaneQ, gate: Gate
) -> None:
    @app.task(name="slow")
    async def slow() -> None:
        await gate.hold()

    worker = await crew.start(app)
    start = worker.runner.start

    def cancel_and_start(reply: Any) -> None:
        for claimed in reply.jobs:
            worker.runner.cancel_early(claimed.fence)
        start(reply)

    worker.runner.start = cancel_and_start  # type: ignore[method-assign]
    job = await slow.aenqueue()
    with pytest.raises(JobCancelled):
        await job.aresult(10)


@pytest.fixture
def short(crew: Crew) -> LaneQ:
    """An app whose only lane has the shortest lease."""
    return crew.app(lanes=[Lane("normal", lease=1)])


async def steal(worker: Worker, job_id: str) -> None:
    """Have the worker's claim of a job replaced by somebody else's."""
    driver = worker.claims._driver
    keys = worker.claims._keys
    line = (await driver.command("HGET", keys.runs, job_id)).split(b" ")
    line[0] = b"%d" % (int(line[0]) + 10**15)
    await driver.command("HSET", keys.runs, job_id, b" ".join(line))


async def give_back(worker: Worker, job_id: str) -> None:
    """End the attempt that `steal` made up: its lease runs out."""
    driver = worker.claims._driver
    keys = worker.claims._keys
    await driver.command("ZADD", keys.of_lane("leases", "normal"), 1, job_id)


async def test_fault_B3_a_job_that_lost_its_lease_is_cancelled_told_and_discarded(
    crew: Crew, short: LaneQ, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    told: list[bool] = []

    @short.task(name="slow", retry=Retry(3, base=0.001))
    async def slow() -> str:
        if current_job().attempt > 1:
            return "second"
        try:
            await gate.hold()
        finally:
            told.append(current_job().lease_lost)
        return "first"

    worker = await crew.start(short)
    job = await slow.aenqueue()
    await gate.begun.wait()
    await steal(worker, job.id)
    await gate.cancelled.wait()
    assert told == [True]
    await give_back(worker, job.id)
    assert await job.aresult(10) == "second"
    lines = [r for r in caplog.records if "lease lost" in r.getMessage()]
    assert len(lines) == 1
    assert job.id in lines[0].getMessage()


async def test_fault_B3_an_outcome_under_an_old_fence_is_refused_and_counted(
    crew: Crew, app: LaneQ, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(name="slow", retry=Retry(3, base=0.001))
    async def slow() -> str:
        if current_job().attempt > 1:
            return "second"
        await gate.hold()
        return "first"

    worker = await crew.start(app)
    job = await slow.aenqueue()
    await gate.begun.wait()
    await steal(worker, job.id)
    gate.let_go.set()
    async with asyncio.timeout(10):
        while "lease lost" not in caplog.text:
            await worker.until_idle()
    await give_back(worker, job.id)
    assert await job.aresult(10) == "second"
    counts = await app.async_driver().command("HGET", app.keys.of_lane("counts", "normal"), "stale")
    assert counts == b"1"


@pytest.mark.slow
async def test_fault_B2_a_lease_is_kept_while_a_job_blocks_the_loop_and_the_task_is_named(
    crew: Crew, short: LaneQ, caplog: pytest.LogCaptureFixture
) -> None:
    @short.task(name="computes")
    async def computes() -> int:
        until = time.monotonic() + 3
        while time.monotonic() < until:
            pass
        return current_job().attempt

    await crew.start(short)
    job = await computes.aenqueue()
    assert await job.aresult(20) == 1
    lines = [r.getMessage() for r in caplog.records if "blocks the event loop" in r.getMessage()]
    assert len(lines) == 1
    assert "computes" in lines[0]
    assert job.id in lines[0]


@pytest.mark.slow
async def test_leases_are_renewed_for_as_long_as_a_job_runs(
    crew: Crew, short: LaneQ, gate: Gate
) -> None:
    @short.task(name="slow")
    async def slow() -> int:
        await gate.hold()
        return current_job().attempt

    worker = await crew.start(short)
    await crew.start(short)
    job = await slow.aenqueue()
    await gate.begun.wait()
    before = worker.beats
    await await_until(lambda: worker.beats >= before + 10)
    gate.let_go.set()
    assert await job.aresult(10) == 1
