"""``laneq lanes``: what an operator sees of lanes, and how they are steered."""

from __future__ import annotations

import re

import pytest

from laneq import Lane
from tests.cli.conftest import Commands
from tests.stage import Stage

KEYS = [
    "name", "priority", "depth", "scheduled", "running", "oldest_wait_s", "wait_ms", "run_ms",
    "latency_ms", "arrivals_per_s", "completions_per_s", "reserve", "reserve_recommended",
    "priority_adherence", "overtaken_share", "paused", "dead", "counts",
]  # fmt: skip


def lane_of(laneq: Commands, name: str) -> dict:
    rows = laneq.json("lanes", schema="lanes")
    return next(row for row in rows if row["name"] == name)


# --- list ---


def test_lanes_without_a_verb_lists_them_most_urgent_first(laneq: Commands, stage: Stage):
    rows = laneq.json("lanes", schema="lanes")
    assert [row["name"] for row in rows] == ["critical", "urgent", "normal", "batch"]
    assert rows == laneq.json("lanes", "list", schema="lanes")


def test_the_keys_of_a_lane_are_those_promised(laneq: Commands, stage: Stage):
    for row in laneq.json("lanes", schema="lanes"):
        assert list(row) == KEYS


def test_depths_and_counts_are_those_of_the_lane(laneq: Commands, stage: Stage):
    stage.put("a", "b", "c")
    stage.put("later", when="+60000000")
    worker = stage.worker()
    worker.take()
    row = lane_of(laneq, "normal")
    assert (row["depth"], row["scheduled"], row["running"]) == (2, 1, 1)
    assert row["counts"]["enqueued"] == 4
    assert row["counts"]["started"] == 1
    assert row["oldest_wait_s"] >= 0
    worker.finish("a")


def test_a_due_job_that_no_worker_took_in_counts_as_waiting(laneq: Commands, stage: Stage):
    stage.put("due", when="@1000000")
    row = lane_of(laneq, "normal")
    assert (row["depth"], row["scheduled"]) == (1, 0)
    assert row["oldest_wait_s"] > 1


def test_a_window_that_is_not_kept_is_wrong_usage(laneq: Commands, stage: Stage):
    assert laneq("lanes", "--window", "2m").status == 2
    assert laneq.json("lanes", "--window", "1h", schema="lanes")


def test_the_table_has_a_line_for_each_lane_and_no_boxes_in_a_pipe(laneq: Commands, stage: Stage):
    stage.put(*(f"job-{n}" for n in range(1200)))
    lines = laneq.out("lanes").splitlines()
    assert [line.split()[0] for line in lines] == ["lane", "critical", "urgent", "normal", "batch"]
    assert "1,200" in lines[3]
    assert "\x1b" not in "".join(lines)
    assert re.fullmatch(r"[ -~]*", "".join(lines)), "no box characters"


def test_a_paused_lane_is_marked_in_the_table(laneq: Commands, stage: Stage):
    assert "paused" not in laneq.out("lanes")
    laneq.out("lanes", "pause", "batch")
    (line,) = [line for line in laneq.out("lanes").splitlines() if line.startswith("batch")]
    assert line.endswith("paused")


def test_a_namespace_without_lanes_is_told_as_such(laneq: Commands):
    answer = laneq("lanes")
    assert (answer.status, answer.out) == (0, "")
    assert "has no lanes" in answer.err
    assert laneq.json("lanes", schema="lanes") == []


# --- show ---


def test_show_has_declaration_override_and_what_is_in_force(laneq: Commands, stage: Stage):
    laneq.out("lanes", "set", "urgent", "priority=2000", "slo=250ms")
    shown = laneq.json("lanes", "show", "urgent", schema="lane")
    assert shown["declared"]["priority"] == 1000
    assert shown["overridden"] == {"priority": 2000, "slo": 0.25}
    assert shown["settings"]["priority"] == 2000
    assert shown["settings"]["lease"] == 15
    assert [window["window_s"] for window in shown["windows"]] == [60, 300, 3600]
    text = laneq.out("lanes", "show", "urgent")
    assert re.search(r"^priority +1,000 +2,000 +2,000$", text, re.MULTILINE)


