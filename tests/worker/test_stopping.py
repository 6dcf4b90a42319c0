"""How a worker comes and goes."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from laneq import Lane, LaneQ, Middleware, Retry, RunningJob, State, UnknownLane, current_job
from laneq.calls.workers import list_workers
from laneq.drive import AsyncDriver
from laneq.worker import Worker, WorkerOptions
from tests.patience import await_until
from tests.worker.conftest import Crew, Gate, ThreadGate, info


async def alive(app: LaneQ) -> list[Any]:
    return await app.async_driver().call(list_workers(app.keys))


async def test_a_worker_is_listed_from_its_start_to_its_end(crew: Crew, app: LaneQ) -> None:
    @app.task(name="t")
    async def t() -> None:
        """Do nothing."""

    worker = await crew.start(app, slots=3, reserve={"urgent": 1}, name="left", lanes=["urgent"])
    (view,) = await alive(app)
    assert (view.id, view.name, view.slots) == (worker.id, "left", 3)
    assert (view.reserve, view.lanes, view.tasks) == ({"urgent": 1}, ("urgent",), ("t",))
    await worker.stop()
    assert await alive(app) == []


async def test_two_workers_of_one_name_are_two(crew: Crew, app: LaneQ) -> None:
    await crew.start(app, name="w1")
    await crew.start(app, name="w1")
    assert [view.name for view in await alive(app)] == ["w1", "w1"]


async def test_a_start_that_is_called_off_leaves_no_thread_and_no_place_on_the_list(
    crew: Crew,
) -> None:
    reached = asyncio.Event()

    class Slow(Middleware):
        async def worker_started(self, worker_id: str) -> None:
            reached.set()
            await asyncio.Event().wait()

    app = crew.app(middleware=[Slow()])
    worker = Worker(app, WorkerOptions(concurrency=1))
    starting = asyncio.ensure_future(worker.start())
    await reached.wait()
    assert [view.id for view in await alive(app)] == [worker.id]
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert await alive(app) == []
    assert "laneq-heartbeat" not in {thread.name for thread in threading.enumerate()}


async def test_an_idle_worker_stops_at_once(crew: Crew, app: LaneQ) -> None:
    worker = await crew.start(app, poll=60)
    await await_until(lambda: worker.claims._pop is not None)
    async with asyncio.timeout(10):  # and not after the poll of a minute
        await worker.stop()
    assert worker.is_clean


async def test_nothing_is_claimed_after_the_stop_and_what_runs_may_end(
    crew: Crew, app: LaneQ, gate: Gate
) -> None:
    @app.task(name="t")
    async def t() -> str:
        await gate.hold()
        return "done"

    worker = await crew.start(app, slots=2)
    job = await t.aenqueue()
    await gate.begun.wait()
    stopping = asyncio.ensure_future(worker.stop(grace_s=10))
    await await_until(lambda: worker.claims._is_draining)
    later = await t.aenqueue()
    gate.let_go.set()
    await stopping
    assert await job.aresult(0) == "done"
    assert await later.astate() is State.WAITING


async def test_at_the_end_of_the_grace_jobs_go_back_to_the_front_without_an_attempt(
    crew: Crew, app: LaneQ, gate: Gate
) -> None:
    order: list[str] = []

    @app.task(name="t", retry=Retry(1))
    async def t(name: str) -> None:
        if name == "first" and not gate.begun.is_set():
            await gate.hold()
        order.append(name)

    worker = await crew.start(app, slots=1)
    job = await t.aenqueue("first")
    await gate.begun.wait()
    await t.aenqueue("second")
    await worker.stop(grace_s=0)
    assert gate.cancelled.is_set()
    assert worker.is_clean
    view = await info(app, job)
    assert (view.state, view.attempt) == (State.WAITING, 0)
    following = await crew.start(app, slots=1)
    await following.until_idle()
    assert order == ["first", "second"]


async def test_a_coroutine_that_returns_although_it_was_cancelled_has_succeeded(
    crew: Crew, app: LaneQ, gate: Gate
) -> None:
    @app.task(name="t")
    async def t() -> str:
        try:
            await gate.hold()
        except asyncio.CancelledError:
            return "finished in time"
        return ""

    worker = await crew.start(app)
    job = await t.aenqueue()
    await gate.begun.wait()
    await worker.stop(grace_s=0)
    assert await job.aresult(0) == "finished in time"


async def test_a_thread_that_cannot_be_stopped_is_handed_back_and_told(
    crew: Crew, app: LaneQ, thread_gate: ThreadGate
) -> None:
    @app.task(name="t")
    def t() -> None:
        thread_gate.hold()

    worker = await crew.start(app)
    job = await t.aenqueue()
    await thread_gate.begun.wait()
    await worker.stop(grace_s=0)
    assert not worker.is_clean
    view = await info(app, job)
    assert (view.state, view.attempt) == (State.WAITING, 0)


@pytest.mark.slow
async def test_fault_J3_a_lease_is_kept_through_the_grace_and_the_outcome_counts(
    crew: Crew,
) -> None:
    app = crew.app(lanes=[Lane("normal", lease=1)])
    gate = Gate()
    starts = 0

    @app.task(name="t")
    async def t() -> str:
        nonlocal starts
        starts += 1
        await gate.hold()
        return "done"

    worker = await crew.start(app)
    await crew.start(app)
    job = await t.aenqueue()
    await gate.begun.wait()
    holder = worker if worker.slots.running else None
    stopping = asyncio.ensure_future((holder or worker).stop(grace_s=30))
    before = worker.beats
    await await_until(lambda: worker.beats >= before + 10 or stopping.done())
    gate.let_go.set()
    await stopping
    assert await job.aresult(10) == "done"
    assert starts == 1


async def test_fault_J3_jobs_that_end_as_the_worker_stops_are_all_done_once(
    crew: Crew, app: LaneQ
) -> None:
    done: list[int] = []

    @app.task(name="t")
    async def t(n: int) -> None:
        await asyncio.sleep(n % 10 / 100)
        done.append(n)

    worker = await crew.start(app, slots=100)
    jobs = await app.aenqueue_many([t.call(n) for n in range(100)])
    await worker.until_claimed(100)
    await worker.stop(grace_s=10)
    assert sorted(done) == list(range(100))
    assert {await job.astate() for job in jobs} == {State.SUCCEEDED}


async def test_a_wake_up_that_reaches_a_worker_as_it_stops_goes_to_another(
    crew: Crew, app: LaneQ
) -> None:
    @app.task(name="t")
    async def t() -> str:
        return "elsewhere"

    worker = await crew.start(app, poll=60)
    await await_until(lambda: worker.claims._pop is not None)
    worker.claims._is_draining = True
    job = await t.aenqueue()
    other = await crew.start(app, poll=60)
    assert await job.aresult(10) == "elsewhere"
    view = await job.ainfo()
    assert (view.attempt, view.worker) == (1, other.id)


def _waits(worker: Worker) -> bool:
    return worker.claims._pop is not None


async def test_an_idle_worker_that_stops_has_claimed_nothing_that_nobody_runs(
    crew: Crew, app: LaneQ
) -> None:
    @app.task(name="t")
    async def t() -> int:
        return 1

    for _ in range(10):
        worker = await crew.start(app, poll=60)
        await await_until(partial(_waits, worker))
        # The job and the stop race for the claim that was sent ahead.
        job, _ = await asyncio.gather(t.aenqueue(), worker.stop(grace_s=10))
        other = await crew.start(app, poll=60)
        assert await job.aresult(10) == 1
        await other.stop(grace_s=10)


async def test_an_unknown_lane_is_refused_at_the_start(crew: Crew, app: LaneQ) -> None:
    with pytest.raises(UnknownLane, match="Did you mean 'urgent'"):
        await Worker(app, WorkerOptions(lanes=["urgnt"])).start()
    with pytest.raises(UnknownLane):
        await Worker(app, WorkerOptions(reserve={"urgnt": 1})).start()


async def test_nothing_of_a_worker_is_left_in_redis(crew: Crew, app: LaneQ, raw: Any) -> None:
    @app.task(name="t")
    async def t() -> None:
        """Do nothing."""

    worker = await crew.start(app)
    await (await t.aenqueue()).aresult(10)
    await worker.stop()
    assert not raw.exists(app.keys.call(worker.id), app.keys.doorbell(worker.id))
    names = {client["name"] for client in raw.client_list()}
    assert not names & {"laneq-worker", "laneq-heartbeat"}


class Noting(Middleware):
    def __init__(self) -> None:
        self.notes: list[Any] = []

    def worker_started(self, worker_id: str) -> None:
        self.notes.append("started")

    async def worker_stopping(self, worker_id: str) -> None:
        self.notes.append("stopping")

    async def before_job(self, job: Any) -> None:
        self.notes.append(("before", job.task, job.attempt))

    def after_job(self, job: Any, outcome: str) -> None:
        self.notes.append(("after", job.task, outcome))

    async def on_failure(self, job: Any, error: BaseException) -> None:
        self.notes.append(("failure", type(error).__name__))

    def on_retry(self, job: Any, error: BaseException, delay_s: float) -> None:
        self.notes.append(("retry", delay_s))

    def on_dead(self, job: Any, error: BaseException) -> None:
        self.notes.append(("dead", str(error)))


class Failing(Middleware):
    def before_job(self, job: Any) -> None:
        raise RuntimeError("a hook")

    async def after_job(self, job: Any, outcome: str) -> None:
        raise RuntimeError("a hook")


@pytest.mark.parametrize("executor", ["async", "thread"])
async def test_hooks_are_called_around_jobs_and_their_errors_change_nothing(
    crew: Crew, app: LaneQ, executor: str, caplog: pytest.LogCaptureFixture
) -> None:
    noting = Noting()
    app.middleware += [Failing(), noting]
    retry = Retry(2, base=0.001, jitter=False)

    if executor == "async":

        @app.task(name="fine")
        async def fine() -> str:
            return "fine"

        @app.task(name="fails", retry=retry)
        async def fails() -> None:
            raise ValueError("why")
    else:

        @app.task(name="fine")
        def fine() -> str:
            return "fine"

        @app.task(name="fails", retry=retry)
        def fails() -> None:
            raise ValueError("why")

    worker = await crew.start(app)
    assert await (await fine.aenqueue()).aresult(10) == "fine"
    failing = await fails.aenqueue()
    async with asyncio.timeout(10):
        while await failing.astate() is not State.DEAD:
            await worker.until_idle()
    await worker.stop()
    assert noting.notes == [
        "started",
        ("before", "fine", 1),
        ("after", "fine", "succeeded"),
        ("before", "fails", 1),
        ("failure", "ValueError"),
        ("retry", 0.001),
        ("after", "fails", "retried"),
        ("before", "fails", 2),
        ("failure", "ValueError"),
        ("dead", "why"),
        ("after", "fails", "dead"),
        "stopping",
    ]
    assert "hook before_job of Failing failed" in caplog.text


def _cancel() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    "raises",
    [
        lambda: sys.exit(3),
        lambda: current_job().give_up("not from a hook"),
        _cancel,
    ],
    ids=["exit", "job control", "cancel"],
)
@pytest.mark.parametrize("is_async", [True, False])
async def test_what_only_ends_a_job_or_a_program_is_an_error_in_a_hook_like_any_other(
    crew: Crew,
    app: LaneQ,
    caplog: pytest.LogCaptureFixture,
    raises: Callable[[], object],
    *,
    is_async: bool,
) -> None:
    class Odd(Middleware):
        def before_job(self, job: RunningJob) -> Any:
            return self._raise() if is_async else raises()

        async def after_job(self, job: RunningJob, outcome: str) -> None:
            raises()

        async def _raise(self) -> None:
            raises()

    @app.task(name="t")
    async def t() -> int:
        return 7

    app.middleware.append(Odd())
    worker = await crew.start(app)
    assert await (await t.aenqueue()).aresult(10) == 7
    assert "hook before_job of Odd failed" in caplog.text
    assert "hook after_job of Odd failed" in caplog.text
    await worker.until_idle()


async def test_a_job_is_cancelled_while_its_hook_waits(crew: Crew, app: LaneQ) -> None:
    gate = Gate()

    class Slow(Middleware):
        async def before_job(self, job: Any) -> None:
            await gate.hold()

    app.middleware.append(Slow())
    has_run = False

    @app.task(name="t")
    async def t() -> None:
        nonlocal has_run
        has_run = True

    worker = await crew.start(app)
    job = await t.aenqueue()
    await gate.begun.wait()
    assert await job.acancel()
    await await_until(lambda: all(run.job.is_cancelled for run in worker.runner.running.values()))
    gate.let_go.set()
    await worker.until_idle()
    assert await job.astate() is State.CANCELLED
    assert not has_run


async def test_what_is_measured_is_in_the_histograms_when_the_worker_has_left(
    crew: Crew, app: LaneQ
) -> None:
    @app.task(name="t")
    async def t() -> None:
        await asyncio.sleep(0.01)

    worker = await crew.start(app)
    await app.aenqueue_many([t.call() for _ in range(20)])
    await worker.until_idle()
    await worker.stop()
    driver: AsyncDriver = app.async_driver()
    pattern = app.keys.prefix.replace(b"[", b"\\[") + b"hist:normal:m*"
    (found,) = await driver.command("KEYS", pattern)
    fields = await driver.command("HGETALL", found)
    counts = {
        kind: sum(int(n) for field, n in fields.items() if field[:1] == kind)
        for kind in (b"w", b"r", b"l")
    }
    assert counts == {b"w": 20, b"r": 20, b"l": 20}
