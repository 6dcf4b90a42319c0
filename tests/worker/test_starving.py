"""Lanes that can wait for ever, and nobody said so: a worker warns, and works."""

from __future__ import annotations

import logging
from functools import partial

import pytest

from laneq import Lane, LaneQ
from laneq.calls.lanes import publish, set_lane
from laneq.worker import Worker
from tests.patience import await_until
from tests.worker.conftest import Crew

LOW = Lane("low", priority=10)
HIGH = Lane("high", priority=5000)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record for record in caplog.records if record.levelno >= logging.WARNING]
    return [one.getMessage() for one in found if "can wait for ever" in one.getMessage()]


def knows(worker: Worker, version: int) -> bool:
    lanes = worker.claims.lanes
    return lanes is not None and lanes.version == version


async def test_lanes_of_two_apps_that_starve_one_another_are_told_and_served(
    crew: Crew, caplog: pytest.LogCaptureFixture
) -> None:
    app, other = crew.app(lanes=[LOW]), crew.app(lanes=[HIGH])

    @app.task(name="t")
    async def t() -> str:
        return "done"

    await crew.start(app)
    assert warnings(caplog) == []
    await crew.start(other)
    await await_until(lambda: len(warnings(caplog)) == 2)  # the worker that runs hears of it too
    for told in warnings(caplog):
        assert told.startswith("lane 'low' can wait for ever behind 'high': ")
        assert told.endswith("laneq lanes set low may_starve=true")
    assert await (await t.aenqueue()).aresult(10) == "done"


async def test_what_an_operator_has_set_stops_no_worker_and_is_told_once(
    crew: Crew, caplog: pytest.LogCaptureFixture
) -> None:
    app = crew.app(lanes=[HIGH, Lane("low", priority=10, reserve=1)])

    @app.task(name="t", lane="low")
    async def t() -> str:
        return "done"

    worker = await crew.start(app)
    for changes in ({"reserve": 0}, {"lease_us": 9_000_000}):
        version = await app.async_driver().call(set_lane(app.keys, "low", changes))
        await await_until(partial(knows, worker, version))
    assert len(warnings(caplog)) == 1
    await worker.stop()
    later = await crew.start(app)
    assert len(warnings(caplog)) == 2, "one that starts says so again"
    assert await (await t.aenqueue()).aresult(10) == "done"
    assert not later.has_failed


async def test_a_lane_that_may_starve_is_not_told_until_an_older_laneq_forgets_that(
    crew: Crew, caplog: pytest.LogCaptureFixture
) -> None:
    app: LaneQ = crew.app(lanes=[HIGH, Lane("low", priority=10, may_starve=True)])
    worker = await crew.start(app)
    assert warnings(caplog) == []
    older = Lane("low", priority=20).to_wire()
    del older["may_starve"]
    await app.async_driver().call(publish(app.keys, lanes=[("low", older)], tasks={}))
    await await_until(lambda: len(warnings(caplog)) == 1)
    await worker.stop()
    await crew.start(app)
    assert len(warnings(caplog)) == 1, "a newer one that starts brings it back"