def test_show_of_an_unknown_lane_lists_the_known_ones(laneq: Commands, stage: Stage):
    answer = laneq("lanes", "show", "urgnet")
    assert answer.status == 2
    assert "'urgnet'" in answer.err
    assert "batch, critical, normal, urgent" in answer.err
    assert "Did you mean 'urgent'?" in answer.err


def test_show_says_what_the_priority_means_against_each_other_lane(laneq: Commands, stage: Stage):
    shown = laneq.json("lanes", "show", "batch", schema="lane")
    assert list(shown["order"]) == ["critical", "urgent", "normal"]
    by_lane = {one["lane"]: one for one in shown["standing"]["against"]}
    assert by_lane["normal"]["overtakes_new_after_s"] == 45
    assert by_lane["normal"]["starves_behind_s"] == 355
    assert by_lane["urgent"]["overtakes_new_after_s"] is None
    assert shown["standing"]["sure_after_s"] is None
    assert shown["standing"]["starved_by"] == ["critical", "urgent", "normal"]
    text = laneq.out("lanes", "show", "batch")
    assert "Order. The wait has no bound: critical, urgent and normal can keep" in text
    assert "Overtakes new jobs of normal after 45 s." in text


def test_show_of_the_first_lane_says_that_nothing_holds_it_back(laneq: Commands, stage: Stage):
    shown = laneq.json("lanes", "show", "critical", schema="lane")
    assert shown["standing"]["sure_after_s"] == 0
    assert shown["order"]["batch"] == "Is never overtaken by batch."


# --- set, reset, pause, resume ---


def test_set_shows_old_and_new_and_acts_at_the_next_claim(laneq: Commands, stage: Stage):
    stage.put("first", lane="normal")
    stage.put("second", lane="batch")
    text = laneq.out("lanes", "set", "batch", "priority=500", "aging=0")
    assert text.splitlines() == ["batch: priority 10 → 500", "batch: aging 2 → 0"]
    stage.set_lane("critical", {})
    worker = stage.worker(slots=2)
    assert worker.take() == ["second", "first"]
    worker.finish("first")
    worker.finish("second")


def test_set_tells_a_wrong_option_or_value_and_changes_nothing(laneq: Commands, stage: Stage):
    before = laneq.json("lanes", "show", "batch", schema="lane")["settings"]
    for change, told in [
        ("prority=5", "Did you mean 'priority'?"),
        ("priority=high", "must be a number"),
        ("reserve=-1", "reserve"),
        ("priority", "KEY=VALUE"),
        ("name=x", "unknown option"),
        ("lease=0.5", "lease"),
    ]:
        answer = laneq("lanes", "set", "batch", change)
        assert answer.status == 2, change
        assert told in answer.err
    assert laneq.json("lanes", "show", "batch", schema="lane")["settings"] == before


def test_a_setting_of_ten_years_is_read_back_exactly(laneq: Commands, stage: Stage):
    laneq.out("lanes", "set", "batch", "dead_age=3650d", "slo=none")
    shown = laneq.json("lanes", "show", "batch", schema="lane")
    assert shown["settings"]["dead_age"] == 3650 * 86400
    assert shown["overridden"]["slo"] is None
    laneq.out("lanes", "set", "batch", "priority=11")
    assert laneq.json("lanes", "show", "batch", schema="lane")["settings"]["dead_age"] == 315360000


def test_reset_brings_the_declaration_back(laneq: Commands, stage: Stage):
    laneq.out("lanes", "set", "batch", "priority=500")
    done = laneq.json("lanes", "reset", "batch", schema="lane-change")
    assert done["changes"] == {"priority": {"old": 500, "new": 10}}
    assert lane_of(laneq, "batch")["priority"] == 10
    assert "nothing was overridden" in laneq.out("lanes", "reset", "batch")


