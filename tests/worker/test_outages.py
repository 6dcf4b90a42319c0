"""Redis goes away, loses replies or refuses: nothing is lost, nothing starts twice."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from laneq import Lane, LaneQ, RedisRefused, State
from laneq.drive import AsyncDriver
from laneq.worker import Worker, WorkerOptions
from laneq.worker import worker as worker_module
from tests.patience import await_until
from tests.proxy import Proxy
from tests.worker.conftest import Crew, Gate


@pytest.fixture
def through(crew: Crew, proxy: Proxy) -> LaneQ:
    """An app whose workers go through the proxy; producers use `app`."""
    return crew.app(proxy.url)


async def happened(event: threading.Event | asyncio.Event) -> None:
    await await_until(event.is_set)


@pytest.mark.parametrize("how", ["cut_before_next_reply", "swallow_next_reply"])
async def test_a_claim_whose_reply_is_lost_gives_its_jobs_once(
    crew: Crew, app: LaneQ, proxy: Proxy, how: str
) -> None:
    through = crew.app(proxy.url, read_timeout=1)
    starts: list[int] = []

    @through.task(name="t")
    async def t(n: int) -> int:
        starts.append(n)
        return n

    worker = await crew.start(through, slots=4)
    await worker.until_idle()
    lose: Callable[[str], threading.Event] = getattr(proxy, how)
    for n in range(3):
        lost = lose("EVALSHA")
        job = await app.ref("t").aenqueue(n)
        await happened(lost)
        assert await job.aresult(10) == n
    assert starts == [0, 1, 2]


async def test_outcomes_reported_into_a_broken_connection_count_once(
    crew: Crew, app: LaneQ, through: LaneQ, proxy: Proxy
) -> None:
    gate = Gate()

    @through.task(name="t")
    async def t() -> str:
        await gate.hold()
        return "done"

    worker = await crew.start(through, poll=60)
    job = await app.ref("t").aenqueue()
    await gate.begun.wait()
    await await_until(lambda: worker.claims._waiter is not None)
    lost = proxy.cut_before_next_reply("EVALSHA")
    gate.let_go.set()
    await happened(lost)
    assert await job.aresult(10) == "done"
    counts = await app.async_driver().command("HGETALL", app.keys.of_lane("counts", "normal"))
    assert int(counts[b"succeeded"]) == 1
    assert b"stale" not in counts


@pytest.mark.slow
async def test_jobs_go_on_while_redis_is_away_and_their_outcomes_arrive(
    crew: Crew, app: LaneQ, through: LaneQ, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()

    @through.task(name="t")
    async def t(n: int) -> int:
        await gate.hold()
        return n

    worker = await crew.start(through)
    jobs = [await app.ref("t").aenqueue(n) for n in range(4)]
    await worker.until_running(4)
    proxy.refuse()
    gate.let_go.set()
    await await_until(lambda: len(worker.claims.unreported()) == 4)
    await await_until(lambda: "Redis is away" in caplog.text)
    await await_until(lambda: proxy.refused >= 15, within_s=20)
    proxy.restore()
    assert [await job.aresult(10) for job in jobs] == [0, 1, 2, 3]
    await await_until(lambda: "Redis answers again" in caplog.text)
    assert caplog.text.count("Redis is away") <= 2


@pytest.mark.slow
async def test_fault_C1_a_worker_hears_everything_again_after_each_disconnect(
    crew: Crew, app: LaneQ, through: LaneQ, proxy: Proxy
) -> None:
    gate = Gate()

    @through.task(name="t")
    async def t(n: int) -> int:
        return n

    @through.task(name="holds")
    async def holds() -> None:
        await gate.hold()

    worker = await crew.start(through)
    for n in range(10):
        proxy.cut()
        assert await (await app.ref("t").aenqueue(n)).aresult(5) == n
    gate.begun.clear()
    job = await app.ref("holds").aenqueue()
    await gate.begun.wait()
    await await_until(lambda: worker._driver._wire is not None)
    await job.acancel()
    async with asyncio.timeout(5):
        await gate.cancelled.wait()
    assert proxy.connections <= 3


@pytest.mark.slow
async def test_fault_C2_a_silent_network_is_noticed_and_healed_from(
    crew: Crew, app: LaneQ, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    through = crew.app(proxy.url, read_timeout=2)

    @through.task(name="t")
    async def t() -> str:
        return "done"

    worker = await crew.start(through)
    await worker.until_idle()
    proxy.blackhole()
    await await_until(lambda: "connection stale" in caplog.text)
    proxy.restore()
    job = await app.ref("t").aenqueue()
    assert await job.aresult(8) == "done"


@pytest.mark.slow
async def test_fault_C4_a_worker_that_cannot_reach_redis_is_quiet_and_idle(
    crew: Crew, through: LaneQ, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    await crew.start(through)
    proxy.refuse()
    began, cpu_before = time.monotonic(), time.process_time()
    await await_until(lambda: proxy.refused >= 20, within_s=20)
    took_s = time.monotonic() - began
    assert took_s > 1  # at least, by the pauses between tries; without them it is a moment
    assert time.process_time() - cpu_before < took_s / 4
    assert len(caplog.records) <= 12
    proxy.restore()


async def test_a_worker_that_starts_while_redis_is_away_waits_and_says_so(
    crew: Crew, app: LaneQ, through: LaneQ, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    @through.task(name="t")
    async def t() -> str:
        return "done"

    proxy.refuse()
    worker = Worker(through, WorkerOptions(concurrency=1))
    starting = asyncio.ensure_future(worker.start())
    await await_until(lambda: "waiting for Redis" in caplog.text)
    assert not worker.ready.is_set()
    proxy.restore()
    await starting
    job = await app.ref("t").aenqueue()
    assert await job.aresult(10) == "done"
    await worker.stop()


@pytest.mark.parametrize("step", ["Runner", "warn_of_server", "subscribe"])
async def test_an_outage_at_any_step_of_its_start_is_no_reason_for_a_worker_to_end(
    crew: Crew,
    app: LaneQ,
    through: LaneQ,
    proxy: Proxy,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    @through.task(name="t")
    async def t() -> str:
        return "done"

    home = AsyncDriver if step == "subscribe" else worker_module
    as_usual = getattr(home, step)
    has_begun = False

    def cut_off(*args: Any, **kwargs: Any) -> Any:
        nonlocal has_begun
        if not has_begun:
            has_begun = True
            proxy.refuse()
        return as_usual(*args, **kwargs)

    monkeypatch.setattr(home, step, cut_off)
    worker = Worker(through, WorkerOptions(concurrency=1))
    starting = asyncio.ensure_future(worker.start())
    await await_until(lambda: "waiting for Redis" in caplog.text or starting.done())
    assert has_begun
    assert not starting.done()
    proxy.restore()
    await starting
    job = await app.ref("t").aenqueue()
    assert await job.aresult(10) == "done"
    await worker.stop()


async def test_a_worker_waits_while_redis_is_loading(
    crew: Crew, through: LaneQ, proxy: Proxy
) -> None:
    told = proxy.answer_next("LOADING Redis is loading the dataset in memory", "EVALSHA")
    worker = await crew.start(through)
    assert told.is_set()
    assert worker.ready.is_set()


async def test_a_refusal_for_good_is_raised_at_the_start(
    crew: Crew, through: LaneQ, proxy: Proxy
) -> None:
    proxy.answer_next("NOPERM this user has no permissions", "EVALSHA")
    with pytest.raises(RedisRefused, match="NOPERM"):
        await Worker(through, WorkerOptions(concurrency=1)).start()


@pytest.mark.parametrize("error", ["READONLY You can't write against a read only replica.",
                                   "LOADING Redis is loading the dataset in memory",
                                   "MISCONF Redis is configured to save RDB snapshots",
                                   "NOPERM this user has no permissions",
                                   "ERR something that nobody thought of"])  # fmt: skip
async def test_a_refused_claim_is_asked_again_until_it_is_taken(
    crew: Crew, app: LaneQ, through: LaneQ, proxy: Proxy, error: str
) -> None:
    @through.task(name="t")
    async def t() -> str:
        return "done"

    worker = await crew.start(through, poll=60)
    await worker.until_idle()
    told = proxy.answer_next(error, "EVALSHA")
    job = await app.ref("t").aenqueue()
    await happened(told)
    assert await job.aresult(10) == "done"


async def test_fault_D1_a_flushed_script_cache_is_no_matter(
    crew: Crew, app: LaneQ, raw: redis.Redis
) -> None:
    @app.task(name="t")
    async def t(n: int) -> int:
        return n

    await crew.start(app)
    for n in range(20):
        raw.script_flush()
        assert await (await t.aenqueue(n)).aresult(10) == n


async def test_fault_D4_a_forbidden_config_is_one_line_and_no_obstacle(
    crew: Crew, app: LaneQ, through: LaneQ, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    @through.task(name="t")
    async def t() -> str:
        return "done"

    caplog.set_level("INFO")
    proxy.answer_next("NOPERM this user has no permissions to run 'config|get'", "CONFIG")
    await crew.start(through)
    assert caplog.text.count("could not check") == 1
    assert await (await app.ref("t").aenqueue()).aresult(10) == "done"


async def test_fault_D4_an_eviction_policy_is_one_warning_that_names_it(
    crew: Crew, app: LaneQ, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    raw.config_set("maxmemory-policy", "allkeys-lru")
    try:
        await crew.start(app)
    finally:
        raw.config_set("maxmemory-policy", "noeviction")
    assert caplog.text.count("allkeys-lru") == 1


async def test_a_worker_that_stops_while_redis_is_away_ends_in_bounded_time(
    crew: Crew, app: LaneQ, through: LaneQ, proxy: Proxy
) -> None:
    gate = Gate()

    @through.task(name="t")
    async def t() -> None:
        await gate.hold()

    worker = Worker(through, WorkerOptions(concurrency=1))
    await worker.start()
    job = await app.ref("t").aenqueue()
    await gate.begun.wait()
    proxy.refuse()
    gate.let_go.set()
    began = time.monotonic()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(30):
            await worker.stop(grace_s=1)
    assert time.monotonic() - began < 20
    assert worker.stopped.is_set()
    assert await job.astate() is State.RUNNING


def flush(raw: redis.Redis, app: LaneQ) -> None:
    """Delete every key of the namespace, as FLUSHALL does."""
    raw.delete(*raw.scan_iter(app.keys.prefix + b"*"))


async def test_a_worker_publishes_a_flushed_namespace_again_and_goes_on(
    crew: Crew, raw: redis.Redis, gate: Gate
) -> None:
    app = crew.app(lanes=[Lane("only", lease=1)])

    @app.task(name="holds")
    async def holds() -> None:
        await gate.hold()

    @app.task(name="quick")
    async def quick(n: int) -> int:
        return n

    worker = await crew.start(app, slots=2)
    await holds.aenqueue()
    await gate.begun.wait()
    flush(raw, app)
    claims = worker.claims.claims
    await await_until(lambda: raw.hgetall(app.keys.lanes))
    await happened(gate.cancelled)
    await worker.until_idle()
    beats = worker.beats
    assert await (await quick.aenqueue(1)).aresult(10) == 1
    await await_until(lambda: worker.beats > beats)
    assert worker.claims.claims < claims + 50
    assert not worker.has_failed


async def test_an_outcome_of_a_lane_that_was_flushed_away_is_discarded(
    crew: Crew, raw: redis.Redis, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    app, other = crew.app(lanes=[Lane("own")]), crew.app(lanes=[Lane("others")])

    @app.task(name="t")
    async def t(*, waits: bool = False) -> str:
        if waits:
            await gate.hold()
        return "done"

    @other.task(name="t", lane="others")
    async def same(*, waits: bool = False) -> str:
        raise AssertionError("this app has no worker")

    first = await same.aenqueue(waits=True)
    worker = await crew.start(app, slots=2)
    await gate.begun.wait()
    flush(raw, app)
    await await_until(lambda: raw.hgetall(app.keys.lanes))
    gate.let_go.set()
    await await_until(lambda: f"job {first.id}" in caplog.text)
    assert await (await t.aenqueue()).aresult(10) == "done"
    assert not worker.has_failed


async def test_a_worker_whose_heartbeat_fails_says_so_and_stops(
    crew: Crew, app: LaneQ, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("out of order")

    worker = await crew.start(app)
    await worker.until_idle()
    monkeypatch.setattr("laneq.worker.heartbeat.workers.beat", fail)
    worker._heartbeat.nudge()
    await asyncio.wait_for(worker.until_asked_to_stop(), 10)
    assert worker.has_failed
    assert "the heartbeat failed" in caplog.text
