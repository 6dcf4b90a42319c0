"""From what a job does to how it ends."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from laneq import JobFailed, LaneQ, Retry, State, current_job
from tests.patience import await_until
from tests.worker.conftest import Crew, Gate, ThreadGate, info

AGAIN = Retry(3, base=0.001, jitter=False)
ONCE = Retry(1)


async def test_coroutines_and_functions_run_and_their_values_come_back(
    crew: Crew, app: LaneQ
) -> None:
    @app.task(name="double")
    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n

    @app.task(name="join")
    def join(a: str, *, b: str) -> str:
        return a + b

    worker = await crew.start(app)
    jobs: list[Any] = [await double.aenqueue(21), await join.aenqueue("x", b="y")]
    await worker.until_idle()
    assert [await job.aresult(0) for job in jobs] == [42, "xy"]


@pytest.mark.parametrize(
    "value",
    [0, False, None, "", b"", b"\x00", "a\x00b", [0, 0], {"a": 0}, b"\x00" * 200, 2**63, -1],
)
async def test_a_result_comes_back_byte_for_byte(crew: Crew, app: LaneQ, value: Any) -> None:
    @app.task(name="echo")
    async def echo(given: Any) -> Any:
        return given

    worker = await crew.start(app)
    job = await echo.aenqueue(value)
    await worker.until_idle()
    assert await job.aresult(0) == value


async def test_a_value_that_was_not_kept_still_reaches_who_waits(crew: Crew, app: LaneQ) -> None:
    gate = Gate()

    @app.task(name="brief", result_ttl=0)
    async def brief() -> int:
        await gate.hold()
        return 7

    await crew.start(app)
    job = await brief.aenqueue()
    await gate.begun.wait()
    waiting = asyncio.ensure_future(job.aresult(5))
    driver = app.async_driver()
    await await_until(lambda: driver.command("ZSCORE", app.keys.watchers, job.id))
    gate.let_go.set()
    assert await waiting == 7
    assert await job.astate() is None


async def test_a_failure_is_retried_by_the_rule_and_then_dead(crew: Crew, app: LaneQ) -> None:
    attempts: list[int] = []

    @app.task(name="fails", retry=AGAIN)
    async def fails() -> None:
        attempts.append(current_job().attempt)
        raise ValueError("no such luck")

    await crew.start(app)
    job = await fails.aenqueue()
    with pytest.raises(JobFailed, match="no such luck") as caught:
        await job.aresult(10)
    assert caught.value.type == "ValueError"
    assert "in fails" in caught.value.traceback
    assert "runner.py" not in caught.value.traceback
    assert attempts == [1, 2, 3]
    assert [entry.outcome for entry in (await info(app, job)).history] == ["failed"] * 3


async def test_a_call_overrides_the_rule_of_its_task(crew: Crew, app: LaneQ) -> None:
    @app.task(name="fails", retry=Retry(10, base=100))
    async def fails() -> None:
        raise ValueError

    await crew.start(app)
    job = await fails.using(retry=Retry(2, base=0.001)).aenqueue()
    with pytest.raises(JobFailed):
        await job.aresult(10)
    view = await info(app, job)
    assert (view.attempt, view.max_attempts) == (2, 2)


async def test_an_exception_that_is_not_to_be_retried_is_dead_at_once(
    crew: Crew, app: LaneQ
) -> None:
    @app.task(name="fails", retry=Retry(5, never_on=KeyError))
    async def fails() -> None:
        raise KeyError("x")

    await crew.start(app)
    job = await fails.aenqueue()
    with pytest.raises(JobFailed):
        await job.aresult(10)
    assert (await info(app, job)).attempt == 1


async def test_a_job_asks_to_be_retried_and_its_last_attempt_cannot(crew: Crew, app: LaneQ) -> None:
    @app.task(name="asks", retry=Retry(2, base=100))
    async def asks() -> None:
        try:
            current_job().retry(delay=0.001)
        except Exception:  # noqa: BLE001  which must not catch it
            return

    await crew.start(app)
    with pytest.raises(JobFailed, match="asked to be retried"):
        await (await asks.aenqueue()).aresult(10)


async def test_a_snooze_spends_no_attempt(crew: Crew, app: LaneQ) -> None:
    attempts: list[int] = []

    @app.task(name="snoozes", retry=ONCE)
    async def snoozes() -> str:
        attempts.append(current_job().attempt)
        if len(attempts) < 3:
            current_job().snooze(0.001)
        return "up"

    await crew.start(app)
    assert await (await snoozes.aenqueue()).aresult(10) == "up"
    assert attempts == [1, 1, 1]


async def test_a_job_that_gives_up_is_dead_with_its_reason(crew: Crew, app: LaneQ) -> None:
    @app.task(name="gives_up", retry=Retry(9))
    def gives_up() -> None:
        current_job().give_up("the account is closed")

    await crew.start(app)
    job = await gives_up.aenqueue()
    with pytest.raises(JobFailed, match="the account is closed"):
        await job.aresult(10)
    assert (await info(app, job)).attempt == 1


class Awkward(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(one, two)

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__


@pytest.mark.parametrize("executor", ["async", "thread"])
@pytest.mark.parametrize(
    ("error", "name"),
    [
        (Awkward("a", "b"), "Awkward"),
        (ValueError("x" * 10_000_000), "ValueError"),
        (ExceptionGroup("several", [ValueError("a"), KeyError("b")]), "ExceptionGroup"),
        (SystemExit(3), "SystemExit"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
        (asyncio.CancelledError(), "CancelledError"),
        (StopIteration(), "StopIteration"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_fault_I3_whatever_a_job_raises_is_its_failure_alone(
    crew: Crew, app: LaneQ, error: BaseException, name: str, executor: str
) -> None:
    @app.task(name="fails", retry=ONCE)
    async def fails() -> None:
        raise error

    @app.task(name="fails_in_thread", retry=ONCE)
    def fails_in_thread() -> None:
        raise error

    @app.task(name="fine")
    async def fine() -> str:
        return "fine"

    worker = await crew.start(app)
    job = await (fails if executor == "async" else fails_in_thread).aenqueue()
    with pytest.raises(JobFailed) as caught:
        await job.aresult(10)
    if not (executor == "async" and name == "StopIteration"):  # Python makes it a RuntimeError
        assert caught.value.type == name
    assert len(str(caught.value).encode()) <= 66_000
    assert await (await fine.aenqueue()).aresult(10) == "fine"
    assert not worker.stopped.is_set()


async def test_a_chain_of_a_thousand_causes_is_a_failure_like_any_other(
    crew: Crew, app: LaneQ
) -> None:
    @app.task(name="fails", retry=ONCE)
    async def fails() -> None:
        error: Exception = ValueError("first")
        for n in range(1000):
            following = ValueError(n)
            following.__cause__ = error
            error = following
        raise error

    await crew.start(app)
    with pytest.raises(JobFailed, match="999"):
        await (await fails.aenqueue()).aresult(10)


@pytest.mark.parametrize("executor", ["async", "thread"])
async def test_a_result_that_cannot_be_kept_is_a_failure_of_the_job(
    crew: Crew, app: LaneQ, executor: str
) -> None:
    @app.task(name="lambda", retry=ONCE)
    async def returns_lambda() -> Any:
        return {"f": [lambda: 0]}

    @app.task(name="file", retry=ONCE)
    def returns_file() -> Any:
        return sys.stdin

    await crew.start(app)
    with pytest.raises(JobFailed, match="result") as caught:
        await (await (returns_lambda if executor == "async" else returns_file).aenqueue()).aresult(
            10
        )
    assert caught.value.type == "NotSerializable"


async def test_a_result_over_the_limit_is_a_failure_that_names_the_limit(crew: Crew) -> None:
    app = crew.app(max_payload=1000)

    @app.task(name="large", retry=ONCE)
    async def large(size: int) -> bytes:
        return bytes(size)

    await crew.start(app)
    assert len(await (await large.aenqueue(990)).aresult(10)) == 990
    with pytest.raises(JobFailed, match="over the limit of 1,000"):
        await (await large.aenqueue(1000)).aresult(10)


async def test_jobs_enqueued_by_a_job_start_after_it_and_only_if_it_counts(
    crew: Crew, app: LaneQ
) -> None:
    order: list[str] = []

    @app.task(name="child")
    async def child(name: str) -> None:
        order.append(name)

    @app.task(name="parent")
    async def parent() -> None:
        current_job().enqueue(child.call("child"))
        await asyncio.sleep(0)
        order.append("parent")

    worker = await crew.start(app)
    await parent.aenqueue()
    await worker.until_idle()
    assert order == ["parent", "child"]


async def test_the_running_job_knows_itself_in_a_coroutine_and_in_a_thread(
    crew: Crew, app: LaneQ
) -> None:
    seen: list[Any] = []

    def look() -> None:
        job = current_job()
        seen.append((job.id, job.task, job.lane, job.attempt, job.max_attempts, job.fence > 0))
        assert job.deadline is not None
        assert 0 < (job.deadline - datetime.now(UTC)).total_seconds() <= 60
        assert abs((job.enqueued_at - datetime.now(UTC)).total_seconds()) < 60
        assert not job.is_cancelled
        assert not job.lease_lost

    @app.task(name="a", timeout=60, lane="urgent", retry=Retry(7))
    async def a() -> None:
        look()

    @app.task(name="b", timeout=60, lane="batch", retry=Retry(2))
    def b() -> None:
        look()

    worker = await crew.start(app, slots=1)
    one, two = await a.aenqueue(), await b.aenqueue()
    await worker.until_idle()
    assert seen == [(one.id, "a", "urgent", 1, 7, True), (two.id, "b", "batch", 1, 2, True)]


async def test_context_variables_of_hooks_reach_a_thread(crew: Crew, app: LaneQ) -> None:
    from laneq import Middleware

    trace: contextvars.ContextVar[str] = contextvars.ContextVar("trace")

    class Tracing(Middleware):
        async def before_job(self, job: Any) -> None:
            trace.set(f"trace of {job.task}")

    app.middleware.append(Tracing())

    @app.task(name="sees")
    def sees() -> str:
        return trace.get()

    await crew.start(app)
    assert await (await sees.aenqueue()).aresult(10) == "trace of sees"


async def test_progress_is_seen_while_the_job_runs(
    crew: Crew, app: LaneQ, gate: Gate, thread_gate: ThreadGate
) -> None:
    @app.task(name="a")
    async def a() -> None:
        for n in range(100):
            current_job().progress(n, 100)
        current_job().progress(100, 100, "done")
        await gate.hold()

    @app.task(name="b")
    def b() -> None:
        current_job().progress(1, note="begun")
        thread_gate.hold()

    await crew.start(app)
    jobs = [await a.aenqueue(), await b.aenqueue()]
    await gate.begun.wait()
    await thread_gate.begun.wait()
    wanted: list[Any] = [
        {"done": 100, "total": 100, "note": "done"},
        {"done": 1, "total": None, "note": "begun"},
    ]

    async def is_shown() -> bool:
        return [(await info(app, job)).progress for job in jobs] == wanted

    await await_until(is_shown)
    gate.let_go.set()


async def test_a_task_that_is_not_known_here_is_left_to_others_at_no_cost(
    crew: Crew, app: LaneQ, caplog: pytest.LogCaptureFixture
) -> None:
    newer = crew.app()

    @newer.task(name="new")
    async def new() -> str:
        return "done"

    @app.task(name="old")
    async def old() -> None:
        """Do nothing."""

    worker = await crew.start(app)
    jobs = [await new.aenqueue() for _ in range(5)]
    await worker.until_idle()
    views = [await info(app, job) for job in jobs]
    assert {(view.state, view.attempt) for view in views} == {(State.SCHEDULED, 0)}
    told = [record for record in caplog.records if "is not known here" in record.getMessage()]
    assert len(told) == 1


async def test_a_payload_of_a_newer_version_is_kept_and_the_worker_is_well(
    crew: Crew, app: LaneQ
) -> None:
    @app.task(name="t")
    async def t() -> str:
        return "fine"

    worker = await crew.start(app)
    job = await t.using(delay=0.2).aenqueue()
    await app.async_driver().command("HSET", app.keys.jobs, job.id, b"t\n\xc1\x01later")
    async with asyncio.timeout(10):
        while worker.claims.claimed == 0:
            await worker.until_idle()
    await worker.until_idle()
    view = await info(app, job)
    assert (view.state, view.attempt) == (State.SCHEDULED, 0)
    assert await (await t.aenqueue()).aresult(10) == "fine"


async def test_a_payload_that_nobody_can_read_is_a_dead_letter(crew: Crew, app: LaneQ) -> None:
    @app.task(name="t", retry=ONCE)
    async def t() -> str:
        return "fine"

    await crew.start(app)
    job = await t.using(delay=0.2).aenqueue()
    await app.async_driver().command("HSET", app.keys.jobs, job.id, b"t\n\x92\x01")
    with pytest.raises(JobFailed) as caught:
        await job.aresult(10)
    assert caught.value.type == "UnreadablePayload"


async def test_a_backoff_that_fails_is_told_and_loses_nothing(
    crew: Crew, app: LaneQ, caplog: pytest.LogCaptureFixture
) -> None:
    def backoff(attempt: int) -> float:
        raise RuntimeError("broken rule")

    @app.task(name="t", retry=Retry(2, backoff=backoff, base=0.001))
    async def t() -> None:
        raise ValueError

    await crew.start(app)
    with pytest.raises(JobFailed):
        await (await t.aenqueue()).aresult(10)
    assert "broken rule" in caplog.text
