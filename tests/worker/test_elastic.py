"""Workers that size themselves: slots follow the wait objectives of their lanes."""

from __future__ import annotations

import asyncio
import time

import pytest
import redis

from laneq import Lane, LaneQ
from laneq.calls.lanes import set_lane
from laneq.calls.workers import list_workers
from laneq.model import WorkerView
from laneq.worker import Worker
from tests.patience import await_until
from tests.worker.conftest import Crew, Gate, ThreadGate


@pytest.fixture
def app(crew: Crew) -> LaneQ:
    """An app of which one lane has an objective."""
    return crew.app(
        lanes=[Lane("urgent", priority=1000, slo=0.2, lease=2), Lane("batch", priority=10, lease=2)]
    )


async def listed(app: LaneQ) -> list[WorkerView]:
    return await app.async_driver().call(list_workers(app.keys))


async def test_a_worker_grows_for_a_lane_that_would_miss_its_objective_and_says_why(
    crew: Crew, app: LaneQ, caplog: pytest.LogCaptureFixture
) -> None:
    gates = [Gate() for _ in range(4)]

    @app.task(name="t", lane="urgent")
    async def t(n: int) -> None:
        await gates[n].hold()

    worker = await crew.start(app, slots=1, min_slots=1, max_slots=4)
    with caplog.at_level("INFO", logger="laneq"):
        for n in range(4):
            await t.aenqueue(n)
        async with asyncio.timeout(20):
            await gates[3].begun.wait()
    assert worker.slots.total == 4
    (step, *_) = [line for line in caplog.messages if line.startswith("slots 1 →")]
    assert "(1 to 4): lane urgent: its first of 3 waiting has waited" in step

    # The list shows it at once, not with the next heartbeat.
    async def has_four() -> bool:
        return (await listed(app))[0].slots == 4

    await await_until(has_four, within_s=2)
    (view,) = await listed(app)
    assert view.pool is not None
    assert (view.pool.min, view.pool.max, view.pool.lanes) == (1, 4, ("urgent", "batch"))
    assert "its objective 0.2 s" in view.pool.reason
    assert view.pool.changed_at is not None
    for gate in gates:
        gate.let_go.set()


async def test_a_backlog_without_an_objective_makes_nobody_grow(crew: Crew, app: LaneQ) -> None:
    gate = Gate()

    @app.task(name="t", lane="batch")
    async def t() -> None:
        await gate.hold()

    worker = await crew.start(app, slots=1, min_slots=1, max_slots=4)
    for _ in range(10):
        await t.aenqueue()
    await gate.begun.wait()
    looks = await count_looks(worker, 3)
    assert looks >= 3
    assert worker.slots.total == 1
    await app.async_driver().call(set_lane(app.keys, "batch", {"slo_us": 200_000}))
    await await_until(lambda: worker.slots.total > 1)
    gate.let_go.set()


async def count_looks(worker: Worker, n: int) -> int:
    """Wait until the worker has looked a few times more."""
    looks = 0
    elastic = worker._elastic
    assert elastic is not None
    original = elastic._take
    enough = asyncio.Event()

    def take(found: object) -> None:
        nonlocal looks
        original(found)  # type: ignore[arg-type]
        looks += 1
        if looks >= n:
            enough.set()

    elastic._take = take  # type: ignore[method-assign]
    async with asyncio.timeout(30):
        await enough.wait()
    elastic._take = original  # type: ignore[method-assign]
    return looks


async def test_jobs_that_their_lanes_own_limit_holds_back_make_nobody_grow(crew: Crew) -> None:
    app = crew.app(lanes=[Lane("urgent", priority=1000, slo=0.2, max_running=1, lease=2)])
    gate = Gate()

    @app.task(name="t", lane="urgent")
    async def t() -> None:
        await gate.hold()

    worker = await crew.start(app, slots=2, max_slots=8)
    for _ in range(5):
        await t.aenqueue()
    await gate.begun.wait()
    await count_looks(worker, 3)
    assert worker.slots.total == 2
    await app.async_driver().call(set_lane(app.keys, "urgent", {"max_running": None}))
    await await_until(lambda: worker.slots.total > 2)
    gate.let_go.set()