def test_a_paused_lane_starts_nothing_until_it_is_resumed(laneq: Commands, stage: Stage):
    stage.put("job")
    done = laneq.json("lanes", "pause", "normal", schema="lane-change")
    assert done["changes"] == {"paused": {"old": False, "new": True}}
    stage.set_lane("critical", {})
    worker = stage.worker()
    assert worker.take() == []
    laneq.out("lanes", "resume", "normal")
    stage.set_lane("critical", {})
    assert worker.take() == ["job"]
    worker.finish("job")


@pytest.mark.parametrize("verb", ["show", "pause", "resume", "reset", "purge"])
def test_each_verb_refuses_an_unknown_lane(laneq: Commands, stage: Stage, verb: str):
    answer = laneq("lanes", verb, "nope")
    assert answer.status == 2
    assert "unknown lane 'nope'" in answer.err


# --- what may wait for ever ---


APART = (Lane("high", priority=5000), Lane("mid", priority=4500), Lane("low", priority=4300))


def test_a_change_that_lets_a_lane_wait_for_ever_is_refused_and_changes_nothing(
    laneq: Commands, stage: Stage
):
    stage.publish(*APART)
    for changes in (["priority=10"], ["aging_cap=1"], ["target=5m"], ["aging_cap=5", "aging=9"]):
        answer = laneq("lanes", "set", "low", *changes)
        assert answer.status == 2, changes
        assert "may_starve: lane 'low' can wait for ever behind 'high'" in answer.err
        assert f"laneq lanes set low {' '.join(changes)} may_starve=true" in answer.err
        assert laneq.json("lanes", "show", "low", schema="lane")["overridden"] == {}


def test_a_change_is_made_where_the_same_call_says_that_the_lane_may_starve(
    laneq: Commands, stage: Stage
):
    stage.publish(*APART)
    answer = laneq("lanes", "set", "low", "priority=10", "may_starve=true")
    assert answer.status == 0
    assert answer.out.splitlines() == [
        "low: priority 4,300 → 10",
        "low: may_starve no → yes",
    ]
    assert "no job of low starts while" in answer.err
    assert "accepted knowingly: may_starve is set" in answer.err
    shown = laneq.json("lanes", "show", "low", schema="lane")
    assert shown["settings"]["may_starve"] is True
    assert shown["standing"]["unsaid"] == []
    assert shown["standing"]["accepted"]["high"] == "may_starve"
    text = laneq.out("lanes", "show", "low")
    assert "jobs waiting for ever.\nAccepted knowingly: may_starve is set.\n" in text
    # From now on it may be changed as one likes.
    assert laneq("lanes", "set", "low", "priority=11").err == ""


def test_a_change_that_starves_another_lane_is_refused_until_that_one_may(
    laneq: Commands, stage: Stage
):
    stage.publish(*APART)
    answer = laneq("lanes", "set", "low", "priority=5500")
    assert answer.status == 2
    assert "lane 'mid' can wait for ever behind 'low'" in answer.err
    assert answer.err.rstrip().endswith("laneq lanes set mid may_starve=true, and then this")
    laneq.out("lanes", "set", "mid", "may_starve=true")
    laneq.out("lanes", "set", "low", "priority=5500")


@pytest.mark.parametrize("change", ["aging=0", "reserve=0", "priority=4200.5"])
def test_strict_priority_that_is_asked_for_is_accepted_and_told(
    laneq: Commands, stage: Stage, change: str
):
    stage.publish(*APART)
    answer = laneq("lanes", "set", "low", change)
    assert answer.status == 0
    told = "laneq: no job of low starts while critical or high or mid has jobs waiting; accepted "
    assert answer.err.startswith(told) == (change == "aging=0")


