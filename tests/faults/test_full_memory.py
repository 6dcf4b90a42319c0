"""D3, D4: Redis is full, or drops keys; what may be asked of it is restricted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import pytest

from laneq import LaneQ, RedisRefused, State
from laneq.calls.lanes import set_lane
from laneq.keys import PERMANENT
from tests.faults.access import restricted
from tests.faults.conftest import NewField
from tests.faults.field import Field, two_sizes, wait_until

# Servers and workers start slowly on a loaded machine; each wait has a limit of its own.
pytestmark = pytest.mark.timeout(200)

_MIB = 1024 * 1024


def used_memory(field: Field) -> int:
    return int(field.raw.info("memory")["used_memory"])


# --- D3 ------------------------------------------------------------------------------------


@two_sizes("room_mib, workers", ci=(2, 2), full=(64, 4))
@pytest.mark.timeout(600)
def test_fault_D3_at_maxmemory_enqueue_says_why_and_the_backlog_drains(
    new_field: NewField, room_mib: int, workers: int
) -> None:
    field = new_field()
    before = field.worker(slots=4)
    nap = field.tasks.nap.using(result_ttl=0)
    assert field.tasks.nap.enqueue(0).result(10) == "slept"
    pause(field, "normal", paused=True)
    limit = used_memory(field) + room_mib * _MIB
    field.raw.config_set("maxmemory", limit)
    error, stored = fill(field, nap)
    assert isinstance(error, RedisRefused)
    assert error.word == "OOM"
    assert "maxmemory" in str(error)
    assert "free memory, or raise the limit" in str(error)
    # Nothing half-written: of the call that was refused there is nothing. (The walk itself needs
    # room: a transaction is refused too.)
    field.raw.config_set("maxmemory", 0)
    assert field.assert_conserved(stored) == {State.WAITING: len(stored)}
    assert len(field.places()) == len(stored) + 1
    field.raw.config_set("maxmemory", limit)
    health = field.laneq_json("health", status=1)
    assert "over_limit" in [reason["kind"] for reason in health["reasons"]]
    began = time.monotonic()
    pause(field, "normal", paused=False)
    running = [before, *(field.worker(slots=4) for _ in range(workers - 1))]
    until_gone(field, stored, 120)
    took_s = time.monotonic() - began
    # The figure for docs/reliability.md; shown by `pytest -s`.
    print(f"\n{len(stored)} jobs of 1 kB, then: {error}\nDrained in {took_s:.1f} s.")  # noqa: T201
    assert field.states() == {State.SUCCEEDED: 1}
    field.assert_once(stored)
    # Room was made by what has ended: all goes on, and nobody was restarted.
    assert used_memory(field) < limit
    assert field.tasks.nap.enqueue(0, "on").result(10) == "on"
    assert all(worker.is_running for worker in running)
    assert not any("ERROR" in worker.text for worker in running)
    assert field.laneq_json("health")["reasons"] == []


def until_gone(field: Field, ids: Sequence[str], within_s: float = 30) -> None:
    """Wait until there is no trace of these jobs, whose results nobody wants."""
    wait_until(lambda: not any(field.raw.hmget(field.keys.jobs, ids)), within_s, "the last job")


def pause(field: Field, lane: str, *, paused: bool) -> None:
    field.app.sync_driver.call(set_lane(field.keys, lane, {"paused": paused}))


def fill(field: Field, task: Any) -> tuple[Exception | None, list[str]]:
    """Enqueue, alone and in batches, until Redis refuses; return why and what was taken."""
    ids: list[str] = []
    for n in range(100_000):
        calls = [task.call(0, "x" * 1000) for _ in range(1 + n % 20)]
        try:
            ids += [job.id for job in field.app.enqueue_many(calls)]
        except RedisRefused as error:
            return error, ids
    return None, ids


def test_fault_D3_over_the_limit_jobs_can_do_all_that_ends_them(new_field: NewField) -> None:
    """Retry, die, enqueue with the outcome, cancel, pause and purge: nothing of it needs room."""
    field = new_field(app=FULL_APP)
    tasks = field.tasks
    worker = field.worker(slots=8, lanes="normal")
    dies, retries = tasks.dies.enqueue(), tasks.retries.enqueue()
    parent, sleeps = tasks.parent.enqueue(), tasks.sleeps.enqueue()
    unwanted = tasks.parent.using(lane="batch").enqueue()
    wait_until(lambda: len(field.starts()) == 4, 20, "four starts")
    field.raw.config_set("maxmemory", used_memory(field) // 2)
    with pytest.raises(RedisRefused, match="maxmemory") as caught:
        tasks.dies.enqueue()
    assert caught.value.word == "OOM"
    assert sleeps.cancel() is not None
    assert unwanted.cancel() is not None
    (field.folder / "go").touch()
    field.until_settled([dies.id, retries.id, parent.id, sleeps.id, unwanted.id])
    assert [job.state() for job in (dies, retries, parent, sleeps, unwanted)] == [
        State.DEAD,
        State.SUCCEEDED,
        State.SUCCEEDED,
        State.CANCELLED,
        State.CANCELLED,
    ]
    child = parent.result(5)
    field.until_settled([child])
    field.laneq("lanes", "set", "batch", "priority=11")
    field.laneq("dead", "purge", "--yes")
    assert dies.state() is None
    worker.term()
    assert worker.wait() == 0
    field.raw.config_set("maxmemory", 0)


FULL_APP = """
import asyncio
from pathlib import Path

from laneq import LaneQ, Retry, current_job
from tests.faults.body import lanes, noted

app = LaneQ(lanes=lanes())


async def go():
    while not Path("go").exists():
        await asyncio.sleep(0.01)


