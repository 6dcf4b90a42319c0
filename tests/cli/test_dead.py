"""``laneq dead``: dead letters are listed, given a new life, purged."""

from __future__ import annotations

import pytest

from laneq import codec
from laneq.model import RemoteError
from tests.cli.conftest import Commands
from tests.stage import Stage


def kill(stage: Stage, *ids: str, task: str = "t", lane: str = "normal") -> None:
    """Make dead letters."""
    worker = stage.worker(f"killer-of-{ids[0]}", serves=[lane])
    for job_id in ids:
        stage.put(job_id, lane=lane, task=task)
        assert worker.take() == [job_id]
        error = RemoteError(type="ValueError", message=f"bad {job_id}")
        worker.finish(job_id, "dead", body=codec.encode_error(error))


def take_body(stage: Stage, job_id: str) -> None:
    """Delete a letter's body, as an eviction would."""
    stage.client.hdel(stage.keys.jobs, job_id)
    stage.allow("no body")


def ids(laneq: Commands, *options: str) -> list[str]:
    return [row["id"] for row in laneq.json("dead", *options, schema="dead")]


# --- list ---


def test_dead_letters_come_last_first_with_their_error(laneq: Commands, stage: Stage):
    kill(stage, "a", "b")
    kill(stage, "c", lane="batch")
    stage.put("alive")
    assert ids(laneq) == ["c", "b", "a"]
    assert ids(laneq, "--lane", "normal") == ["b", "a"]
    assert ids(laneq, "--limit", "1") == ["c"]
    assert "ValueError: bad c" in laneq.out("dead")
    assert "more than these 1" in laneq("dead", "--limit", "1").err


def test_the_list_says_how_many_letters_were_dropped(laneq: Commands, stage: Stage):
    stage.set_lane("normal", {"dead_max": 1})
    kill(stage, "a", "b", "c")
    kill(stage, "d", lane="batch")
    answer = laneq("dead")
    assert "2 older letters of lane normal were dropped" in answer.err
    assert "batch were dropped" not in answer.err
    shown = laneq.json("lanes", "show", "normal", schema="lane")
    assert (shown["dead"], shown["dead_dropped"]) == (1, 2)
    assert "1, and 2 older ones dropped" in laneq.out("lanes", "show", "normal")


def test_no_dead_letters_is_no_error(laneq: Commands, stage: Stage):
    answer = laneq("dead")
    assert (answer.status, answer.out) == (0, "")
    assert ids(laneq) == []


# --- retry ---


def test_retry_all_pages_through_every_letter(laneq: Commands, stage: Stage):
    kill(stage, *(f"job-{n:03}" for n in range(230)))
    done = laneq.json("dead", "retry", "--all", schema="dead-retry")
    assert done == {"revived": 230, "no_body": 0, "skipped": 0}
    assert ids(laneq) == []
    assert len(stage.order()) == 230


def test_letters_without_a_body_are_counted_and_left(laneq: Commands, stage: Stage):
    kill(stage, *(f"job-{n:03}" for n in range(230)))
    for n in (0, 57, 150, 229):
        take_body(stage, f"job-{n:03}")
    done = laneq.json("dead", "retry", "--all", schema="dead-retry")
    assert done == {"revived": 226, "no_body": 4, "skipped": 0}
    assert sorted(stage.order("dead")) == ["job-000", "job-057", "job-150", "job-229"]
    answer = laneq("dead", "retry", "job-000")
    assert answer.status == 1
    assert "body is gone" in answer.err


def test_retry_all_of_a_task_or_lane_leaves_the_others(laneq: Commands, stage: Stage):
    kill(stage, "a", "b")
    kill(stage, "mine", task="mine")
    kill(stage, "c", lane="batch")
    done = laneq.json("dead", "retry", "--all", "--task", "mine", schema="dead-retry")
    assert done["revived"] == 1
    assert ids(laneq) == ["c", "b", "a"]
    laneq.out("dead", "retry", "--all", "--lane", "batch")
    assert ids(laneq) == ["b", "a"]


def test_retry_of_named_letters_says_which_are_none(laneq: Commands, stage: Stage):
    kill(stage, "a", "b")
    stage.put("alive")
    answer = laneq("dead", "retry", "a", "alive", "nope")
    assert answer.status == 1
    assert answer.out == "revived 1, without a body 0, skipped 2\n"
    assert "alive: no dead letter, it is waiting" in answer.err
    assert "nope: not found" in answer.err
    assert ids(laneq) == ["b"]
    assert laneq("dead", "retry", "b").status == 0


def test_retry_named_outside_of_the_filter_is_skipped(laneq: Commands, stage: Stage):
    kill(stage, "a")
    done = laneq.json("dead", "retry", "a", "--lane", "batch", schema="dead-retry", status=1)
    assert done == {"revived": 0, "no_body": 0, "skipped": 1}
    assert ids(laneq) == ["a"]


@pytest.mark.parametrize("options", [[], ["--lane", "normal"], ["a", "--all"]])
def test_retry_wants_ids_or_all(laneq: Commands, stage: Stage, options: list[str]):
    answer = laneq("dead", "retry", *options)
    assert answer.status == 2
    assert "--all" in answer.err


# --- purge ---


def test_purge_asks_for_yes_where_nobody_can_be_asked(laneq: Commands, stage: Stage):
    kill(stage, "a")
    answer = laneq("dead", "purge")
    assert answer.status == 2
    assert "1 dead letters" in answer.err
    assert ids(laneq) == ["a"]


def test_a_purge_of_nothing_asks_nobody(laneq: Commands, stage: Stage):
    assert "purged 0" in laneq.out("dead", "purge")


def test_purge_drops_all_or_those_asked_for(laneq: Commands, stage: Stage):
    kill(stage, *(f"job-{n:03}" for n in range(120)))
    kill(stage, "mine", task="mine")
    kill(stage, "c", "d", lane="batch")

    def purge(*options: str, status: int = 0) -> int:
        done = laneq.json("dead", "purge", "--yes", *options, schema="dead-purge", status=status)
        purged: int = done["purged"]
        return purged

    assert purge("--task", "mine") == 1
    assert purge("d") == 1
    assert purge("d", status=1) == 0
    assert purge("--lane", "normal") == 120
    assert ids(laneq) == ["c"]
    assert purge() == 1
    assert ids(laneq) == []
