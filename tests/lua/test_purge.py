"""purge.lua and purge_dead.lua: jobs are dropped in bounded steps, and counted."""

from __future__ import annotations

import pytest

from laneq.calls import jobs, lanes
from laneq.errors import JobNotFound
from tests.lua.test_claim_outcomes import ERROR, heard, message, running
from tests.lua.test_revive import dead
from tests.stage import SECOND


def purge(stage, lane="normal", limit=500) -> int:
    return stage.run(lanes.purge(stage.keys, lane, limit=limit))


def purge_dead(stage, *ids, limit=500) -> int:
    call = jobs.purge_dead(stage.keys, lanes=stage.lanes.names, ids=ids, limit=limit)
    return stage.run(call)


def test_a_purge_drops_what_waits_and_what_is_scheduled_and_nothing_else(stage):
    worker = running(stage, "run", "again")
    worker.claim(free=0, outcomes=[worker.ended("again", "retried", number=9, body=ERROR)])
    dead(stage, "dead")
    stage.put("a", "b")
    stage.put("c", when="+5")
    stage.put("other", lane="batch")
    assert purge(stage) == 4
    assert purge(stage) == 0
    assert sorted(stage.hash("jobs")) == ["dead", "other", "run"]
    assert sorted(stage.hash("history")) == ["dead"]
    assert stage.counts()["purged"] == 4
    assert stage.task_counts()["purged"] == 4
    assert stage.state("run") == "running"


def test_a_purge_takes_as_many_as_it_is_told_oldest_first(stage):
    stage.put(*"abcde")
    stage.put("f", when="+5")
    assert purge(stage, limit=2) == 2
    assert stage.order() == ["c", "d", "e"]
    assert purge(stage, limit=4) == 4
    assert stage.places("scheduled") == {}


def test_a_purge_is_bounded_whatever_it_is_told(stage):
    stage.put(*(f"{n:04}" for n in range(1000)))
    stage.put(*(f"x{n:04}" for n in range(1000)))
    assert purge(stage, limit=100_000) == 1000
    assert purge(stage, limit=100_000) == 1000


def test_who_waits_for_a_purged_job_learns_that_it_is_gone(stage):
    stage.put("a", "b")
    until = jobs.until_ended(stage.keys, "a", timeout_s=None)
    assert stage.run(until.call) is None
    with heard(stage, until.channel) as listener:
        purge(stage)
        assert until.read(message(listener)) is None  # no outcome: ask again
    with pytest.raises(JobNotFound):
        stage.run(until.call)
    assert stage.places_of("watchers") == {}


def test_jobs_without_a_body_are_purged_too(stage):
    stage.put("a", "b")
    stage.client.hdel(stage.keys.jobs, "a")
    stage.client.hset(stage.keys.jobs, "b", "no line feed")
    assert purge(stage) == 2
    assert stage.order() == []


def test_a_purge_of_dead_letters_drops_them_oldest_first_and_changes_no_count(stage):
    for job_id in "abc":
        dead(stage, job_id)
        stage.forward(1)
    before = stage.counts()
    assert purge_dead(stage, limit=2) == 2
    assert stage.order("dead") == ["c"]
    assert list(stage.hash("outcomes")) == list(stage.hash("jobs")) == ["c"]
    assert purge_dead(stage) == 1
    assert purge_dead(stage) == 0
    assert stage.counts() == before


def test_a_purge_of_named_letters_leaves_all_else(stage):
    dead(stage, "a", "b")
    dead(stage, "c", lane="batch")
    running(stage, "r").finish("r", number=SECOND)
    stage.put("w")
    assert purge_dead(stage, "a", "c", "r", "w", "ghost") == 2
    assert stage.order("dead") == ["b"]
    assert stage.state("r") == "succeeded"
    assert stage.state("w") == "waiting"


def test_ten_thousand_named_letters_fit_one_call(raw, namespace):
    from tests.stage import START_US, Stage

    stage = Stage(raw, namespace, is_fake=False)
    stage.set_clock(START_US)
    stage.publish()
    ids = [f"{n:05}" for n in range(10_000)]
    stage.client.zadd(stage.key("dead", "normal"), dict.fromkeys(ids, 5))
    stage.client.hset(stage.keys.jobs, mapping=dict.fromkeys(ids, "t\n"))
    assert purge_dead(stage, *ids) == 10_000
    assert stage.hash("jobs") == {}
