"""``laneq enqueue``: a job by the name of its task, with or without the code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from laneq.calls.lanes import PublishedTask
from laneq.options import Lane
from tests.cli.conftest import Commands
from tests.cli.test_workers import register
from tests.stage import Stage

SHOP = """
from laneq import Lane, LaneQ
app = LaneQ(lanes=[Lane("urgent", priority=1000), Lane("batch", priority=10)])

@app.task(name="shop.charge", lane="urgent")
def charge(order_id: int) -> str: ...
"""


def enqueued(laneq: Commands, *args: str) -> dict[str, Any]:
    """Enqueue, and return what is stored of the job."""
    job_id = laneq.out("enqueue", *args).strip()
    shown: dict[str, Any] = laneq.json("jobs", "show", job_id, schema="job")
    return shown


@pytest.mark.parametrize(
    ("given", "args"),
    [
        (["1", "2.5", "true", "null"], [1, 2.5, True, None]),
        (['"1"', "word", "two words", "[1"], ["1", "word", "two words", "[1"]),
        (['[1, {"a": "b"}]', "{}"], [[1, {"a": "b"}], {}]),
        (["-1", "-2.5e3", "-.5"], [-1, -2500.0, "-.5"]),
        (["--", "-1", "--lane"], [-1, "--lane"]),
        (["NaN", "Infinity", "-"], ["NaN", "Infinity", "-"]),
        (["123456789012345678901234567890"], [123456789012345678901234567890]),
        ([""], [""]),
    ],
)
def test_arguments_are_json_or_else_text(
    laneq: Commands, stage: Stage, given: list[str], args: list[Any]
):
    shown = enqueued(laneq, "t", *given)
    assert shown["args"] == args
    assert (shown["task"], shown["lane"], shown["state"]) == ("t", "normal", "waiting")


def test_a_mistyped_option_is_no_argument(laneq: Commands, stage: Stage):
    answer = laneq("enqueue", "t", "--dealy", "5")
    assert answer.status == 2
    assert "Did you mean '--delay'?" in answer.err
    assert stage.order() == []


def test_keyword_arguments_are_a_json_object(laneq: Commands, stage: Stage):
    assert enqueued(laneq, "t", "--kwargs", '{"size": 3}')["kwargs"] == {"size": 3}
    for wrong in ("[1]", "{size: 3}", '{"size": NaN}'):
        assert laneq("enqueue", "t", "--kwargs", wrong).status == 2


def test_lane_and_delay_are_the_calls(laneq: Commands, stage: Stage):
    shown = enqueued(laneq, "t", "--lane", "batch", "--delay", "5m")
    assert (shown["lane"], shown["state"]) == ("batch", "scheduled")
    assert shown["ready_at"] - shown["enqueued_at"] == pytest.approx(300)
    for wrong in ("soon", "-1", "nan"):
        answer = laneq("enqueue", "t", "--delay", wrong)
        assert answer.status == 2
        assert "delay" in answer.err


def test_an_unknown_lane_lists_the_known_ones_and_stores_nothing(laneq: Commands, stage: Stage):
    answer = laneq("enqueue", "t", "--lane", "bacth")
    assert answer.status == 2
    assert "Did you mean 'batch'?" in answer.err
    assert laneq.json("jobs", schema="jobs") == []


def test_the_lane_that_a_worker_published_is_taken(laneq: Commands, stage: Stage):
    stage.publish(tasks={"t": PublishedTask("urgent", 3, 2, 1_000_000, 600_000_000)})
    assert enqueued(laneq, "t")["lane"] == "urgent"


def test_a_task_whose_lane_nobody_told_needs_one(laneq: Commands, raw, namespace: str):
    stage = Stage(raw, namespace, is_fake=False)
    stage.publish(Lane("urgent"), Lane("batch"))
    answer = laneq("enqueue", "t")
    assert answer.status == 2
    assert "unknown lane 'normal'" in answer.err
    assert "name its lane with --lane" in answer.err
    assert laneq("enqueue", "t", "--lane", "batch").status == 0


def test_many_are_enqueued_in_few_calls(laneq: Commands, stage: Stage):
    done = laneq.json("enqueue", "t", "1", "--count", "2500", schema="enqueue")
    assert done["count"] == len(set(done["ids"])) == 2500
    assert stage.order() == done["ids"]
    assert laneq.out("enqueue", "t", "--count", "2").startswith("enqueued 2 jobs of t: ")
    assert laneq("enqueue", "t", "--count", "0").status == 2


def test_a_task_that_no_live_worker_knows_is_stored_with_a_warning(laneq: Commands, stage: Stage):
    answer = laneq("enqueue", "t")
    assert answer.status == 0
    assert "no worker is live" in answer.err
    register(stage, "id", "w1", 1)
    assert laneq("enqueue", "t").err == ""
    answer = laneq("enqueue", "tt")
    assert answer.status == 0
    assert "no live worker knows task 'tt'" in answer.err
    assert "Did you mean 't'?" in answer.err


def test_with_the_code_arguments_are_checked_and_lanes_published(laneq: Commands, at_home: Path):
    (at_home / "shop_a.py").write_text(SHOP)
    answer = laneq("--app", "shop_a", "enqueue", "shop.charge", "1", "2")
    assert answer.status == 2
    assert "order_id" in answer.err
    job_id = laneq.out("enqueue", "shop.charge", "17", "--app", "shop_a:app").strip()
    assert laneq.json("jobs", "show", job_id, schema="job")["lane"] == "urgent"
