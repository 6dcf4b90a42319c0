"""``laneq check``: its answers, its exit statuses, its document."""

from __future__ import annotations

import json

import pytest

from laneq.check import KINDS
from laneq.model import EVENTS
from tests.cli.conftest import SCHEMAS, Commands
from tests.lua.damage import fill
from tests.stage import Stage


@pytest.fixture
def busy(stage: Stage) -> Stage:
    """A namespace with a job in each state."""
    fill(stage)
    return stage


def test_a_namespace_in_order_is_told_with_its_sum(laneq: Commands, busy: Stage):
    answer = laneq("check")
    assert answer.status == 0
    assert answer.out == (
        "in order: 9 enqueued = 3 waiting + 2 scheduled + 2 running + 1 succeeded + 1 dead\n"
    )


def test_the_document_has_the_counts_of_all_lanes(laneq: Commands, busy: Stage):
    busy.put("u", lane="urgent")
    document = laneq.json("check", schema="check")
    assert document["ok"] is True
    assert document["problems"] == document["repairs"] == document["notes"] == []
    assert set(document["counts"]) == {*EVENTS, "waiting", "scheduled", "running"}
    assert document["counts"]["enqueued"] == 10
    assert document["counts"]["waiting"] == 4


def test_what_is_broken_is_listed_and_the_status_is_one(laneq: Commands, busy: Stage):
    busy.client.hdel(busy.keys.jobs, "w")
    document = laneq.json("check", schema="check", status=1)
    (problem,) = document["problems"]
    assert problem == {
        "kind": "no body", "id": "w", "lane": "normal", "detail": "waiting without a record",
    }  # fmt: skip
    answer = laneq("check")
    assert answer.status == 1
    assert answer.out.splitlines()[0] == "broken: 1 × no body:"
    assert "waiting without a record" in answer.out.splitlines()[2]
    busy.allow("no body")


def test_a_repair_says_what_it_did_and_ends_well_if_nothing_is_left(laneq: Commands, busy: Stage):
    busy.client.hdel(busy.keys.jobs, "w")
    document = laneq.json("check", "--repair", schema="check")
    assert document["ok"] is True
    assert [repair["did"] for repair in document["repairs"]] == [
        "made it a dead letter: body missing"
    ]
    assert "in order" in laneq.out("check", "--repair")


def test_what_cannot_be_repaired_is_left_and_the_status_is_one(laneq: Commands, busy: Stage):
    busy.client.hincrby(busy.key("counts", "normal"), "purged", 1)
    busy.client.hdel(busy.keys.jobs, "w")
    answer = laneq("check", "--repair")
    assert answer.status == 1
    assert "repaired 1 × no body:" in answer.out
    assert "broken: 1 × balance of a lane, 1 × balance of tasks:" in answer.out
    busy.allow("balance of a lane", "balance of tasks")


def test_nothing_published_is_in_order_and_said(laneq: Commands):
    answer = laneq("check")
    assert (answer.status, answer.out) == (0, "in order: 0 enqueued = 0\n")
    assert "no lanes" in answer.err


def test_no_redis_is_status_three(laneq: Commands):
    assert laneq("check", "--url", "redis://127.0.0.1:1/0").status == 3


def test_a_user_that_may_not_scan_gets_the_rest_and_a_note(laneq: Commands, busy: Stage, url: str):
    busy.client.execute_command(
        "ACL", "SETUSER", "noscan", "on", ">pw", "~*", "&*", "+@all", "-scan"
    )
    try:
        answer = laneq("check", "--url", url.replace("unix://", "unix://noscan:pw@"))
    finally:
        busy.client.execute_command("ACL", "DELUSER", "noscan")
    assert answer.status == 0, answer
    assert "may not SCAN" in answer.err
    assert answer.out.startswith("in order")


def test_the_schema_knows_every_kind():
    schema = json.loads((SCHEMAS / "check.json").read_text("utf-8"))
    kinds = schema["properties"]["problems"]["items"]["properties"]["kind"]["enum"]
    assert kinds == list(KINDS)