async def test_a_worker_grows_to_what_the_fleets_reserves_need(crew: Crew) -> None:
    lanes = [Lane("urgent", priority=1000, reserve=3), Lane("batch", priority=10, slo=60)]
    worker = await crew.start(crew.app(lanes=lanes), slots=1, max_slots=8)
    await await_until(lambda: worker.slots.total == 4)


async def test_slots_that_are_given_up_end_with_their_jobs(crew: Crew, app: LaneQ) -> None:
    gates = [Gate() for _ in range(5)]

    @app.task(name="t", lane="urgent")
    async def t(n: int) -> None:
        await gates[n].hold()

    worker = await crew.start(app, slots=4, max_slots=8)
    for n in range(4):
        await t.aenqueue(n)
    for gate in gates[:4]:
        await gate.begun.wait()
    worker.slots.resize(2)
    worker._has_stepped()
    last = await t.aenqueue(4)
    assert (worker.slots.free, worker.slots.running) == (-2, 4)
    gates[0].let_go.set()
    gates[1].let_go.set()
    await await_until(lambda: worker.slots.running == 2)
    assert not gates[4].begun.is_set()
    gates[2].let_go.set()
    async with asyncio.timeout(10):
        await gates[4].begun.wait()
    for gate in gates:
        gate.let_go.set()
    await last.aresult(10)


async def test_threads_that_given_up_slots_had_end(
    crew: Crew, app: LaneQ, thread_gate: ThreadGate
) -> None:
    @app.task(name="t", lane="urgent")
    def t() -> None:
        thread_gate.hold()

    worker = await crew.start(app, slots=6, max_slots=8)
    jobs = [await t.aenqueue() for _ in range(6)]
    await worker.until_running(6)
    thread_gate.let_go.set()
    for job in jobs:
        await job.aresult(10)
    assert worker.runner._threads.alive > 2
    worker.slots.resize(2)
    worker._has_stepped()
    assert worker.runner._threads.alive == 2


async def test_reserves_keep_their_slots_whatever_the_minimum_says(crew: Crew, app: LaneQ) -> None:
    worker = await crew.start(app, slots=2, max_slots=8, reserve={"urgent": 3})
    assert worker.slots.total == 3
    (view,) = await listed(app)
    assert view.pool is not None
    assert (view.reserve, view.pool.min) == ({"urgent": 3}, 3)


async def test_where_all_slots_are_reserved_the_reserve_shrinks_with_them(
    crew: Crew, app: LaneQ
) -> None:
    worker = await crew.start(app, slots=2, max_slots=8, reserve={"urgent": "all"})
    assert worker.slots.total == 2
    (view,) = await listed(app)
    assert view.pool is not None
    assert (view.reserve, view.pool.lanes) == ({"urgent": 2}, ("urgent",))


@pytest.mark.slow
async def test_an_idle_worker_looks_no_more_often_than_it_beats(
    crew: Crew, app: LaneQ, raw: redis.Redis
) -> None:
    worker = await crew.start(app, slots=3, min_slots=2, max_slots=8, poll=60)
    elastic = worker._elastic
    assert elastic is not None
    elastic.idle_s = 3.0
    await count_looks(worker, 1)
    began = time.monotonic()
    await count_looks(worker, 2)
    assert time.monotonic() - began >= 5
    worker.slots.resize(2)
    await count_looks(worker, 1)
    began = time.monotonic()
    await count_looks(worker, 1)
    assert time.monotonic() - began >= 9


async def test_redis_away_changes_no_slots(crew: Crew, app: LaneQ) -> None:
    worker = await crew.start(app, slots=3, max_slots=8)
    elastic = worker._elastic
    assert elastic is not None
    await worker._driver.aclose()
    await elastic.look()
    assert worker.slots.total == 3


async def test_two_workers_share_what_is_missing(crew: Crew, app: LaneQ) -> None:
    gate = Gate()

    @app.task(name="t", lane="urgent")
    async def t() -> None:
        await gate.hold()

    crowd = [await crew.start(app, slots=2, max_slots=50) for _ in range(2)]
    for _ in range(16):
        await t.aenqueue()
    await await_until(lambda: all(worker.slots.total > 2 for worker in crowd))
    await await_until(lambda: sum(worker.slots.running for worker in crowd) == 16)
    # Alone, each would have doubled what the fleet has, and doubled it again.
    assert max(worker.slots.total for worker in crowd) <= 12
    gate.let_go.set()
