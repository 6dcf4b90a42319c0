"""D5: Redis is a cluster; and every key that a script touches is declared."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from laneq import Job, JobFailed, LaneQ, RedisRefused, State
from tests.conftest import ENGINE
from tests.faults.cluster import Cluster
from tests.faults.conftest import NewField
from tests.faults.field import FACTOR, Field, wait_until

# Servers and workers start slowly on a loaded machine; each wait has a limit of its own.
pytestmark = pytest.mark.timeout(200)


@pytest.fixture
def field(new_field: NewField) -> Field:
    """A field; its own server stands beside the cluster, unused."""
    return new_field()


@pytest.fixture
def cluster(field: Field) -> Iterator[Cluster]:
    """Three nodes, each of which has a replica."""
    folder = field.folder / "cluster"
    folder.mkdir()
    with Cluster(folder, engine=ENGINE, replicas=3) as cluster:
        yield cluster
        field.end_workers()
        field.assert_in_order()


def smoke(field: Field) -> list[str]:
    """Use a little of everything, with a worker; return the ids of all jobs."""
    tasks = field.tasks
    jobs: list[Job[Any]] = [tasks.nap.enqueue(0), tasks.thread_nap.enqueue(0)]
    jobs += field.app.enqueue_many([tasks.nap.call(0) for _ in range(50)])
    jobs.append(tasks.nap.using(delay=0.3).enqueue(0))
    jobs.append(tasks.fail_until.enqueue(2))
    jobs.append(tasks.nap.using(lane="urgent").enqueue(0))
    for job in jobs:
        job.result(20)
    dead, endless = tasks.fail.enqueue(), tasks.nap.enqueue(600)
    with pytest.raises(JobFailed, match="ValueError"):
        dead.result(20)
    wait_until(lambda: field.starts(endless.id), 20)
    endless.cancel()
    wait_until(lambda: endless.state() is State.CANCELLED, 20)
    dead.retry()
    with pytest.raises(JobFailed):
        dead.result(20)
    asynchronous = asyncio.run(smoke_async(field))
    return [job.id for job in (*jobs, dead, endless)] + asynchronous


async def smoke_async(field: Field) -> list[str]:
    async with LaneQ(field.url, namespace=field.namespace) as app:
        nap = app.ref("nap")
        jobs = [await nap.aenqueue(0.01) for _ in range(5)]
        assert await asyncio.gather(*(job.aresult(20) for job in jobs)) == ["slept"] * 5
    return [job.id for job in jobs]


@pytest.mark.parametrize("asked", ["the node that has it", "another node", "a replica"])
def test_fault_D5_everything_works_in_a_cluster_whichever_node_is_asked(
    field: Field, cluster: Cluster, asked: str
) -> None:
    owner = cluster.node_of(field.keys.prefix.decode())
    cluster.adopt(
        field,
        {"the node that has it": owner, "another node": (owner + 1) % 3}.get(asked, owner + 3),
    )
    worker = field.worker(slots=4)
    ids = smoke(field)
    if asked == "another node":
        for noun in ("jobs", "dead", "workers", "health"):
            field.laneq_json(noun)
        field.laneq("lanes", "pause", "batch")
    states = field.assert_conserved(ids)
    assert states == {State.SUCCEEDED: len(ids) - 2, State.DEAD: 1, State.CANCELLED: 1}
    assert not [line for line in worker.lines if "away" in line or "ERROR" in line]
    worker.term()
    assert worker.wait() == 0


def test_fault_D5_the_namespace_is_followed_when_its_node_dies(
    field: Field, cluster: Cluster
) -> None:
    """The node in the address is the one that dies: the others were asked for beforehand."""
    owner = cluster.node_of(field.keys.prefix.decode())
    cluster.adopt(field, owner)
    worker = field.worker(slots=4)
    before = [field.tasks.nap.enqueue(0).id for _ in range(10)]
    field.until_settled(before)
    field.raw.wait(1, 5000)
    cluster.servers[owner].stop()
    after = until_taken(field)
    cluster.follow(field)
    field.until_settled([after], 20 * FACTOR)
    field.assert_once([*before, after])
    assert field.states([*before, after]) == {State.SUCCEEDED: 11}
    assert worker.is_running


def until_taken(field: Field) -> str:
    """Enqueue a job as soon as the cluster takes one; return its id."""
    taken: list[str] = []

    def take() -> bool:
        try:
            taken.append(field.tasks.nap.enqueue(0).id)
        except redis.RedisError as error:
            pytest.fail(f"an error that is not laneq's: {error!r}")
        except Exception:  # noqa: BLE001  the cluster has not made up its mind
            return False
        return True

    wait_until(take, 20 * FACTOR, "a cluster that takes a job again")
    return taken[0]


def test_fault_D5_the_namespace_is_followed_when_its_slot_is_moved(
    field: Field, cluster: Cluster
) -> None:
    prefix = field.keys.prefix.decode()
    owner = cluster.node_of(prefix)
    cluster.adopt(field, owner)
    workers = [field.worker(slots=4) for _ in range(2)]
    ids: list[str] = []
    errors: list[Exception] = []
    is_over = threading.Event()

    def produce() -> None:
        while not is_over.wait(0.01):
            try:
                ids.append(field.tasks.nap.enqueue(0.02).id)
            except Exception as error:  # noqa: BLE001  looked at below
                errors.append(error)

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        for to in ((owner + 1) % 3, (owner + 2) % 3, owner):
            wanted = len(ids) + 30
            wait_until(lambda: len(ids) >= wanted, 20)  # noqa: B023  at once
            cluster.move(prefix, to)
    finally:
        is_over.set()
        producer.join(20)
    assert errors == []
    cluster.follow(field)
    field.until_settled(ids, 30)
    field.assert_once(ids)
    assert field.assert_conserved(ids) == {State.SUCCEEDED: len(ids)}
    assert all(worker.is_running for worker in workers)


def test_fault_D5_a_database_number_is_refused_at_connect_in_plain_words(
    field: Field, cluster: Cluster
) -> None:
    url = cluster.url(0).removesuffix("/0") + "/1"
    with (
        LaneQ(url, namespace=field.namespace) as app,
        pytest.raises(RedisRefused, match="There is no database 1; a cluster has 0 only"),
    ):
        app.ref("nap").enqueue(0)
    cluster.adopt(field, 0)
    field.environment["LANEQ_URL"] = url
    field.laneq("lanes", status=3)
    field.environment["LANEQ_URL"] = field.url


def test_fault_D5_each_key_that_a_script_touches_is_among_its_keys(field: Field) -> None:
    with redis.Redis.from_url(field.url) as client:
        connection = client.connection_pool.make_connection()
        connection.send_command("MONITOR")
        assert connection.read_response() == b"OK"
        field.worker(slots=4)
        smoke(field)
        field.end_workers()
        field.raw.echo("the end")
        lines = read_until(connection, "the end")
        connection.disconnect()
    declared: set[str] = set()
    touched = 0
    for line in lines:
        words = re.findall(r'"((?:[^"\\]|\\.)*)"', line)
        name = words[0].upper()
        if name in {"EVAL", "EVALSHA"}:
            declared = set(words[3 : 3 + int(words[2])])
        elif " lua] " in line[:60] and name not in {"TIME", "PUBLISH"}:
            keys = set(field.raw.command_getkeys(*words))
            assert keys <= declared, line
            touched += len(keys)
    assert touched > 1_000
    every = list(field.raw.scan_iter("*"))
    assert len(every) > 10
    assert {key_slot(key) for key in every} == {key_slot(field.keys.prefix)}


def read_until(connection: Any, word: str) -> list[str]:
    lines: list[str] = []
    while f'"{word}"' not in (line := connection.read_response().decode()):
        lines.append(line)
    return lines
