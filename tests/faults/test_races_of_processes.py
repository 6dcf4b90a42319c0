"""Races between processes: batches that break half-way, replies that are lost, old beside new."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from laneq import LaneQ, State
from laneq.errors import StoreError
from laneq.scripts import load
from tests.faults import body
from tests.faults.field import FACTOR, ROOT, Field, L, S, wait_until
from tests.proxy import Proxy

pytestmark = pytest.mark.timeout(180)

# --- a batch is stored whole or not at all ------------------------------------------------

BATCH = 250

#: What breaks, and whether the batch can be stored nevertheless.
BREAKS = ("flush", "noscript", "cut before", "cut after", "oom", "readonly", "away", "nothing")


def break_something(what: str, proxy: Proxy, raw: redis.Redis) -> None:
    """Have the next call meet this."""
    match what:
        case "flush":
            raw.script_flush()
        case "noscript":
            proxy.answer_next("NOSCRIPT No matching script.", "EVALSHA")
        case "cut before":
            proxy.cut()
        case "cut after":
            proxy.cut_before_next_reply("EVALSHA")
        case "oom":
            proxy.answer_next("OOM command not allowed", "EVALSHA")
        case "readonly":
            proxy.answer_next("READONLY You can't write against a read only replica.", "EVALSHA")
        case "away":
            proxy.refuse()


@pytest.fixture
def producer(proxy: Proxy, namespace: str) -> Iterator[LaneQ]:
    """An app whose calls go through the proxy."""
    with LaneQ(f"{proxy.url}?socket_connect_timeout=1", namespace=namespace) as app:
        yield app
    wait_until(lambda: proxy.connections == 0)


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_batch_is_stored_whole_or_not_at_all_whatever_breaks(
    producer: LaneQ, proxy: Proxy, raw: redis.Redis, colour: str
) -> None:
    @producer.task(name="t")
    def t(n: int) -> None:
        """Never run."""

    lane = producer.keys.waiting("normal")
    rng = random.Random(5)
    seen = Counter[tuple[str, bool]]()

    async def enqueue_many() -> int:
        batch = [t.call(n) for n in range(BATCH)]
        if colour == "sync":
            return len(producer.enqueue_many(batch))
        return len(await producer.aenqueue_many(batch))

    async def go() -> None:
        await enqueue_many()
        for n in range(4 * len(BREAKS)):
            what = BREAKS[n % len(BREAKS)] if n < len(BREAKS) else rng.choice(BREAKS)
            before = raw.zcard(lane)
            break_something(what, proxy, raw)
            try:
                stored = await enqueue_many()
            except StoreError:
                stored = 0
            proxy.restore()
            grown = raw.zcard(lane) - before
            assert grown in {0, BATCH}, f"{what}: half a batch, {grown} jobs"
            if stored:
                assert grown == BATCH, f"{what}: acknowledged, and not there"
            seen[what, bool(stored)] += 1
        await producer.aclose()

    asyncio.run(go())
    # What can be ridden out was; what cannot said so.
    assert all(seen[what, True] for what in ("flush", "noscript", "cut before", "cut after"))
    assert all(seen[what, False] for what in ("oom", "away"))
    counts = raw.hgetall(producer.keys.of_lane("counts", "normal"))
    assert int(counts[b"enqueued"]) == raw.zcard(lane) == raw.hlen(producer.keys.jobs)
    assert b"deduplicated" not in counts


def test_batches_of_many_producers_are_whole_while_scripts_are_flushed(
    url: str, namespace: str, raw: redis.Redis
) -> None:
    is_over = threading.Event()

    def flush() -> None:
        while not is_over.is_set():
            raw.script_flush()

    flusher = threading.Thread(target=flush)
    flusher.start()
    errors: list[BaseException] = []

    def produce() -> None:
        try:
            with LaneQ(url, namespace=namespace) as app:
                for _ in range(20):
                    jobs = app.enqueue_many([app.ref("t").call(n) for n in range(BATCH)])
                    assert len({job.id for job in jobs}) == BATCH
                    app.ref("t").enqueue(0)
        except BaseException as error:  # noqa: BLE001  raised below, in the test's own thread
            errors.append(error)

    with LaneQ(url, namespace=namespace) as app:
        app.sync_driver.call(app.publish_call())
        keys = app.keys
    producers = [threading.Thread(target=produce) for _ in range(3)]
    for thread in producers:
        thread.start()
    for thread in producers:
        thread.join()
    is_over.set()
    flusher.join()
    assert errors == []
    assert raw.zcard(keys.waiting("normal")) == 3 * 20 * (BATCH + 1)


# --- replies that are lost ----------------------------------------------------------------


def test_claims_and_outcomes_whose_replies_are_lost_again_and_again_count_once(
    field: Field,
) -> None:
    with Proxy(field.url) as proxy:
        field.worker(slots=4, url=proxy.url)
        jobs = field.app.enqueue_many([field.tasks.nap.call(0.02) for _ in range(300)])
        ids = [job.id for job in jobs]

        def ended() -> int:
            return field.states(ids)[State.SUCCEEDED]

        losses = 0
        while (before := ended()) < len(ids) - 20:
            lost = proxy.cut_before_next_reply("EVALSHA")
            assert lost.wait(20)
            losses += 1
            wait_until(lambda enough=before + 10: ended() >= enough)  # type: ignore[misc]
        field.until_settled(ids)
        assert losses >= 10
        field.assert_once(ids)
        assert field.assert_conserved(ids) == {State.SUCCEEDED: len(ids)}
        field.end_workers()
        wait_until(lambda: proxy.connections == 0)


# --- wake-ups that go to the dying --------------------------------------------------------


def test_a_wake_up_and_the_claim_behind_it_that_went_to_a_worker_that_stands_still_cost_a_lease(
    field: Field,
) -> None:
    doomed = field.worker(slots=1)
    field.tasks.nap.enqueue(0).result(timeout=20)  # it is idle now, and the first to be woken
    wait_until(lambda: any(row["cmd"] == "blpop" for row in field.raw.client_list()))
    doomed.stop()
    wait_until(lambda: psutil.Process(doomed.pid).status() == psutil.STATUS_STOPPED)
    field.worker(slots=1)
    enqueued_us = field.now_us()
    job = field.tasks.nap.enqueue(0.01)
    (start,) = wait_until(lambda: field.starts(job.id), FACTOR * (L + 2 * S))
    assert start.pid != doomed.pid
    assert start.at_us - enqueued_us <= FACTOR * (L + 2 * S) * 1e6
    doomed.kill9()
    assert job.result(timeout=20) == "slept"
    field.assert_once([job.id])


# --- old workers beside new scripts -------------------------------------------------------


def git(*words: str) -> bytes:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else b""


def before_the_last_change() -> str:
    """Return the last commit whose scripts of work are not those of now; empty without one."""
    golden = "tests/golden/scripts.txt"

    def hashes(text: str) -> dict[str, str]:
        return {name: sha for sha, name in (line.split() for line in text.splitlines())}

    now = {name: load(name).sha.decode() for name in ("claim", "enqueue", "beat")}
    for commit in git("log", "--format=%H", "--", golden).decode().split():
        then = hashes(git("show", f"{commit}:{golden}").decode())
        if any(then.get(name) not in {None, sha} for name, sha in now.items()):
            return commit
    return ""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The laneq of before the scripts of work were changed last, in a folder of its own."""
    commit = before_the_last_change()
    if not commit:
        pytest.skip("needs the history of the repository, for the laneq of before")
    folder = tmp_path / "old"
    folder.mkdir()
    archive = git("archive", commit, "laneq", "lua")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    return folder


