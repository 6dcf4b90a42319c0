"""No script runs long, whatever has piled up; and a full memory stops only what fills it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from laneq.calls import jobs, lanes
from laneq.embedded import EmbeddedServer
from tests.conftest import ENGINE
from tests.stage import SECOND, START_US, Stage, new

#: The longest that one script may take, in µs. On a loaded machine a slice may be slower
#: than it is alone, since caches are shared: one in fifty may.
LONGEST_US = 20_000


@pytest.fixture(scope="module")
def alone() -> Iterator[EmbeddedServer]:
    """A server whose settings a test may change."""
    with EmbeddedServer(engine=ENGINE) as started:
        yield started


@pytest.fixture
def stage(alone: EmbeddedServer) -> Iterator[Stage]:
    with redis.Redis.from_url(alone.url) as client:
        client.flushall()
        client.config_set("maxmemory", 0)
        stage = Stage(client, "bounds", is_fake=False)
        stage.set_clock(START_US)
        stage.publish()
        yield stage
        client.config_set("maxmemory", 0)
        client.flushall()


def spent_us(client: Any) -> int:
    """Return the µs of CPU that the server's main thread has used: not those it had to wait."""
    cpu = client.info("cpu")
    used = cpu["used_cpu_user_main_thread"] + cpu["used_cpu_sys_main_thread"]
    return round(used * 1e6)


def fill(stage: Stage, word: str, n: int, *, score: int, body: bytes = b"t\nx") -> None:
    """Put n jobs into a lane's sorted set as their scripts would have."""
    key = stage.key(word, "normal")
    for start in range(0, n, 10_000):
        ids = [f"{word[0]}{i:06}" for i in range(start, min(start + 10_000, n))]
        stage.client.zadd(key, {job_id: score + start + i for i, job_id in enumerate(ids)})
        stage.client.hset(stage.keys.jobs, mapping=dict.fromkeys(ids, body))


