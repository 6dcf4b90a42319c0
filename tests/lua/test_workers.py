"""register.lua, leave.lua and workers.lua: who is there."""

from __future__ import annotations

import pytest

from laneq.calls import workers
from laneq.calls.workers import ALIVE_US, WorkerInfo
from tests.stage import SECOND, START_US

INFO = WorkerInfo("name", "host", 7, 4, {"urgent": 1}, ["normal", "urgent"], ["t"], started_at=12.5)


def test_a_worker_that_registers_is_listed_until_it_leaves(stage):
    assert stage.run(workers.register(stage.keys, "w", INFO)) == START_US
    (view,) = stage.run(workers.list_workers(stage.keys))
    assert (view.id, view.name, view.host, view.pid, view.slots) == ("w", "name", "host", 7, 4)
    assert (view.reserve, view.lanes, view.tasks) == ({"urgent": 1}, ("normal", "urgent"), ("t",))
    assert view.started_at == 12.5
    assert view.last_heartbeat_at == pytest.approx(START_US / 1e6)
    stage.run(workers.leave(stage.keys, "w"))
    assert stage.run(workers.list_workers(stage.keys)) == []
    assert stage.hash("workers") == stage.places_of("beats") == {}


def test_two_workers_of_one_name_are_two(stage):
    for incarnation in ("w1", "w2"):
        stage.run(workers.register(stage.keys, incarnation, INFO))
    assert [view.id for view in stage.run(workers.list_workers(stage.keys))] == ["w1", "w2"]


def test_a_worker_is_listed_as_long_as_it_is_heard_of(stage):
    stage.run(workers.register(stage.keys, "w", INFO))
    stage.forward(ALIVE_US)
    assert len(stage.run(workers.list_workers(stage.keys))) == 1
    stage.forward(1)
    assert stage.run(workers.list_workers(stage.keys)) == []


def test_a_worker_without_a_registration_is_left_out(stage):
    stage.client.zadd(stage.keys.beats, {"ghost": START_US + 9 * SECOND})
    assert stage.run(workers.list_workers(stage.keys)) == []
    stage.allow("worker")


def test_at_most_a_thousand_workers_are_listed(stage):
    names = [f"{n:04}" for n in range(1200)]
    stage.client.hset(stage.keys.workers, mapping=dict.fromkeys(names, INFO.to_json()))
    stage.client.zadd(stage.keys.beats, dict.fromkeys(names, START_US + 9 * SECOND))
    assert len(stage.run(workers.list_workers(stage.keys))) == 1000


def test_a_worker_that_leaves_takes_its_own_keys_and_its_watch_with_it(stage):
    stage.put("a", when="+60000000")
    stage.put("b")
    watcher = stage.worker("w", slots=2)
    watcher.claim(listening=["batch"])
    watcher.claim()
    stage.client.lpush(stage.keys.doorbell("w"), "1")
    stage.run(workers.leave(stage.keys, "v"))
    assert "watcher" in stage.hash("state")
    stage.run(workers.leave(stage.keys, "w"))
    assert "watcher" not in stage.hash("state")
    assert "watch_until" not in stage.hash("state")
    assert not stage.client.exists(stage.keys.doorbell("w"), stage.keys.call("w"))
