"""Wake-ups of real workers that would otherwise sleep for a minute: one that is lost is seen."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
import redis

from laneq import Job, Lane, LaneQ
from laneq.calls.lanes import read_lanes, set_lane
from tests.patience import await_until
from tests.worker.conftest import Crew, Gate

pytestmark = [pytest.mark.slow, pytest.mark.fault]

#: Seconds after which these workers look by themselves: longer than any test may take.
POLL_S = 60.0

#: A job that has not ended within so many seconds waits for a look: its wake-up was lost.
LOST_S = 25.0


#: Lanes with limits over the fleet, so tight that they bind all the time.
LIMITED = [
    Lane("urgent", priority=1000, reserve=2),
    Lane("normal", priority=100, max_running=1),
    Lane("batch", priority=10, max_running=2),
]


async def all_end(jobs: list[Job[Any]]) -> None:
    async with asyncio.timeout(LOST_S):
        await asyncio.gather(*(job.aresult() for job in jobs))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("is_limited", [False, True], ids=["free", "limited"])
async def test_no_wake_up_is_lost_whatever_lanes_slots_and_reserves_meet(
    crew: Crew, seed: int, is_limited: bool
) -> None:
    rng = random.Random(seed)
    app = crew.app(lanes=LIMITED if is_limited else None)

    @app.task(name="work")
    async def work(turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    await crew.start(app, slots=1, poll=POLL_S, lanes=["urgent"])
    await crew.start(app, slots=3, poll=POLL_S, reserve={"urgent": 1, "normal": 1})
    await crew.start(app, slots=2, poll=POLL_S, reserve={"batch": 1})
    await crew.start(app, slots=1, poll=POLL_S)
    for _ in range(60):
        burst = [
            (rng.choice(["urgent", "normal", "batch"]), rng.choice([0, 1, 20]))
            for _ in range(rng.choice([1, 1, 2, 7, 30]))
        ]
        if rng.random() < 0.5:
            calls = [work.using(lane=lane).call(turns) for lane, turns in burst]
            jobs = await app.aenqueue_many(calls)
        else:
            jobs = [await work.using(lane=lane).aenqueue(turns) for lane, turns in burst]
        if rng.random() < 0.3:
            jobs.append(await work.using(delay=rng.random() / 50).aenqueue(0))
        if rng.random() < 0.7:
            await all_end(jobs)
    await all_end(jobs)


async def test_a_worker_that_took_a_wake_up_and_died_costs_the_others_one_look(
    crew: Crew, app: LaneQ, url: str
) -> None:
    @app.task(name="work")
    async def work() -> str:
        return "done"

    key = app.keys.wake("normal")
    async with redis.asyncio.Redis.from_url(url) as doomed:
        # First in the queue for the token, as a worker that waits for longest is.
        taking = asyncio.ensure_future(doomed.blpop([key], timeout=10))
        await await_until(lambda: is_blocked(url))
        await crew.start(app, slots=1, poll=0.5)
        job = await work.aenqueue()
        taken: Any = await taking
        assert taken[0] == key
    assert await job.aresult(10) == "done"


def is_blocked(url: str) -> bool:
    with redis.Redis.from_url(url) as client:
        return any(row["cmd"] == "blpop" for row in client.client_list())


async def set_option(app: LaneQ, lane: str, **changes: Any) -> None:
    """Steer a lane as an operator does."""
    await app.async_driver().call(set_lane(app.keys, lane, changes))


async def test_a_lane_that_is_resumed_wakes_a_worker_at_once(crew: Crew, app: LaneQ) -> None:
    @app.task(name="work")
    async def work() -> str:
        return "done"

    await crew.start(app, slots=2, poll=POLL_S)
    for _ in range(5):
        await set_option(app, "normal", paused=True)
        jobs = [await work.aenqueue() for _ in range(5)]
        assert {await job.astate() for job in jobs} == {"waiting"}
        await set_option(app, "normal", paused=False)
        await all_end(jobs)


@pytest.mark.timeout(120)
async def test_an_end_under_a_binding_limit_wakes_who_may_start_the_next(crew: Crew) -> None:
    app = crew.app(lanes=[Lane("normal", max_running=2), Lane("other")])

    @app.task(name="work")
    async def work() -> None:
        await asyncio.sleep(0.001)

    for slots in (1, 2, 1):
        await crew.start(app, slots=slots, poll=POLL_S)
    for _ in range(8):
        jobs = await app.aenqueue_many([work.call() for _ in range(12)])
        jobs += [await work.using(lane="other").aenqueue() for _ in range(3)]
        await all_end(jobs)


@pytest.mark.timeout(120)
async def test_a_limit_that_is_raised_or_lifted_wakes_idle_workers_at_once(
    crew: Crew, gate: Gate
) -> None:
    app = crew.app(lanes=[Lane("normal", max_running=1)])

    @app.task(name="hold")
    async def hold() -> None:
        await gate.hold()

    @app.task(name="work")
    async def work() -> None:
        """End at once."""

    await crew.start(app, slots=1, poll=POLL_S)
    await crew.start(app, slots=1, poll=POLL_S)
    holder = await hold.aenqueue()
    await gate.begun.wait()
    for limit in (2, None):
        jobs = [await work.aenqueue() for _ in range(4)]
        assert {await job.astate() for job in jobs} == {"waiting"}
        await set_option(app, "normal", max_running=limit)
        await all_end(jobs)
        await set_option(app, "normal", max_running=1)
    gate.let_go.set()
    await all_end([holder])


@pytest.mark.timeout(120)
async def test_a_reserve_of_the_fleet_that_gets_smaller_wakes_idle_workers_at_once(
    crew: Crew, gate: Gate
) -> None:
    app = crew.app(lanes=[Lane("urgent", priority=1000, reserve=1), Lane("batch", priority=10)])

    @app.task(name="hold", lane="batch")
    async def hold() -> None:
        await gate.hold()

    @app.task(name="work", lane="batch")
    async def work() -> None:
        """End at once."""

    await crew.start(app, slots=1, poll=POLL_S)
    await crew.start(app, slots=1, poll=POLL_S)
    holder = await hold.aenqueue()
    await gate.begun.wait()
    jobs = [await work.aenqueue() for _ in range(4)]
    urgent = await work.using(lane="urgent").aenqueue()
    await all_end([urgent])
    assert {await job.astate() for job in jobs} == {"waiting"}, "the other slot is kept"
    await set_option(app, "urgent", reserve=0)
    await all_end(jobs)
    gate.let_go.set()
    await all_end([holder])


@pytest.mark.timeout(120)
async def test_a_worker_with_a_smaller_reserve_takes_over_what_the_reserve_kept_back(
    crew: Crew, app: LaneQ
) -> None:
    @app.task(name="work", lane="batch")
    async def work() -> str:
        return "done"

    strict = await crew.start(app, slots=1, poll=POLL_S, reserve={"urgent": 1})
    jobs = [await work.aenqueue() for _ in range(4)]
    await strict.until_idle()
    assert {await job.astate() for job in jobs} == {"waiting"}
    await crew.start(app, slots=1, poll=POLL_S)
    await all_end(jobs)


async def test_lanes_that_an_older_laneq_worked_out_get_their_newer_options_back(
    crew: Crew, raw: redis.Redis
) -> None:
    app = crew.app(lanes=[Lane("normal", rate="100/s", max_depth=7)])
    driver = app.async_driver()
    await driver.call(app.publish_call())
    worker = await crew.start(app, slots=1, poll=0.5)

    # As its publish does: the options that it knows, under a new version.
    state = json.loads(raw.hget(app.keys.state, "config") or b"")
    raw.hset(app.keys.state, "config", json.dumps({"lanes": [row[:10] for row in state["lanes"]]}))
    raw.hincrby(app.keys.state, "version", 1)
    seen = await driver.call(read_lanes(app.keys))
    assert seen.is_partial
    assert (seen.lanes[0].max_depth, seen.lanes[0].start_every_us) == (-1, -1)

    await worker.until_idle()
    restored = await driver.call(read_lanes(app.keys))
    assert not restored.is_partial
    assert (restored.lanes[0].max_depth, restored.lanes[0].start_every_us) == (7, 10_000)
