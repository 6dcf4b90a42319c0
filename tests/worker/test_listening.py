"""When a worker claims, what it listens for, and how it looks when nothing wakes it."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

import pytest
import redis

from laneq import Lane, LaneQ
from laneq.calls.lanes import set_lane
from tests.patience import await_until
from tests.worker.conftest import Crew, Gate


def listening(worker: Any) -> set[str]:
    return {lane for lane, seat in worker.slots.seats.items() if seat.is_listening}


async def test_an_idle_worker_starts_a_job_at_once_without_polling(crew: Crew, app: LaneQ) -> None:
    @app.task(name="t")
    async def t() -> None:
        """Do nothing."""

    worker = await crew.start(app, poll=60)
    await await_until(lambda: listening(worker))
    began = time.monotonic()
    for _ in range(20):
        await (await t.aenqueue()).aresult(10)
    assert time.monotonic() - began < 5


async def test_an_idle_worker_asks_redis_little(crew: Crew, app: LaneQ, raw: redis.Redis) -> None:
    worker = await crew.start(app, poll=0.2)
    await await_until(lambda: listening(worker))
    before = worker.claims.claims
    began = time.monotonic()
    await await_until(lambda: worker.claims.claims >= before + 5)
    assert time.monotonic() - began >= 5 * 0.2 * 0.7


async def test_a_busy_worker_does_not_listen_and_listens_again(
    crew: Crew, app: LaneQ, gate: Gate
) -> None:
    @app.task(name="t")
    async def t() -> None:
        await gate.hold()

    worker = await crew.start(app, slots=1, poll=60)
    await await_until(lambda: listening(worker) == {"critical", "urgent", "normal", "batch"})
    await t.aenqueue()
    await gate.begun.wait()
    assert listening(worker) == set()
    await await_until(lambda: worker.claims._pop is None)
    gate.let_go.set()
    await await_until(lambda: len(listening(worker)) == 4)


async def test_a_job_goes_to_a_worker_that_can_use_it_not_to_one_that_is_full(
    crew: Crew, app: LaneQ, gate: Gate
) -> None:
    @app.task(name="holds")
    async def holds() -> None:
        await gate.hold()

    @app.task(name="t")
    async def t() -> None:
        """Do nothing."""

    full = await crew.start(app, slots=1, poll=60)
    await await_until(lambda: listening(full))
    await holds.aenqueue()
    await gate.begun.wait()
    other = await crew.start(app, slots=1, poll=60)
    await await_until(lambda: listening(other))
    began = time.monotonic()
    for _ in range(10):
        await (await t.aenqueue()).aresult(10)
    assert time.monotonic() - began < 5
    gate.let_go.set()


async def test_only_lanes_that_the_free_slots_may_take_are_listened_for(crew: Crew) -> None:
    app = crew.app(lanes=[Lane("urgent", priority=1000), Lane("batch", priority=10)])
    gates = [Gate() for _ in range(2)]

    @app.task(name="t", lane="batch")
    async def t(n: int) -> None:
        await gates[n].hold()

    @app.task(name="u", lane="urgent")
    async def u() -> None:
        """Do nothing."""

    worker = await crew.start(app, slots=2, poll=60, reserve={"urgent": 1})
    await await_until(lambda: listening(worker) == {"urgent", "batch"})
    await t.aenqueue(0)
    second = await t.aenqueue(1)
    await gates[0].begun.wait()
    await await_until(lambda: listening(worker) == {"urgent"})
    began = time.monotonic()
    await (await u.aenqueue()).aresult(10)
    assert not gates[1].begun.is_set()
    gates[0].let_go.set()
    await gates[1].begun.wait()
    gates[1].let_go.set()
    await second.aresult(10)
    await await_until(lambda: listening(worker) == {"urgent", "batch"})
    assert time.monotonic() - began < 5


async def test_lanes_that_are_not_served_are_left_alone(crew: Crew, app: LaneQ) -> None:
    order: list[str] = []

    @app.task(name="t")
    async def t(lane: str) -> None:
        order.append(lane)

    batch = await crew.start(app, lanes=["batch"])
    await t.using(lane="urgent").aenqueue("urgent")
    await t.using(lane="batch").aenqueue("batch")
    await batch.until_idle()
    assert order == ["batch"]
    assert listening(batch) <= {"batch"}
    urgent = await crew.start(app, lanes=["urgent"])
    await urgent.until_idle()
    assert order == ["batch", "urgent"]


async def test_fault_E4_a_paused_lane_starts_nothing_and_a_resumed_one_soon(
    crew: Crew, app: LaneQ
) -> None:
    done: list[int] = []

    @app.task(name="t")
    async def t(n: int) -> None:
        done.append(n)

    workers = [await crew.start(app) for _ in range(2)]
    for each in workers:
        await await_until(partial(listening, each))
    driver = app.async_driver()
    for round_ in range(5):
        await driver.call(set_lane(app.keys, "normal", {"paused": True}))
        job = await t.aenqueue(round_)
        for each in workers:
            await each.until_idle()
            assert "normal" not in listening(each)
        assert round_ not in done
        await driver.call(set_lane(app.keys, "normal", {"paused": False}))
        await job.aresult(3)
        assert done[-1] == round_


async def test_a_delayed_job_starts_when_it_is_due(crew: Crew, app: LaneQ) -> None:
    @app.task(name="t")
    async def t() -> float:
        return time.monotonic()

    worker = await crew.start(app, poll=60)
    await await_until(lambda: listening(worker))
    began = time.monotonic()
    ended = await (await t.using(delay=0.5).aenqueue()).aresult(10)
    assert 0.49 <= ended - began < 10  # and not at the poll, a minute later


async def test_a_burst_ends_when_nothing_is_waiting_and_nothing_runs(
    crew: Crew, app: LaneQ
) -> None:
    done: list[int] = []

    @app.task(name="t")
    async def t(n: int) -> None:
        await asyncio.sleep(0.01)
        done.append(n)

    await app.aenqueue_many([t.call(n) for n in range(30)])
    worker = await crew.start(app, burst=True)
    async with asyncio.timeout(10):
        await worker.until_asked_to_stop()
    await worker.stop()
    assert sorted(done) == list(range(30))
    assert worker.stopped.is_set()


async def test_a_burst_with_nothing_to_do_ends_at_once(crew: Crew, app: LaneQ) -> None:
    worker = await crew.start(app, burst=True)
    async with asyncio.timeout(5):
        await worker.until_asked_to_stop()


async def test_jobs_start_in_order_of_their_lanes(crew: Crew, app: LaneQ) -> None:
    order: list[str] = []

    @app.task(name="t")
    async def t(name: str) -> None:
        order.append(name)

    for lane in ("batch", "normal", "urgent", "critical"):
        for n in range(2):
            await t.using(lane=lane).aenqueue(f"{lane} {n}")
    worker = await crew.start(app, slots=1)
    await worker.until_idle()
    assert order == [
        f"{lane} {n}" for lane in ("critical", "urgent", "normal", "batch") for n in range(2)
    ]


async def test_a_lane_declared_later_is_served_without_a_restart(crew: Crew, app: LaneQ) -> None:
    @app.task(name="t")
    async def t() -> str:
        return "done"

    worker = await crew.start(app)
    await worker.until_idle()
    later = crew.app(lanes=[Lane("later", priority=5)])
    await later.async_driver().call(later.publish_call())
    job = await later.ref("t").using(lane="later").aenqueue()
    assert await job.aresult(10) == "done"


@pytest.mark.parametrize("slots", [1, 7])
async def test_never_more_jobs_run_than_there_are_slots(crew: Crew, app: LaneQ, slots: int) -> None:
    now = most = 0

    @app.task(name="t")
    async def t() -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.001)
        now -= 1

    worker = await crew.start(app, slots=slots)
    await app.aenqueue_many([t.call() for _ in range(50)])
    await worker.until_idle()
    assert most == slots
    assert worker.slots.free == slots