@app.task(name="dies", retry=Retry(1))
async def dies() -> None:
    with noted():
        await go()
        raise ValueError("x" * 1000)


@app.task(name="retries", retry=Retry(3, base=0.05))
async def retries() -> int:
    with noted():
        await go()
        current_job().progress(1, 2, "half")
        if current_job().attempt == 1:
            raise ValueError("x" * 1000)
        return current_job().attempt


@app.task(name="parent")
async def parent() -> str:
    with noted():
        await go()
        return current_job().enqueue(child.call()).id


@app.task(name="child")
async def child() -> str:
    return "x" * 1000


@app.task(name="sleeps")
async def sleeps() -> None:
    with noted():
        await asyncio.sleep(600)
"""


# --- D4 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "noeviction"])
def test_fault_D4_a_policy_that_drops_keys_is_one_warning_that_names_it(
    new_field: NewField, policy: str
) -> None:
    field = new_field(config={"maxmemory-policy": policy, "maxmemory": "1gb"})
    worker = field.worker()
    assert field.tasks.nap.enqueue(0).result(10) == "slept"
    warnings = [line for line in worker.lines if "maxmemory-policy" in line]
    assert len(warnings) == (policy != "noeviction")
    assert all("WARNING" in line and policy in line for line in warnings)
    assert all("Set it to noeviction" in line for line in warnings)


def test_fault_D4_a_user_that_may_not_look_at_settings_can_do_all_the_rest(
    new_field: NewField,
) -> None:
    field = new_field(port=0)
    login = ":".join(quote(word, safe="") for word in restricted(field))
    url = field.url.replace("redis://", f"redis://{login}@")
    worker = field.worker(slots=2, url=url)
    assert_calm(field)
    with LaneQ(url, namespace=field.namespace) as app:
        nap = app.ref("nap")
        assert nap.enqueue(0).result(10) == "slept"
        many = [nap.using(delay=0.2).enqueue(0) for _ in range(20)]
        assert [job.result(10) for job in many] == ["slept"] * 20
        endless = nap.enqueue(600)
        wait_until(lambda: field.starts(endless.id), 10, "its start")
        endless.cancel()
        wait_until(lambda: endless.state() is State.CANCELLED, 10, "its cancel")
    assert worker.count("could not check") == 1
    assert not [line for line in worker.lines if "WARNING" in line or "ERROR" in line]
    denied = [each for each in field.raw.acl_log() if each["object"] != "config|get"]
    assert {each["object"] for each in denied} <= {"client|unblock"}, denied
    worker.term()
    assert worker.wait() == 0


def asked(field: Field) -> int:
    """Return how many commands clients have sent, those inside scripts not counted."""
    stats = field.raw.info("commandstats")
    names = ("evalsha", "eval", "blpop", "client|unblock", "hello")
    return sum(stats[f"cmdstat_{name}"]["calls"] for name in names if f"cmdstat_{name}" in stats)


def assert_calm(field: Field, workers: int = 1) -> None:
    """Idle workers ask for little: a wait and a claim each second, and their heartbeats."""
    seen = []
    for _ in range(5):  # what has just ended is still being reported
        before, wait_s = asked(field), 2.0
        time.sleep(wait_s)
        seen.append((asked(field) - before) / wait_s)
        if seen[-1] <= 6 * workers:
            return
    pytest.fail(f"{workers} idle workers send {seen} commands a second")


@two_sizes("waiting, missing", ci=(1_000, 100), full=(20_000, 2_000))
@pytest.mark.timeout(200)
def test_fault_D4_jobs_whose_bodies_are_gone_are_counted_and_taken_away(
    new_field: NewField, waiting: int, missing: int
) -> None:
    field = new_field()
    jobs = field.app.enqueue_many([field.tasks.nap.call(0) for _ in range(waiting)])
    ids = [job.id for job in jobs]
    step = waiting // missing
    lost = ids[::step]
    assert field.raw.hdel(field.keys.jobs, *lost) == missing
    worker = field.worker(slots=8)
    field.until_settled(ids, 120)
    counts = field.laneq_json("lanes", "show", "normal")["counts"]
    assert counts["succeeded"] == waiting - missing
    side = field.raw.hget(field.keys.of_lane("counts", "normal"), "missing")
    assert int(side) == missing
    lane = field.laneq_json("lanes", "show", "normal")
    assert (lane["depth"], lane["running"], lane["dead"]) == (0, 0, missing)
    letters = field.laneq_json("dead", "list", "--limit", str(waiting))
    assert {letter["id"] for letter in letters} == set(lost)
    assert all("body" in str(letter["error"]) for letter in letters)
    assert_calm(field)
    assert worker.is_running
    assert "ERROR" not in worker.text
    assert "Traceback" not in worker.text
    field.laneq("dead", "purge", "--yes")


def test_fault_D4_an_evicted_key_stops_nobody(new_field: NewField) -> None:
    """Any key may be dropped by a policy that drops keys: the next jobs are done all the same."""
    field = new_field()
    worker = field.worker(slots=2)
    tasks = field.tasks
    for word in sorted(PERMANENT):
        started = len(field.starts())
        tasks.nap.using(lane="batch", delay=600).enqueue(0)
        dead, held = tasks.fail.enqueue(), tasks.nap.enqueue(0.5)
        wait_until(lambda: len(field.starts()) >= started + 2, 10)  # noqa: B023  at once
        names = list(field.raw.scan_iter(field.keys.prefix + word.encode() + b"*"))
        if names:
            field.raw.delete(*names)
        assert tasks.nap.enqueue(0, word).result(20) == word
        del dead, held
    assert_calm(field)
    assert worker.is_running
    assert "Traceback" not in worker.text
    field.raw.flushall()  # the books of such a server cannot balance