def test_a_lane_that_starves_already_is_no_reason_to_refuse_other_changes(
    laneq: Commands, stage: Stage
):
    stage.publish(*APART, Lane("far", priority=10))  # as another app may
    shown = laneq.json("lanes", "show", "far", schema="lane")["standing"]
    assert shown["accepted"] == {"critical": "default_order", "urgent": "default_order"}
    assert shown["unsaid"] == ["high", "mid", "low"]
    text = laneq.out("lanes", "show", "far")
    assert "\nNothing says that it may wait for ever behind high, mid and low." in text
    for change in ("slo=1", "priority=20", "aging_cap=900", "paused=true"):
        answer = laneq("lanes", "set", "far", change)
        assert (answer.status, answer.err) == (0, ""), change
    assert laneq("lanes", "set", "high", "priority=5001").status == 0
    laneq.out("lanes", "set", "far", "reserve=1")
    text = laneq.out("lanes", "show", "far")
    assert "jobs waiting for ever.\nIts reserve ends that: a slot" in text
    answer = laneq("lanes", "set", "far", "reserve=0")
    assert answer.status == 2
    assert "can wait for ever behind 'high', 'mid' and 'low'" in answer.err


def test_a_reset_is_never_refused_and_says_what_it_lets_wait_for_ever(
    laneq: Commands, stage: Stage
):
    stage.publish(Lane("high", priority=5000), Lane("low", priority=10))
    laneq.out("lanes", "set", "low", "reserve=1")
    answer = laneq("lanes", "reset", "low")
    assert answer.status == 0
    assert "high or urgent has jobs waiting; nothing says that it may wait for ever" in answer.err
    laneq.out("lanes", "set", "low", "may_starve=yes")
    answer = laneq("lanes", "set", "low", "may_starve=no")
    assert answer.status == 0
    assert "nothing says that it may wait for ever behind high" in answer.err


def test_the_help_of_set_says_what_is_refused(laneq: Commands):
    assert "may_starve=true" in laneq.out("lanes", "set", "--help")


# --- purge ---


def test_purge_refuses_to_guess_where_nobody_can_be_asked(laneq: Commands, stage: Stage):
    stage.put("job")
    answer = laneq("lanes", "purge", "normal")
    assert answer.status == 2
    assert "--yes" in answer.err
    assert stage.state("job") == "waiting"


def test_purge_drops_what_waits_and_leaves_what_runs(laneq: Commands, stage: Stage):
    stage.put("runs", *(f"job-{n}" for n in range(700)))
    stage.put("later", when="+60000000")
    stage.put("other", lane="batch")
    worker = stage.worker()
    assert worker.take() == ["runs"]
    done = laneq.json("lanes", "purge", "normal", "--yes", schema="lane-purge")
    assert done == {"lane": "normal", "purged": 701}
    row = lane_of(laneq, "normal")
    assert (row["depth"], row["scheduled"], row["running"]) == (0, 0, 1)
    assert row["counts"]["purged"] == 701
    assert stage.state("other") == "waiting"
    worker.finish("runs")


def test_purge_of_an_empty_lane_asks_nothing(laneq: Commands, stage: Stage):
    assert laneq.out("lanes", "purge", "normal") == "purged 0 jobs of lane normal\n"


def test_a_target_is_set_live_as_the_priority_that_it_stands_for(laneq: Commands, stage: Stage):
    text = laneq.out("lanes", "set", "batch", "target=30s")
    assert text.splitlines() == [
        "batch: target none → 30 s",
        "batch: priority 10 → 940",
        "batch: aging_cap 800 → 860",
    ]
    stage.put("first", lane="normal")
    stage.put("second", lane="batch")
    stage.set_lane("critical", {})
    worker = stage.worker(slots=2)
    assert worker.take() == ["second", "first"]
    worker.finish("first")
    worker.finish("second")
    done = laneq.json("lanes", "set", "batch", "priority=11", schema="lane-change")
    assert done["changes"]["target"] == {"old": 30, "new": None}
    shown = laneq.json("lanes", "show", "batch", schema="lane")["settings"]
    assert (shown["target"], shown["priority"], shown["aging_cap"]) == (None, 11, 860)