def in_old(old: Path, field: Field) -> dict[str, str]:
    """Return the environment in which laneq is the old one, and its lanes are what it knows."""
    lanes = [{"name": row["name"], "lease": row["lease"]} for row in field._lanes]
    return {"PYTHONPATH": f"{old}{os.pathsep}{ROOT}", body.LANES: json.dumps(lanes)}


def test_an_old_worker_and_an_old_producer_work_beside_new_ones(field: Field, old: Path) -> None:
    environment = in_old(old, field)

    def run_old(code: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **field.environment, **environment},
            capture_output=True,
            text=True,
            cwd=field.folder,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    shas = run_old(
        "from laneq.scripts import load\n"
        "print(*(load(name).sha.decode() for name in ('claim', 'enqueue', 'beat')))"
    ).split()
    assert shas != [load(name).sha.decode() for name in ("claim", "enqueue", "beat")]

    doomed = field.worker(slots=2, environment=environment)
    new = field.worker(slots=2)
    tasks: Any = field.tasks
    ids = [job.id for job in field.app.enqueue_many([tasks.nap.call(0.05) for _ in range(120)])]
    ids += [tasks.nap.using(delay=n / 50).enqueue(0.01).id for n in range(50)]
    ids += [tasks.fail_until.enqueue(2).id for _ in range(20)]
    ids += run_old(
        "from laneq import LaneQ\n"
        "app = LaneQ()\n"
        "jobs = app.enqueue_many([app.ref('nap').using(lane='normal').call(0.02)] * 60)\n"
        "print(*(job.id for job in jobs))"
    ).split()
    cancelled = [tasks.nap.using(delay=60).enqueue(0) for _ in range(5)]
    for job in cancelled:
        assert job.cancel()
    wait_until(lambda: {doomed.pid, new.pid} <= {entry.pid for entry in field.starts()})
    doomed.kill9()
    heir = field.worker(slots=2, environment=environment)
    ids += [job.id for job in field.app.enqueue_many([tasks.nap.call(0.05) for _ in range(120)])]
    field.until_settled(ids, 60)
    assert {new.pid, heir.pid} <= {entry.pid for entry in field.starts()}
    everything = [*ids, *(job.id for job in cancelled)]
    assert field.assert_conserved(everything) == {
        State.SUCCEEDED: len(ids),
        State.CANCELLED: len(cancelled),
    }
    twice = {i for i, n in Counter(entry.id for entry in field.starts()).items() if n > 1}
    retried = {entry.id for entry in field.runlog("raise")}
    assert len(twice - retried) <= 2, "more than what ran on the worker that was killed"
    for worker in (new, heir):
        assert worker.is_running
        assert "Traceback" not in worker.text
