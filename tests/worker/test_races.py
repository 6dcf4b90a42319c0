"""Wake-ups of real workers that would otherwise sleep for a minute: one that is lost is seen."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
import redis

from laneq import Job, LaneQ
from laneq.calls.lanes import set_lane
from tests.worker.conftest import Crew, soon

pytestmark = [pytest.mark.slow, pytest.mark.fault]

#: Seconds after which these workers look by themselves: longer than any test may take.
POLL_S = 60.0

#: A job that has not ended within so many seconds waits for a look: its wake-up was lost.
LOST_S = 25.0


async def all_end(jobs: list[Job[Any]]) -> None:
    async with asyncio.timeout(LOST_S):
        await asyncio.gather(*(job.aresult() for job in jobs))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(3))
async def test_no_wake_up_is_lost_whatever_lanes_slots_and_reserves_meet(
    crew: Crew, seed: int
) -> None:
    rng = random.Random(seed)
    app = crew.app()

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
        await soon(lambda: is_blocked(url))
        await crew.start(app, slots=1, poll=0.5)
        job = await work.aenqueue()
        taken: Any = await taking
        assert taken[0] == key
    assert await job.aresult(10) == "done"


def is_blocked(url: str) -> bool:
    with redis.Redis.from_url(url) as client:
        return any(row["cmd"] == "blpop" for row in client.client_list())


async def test_a_lane_that_is_resumed_starts_within_a_poll(crew: Crew, app: LaneQ) -> None:
    @app.task(name="work")
    async def work() -> str:
        return "done"

    await crew.start(app, slots=2, poll=0.5)
    driver = app.async_driver()
    for _ in range(5):
        await driver.call(set_lane(app.keys, "normal", {"paused": True}))
        jobs = [await work.aenqueue() for _ in range(5)]
        assert {await job.astate() for job in jobs} == {"waiting"}
        await driver.call(set_lane(app.keys, "normal", {"paused": False}))
        await all_end(jobs)


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