class Slices:
    """Times the calls made through it."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.us: list[int] = []

    def run(self, call: Any) -> Any:
        before = spent_us(self.stage.client)
        value = self.stage.run(call)
        self.us.append(spent_us(self.stage.client) - before)
        return value

    def assert_short(self) -> None:
        slow = [us for us in self.us if us > LONGEST_US]
        assert len(slow) <= len(self.us) // 50 + 1, f"{sorted(slow)} of {len(self.us)} slices"
        assert sorted(self.us)[len(self.us) // 2] < LONGEST_US


@pytest.mark.slow
def test_a_purge_of_three_hundred_thousand_jobs_is_made_of_short_slices(stage):
    fill(stage, "waiting", 300_000, score=1)
    slices = Slices(stage)
    left = 300_000
    while left:
        left -= slices.run(lanes.purge(stage.keys, "normal", limit=1000))
    assert stage.client.exists(stage.keys.jobs, stage.key("waiting", "normal")) == 0
    slices.assert_short()


@pytest.mark.slow
def test_a_purge_of_very_large_jobs_is_made_of_short_slices(stage):
    fill(stage, "waiting", 100, score=1, body=b"t\n" + b"x" * 2**20)
    slices = Slices(stage)
    purged = 0
    while purged < 100:
        purged += slices.run(lanes.purge(stage.keys, "normal", limit=1000))
    assert len(slices.us) >= 20
    slices.assert_short()


@pytest.mark.slow
def test_two_hundred_thousand_jobs_due_at_one_instant_are_promoted_in_short_slices(stage):
    fill(stage, "scheduled", 200_000, score=1)
    stage.client.hset(stage.keys.state, "next_due", 1)
    worker = stage.worker()
    slices = Slices(stage)
    while slices.run(worker.call(free=0)).is_more:
        pass
    assert stage.client.zcard(stage.key("waiting", "normal")) == 200_000
    assert not stage.client.exists(stage.key("scheduled", "normal"))
    assert len(slices.us) <= 402
    slices.assert_short()


@pytest.mark.slow
def test_fifty_thousand_leases_that_end_together_come_back_in_short_slices(stage):
    n = 50_000
    fill(stage, "leases", n, score=1)
    ids = [f"l{i:06}" for i in range(n)]
    stage.client.hset(
        stage.keys.runs,
        mapping={job_id: f"9 w normal 1 {i} 5 5 0 0 t" for i, job_id in enumerate(ids, 10)},
    )
    worker = stage.worker()
    slices = Slices(stage)
    while slices.run(worker.call(free=0)).is_more:
        pass
    assert stage.client.zcard(stage.key("waiting", "normal")) == n
    assert stage.client.zrange(stage.key("waiting", "normal"), 0, 9) == [
        job_id.encode() for job_id in ids[:10]
    ]
    slices.assert_short()


def test_a_thousand_jobs_for_an_instant_at_which_a_hundred_thousand_are_due_go_in_quickly(stage):
    at = START_US + 3600 * SECOND
    fill(stage, "scheduled", 100_000, score=at)
    slices = Slices(stage)
    for part in range(5):
        batch = [new(f"{part}-{n}", when=f"@{at}") for n in range(1000)]
        key = (b"{laneq:bounds}:session:s", b"{laneq:bounds}:session:b")
        call = jobs.enqueue(stage.keys, batch)
        before = spent_us(stage.client)
        stage.client.eval(
            call.script.text, len(call.keys) + 2, *key, *call.keys, part + 1, 0, *call.argv
        )
        slices.us.append(spent_us(stage.client) - before)
    places = stage.places("scheduled")
    assert places["0-0"] == at + 100_000
    assert places["4-999"] == at + 104_999
    slices.assert_short()


@pytest.mark.slow
def test_cost_of_a_claim_does_not_grow_with_depth(stage):
    worker = stage.worker(slots=1)

    def cost() -> int:
        best = 10**9
        for _ in range(3):
            before = spent_us(stage.client)
            for _ in range(100):
                outcomes = [worker.ended(job_id, number=0) for job_id in worker.held]
                worker.claim(free=1, outcomes=outcomes)
            best = min(best, spent_us(stage.client) - before)
        return best

    fill(stage, "waiting", 2_000, score=1)
    shallow = cost()
    fill(stage, "waiting", 200_000, score=1)
    assert cost() < 2 * shallow


# --- memory -----------------------------------------------------------------


def fill_memory(stage: Stage) -> None:
    """Set the limit below what is used: no command that needs memory is taken any more."""
    stage.client.config_set("maxmemory-policy", "noeviction")
    stage.client.config_set("maxmemory", 1)


def test_with_memory_full_an_enqueue_is_refused_whole(stage):
    stage.put("a")
    before = stage.snapshot()
    fill_memory(stage)
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        stage.enqueue(new("b"), new("c", when="+5"))
    stage.client.config_set("maxmemory", 0)
    assert stage.snapshot() == before
    assert stage.enqueue(new("b")) == frozenset()
    assert stage.problems() == []


def test_with_memory_full_everything_that_empties_the_system_goes_on(stage):
    from laneq.calls import workers
    from laneq.calls.workers import WorkerInfo
    from tests.lua.test_beat import beat, held
    from tests.lua.test_claim_outcomes import ERROR

    stage.put(*"abcdefghij")
    stage.put("later", when="+5")
    fill_memory(stage)
    stage.run(workers.register(stage.keys, "w", WorkerInfo("n", "h", 1, 9, {}, [], [])))
    worker = stage.worker(slots=11)
    # A claim's fence_floor moves the clock here: the test's own writes are refused.
    assert len(worker.take(fence_floor=stage.now() + 10)) == 11
    beat(stage, held(worker, "a"))
    kinds = {"a": "succeeded", "b": "retried", "c": "dead", "d": "handed_back", "e": "snoozed"}
    ends = [worker.ended(i, kind, number=SECOND, body=ERROR) for i, kind in kinds.items()]
    assert worker.claim(free=0, outcomes=ends).stale == []
    assert stage.cancel("f").word == "requested"
    assert stage.cancel("d").word == "cancelled"
    other = stage.worker("v", slots=20)
    assert "later" in other.take(is_look=True, fence_floor=stage.now() + 15 * SECOND)
    assert stage.run(jobs.until_ended(stage.keys, "g", timeout_s=None).call) is None
    assert stage.run(lanes.purge(stage.keys, "normal")) >= 0
    assert stage.run(jobs.purge_dead(stage.keys, lanes=stage.lanes.names)) == 1
    stage.set_lane("normal", {"paused": True})
    stage.run(workers.leave(stage.keys, "w"))
    stage.client.config_set("maxmemory", 0)
    assert stage.problems() == []
