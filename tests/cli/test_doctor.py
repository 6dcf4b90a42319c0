"""laneq doctor and laneq jobs why, on a real server: what it says of itself, and of its queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from laneq import Lane
from laneq.calls import workers
from laneq.calls.lanes import PublishedTask
from laneq.calls.workers import Sample, WorkerInfo
from laneq.embedded import EmbeddedServer
from laneq.histogram import bucket_of
from tests.cli.conftest import Commands
from tests.conftest import ENGINE
from tests.stage import SECOND, Stage, new

#: Lanes of which none can starve.
LANES = (Lane("urgent", priority=1000, reserve=1), Lane("batch", priority=10, reserve=1))


def info(name: str = "w", **facts: Any) -> WorkerInfo:
    given = {"slots": 4, "reserve": {}, "lanes": ["urgent", "batch"], "tasks": ["t"], **facts}
    return WorkerInfo(name=name, host="h", pid=1, **given)


def register(stage: Stage, name: str = "w", **facts: Any) -> None:
    """List a worker as alive now."""
    stage.run(workers.register(stage.keys, name, info(name, **facts)))


def measure(stage: Stage, lane: str, *, jobs: int, wait_s: float, run_s: float) -> None:
    """Let a worker report measured jobs of a lane, and note the counts of all lanes."""
    samples = [
        Sample(lane, f"{field}{bucket_of(seconds * 1e6)}", jobs)
        for field, seconds in (("w", wait_s), ("r", run_s), ("l", wait_s + run_s))
    ]
    now_us = int(stage.client.time()[0]) * SECOND
    beat = workers.beat(
        stage.keys, "w", info(), now_us=now_us, lanes=stage.lanes.names, leases=[], samples=samples
    )
    stage.run(beat)


def findings(document: Any) -> dict[str, str]:
    """Return finding → severity; a machine that is busy with other tests may answer slowly."""
    return {one["finding"]: one["severity"] for one in document if one["finding"] != "slow_redis"}


class Own:
    """A server of one test, whose settings it may change, with a namespace that does well."""

    def __init__(self, server: EmbeddedServer, laneq: Commands) -> None:
        self.server = server
        self.raw: Any = redis.Redis.from_url(server.url)
        self.raw.config_set("appendonly", "yes")
        self.stage = Stage(self.raw, "own", is_fake=False)
        self.stage.publish(*LANES)
        register(self.stage)
        self.laneq = laneq

    def doctor(self, status: int = 0, url: str | None = None) -> dict[str, str]:
        place = ("--url", url or self.server.url, "--namespace", "own")
        document = self.laneq.json("doctor", *place, schema="doctor", status=status)
        return findings(document)


@pytest.fixture
def own(laneq: Commands, tmp_path: Any) -> Iterator[Own]:
    with EmbeddedServer(engine=ENGINE) as server:
        made = Own(server, laneq)
        yield made
        made.raw.close()


@pytest.fixture
def pool(own: Own) -> Stage:
    """A namespace that does well, on a server of its own that does well."""
    return own.stage


# --- the server -----------------------------------------------------------------


def test_a_pool_that_does_well_has_no_finding(own: Own) -> None:
    own.stage.put("a", lane="urgent")
    worker = own.stage.worker()
    worker.claim()
    worker.finish("a")
    measure(own.stage, "urgent", jobs=50, wait_s=0.001, run_s=0.02)
    assert own.doctor() == {}
    out = own.laneq.out("doctor", "--url", own.server.url, "--namespace", "own")
    assert out == "nothing found\n" or "slow_redis" in out


def test_a_server_without_persistence_is_seen(own: Own) -> None:
    own.raw.config_set("appendonly", "no")
    own.raw.config_set("save", "")
    assert own.doctor() == {"no_persistence": "warning"}
    own.raw.config_set("save", "3600 1")
    assert own.doctor() == {"snapshots_only": "info"}


def test_an_eviction_policy_is_an_error_once_there_is_a_limit(own: Own) -> None:
    own.raw.config_set("maxmemory-policy", "allkeys-lru")
    assert own.doctor() == {"eviction_policy": "warning"}
    own.raw.config_set("maxmemory", str(1 << 30))
    assert own.doctor(1) == {"eviction_policy": "error"}
    own.raw.config_set("maxmemory-policy", "noeviction")
    assert own.doctor() == {}


def test_a_server_near_its_maxmemory_is_seen(own: Own) -> None:
    own.raw.setrange("ballast", 64 << 20, b"x")  # beside which connections' buffers are small
    used = int(own.raw.info("memory")["used_memory"])
    own.raw.config_set("maxmemory", str(int(used * 1.12)))
    assert own.doctor() == {"memory_short": "warning"}
    own.raw.config_set("maxmemory", str(used))
    assert own.doctor(1) == {"memory_short": "error"}


def test_what_may_not_be_asked_is_told_and_is_no_error(own: Own) -> None:
    rights = ["on", ">x", "~{laneq:own}:*", "&{laneq:own}:*", "+@all", "-@dangerous"]
    own.raw.execute_command("ACL", "SETUSER", "half", *rights)
    url = f"unix://half:x@{own.server.url.partition('://')[2]}"
    document = own.laneq.json("doctor", "--url", url, "--namespace", "own", schema="doctor")
    assert findings(document) == {"not_checked": "info"}
    commands = {one["evidence"]["command"] for one in document if one["finding"] == "not_checked"}
    assert commands == {"CONFIG GET", "INFO"}
    assert any("could not check persistence" in one["reason"] for one in document)


def test_a_slow_server_is_seen(laneq: Commands, proxy: Any, stage: Stage) -> None:
    register(stage, lanes=["critical", "urgent", "normal", "batch"])
    proxy.delay(0.02)
    answer = laneq("doctor", "--url", proxy.url)
    proxy.restore()
    assert "slow_redis" in answer.out
    assert "a PING from here takes" in answer.out


def test_no_server_is_exit_3(laneq: Commands, tmp_path: Any) -> None:
    answer = laneq("doctor", "--url", f"unix://{tmp_path}/none.sock", "--namespace", "x")
    assert answer.status == 3


# --- the queue ------------------------------------------------------------------


def test_a_namespace_without_lanes_is_an_error(laneq: Commands) -> None:
    document = laneq.json("doctor", schema="doctor", status=1)
    assert findings(document)["no_lanes"] == "error"


def test_jobs_without_a_worker_are_an_error(own: Own) -> None:
    own.stage.run(workers.leave(own.stage.keys, "w"))
    own.stage.put("a", lane="batch")
    assert own.doctor(1) == {"no_worker": "error"}


def test_a_lane_that_no_live_worker_serves_is_an_error(own: Own) -> None:
    register(own.stage, lanes=["urgent"])
    assert own.doctor() == {}
    own.stage.put("a", lane="batch")
    assert own.doctor(1) == {"unserved_lane": "error"}


def test_a_task_that_no_live_worker_knows_is_an_error_until_its_jobs_have_ended(own: Own) -> None:
    own.stage.enqueue(new("a", lane="batch", task="gone"))
    assert own.doctor(1) == {"unknown_task": "error"}
    own.stage.cancel("a")
    assert own.doctor() == {}


def test_a_wait_beyond_the_run_time_is_told_of_a_reserve_and_of_none(own: Own) -> None:
    measure(own.stage, "batch", jobs=100, wait_s=5.0, run_s=0.2)
    measure(own.stage, "urgent", jobs=100, wait_s=0.15, run_s=0.02)
    assert own.doctor() == {"reserve_too_small": "warning"}
    own.stage.set_lane("urgent", {"reserve": 0})
    assert own.doctor() == {"wait_follows_others": "warning"}


def test_a_lane_that_can_starve_is_a_warning_until_somebody_says_that_it_may(own: Own) -> None:
    own.stage.set_lane("urgent", {"priority": 5000})
    own.stage.set_lane("batch", {"reserve": 0})
    assert own.doctor() == {"can_starve": "warning"}
    place = ("--url", own.server.url, "--namespace", "own")
    own.laneq.out("lanes", "set", "batch", "may_starve=true", *place)
    assert own.doctor() == {"can_starve": "info"}
    assert "accepted knowingly: may_starve is set" in own.laneq.out("doctor", *place)
    own.laneq.out("lanes", "reset", "batch", *place)
    assert own.doctor() == {}


def test_leases_that_expire_and_jobs_that_die_are_seen_by_how_the_counts_grow(own: Own) -> None:
    stage = own.stage
    counts = stage.key("counts", "batch")
    measure(stage, "batch", jobs=1, wait_s=0.01, run_s=0.01)
    stage.client.hset(counts, mapping={"enqueued": 60, "started": 80})
    stage.client.hset(counts, mapping={"succeeded": 50, "dead": 10, "lost_leases": 20})
    assert own.doctor() == {"leases_expire": "warning", "dead_letters_grow": "warning"}


def test_a_task_at_its_limit_is_told_with_the_jobs_that_step_aside(own: Own) -> None:
    stage = own.stage
    limit = PublishedTask("batch", 3, 0, SECOND, SECOND, max_running=1)
    stage.publish(*LANES, tasks={"narrow": limit})
    stage.enqueue(*(new(f"n{n}", lane="batch", task="narrow") for n in range(3)))
    register(stage, tasks=["t", "narrow"])
    stage.worker(slots=4).claim()
    document = own.laneq.json(
        "doctor", "--url", own.server.url, "--namespace", "own", schema="doctor"
    )
    (held,) = [one for one in document if one["finding"] == "task_limit_holds"]
    assert held["evidence"] == {
        "task": "narrow", "parked": 2, "max_running": 1, "open_jobs": 3,
    }  # fmt: skip


def test_a_look_changes_nothing(own: Own) -> None:
    own.stage.put("a", "b", lane="batch")
    before = own.stage.snapshot()
    own.doctor()
    own.laneq.out("jobs", "why", "b", "--url", own.server.url, "--namespace", "own")
    assert own.stage.snapshot() == before


# --- laneq jobs why ---------------------------------------------------------------


@pytest.fixture
def queue(stage: Stage) -> Stage:
    register(stage, lanes=["critical", "urgent", "normal", "batch"])
    return stage


def test_why_tells_the_place_of_a_job_that_waits(laneq: Commands, queue: Stage) -> None:
    queue.put(*"abc")
    document = laneq.json("jobs", "why", "c", schema="job-why")
    assert (document["state"], document["position"], document["waiting"]) == ("waiting", 3, 3)
    assert [hold["kind"] for hold in document["holds"]] == ["ahead"]
    assert document["takers"][0]["may_start"]
    out = laneq.out("jobs", "why", "c")
    assert "place      3 of 3 in its lane" in out
    assert "slots      w (host h, pid 1): 4 of 4 slots, 4 free" in out


def test_why_tells_of_a_paused_lane_and_how_to_resume_it(laneq: Commands, queue: Stage) -> None:
    queue.set_lane("normal", {"paused": True})
    queue.put("a")
    document = laneq.json("jobs", "why", "a", schema="job-why")
    assert document["advice"] == "laneq lanes resume normal"
    assert document["expected"]["in_s"] is None


def test_why_tells_of_every_state(laneq: Commands, queue: Stage) -> None:
    queue.put("later", when=f"+{60 * SECOND}")
    queue.put("run", lane="urgent")
    worker = queue.worker(slots=1)
    worker.claim()
    document = laneq.json("jobs", "why", "later", schema="job-why")
    assert document["state"] == "scheduled"
    assert 50 < document["expected"]["in_s"] <= 60
    document = laneq.json("jobs", "why", "run", schema="job-why")
    assert document["state"] == "running"
    assert 0 < document["lease_left_s"] <= 15
    worker.finish("run", "dead", body=b"!no")
    document = laneq.json("jobs", "why", "run", schema="job-why")
    assert document["state"] == "dead"
    assert "laneq jobs retry run" in document["advice"]


def test_why_of_an_unknown_id_is_bad_news(laneq: Commands, queue: Stage) -> None:
    answer = laneq("jobs", "why", "ghost")
    assert answer.status == 1
    assert "job ghost: not found" in answer.err
