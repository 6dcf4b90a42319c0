"""`laneq check` tells nothing that is not so while producers, workers and operators are at it."""

from __future__ import annotations

import contextlib
import importlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from laneq import Lane, LaneQ, check
from laneq.calls import jobs as job_calls
from laneq.calls import lanes as lane_calls
from laneq.calls import stats
from laneq.drive import SyncDriver
from laneq.errors import JobNotFound, LaneqError
from tests.audit import allowed_in
from tests.processes import WorkerProcess, start_worker

tasks = importlib.import_module("tests.worker.jobs_under_check")
pytestmark = pytest.mark.slow


@pytest.fixture
def app(url: str, namespace: str) -> Iterator[LaneQ]:
    app: LaneQ = tasks.app
    app.override(url=url, namespace=namespace)
    app.sync_driver.call(app.publish_call())
    yield app
    app.close()


@pytest.fixture
def driver(app: LaneQ) -> Iterator[SyncDriver]:
    with SyncDriver(app.address, prefix=app.keys.prefix, patience_s=20) as driver:
        yield driver


class Fleet:
    """Workers as processes; any may be killed, and another takes its place."""

    def __init__(self, url: str, namespace: str) -> None:
        self.environment = {"LANEQ_URL": url, "LANEQ_NAMESPACE": namespace}
        self.workers: list[WorkerProcess] = []

    def start(self) -> None:
        self.workers.append(
            start_worker(
                "tests.worker.jobs_under_check:app",
                *("-c", "8", "--grace", "1"),
                environment=self.environment,
            )
        )

    def kill(self) -> None:
        self.workers.pop(0).end()

    def end(self) -> None:
        while self.workers:
            self.kill()


class Crowd:
    """Threads that do something again and again until the test has seen enough."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.errors: list[BaseException] = []
        self.threads: list[threading.Thread] = []

    def start(self, act: Callable[[random.Random], Any]) -> None:
        chance = random.Random(len(self.threads))

        def go() -> None:
            try:
                while not self.is_over.is_set():
                    act(chance)
            except BaseException as error:
                self.errors.append(error)
                raise

        thread = threading.Thread(target=go, daemon=True)
        self.threads.append(thread)
        thread.start()

    def end(self) -> None:
        self.is_over.set()
        for thread in self.threads:
            thread.join(20)
        assert self.errors == []


def produce(app: LaneQ, chance: random.Random) -> None:
    (normal,) = app.sync_driver.call(stats.depths(app.keys, ["normal"]))
    if normal.waiting > 1000:
        time.sleep(0.02)
        return
    calls = [
        tasks.quick.call(1),
        tasks.quick.using(delay=chance.random() / 10).call(2),
        tasks.quick.using(boost=5).call(3),
        tasks.forgotten.call(),
        tasks.forgotten.using(expires=0.01).call(),
        tasks.slow.call(),
        tasks.fails_once.call(),
        tasks.fails.call(),
        tasks.snoozes.call(),
        tasks.parent.call(),
    ]
    made = app.enqueue_many(chance.choices(calls, k=chance.choice([1, 5, 40])))
    for job in chance.sample(made, min(2, len(made))):
        with contextlib.suppress(JobNotFound):
            job.cancel()
    time.sleep(0.02)


def steer(app: LaneQ, chance: random.Random) -> None:
    driver, keys = app.sync_driver, app.keys
    lanes = driver.call(lane_calls.read_lanes(keys))
    letters = driver.call(
        job_calls.page(keys, keys.of_lane("dead", "batch"), offset=0, limit=5)
    ).ids
    match chance.randrange(6):
        case 0:
            driver.call(job_calls.revive(keys, letters, lanes=lanes.names))
        case 1:
            driver.call(job_calls.purge_dead(keys, lanes=["batch"], ids=letters))
        case 2:
            driver.call(lane_calls.set_lane(keys, "normal", {"paused": chance.random() < 0.3}))
        case 3:
            driver.call(lane_calls.set_lane(keys, "batch", {"priority": chance.randrange(2000)}))
        case 4:
            driver.call(lane_calls.purge(keys, "batch", limit=10))
        case _:
            name = f"extra{chance.randrange(4)}"
            driver.call(lane_calls.publish(keys, lanes=[(name, Lane(name).to_wire())], tasks={}))
            with contextlib.suppress(LaneqError):
                tasks.quick.using(lane=name).enqueue(1)
    time.sleep(0.05)


@pytest.mark.timeout(120)
def test_no_false_alarm_while_all_are_at_it(
    app: LaneQ, driver: SyncDriver, url: str, raw: redis.Redis
):
    fleet, crowd = Fleet(url, app.namespace), Crowd()
    reports: list[check.Report] = []
    try:
        fleet.start()
        fleet.start()
        for _ in range(2):
            crowd.start(lambda chance: produce(app, chance))
        crowd.start(lambda chance: steer(app, chance))
        give_up_at, kill_at = time.monotonic() + 90, 500
        while len(reports) < 40 or reports[-1].counts["succeeded"] < 2000:
            assert time.monotonic() < give_up_at, reports[-1].counts
            reports.append(check.run(driver, app.keys, rest=0))
            assert reports[-1].problems == []
            if reports[-1].counts["succeeded"] > kill_at:
                kill_at += 500
                fleet.kill()
                fleet.start()
        # And what is broken in the middle of it is found.
        counts = app.keys.of_lane("counts", "batch")
        raw.hincrby(counts, "purged", 1)
        raw.hset(app.keys.history, "nobody", "x")
        kinds = {problem.kind for problem in check.run(driver, app.keys).problems}
        assert kinds == {"balance of a lane", "balance of tasks", "orphan"}
        raw.hincrby(counts, "purged", -1)
        assert check.run(driver, app.keys, is_repair=True).problems == []
    finally:
        crowd.end()
        fleet.end()
    seen = reports[-1].counts
    assert all(seen[event] for event in ("dead", "cancelled", "expired", "retried", "purged"))
    assert check.run(driver, app.keys).problems == []


@pytest.mark.timeout(180)
def test_what_breaks_under_load_is_mended_under_load_and_nothing_is_lost(
    app: LaneQ, driver: SyncDriver, url: str, raw: Any
):
    fleet, crowd = Fleet(url, app.namespace), Crowd()
    of_lane, repairs = app.keys.of_lane, 0
    try:
        fleet.start()
        crowd.start(lambda chance: produce(app, chance))
        give_up_at = time.monotonic() + 120
        for turn in range(400):
            assert time.monotonic() < give_up_at
            waiting = raw.zrange(of_lane("waiting", "normal"), 0, 0)
            running = raw.zrange(of_lane("leases", "normal"), 0, 0)
            match turn % 4:
                case 0:
                    raw.delete(of_lane("waiting", "batch"))
                case 1 if waiting:
                    raw.hdel(app.keys.jobs, *waiting)
                case 2:
                    raw.delete(of_lane("leases", "batch"))
                case 3 if running:
                    raw.hdel(app.keys.runs, *running)
            report = check.run(driver, app.keys, is_repair=True, rest=0)
            repairs += len(report.repairs)
            # A job whose record went while it ran is left to end.
            assert {problem.kind for problem in report.problems} <= {"no body"}
            if repairs > 40 and report.counts["succeeded"] > 300:
                break
    finally:
        crowd.end()
        fleet.end()
    assert repairs > 40
    last = check.run(driver, app.keys, is_repair=True)
    assert {problem.kind for problem in last.problems} <= {"no body"}
    allowed_in(app.namespace).add("no body")
