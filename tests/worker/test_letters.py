"""A worker tells of dead letters that are dropped, whoever reported the deaths."""

from __future__ import annotations

import logging

import pytest
import redis

from laneq import LaneQ, Retry
from laneq.calls.lanes import set_lane
from laneq.worker import letters
from tests.patience import await_until
from tests.worker.conftest import Crew

TOLD = "the oldest are dropped"


@pytest.fixture
def app(crew: Crew) -> LaneQ:
    """An app with the default lanes."""
    return crew.app()


async def test_letters_that_are_dropped_after_deaths_of_its_own_are_told_once(
    crew: Crew, app: LaneQ, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters, "_DELAY_S", 0.01)

    @app.task(name="dies", retry=Retry(1))
    async def dies() -> None:
        raise ValueError

    worker = await crew.start(app)
    await app.async_driver().call(set_lane(app.keys, "normal", {"dead_max": 2}))
    for n in range(5):
        await dies.aenqueue()
        await worker.until_idle()
        if n == 1:
            assert TOLD not in caplog.text, "none was dropped so far"
    await await_until(lambda: TOLD in caplog.text)
    assert "lane normal keeps 2 dead letters" in caplog.text
    await dies.aenqueue()
    await worker.until_idle()
    assert caplog.text.count(TOLD) == 1


async def test_letters_that_are_dropped_elsewhere_are_told_when_their_number_has_grown(
    crew: Crew,
    app: LaneQ,
    raw: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(letters, "_EVERY_S", 0.02)
    await app.async_driver().call(app.publish_call())
    await app.async_driver().call(set_lane(app.keys, "batch", {"dead_max": 0}))
    counts = app.keys.of_lane("counts", "batch")
    raw.hincrby(counts, "dropped", 7)
    worker = await crew.start(app)
    asked = worker.claims.claims
    await await_until(lambda: worker.claims.claims > asked)
    assert TOLD not in caplog.text, "old news"
    await await_until(lambda: raw.hincrby(counts, "dropped", 1) and TOLD in caplog.text)
    assert "lane batch keeps 0 dead letters" in caplog.text
