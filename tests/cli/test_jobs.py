"""``laneq jobs``: find jobs, read all of one, cancel and retry."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from laneq import codec
from laneq.calls.jobs import NewJob, look
from laneq.model import RemoteError
from tests.cli.conftest import Commands
from tests.stage import SECOND, Stage

KEYS = [
    "id", "task", "lane", "state", "args", "kwargs", "attempt", "max_attempts", "enqueued_at",
    "ready_at", "started_at", "ended_at", "worker", "progress", "cancel_requested", "error",
    "history", "result",
]  # fmt: skip


def put(stage: Stage, job_id: str, *args: Any, lane: str = "normal", **kwargs: Any) -> None:
    """Enqueue a job of task ``t`` that has arguments."""
    record = codec.encode_record("t", codec.encode_call(args, kwargs))
    assert stage.enqueue(NewJob(lane, job_id, record)) == frozenset()


def failure(text: str) -> bytes:
    return codec.encode_error(
        RemoteError(type="ValueError", message=text, traceback=f"Traceback: {text}")
    )


def kill(stage: Stage, *ids: str, text: str = "bad", lane: str = "normal") -> None:
    """Make dead letters of jobs that wait."""
    worker = stage.worker(slots=len(ids), serves=[lane])
    assert sorted(worker.take()) == sorted(ids)
    for job_id in ids:
        worker.finish(job_id, "dead", body=failure(text))


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [row["id"] for row in rows]


@pytest.fixture
def busy(stage: Stage) -> Stage:
    """A namespace with a job in each state."""
    stage.put("done", "gone", "late", "runs", "waits-1", "waits-2")
    stage.put("vip", lane="urgent")
    stage.put("soon", when=f"+{60 * SECOND}")
    stage.put("sooner", when=f"+{30 * SECOND}", lane="batch")
    worker = stage.worker("w1", slots=3, serves=["normal"])
    assert worker.take() == ["done", "gone", "late"]
    worker.finish("done", number=60 * SECOND, body=codec.encode_value({"size": 3}))
    worker.finish("gone", "dead", body=failure("bad"))
    worker.finish("late", "cancelled", number=60 * SECOND)
    worker.slots = 1
    assert worker.take() == ["runs"]
    return stage


# --- list ---


def test_jobs_come_running_waiting_scheduled_then_ended(laneq: Commands, busy: Stage):
    rows = laneq.json("jobs", schema="jobs")
    assert ids(rows) == [
        "runs",
        "vip",
        "waits-1",
        "waits-2",
        "sooner",
        "soon",
        "late",
        "gone",
        "done",
    ]
    assert list(rows[0]) == KEYS


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--state", "running"], ["runs"]),
        (["--state", "waiting"], ["vip", "waits-1", "waits-2"]),
        (["--state", "scheduled"], ["sooner", "soon"]),
        (["--state", "succeeded"], ["done"]),
        (["--state", "dead"], ["gone"]),
        (["--state", "cancelled"], ["late"]),
        (["--state", "expired"], []),
        (["--lane", "batch"], ["sooner"]),
        (["--lane", "normal", "--state", "waiting", "--limit", "1"], ["waits-1"]),
        (["--task", "nope"], []),
        (["--limit", "2"], ["runs", "vip"]),
    ],
)
def test_filters_say_which(laneq: Commands, busy: Stage, options: list[str], expected: list[str]):
    assert ids(laneq.json("jobs", "list", *options, schema="jobs")) == expected


def test_a_task_is_found_behind_a_page_of_others(laneq: Commands, stage: Stage):
    stage.put(*(f"job-{n}" for n in range(250)))
    stage.put("needle", task="rare")
    assert ids(laneq.json("jobs", "--task", "rare", schema="jobs")) == ["needle"]


def test_fifty_jobs_are_shown_unless_told_otherwise(laneq: Commands, stage: Stage):
    stage.put(*(f"job-{n:03}" for n in range(120)))
    assert len(laneq.json("jobs", schema="jobs")) == 50
    assert len(laneq.json("jobs", "--limit", "110", schema="jobs")) == 110
    answer = laneq("jobs")
    assert "more than these 50" in answer.err
    assert len(answer.out.splitlines()) == 51


def test_a_due_job_of_a_paused_lane_is_waiting(laneq: Commands, stage: Stage):
    stage.set_lane("normal", {"paused": True})
    stage.put("due", when="@1000000")
    stage.put("later", when=f"+{60 * SECOND}")
    (row,) = laneq.json("jobs", "--state", "waiting", schema="jobs")
    assert (row["id"], row["state"], row["ready_at"]) == ("due", "waiting", 1.0)
    assert ids(laneq.json("jobs", "--state", "scheduled", schema="jobs")) == ["later"]


def test_an_unknown_lane_or_state_is_wrong_usage(laneq: Commands, stage: Stage):
    assert "Known: batch" in laneq("jobs", "--lane", "nope").err
    answer = laneq("jobs", "--state", "finished")
    assert answer.status == 2
    assert "succeeded" in answer.err


def test_nothing_found_is_no_error(laneq: Commands, stage: Stage):
    answer = laneq("jobs", "list")
    assert (answer.status, answer.out) == (0, "")
    assert "no such job" in answer.err


def test_the_table_cuts_nothing_in_a_pipe(laneq: Commands, stage: Stage):
    task = "shop.tasks." + "x" * 150
    stage.put("job", task=task)
    assert task in laneq.out("jobs")


def test_a_task_name_cannot_steer_the_terminal(laneq: Commands, stage: Stage):
    put(stage, "job", "\x1b[2J")
    assert "\x1b" not in laneq.out("jobs", "show", "job")
    assert "\\u001b[2J" in laneq.out("jobs", "show", "job")


# --- show ---


def test_show_has_arguments_and_the_result(laneq: Commands, stage: Stage):
    put(stage, "job", 1, "two", size=[3.5, None])
    worker = stage.worker("w1")
    worker.take()
    worker.finish("job", number=60 * SECOND, body=codec.encode_value({"ok": True}))
    shown = laneq.json("jobs", "show", "job", schema="job")
    assert shown["args"] == [1, "two"]
    assert shown["kwargs"] == {"size": [3.5, None]}
    assert shown["result"] == {"ok": True}
    assert (shown["state"], shown["attempt"], shown["worker"]) == ("succeeded", 1, "w1")
    assert shown["ready_at"] <= shown["started_at"] <= shown["ended_at"]
    text = laneq.out("jobs", "show", "job")
    assert re.search(r'^args +\[1, "two"\]$', text, re.MULTILINE)
    assert re.search(r'^result +\{"ok": true\}$', text, re.MULTILINE)


def test_show_has_every_attempt_and_the_traceback(laneq: Commands, stage: Stage):
    put(stage, "job")
    worker = stage.worker("w1")
    worker.take()
    worker.finish("job", "retried", number=0, body=failure("first"))
    worker.take()
    worker.finish("job", "dead", body=failure("second"))
    shown = laneq.json("jobs", "show", "job", schema="job")
    assert shown["error"] == {
        "type": "ValueError",
        "message": "second",
        "traceback": "Traceback: second",
    }
    assert [entry["attempt"] for entry in shown["history"]] == list(
        range(1, len(shown["history"]) + 1)
    )
    assert shown["history"][0]["error"]["message"] == "first"
    text = laneq.out("jobs", "show", "job")
    assert "ValueError: second" in text
    assert "Traceback: first" in text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (b"\xff\x00a", "\\xff\x00a"),
        (2**80, 2**80),
        ({1: "one", b"k": None}, {"1": "one", "k": None}),
        ({7}, [7]),
    ],
)
def test_values_that_json_lacks_become_text(laneq: Commands, stage: Stage, value: Any, shown: Any):
    put(stage, "job", value)
    answer = laneq("jobs", "show", "job", "--json")
    assert json.loads(answer.out, parse_constant=pytest.fail)["args"] == [shown]


def test_an_unreadable_body_hides_neither_the_job_nor_the_page(laneq: Commands, stage: Stage):
    stage.put("odd")
    put(stage, "good", 1)
    rows = laneq.json("jobs", schema="jobs")
    assert [(row["id"], row["args"]) for row in rows] == [("odd", None), ("good", [1])]
    assert laneq.json("jobs", "show", "odd", schema="job")["args"] is None


def test_an_unknown_id_is_bad_news(laneq: Commands, stage: Stage):
    answer = laneq("jobs", "show", "nope")
    assert (answer.status, answer.out) == (1, "")
    assert "nope" in answer.err
    document = laneq.json("jobs", "show", "nope", schema="error", status=1)
    assert document["error"]["type"] == "JobNotFound"


# --- cancel ---


def test_a_job_that_waits_is_cancelled_and_never_starts(laneq: Commands, stage: Stage):
    stage.put("job")
    (answer,) = laneq.json("jobs", "cancel", "job", schema="jobs-cancel")
    assert (answer["outcome"], answer["state"]) == ("cancelled", "cancelled")
    assert stage.worker().take() == []


def test_a_job_that_runs_is_asked_to_end(laneq: Commands, busy: Stage):
    assert "its worker was told" in laneq.out("jobs", "cancel", "runs")
    shown = laneq.json("jobs", "show", "runs", schema="job")
    assert (shown["state"], shown["cancel_requested"]) == ("running", True)
    assert "running, cancel requested" in laneq.out("jobs", "show", "runs")


def test_cancelling_too_late_or_an_unknown_job_is_bad_news(laneq: Commands, busy: Stage):
    done = laneq.json("jobs", "cancel", "done", "nope", "soon", schema="jobs-cancel", status=1)
    assert [answer["outcome"] for answer in done] == ["ended", "unknown", "cancelled"]
    answer = laneq("jobs", "cancel", "done", "nope")
    assert answer.status == 1
    assert "too late" in answer.err
    assert answer.err.count("nope") == 1


# --- retry ---


def test_an_ended_job_has_a_new_life(laneq: Commands, busy: Stage):
    done = laneq.json("jobs", "retry", "gone", "late", "done", schema="jobs-retry")
    assert {answer["outcome"] for answer in done} == {"revived"}
    assert [busy.state(job_id) for job_id in ("gone", "late", "done")] == ["waiting"] * 3


def test_retrying_an_open_or_unknown_job_is_bad_news(laneq: Commands, busy: Stage):
    done = laneq.json("jobs", "retry", "soon", "nope", schema="jobs-retry", status=1)
    assert [answer["outcome"] for answer in done] == ["open", "unknown"]
    answer = laneq("jobs", "retry", "soon")
    assert answer.status == 1
    assert "has not ended" in answer.err


def test_jobs_move_is_no_command_yet(laneq: Commands, stage: Stage):
    assert laneq("jobs", "move", "a", "b").status == 2
    assert "move" not in laneq.out("jobs", "--help")


# --- large ones ---


def test_a_list_leaves_out_what_is_large_and_show_has_it(laneq: Commands, stage: Stage):
    put(stage, "large", "x" * 100_000)
    put(stage, "small", "x" * 1_000)
    rows = laneq.json("jobs", schema="jobs")
    assert [row["args"] for row in rows] == [None, ["x" * 1_000]]
    assert rows[0]["task"] == "t"
    assert laneq.json("jobs", "show", "large", schema="job")["args"] == ["x" * 100_000]

    worker = stage.worker()
    worker.take()
    worker.finish("large", number=60 * SECOND, body=codec.encode_value("y" * 100_000))
    (row,) = laneq.json("jobs", "--state", "succeeded", schema="jobs")
    assert row["result"] is None
    assert laneq.json("jobs", "show", "large", schema="job")["result"] == "y" * 100_000


def test_a_list_keeps_the_type_and_beginning_of_a_large_error(laneq: Commands, stage: Stage):
    stage.put("job")
    worker = stage.worker()
    for _ in range(2):
        worker.take()
        worker.finish("job", "retried", number=0, body=failure("first " + "x" * 20_000))
    worker.take()
    worker.finish("job", "dead", body=failure("last " + "x" * 20_000))
    (row,) = laneq.json("dead", schema="dead")
    assert row["error"]["type"] == "ValueError"
    assert row["error"]["message"].startswith("last xxxx")
    assert len(row["error"]["message"]) < 4_200
    assert len(row["history"]) == 1
    assert row["history"][0]["error"]["message"].startswith("last xxxx")
    shown = laneq.json("jobs", "show", "job", schema="job")
    assert len(shown["error"]["message"]) > 8_000
    assert len(shown["history"]) >= 2


def test_no_reply_of_a_list_is_over_256_kib(stage: Stage, url: str, namespace: str):
    for n in range(40):
        put(stage, f"job-{n}", "x" * 1_000, lane="batch")
    worker = stage.worker(slots=40)
    worker.take()
    for n in range(40):
        worker.finish(f"job-{n}", "retried", number=0, body=failure("first " + "x" * 3_500))
    worker.take()
    for n in range(40):
        worker.finish(f"job-{n}", "dead", body=failure("last " + "x" * 3_500))
    ids_ = [f"job-{n}" for n in range(20)]
    call = look(stage.keys, ids_, lanes=stage.lanes.names, most=1024)
    size = sum(len(text) for row in stage.ask(call)[1:] for text in row if type(text) is bytes)
    assert 100_000 < size < 256 * 1024
