"""D1, D2: the server's scripts are flushed, and another server becomes the master."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self
from urllib.parse import urlsplit

import pytest
import redis

from laneq import LaneQ, LaneqError, RedisUnavailable, State
from laneq.drive import SyncDriver
from laneq.embedded import EmbeddedServer
from tests.faults.conftest import NewField
from tests.faults.field import FACTOR, Field, two_sizes, wait_until
from tests.faults.sentinel import Sentinels, port_of
from tests.proxy import Proxy

# Servers and workers start slowly on a loaded machine; each wait has a limit of its own.
pytestmark = pytest.mark.timeout(200)


class Crowd:
    """Threads that each do the same thing again and again, until told to stop.

    Attributes:
        errors: what was raised, instead of the thread's end.
    """

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.errors: list[Exception] = []
        self._threads: list[threading.Thread] = []

    def begin(self, act: Callable[[], object], pause_s: float = 0.0) -> None:
        """Have a thread of its own do this, with pauses between."""

        def repeat() -> None:
            while not self.is_over.wait(pause_s):
                try:
                    act()
                except Exception as error:  # noqa: BLE001  looked at by the test
                    self.errors.append(error)

        thread = threading.Thread(target=repeat, daemon=True)
        self._threads.append(thread)
        thread.start()

    def end(self) -> None:
        self.is_over.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


# --- D1 ------------------------------------------------------------------------------------


class Producer:
    """Enqueues its share of jobs: alone or in batches, by one colour of the API."""

    def __init__(self, field: Field, share: int, *, batch: int, is_async: bool) -> None:
        self._field = field
        self._share = share
        self._batch = batch
        self.ids: list[str] = []
        self.error: BaseException | None = None
        self._work = self._enqueue_async if is_async else self._enqueue
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001  looked at by the test
            self.error = error

    def _calls(self) -> Iterator[list[Any]]:
        tasks = self._field.tasks
        for n in range(0, self._share, self._batch):
            batch = []
            for i in range(n, min(n + self._batch, self._share)):
                kind = i % 10
                if kind == 0:
                    batch.append(tasks.fail_until.call(2))
                elif kind == 1:
                    batch.append(tasks.nap.using(delay=0.5).call(0))
                else:
                    batch.append(tasks.nap.call(0))
            yield batch

    def _enqueue(self) -> None:
        for batch in self._calls():
            self.ids += [job.id for job in self._field.app.enqueue_many(batch)]

    def _enqueue_async(self) -> None:
        async def work() -> None:
            for batch in self._calls():
                self.ids += [job.id for job in await self._field.app.aenqueue_many(batch)]

        asyncio.run(work())


@two_sizes("jobs, workers", ci=(1_600, 2), full=(20_000, 4))
@pytest.mark.timeout(600)
def test_fault_D1_flushed_scripts_and_a_failover_are_no_matter_to_anybody(
    new_field: NewField, jobs: int, workers: int
) -> None:
    field = new_field(port=0)
    with Sentinels(field) as sentinels, Crowd() as crowd:
        running = [field.worker(slots=8) for _ in range(workers)]
        clients = [redis.Redis(port=port_of(server)) for server in sentinels.servers]
        crowd.begin(lambda: [client.script_flush() for client in clients], 0.02)
        producers = [
            Producer(field, jobs // 4, batch=batch, is_async=is_async)
            for batch in (1, 50)
            for is_async in (False, True)
        ]
        wait_until(lambda: len(field.starts()) > jobs // 8, 60, "an eighth of the jobs")
        sentinels.swap_by_hand()
        for producer in producers:
            producer.thread.join(120)
            assert producer.error is None
            assert not producer.thread.is_alive()
        ids = [job_id for producer in producers for job_id in producer.ids]
        assert len(set(ids)) == jobs
        field.until_settled(ids, 240)
        crowd.end()
        assert crowd.errors == []
        assert field.assert_conserved(ids) == {State.SUCCEEDED: jobs}
        starts = Counter((entry.id, entry.attempt) for entry in field.starts())
        assert set(starts.values()) == {1}
        assert len(starts) == jobs + sum(attempt == 2 for _, attempt in starts)
        assert sum(attempt == 2 for _, attempt in starts) == sum(
            -(-len(producer.ids) // 10) for producer in producers
        )
        assert all(worker.is_running for worker in running)
        for client in clients:
            client.close()


# --- D2 ------------------------------------------------------------------------------------


class SafeProducer:
    """Enqueues jobs one by one, and notes which of them a replica has.

    Both go over one connection, or the job does not count: WAIT tells of what was written on
    the connection that it is sent on.
    """

    def __init__(self, field: Field, *, run_s: float) -> None:
        self._run_s = run_s
        self._connections = 0
        self.all: list[str] = []
        self.safe: list[str] = []
        self.errors: list[LaneqError] = []
        self.last_at = 0.0
        self.app = LaneQ(field.url, namespace=field.namespace)
        self.app.sync_driver = self.driver = SyncDriver(
            self.app.address,
            prefix=field.keys.prefix,
            max_connections=1,
            on_connect=self._count,
        )
        self._nap = self.app.ref("nap")

    def _count(self) -> None:
        self._connections += 1

    def enqueue(self) -> None:
        try:
            self.driver.command("PING")
            connections = self._connections
            job = self._nap.enqueue(self._run_s)
            self.all.append(job.id)
            self.last_at = time.monotonic()
            replicas = self.driver.command("WAIT", 1, 200)
        except LaneqError as error:
            self.errors.append(error)
            return
        if replicas and connections == self._connections:
            self.safe.append(job.id)


def until_working(field: Field, producer: SafeProducer, limit_s: float) -> None:
    """Wait until a job was enqueued at the master of now, and started."""
    seen = len(producer.all)

    def has_started() -> bool:
        fresh = set(producer.all[seen:])
        started = [entry.id for entry in field.starts() if entry.id in fresh]
        return bool(started) and any(field.raw.hmget(field.keys.jobs, started))

    wait_until(has_started, limit_s, "a new job that starts")


@two_sizes("failovers, swaps, jobs", ci=(1, 0, 200), full=(5, 1, 2_000))
@pytest.mark.timeout(600)
def test_fault_D2_after_a_failover_all_go_on_with_the_new_master(
    new_field: NewField, failovers: int, swaps: int, jobs: int
) -> None:
    field = new_field(port=0)
    with Sentinels(field) as sentinels, Crowd() as crowd:
        workers = [field.worker(slots=4) for _ in range(2)]
        producer = SafeProducer(field, run_s=0.05)
        crowd.begin(producer.enqueue, 0.01)
        until_working(field, producer, 20)
        switches: list[tuple[int, int]] = []
        for n in range(failovers + swaps):
            sentinels.until_in_step()
            until_working(field, producer, 20)
            began_us = field.now_us()
            if n < failovers:
                sentinels.fail_over()
            else:
                sentinels.swap_by_hand()
            switches.append((began_us, field.now_us()))
            # Left alone, Sentinel parts the old master from its clients ten seconds later.
            until_working(field, producer, 2 * FACTOR)
        wait_until(lambda: len(producer.all) >= jobs, 240, f"{jobs} jobs")
        crowd.end()
        producer.app.close()
        field.until_settled(producer.safe, 60)
        assert field.assert_conserved(producer.safe) == {State.SUCCEEDED: len(producer.safe)}
        assert len(producer.safe) > len(producer.all) // 10
        assert all(worker.is_running for worker in workers)
        assert any("the worker changes over" in worker.text for worker in workers)
        assert_extra_starts_are_of_a_switch(field, switches)


def test_fault_D2_a_master_that_dies_is_replaced_and_all_go_on(new_field: NewField) -> None:
    field = new_field(port=0)
    with Sentinels(field) as sentinels, Crowd() as crowd:
        worker = field.worker(slots=4)
        producer = SafeProducer(field, run_s=0.05)
        crowd.begin(producer.enqueue, 0.01)
        until_working(field, producer, 20)
        began_us = field.now_us()
        sentinels.kill_master()
        until_working(field, producer, 2 * FACTOR)
        crowd.end()
        producer.app.close()
        field.until_settled(producer.safe, 60)
        assert field.states(producer.safe) == {State.SUCCEEDED: len(producer.safe)}
        assert_extra_starts_are_of_a_switch(field, [(began_us, field.now_us())])
        assert {type(error) for error in producer.errors} <= {RedisUnavailable}
        assert worker.is_running


def assert_extra_starts_are_of_a_switch(field: Field, switches: list[tuple[int, int]]) -> None:
    """Each job that started again was in flight while the sentinels switched, and once for each.

    What the old master was told after it was parted from its replica is lost with it: that is
    about a second by Sentinel's ways, and nothing that WAIT has confirmed.
    """
    margin_us = int(1e6 * FACTOR)
    runs: dict[str, list[int]] = {}
    for entry in field.starts():
        runs.setdefault(entry.id, []).append(entry.at_us)
    for job_id, starts in runs.items():
        in_flight = [
            (began, ended)
            for began, ended in switches
            if any(began - margin_us <= at <= ended + margin_us for at in starts)
        ]
        assert len(starts) <= 1 + len(in_flight), f"job {job_id}: {starts}, switches {switches}"


def test_fault_D2_who_waits_for_a_result_gets_it_from_the_new_master(new_field: NewField) -> None:
    field = new_field(port=0, lease=15)
    with Sentinels(field) as sentinels, ThreadPoolExecutor(2) as pool:
        field.worker(slots=2)
        job = field.tasks.nap.enqueue(8)
        field.until_started()
        field.raw.wait(1, 5000)

        async def wait() -> str:
            async with LaneQ(field.url, namespace=field.namespace) as app:
                return await app.job(job.id).aresult(60)

        waits = [pool.submit(job.result, 60), pool.submit(asyncio.run, wait())]
        wait_until(lambda: field.raw.pubsub_numsub(field.keys.ended_channel(job.id))[0][1] == 2)
        sentinels.fail_over()
        assert [each.result(60) for each in waits] == ["slept", "slept"]
        (end,) = field.runlog("end")
        assert field.now_us() - end.at_us <= 2e6 * FACTOR
        field.assert_once([job.id])


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("says", ["READONLY", "NOREPLICAS"])
def test_fault_D2_connections_to_an_old_master_are_made_anew(
    new_field: NewField, kind: str, says: str
) -> None:
    """As behind a name or an address that moves: old connections stay with the old master."""
    field = new_field(port=0)
    with (
        EmbeddedServer(engine=field.server.engine, port=0) as other,
        redis.Redis(port=port_of(other)) as new,
        Proxy(field.url) as proxy,
    ):
        field.raw.config_set("repl-diskless-sync-delay", 0)
        new.replicaof("127.0.0.1", port_of(field.server))
        wait_until(lambda: new.info("replication")["master_link_status"] == "up")
        worker = field.worker(slots=4, url=proxy.url)
        with (
            LaneQ(proxy.url, namespace=field.namespace, connect_timeout=10) as app,
            enqueuer(app, kind) as produce,
        ):
            before = [produce() for _ in range(5)]
            field.until_settled(before)
            proxy.upstream = urlsplit(other.url)
            if says == "READONLY":
                words = ("FAILOVER", "TO", "127.0.0.1", port_of(other), "TIMEOUT", 5000)
                field.raw.execute_command(*words)
            else:
                # The old master lives on, alone, and may not write without a replica.
                field.raw.wait(1, 5000)
                field.raw.config_set("min-replicas-to-write", 1)
                new.execute_command("REPLICAOF", "NO", "ONE")
            wait_until(lambda: new.role()[0] == b"master", 10, "the swap")
            began = time.monotonic()
            after = [produce() for _ in range(5)]
            assert time.monotonic() - began < 10
        old, field.raw = field.raw, new
        field.until_settled([*before, *after], 10 * FACTOR)
        field.assert_once([*before, *after])
        assert field.states([*before, *after]) == {State.SUCCEEDED: 10}
        assert worker.is_running
        field.end_workers()
        field.assert_in_order()
        field.raw = old


@contextlib.contextmanager
def enqueuer(app: LaneQ, kind: str) -> Iterator[Callable[[], str]]:
    """Give what enqueues one job and returns its id, in either colour."""
    nap = app.ref("nap")

    async def enqueue() -> str:
        return (await nap.aenqueue(0.01)).id

    with asyncio.Runner() as runner:
        if kind == "sync":
            yield lambda: nap.enqueue(0.01).id
        else:
            yield lambda: runner.run(enqueue())
            runner.run(app.aclose())
