"""Reserves over the fleet and those that size themselves, with workers that run."""

from __future__ import annotations

import asyncio

import pytest

from laneq import Lane
from laneq.calls.lanes import read_lanes, set_lane
from laneq.options import DEFAULT_LANES
from tests.patience import await_until

URGENT, BATCH = DEFAULT_LANES[1], DEFAULT_LANES[3]


async def test_two_workers_keep_the_reserve_of_the_fleet_and_give_it_up_live(crew, gate):
    lanes = [URGENT.changed(reserve=3), BATCH]
    app = crew.app(lanes=lanes)
    running = 0

    @app.task(lane="batch")
    async def hold() -> None:
        nonlocal running
        running += 1
        await gate.let_go.wait()

    @app.task(lane="urgent")
    async def quick() -> int:
        return 1

    for _ in range(2):
        await crew.start(app, slots=4)
    jobs = await app.aenqueue_many([hold.call() for _ in range(20)])
    await await_until(lambda: running == 5, within_s=20)
    # The reserve is free: urgent work starts at once.
    assert await (await quick.aenqueue()).aresult(timeout=10) == 1
    assert running == 5
    driver = app.async_driver()
    await driver.call(set_lane(app.keys, "urgent", {"reserve": 0}))
    # Both workers hear of it, though neither listened for batch jobs.
    await await_until(lambda: running == 8, within_s=20)
    gate.let_go.set()
    await asyncio.gather(*(job.aresult(timeout=20) for job in jobs))


async def test_a_lane_that_is_resumed_starts_on_all_workers_at_once(crew, gate):
    app = crew.app(lanes=[BATCH.changed(paused=True)])
    running = 0

    @app.task(lane="batch")
    async def hold() -> None:
        nonlocal running
        running += 1
        await gate.let_go.wait()

    for _ in range(3):
        await crew.start(app, slots=1, poll=30)
    jobs = await app.aenqueue_many([hold.call() for _ in range(3)])
    await app.async_driver().call(set_lane(app.keys, "batch", {"paused": False}))
    await await_until(lambda: running == 3, within_s=15)
    gate.let_go.set()
    await asyncio.gather(*(job.aresult(timeout=20) for job in jobs))


@pytest.mark.slow
async def test_a_reserve_sizes_itself_from_what_it_sees_and_says_why(crew):
    app = crew.app(lanes=[URGENT.changed(reserve="auto"), BATCH])

    @app.task(lane="urgent", result_ttl=0)
    async def urgent() -> None:
        await asyncio.sleep(0.05)

    @app.task(lane="batch", result_ttl=0)
    async def batch() -> None:
        await asyncio.sleep(0.1)

    for _ in range(2):
        await crew.start(app, slots=6)
    driver = app.async_driver()

    async def decided() -> bool:
        lane = (await driver.call(read_lanes(app.keys))).lane("urgent")
        return lane.reserve_slots >= 2

    async def feed() -> None:
        while True:
            await app.aenqueue_many([urgent.call() for _ in range(3)])
            await batch.aenqueue()
            await asyncio.sleep(0.05)

    feeding = asyncio.create_task(feed())
    try:
        await await_until(decided, within_s=40)
    finally:
        feeding.cancel()
    lanes = await driver.call(read_lanes(app.keys))
    decision = lanes.decisions["urgent"]
    assert decision["value"] == lanes.lane("urgent").reserve_slots
    assert decision["inputs"]["rate_per_s"] > 5
    assert decision["inputs"]["run_s"] == pytest.approx(0.05, rel=1)
    assert "/s" in decision["reason"]
    assert Lane.from_wire(lanes.wire("urgent")).reserve == "auto"
