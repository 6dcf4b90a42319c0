"""Coroutines that block the event loop end at their time-out, and nothing else is struck."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from typing import Any

import pytest

from laneq import JobCancelled, JobFailed, Lane, LaneQ, Middleware, Retry
from laneq.errors import JobTimeout
from laneq.worker import outcomes
from laneq.worker.interrupt import Interrupter
from tests.worker.conftest import Crew, Gate

ONCE = Retry(1)


class Watcher(Middleware):
    """Notes what hooks are told."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def after_job(self, job: Any, outcome: str) -> None:
        self.seen.append(outcome)


@pytest.mark.slow
@pytest.mark.parametrize("hooks", [[], [Watcher()]], ids=["bare", "with hooks"])
async def test_a_blocking_call_in_a_coroutine_is_interrupted_at_the_time_out(
    crew: Crew, hooks: list[Watcher]
) -> None:
    app = crew.app(middleware=hooks)

    @app.task(name="blocks", timeout=0.5, retry=ONCE)
    async def blocks() -> None:
        time.sleep(60)  # noqa: ASYNC251  what this test is about

    await crew.start(app)
    began = time.monotonic()
    with pytest.raises(JobFailed, match=r"timed out after 0\.5 s") as caught:
        await (await blocks.aenqueue()).aresult(20)
    assert caught.value.type == "JobTimeout"
    assert "in blocks" in caught.value.traceback
    assert time.monotonic() - began < 10
    assert [hook.seen for hook in hooks] == [["dead"]] * len(hooks)


@pytest.mark.slow
async def test_a_job_that_blocks_without_a_time_out_is_left_alone(crew: Crew, app: LaneQ) -> None:
    @app.task(name="blocks")
    async def blocks() -> str:
        time.sleep(2.5)  # noqa: ASYNC251  what this test is about
        return "done"

    await crew.start(app)
    assert await (await blocks.aenqueue()).aresult(20) == "done"


@pytest.mark.slow
async def test_a_cancel_reaches_a_coroutine_that_blocks_the_loop(
    crew: Crew, url: str, namespace: str
) -> None:
    app = crew.app(lanes=[Lane("normal", lease=1)])
    begun = threading.Event()

    @app.task(name="blocks")
    async def blocks() -> None:
        begun.set()
        time.sleep(60)  # noqa: ASYNC251  what this test is about

    await crew.start(app)
    job = await blocks.aenqueue()

    def cancel() -> None:
        # In a thread: the loop of this test is the one that is blocked.
        begun.wait(20)
        with LaneQ(url, namespace=namespace, lanes=[Lane("normal", lease=1)]) as other:
            other.job(job.id).cancel()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with pytest.raises(JobCancelled):
        await job.aresult(20)
    canceller.join()


async def test_the_time_out_is_not_raised_in_the_workers_own_code(
    crew: Crew, app: LaneQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(name="t", timeout=60)
    async def t() -> dict[str, int]:
        return {"a": 1}

    worker = await crew.start(app)
    real = outcomes.returned
    struck = []

    def returned(*args: Any, **options: Any) -> Any:
        # The job has returned, and its task is still the current one.
        (run,) = worker.runner.running.values()
        assert run.handle is asyncio.current_task()
        worker._interrupter.interrupt(run, "timeout")
        deadline = time.monotonic() + 0.05
        while time.monotonic() < deadline:
            pass
        struck.append(run.reason)
        return real(*args, **options)

    monkeypatch.setattr(outcomes, "returned", returned)
    assert await (await t.aenqueue()).aresult(10) == {"a": 1}
    assert struck == [None]


async def test_a_job_that_gives_way_is_not_interrupted(crew: Crew, app: LaneQ, gate: Gate) -> None:
    @app.task(name="t", timeout=60)
    async def t() -> str:
        await gate.hold()
        return "done"

    worker = await crew.start(app)
    job = await t.aenqueue()
    await gate.begun.wait()
    (run,) = worker.runner.running.values()
    worker._interrupter.interrupt(run, "timeout")
    await asyncio.sleep(0)
    gate.let_go.set()
    assert await job.aresult(10) == "done"


async def test_the_signal_is_given_back_and_never_taken_from_who_has_it(
    crew: Crew, app: LaneQ
) -> None:
    @app.task(name="t")
    async def t() -> None:
        """Do nothing."""

    worker = await crew.start(app)
    assert signal.getsignal(signal.SIGURG) == worker._interrupter._strike
    other = await crew.start(app)
    await other.stop()
    assert signal.getsignal(signal.SIGURG) == worker._interrupter._strike
    await worker.stop()
    assert signal.getsignal(signal.SIGURG) is signal.SIG_DFL


async def test_outside_the_main_thread_the_signal_is_left_alone() -> None:
    interrupter = Interrupter(asyncio.get_running_loop())
    thread = threading.Thread(target=interrupter.install)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGURG) is signal.SIG_DFL


def test_a_time_out_is_no_exception_that_jobs_catch_by_chance() -> None:
    assert not issubclass(JobTimeout, Exception)
