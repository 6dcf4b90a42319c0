"""``laneq health``: what it finds, that it disturbs nothing, and that it never takes long."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from laneq import Lane
from laneq.calls import workers
from laneq.calls.workers import WorkerInfo
from laneq.embedded import EmbeddedServer
from tests.cli.conftest import Commands
from tests.conftest import ENGINE
from tests.stage import SECOND, Stage

EVERY = ("critical", "urgent", "normal", "batch")


def register(stage: Stage, name: str = "w", **facts: Any) -> None:
    """List a worker as alive now."""
    given = {"slots": 4, "reserve": {}, "lanes": EVERY, **facts}
    info = WorkerInfo(name=name, host="h", pid=1, tasks=["t"], **given)
    stage.run(workers.register(stage.keys, name, info))


def kinds(document: Any) -> list[tuple[str, str | None]]:
    return [(reason["kind"], reason["lane"]) for reason in document["reasons"]]


# --- what it finds ------------------------------------------------------------


def test_a_namespace_that_is_served_is_well(laneq: Commands, stage: Stage) -> None:
    register(stage)
    document = laneq.json("health", schema="health")
    assert document == {
        "ok": True, "can_enqueue": True, "can_claim": True, "can_acknowledge": True,
        "workers": 1,
        "lanes": [
            {"name": name, "paused": False, "workers": 1, "oldest_wait_s": None, "slo_s": None}
            for name in EVERY
        ],
        "reasons": [],
    }  # fmt: skip
    assert laneq.out("health").startswith("well\n")


def test_a_namespace_without_a_worker_is_unwell(laneq: Commands, stage: Stage) -> None:
    document = laneq.json("health", schema="health", status=1)
    assert kinds(document) == [("no_worker", None)]
    assert document["can_enqueue"]
    answer = laneq("health")
    assert answer.status == 1
    assert answer.out.startswith("unwell\n- no live worker: nothing is run.")


def test_a_namespace_without_lanes_is_unwell(laneq: Commands) -> None:
    document = laneq.json("health", schema="health", status=1)
    assert kinds(document) == [("no_lanes", None)]


def test_a_namespace_that_lost_its_state_is_unwell(laneq: Commands, stage: Stage) -> None:
    register(stage)
    stage.client.delete(stage.keys.state)
    document = laneq.json("health", schema="health", status=1)
    assert "has lost its state" in document["reasons"][0]["detail"]
    stage.publish()
    laneq.json("health", schema="health")


def test_a_lane_that_no_worker_serves_is_named(laneq: Commands, stage: Stage) -> None:
    register(stage, "a", lanes=("urgent", "normal"))
    register(stage, "b", lanes=("critical",))
    assert kinds(laneq.json("health", schema="health", status=1)) == [("not_served", "batch")]
    register(stage, "c", lanes=EVERY)
    laneq.json("health", schema="health")


def test_a_worker_that_keeps_all_its_slots_for_a_lane_serves_that_one_only(
    laneq: Commands, stage: Stage
) -> None:
    register(stage, slots=2, reserve={"urgent": 2})
    document = laneq.json("health", schema="health", status=1)
    assert kinds(document) == [("not_served", name) for name in EVERY if name != "urgent"]
    register(stage, slots=3, reserve={"urgent": 2})
    laneq.json("health", schema="health")


def test_a_paused_lane_needs_no_worker_and_may_wait(laneq: Commands, stage: Stage) -> None:
    stage.set_lane("batch", {"slo_us": 1, "paused": True})
    stage.put("a", lane="batch")
    register(stage, lanes=("critical", "urgent", "normal"))
    document = laneq.json("health", schema="health")
    assert document["lanes"][-1]["paused"]


def test_a_worker_that_lives_but_does_not_work_serves_nothing(
    laneq: Commands, stage: Stage
) -> None:
    register(stage, "a", unwell="its event loop has not turned for 12 s")
    document = laneq.json("health", schema="health", status=1)
    assert kinds(document) == [("stuck_worker", None), *(("not_served", name) for name in EVERY)]
    detail = document["reasons"][0]["detail"]
    assert "worker a (host h, pid 1)" in detail
    assert "not turned for 12 s" in detail
    register(stage, "b")
    document = laneq.json("health", schema="health", status=1)
    assert kinds(document) == [("stuck_worker", None)]


@pytest.mark.parametrize(("waited_s", "is_well"), [(9.0, True), (30.0, False)])
def test_a_job_that_waited_for_ten_times_its_slo_is_far_too_old(
    laneq: Commands, stage: Stage, waited_s: float, is_well: bool
) -> None:
    stage.set_lane("urgent", {"slo_us": 2 * SECOND})
    register(stage)
    stage.put("a", lane="urgent")
    stage.put("b", lane="batch")
    for lane, job_id in (("urgent", "a"), ("batch", "b")):
        since = stage.places("waiting", lane)[job_id] - int(waited_s * SECOND)
        stage.client.zadd(stage.key("waiting", lane), {job_id: since})
    document = laneq.json("health", schema="health", status=0 if is_well else 1)
    assert kinds(document) == ([] if is_well else [("too_old", "urgent")])


def test_a_job_with_a_head_start_is_no_older_for_it(laneq: Commands, stage: Stage) -> None:
    stage.set_lane("urgent", {"slo_us": 2 * SECOND})
    register(stage)
    stage.put("a", lane="urgent", boost_us=600 * SECOND)
    urgent = laneq.json("health", schema="health")["lanes"][1]
    assert urgent["oldest_wait_s"] < 20


def test_a_lane_that_the_app_declares_with_an_slo_is_held_to_it(
    laneq: Commands, stage: Stage
) -> None:
    stage.publish(Lane("urgent", slo=0.25), Lane("batch"))
    register(stage, lanes=(*EVERY,))
    slos = {lane["name"]: lane["slo_s"] for lane in laneq.json("health", schema="health")["lanes"]}
    assert (slos["urgent"], slos["batch"]) == (0.25, None)


# --- it disturbs nothing ------------------------------------------------------


def test_a_look_changes_no_count_and_no_order_and_wakes_nobody(
    laneq: Commands, stage: Stage
) -> None:
    stage.set_lane("urgent", {"reserve": 2})
    stage.set_lane("batch", {"max_running": 1, "rate": "5/s", "max_depth": 9})
    register(stage)
    stage.put("a", "b", "c")
    stage.put("later", when=f"+{60 * SECOND}")
    worker = stage.worker(slots=1)
    worker.claim(is_look=True)
    stage.client.delete(stage.key("wake", "normal"))
    before = stage.snapshot()
    laneq.json("health", schema="health")
    after = stage.snapshot()
    for seen in (before, after):
        for hint in (b"clock", b"swept"):
            seen["state"].pop(hint, None)
    assert {word for word in after.keys() ^ before.keys() if not word.startswith("session:")} == (
        set()
    )
    assert {word: after[word] for word in before if not word.startswith("session:")} == {
        word: value for word, value in before.items() if not word.startswith("session:")
    }


# --- a server that refuses ----------------------------------------------------


class Own:
    """A server of one test, whose settings it may change, with a namespace that is served."""

    def __init__(self, server: EmbeddedServer, laneq: Commands) -> None:
        self.server = server
        self.raw: Any = redis.Redis.from_url(server.url)
        self.stage = Stage(self.raw, "own", is_fake=False)
        self.stage.publish()
        register(self.stage)
        self.laneq = laneq
        self.place = ("--url", server.url, "--namespace", "own")

    def health(self, status: int, url: str | None = None) -> Any:
        place = ("--url", url, "--namespace", "own") if url else self.place
        return self.laneq.json("health", *place, schema="health", status=status)


@pytest.fixture
def own(laneq: Commands) -> Iterator[Own]:
    with EmbeddedServer(engine=ENGINE) as server:
        made = Own(server, laneq)
        yield made
        made.raw.close()


def test_at_maxmemory_only_the_enqueue_does_not_work(own: Own) -> None:
    own.health(0)
    own.raw.config_set("maxmemory", "1")
    document = own.health(1)
    assert kinds(document) == [("over_limit", None)]
    assert "over limit, nothing can be enqueued: Redis at" in document["reasons"][0]["detail"]
    assert (document["can_enqueue"], document["can_claim"], document["can_acknowledge"]) == (
        False, True, True,
    )  # fmt: skip
    own.raw.config_set("maxmemory", "0")
    own.health(0)


def test_on_a_replica_nothing_works(own: Own) -> None:
    own.raw.replicaof("127.0.0.1", 1)
    own.raw.config_set("replica-serve-stale-data", "yes")
    document = own.health(1)
    assert kinds(document) == [("enqueue", None), ("claim", None)]
    assert all("READONLY" in reason["detail"] for reason in document["reasons"])
    assert not document["can_acknowledge"]


def test_a_server_that_takes_no_writes_for_want_of_replicas_is_unwell(own: Own) -> None:
    own.raw.config_set("min-replicas-to-write", 1)
    assert kinds(own.health(1)) == [("enqueue", None), ("claim", None)]


@pytest.mark.parametrize("command", ["zadd", "publish"])
def test_a_user_who_may_not_send_what_jobs_need_is_told_which(own: Own, command: str) -> None:
    rights = ["on", ">x", "~{laneq:own}:*", "&{laneq:own}:*", "+@all", f"-{command}"]
    own.raw.execute_command("ACL", "SETUSER", "half", *rights)
    document = own.health(1, _as(own, "half"))
    assert kinds(document) == [("acknowledge", None)]
    assert any(command in reason["detail"].lower() for reason in document["reasons"])
    own.raw.execute_command("ACL", "SETUSER", "half", f"+{command}")
    own.health(0, _as(own, "half"))


def _as(own: Own, user: str) -> str:
    return f"unix://{user}:x@{own.server.url.partition('://')[2]}"


def test_a_key_of_a_wrong_kind_is_seen(own: Own) -> None:
    own.raw.set(own.stage.key("leases", "batch"), "no sorted set")
    document = own.health(1)
    assert kinds(document) == [("claim", None), ("unreadable", None)]
    assert all("WRONGTYPE" in reason["detail"] for reason in document["reasons"])


# --- a server that is not there -----------------------------------------------


def test_no_server_is_exit_3(laneq: Commands, tmp_path: Path) -> None:
    answer = laneq("health", "--url", f"unix://{tmp_path}/none.sock", "--namespace", "x")
    assert answer.status == 3
    assert "cannot be reached" in answer.err


def test_a_server_that_does_not_answer_is_exit_3_within_3_s(own: Own, processes: Any) -> None:
    os.kill(own.server.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        answer = processes.run("health", *own.place)
        took_s = time.monotonic() - began
    finally:
        os.kill(own.server.pid, signal.SIGCONT)
    assert answer.status == 3, answer
    assert took_s < 3 * 2  # of which two are granted to a loaded machine


def test_a_server_that_answers_late_each_time_is_exit_3_within_3_s(
    laneq: Commands, proxy: Any, stage: Stage
) -> None:
    register(stage)
    proxy.delay(0.4)  # less than a reply may take, and six replies are too much
    began = time.monotonic()
    answer = laneq("health", "--url", proxy.url)
    took_s = time.monotonic() - began
    proxy.restore()
    assert answer.status == 3
    assert "not all answers within 2 s" in answer.err
    assert took_s < 3
