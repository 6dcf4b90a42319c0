"""Fault G4: dead letters beyond a limit are dropped, but never without a word."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final
from unittest import mock

from laneq import Lane
from laneq.calls import stats
from tests.faults.clocks import Clock
from tests.faults.conftest import NewField
from tests.faults.field import Field, two_sizes, wait_until

ODD_JOBS: Final = Path(__file__).with_name("odd_jobs.py")
DAY_S: Final = 86_400


def _depth(field: Field, lane: str) -> stats.Depths:
    (depth,) = field.app.sync_driver.call(stats.depths(field.keys, [lane]))
    return depth


@two_sizes("limit, deaths", ci=(100, 500), full=(1_000, 5_000))
def test_fault_G4_letters_beyond_the_limit_are_dropped_counted_and_told(
    new_field: NewField, tmp_path: Path, limit: int, deaths: int
) -> None:
    clock = Clock(tmp_path / "clock")
    with mock.patch.dict(os.environ, clock.env):
        field = new_field(
            app=ODD_JOBS,
            lanes=[
                Lane("normal", dead_max=limit, dead_age=7 * DAY_S),
                Lane("keeps", dead_max=None, dead_age=None),
            ],
        )
    fixed = tmp_path / "fixed"
    dies = field.tasks.dies_unless
    worker = field.worker(slots=1)  # so that they die in the order of the enqueue
    for lane in ("keeps", "normal"):
        prepared = dies.using(lane=lane)
        field.app.enqueue_many(prepared.call(str(fixed), n) for n in range(deaths))
    wait_until(lambda: _depth(field, "normal").counts.get("dead") == deaths, 120)
    wait_until(lambda: _depth(field, "keeps").counts.get("dead") == deaths, 120)

    # The newest are kept, and what is gone is a number that operators see.
    worker.until("the oldest are dropped")
    assert _depth(field, "keeps").dead_letters == deaths
    shown = field.laneq_json("lanes", "show", "normal")
    assert (shown["dead"], shown["dead_dropped"]) == (limit, deaths - limit)
    assert f"{limit:,}, and {deaths - limit:,} older ones dropped" in field.laneq(
        "lanes", "show", "normal"
    )
    letters = field.laneq_json("dead", "--lane", "normal", "--limit", str(deaths))
    assert [letter["args"][1] for letter in letters] == list(
        range(deaths - 1, -1 + deaths - limit, -1)
    )
    for letter in letters:
        _is_complete(letter, fixed)
    assert len(field.laneq_json("dead", "--lane", "keeps", "--limit", str(2 * deaths))) == deaths

    # Age takes the rest, where there is a limit.
    clock.shift(8 * DAY_S)
    wait_until(lambda: _depth(field, "normal").dead_letters == 0, 30)
    assert _depth(field, "normal").counts["dropped"] == deaths
    assert _depth(field, "keeps").dead_letters == deaths

    # What is kept can run again.
    fixed.touch()
    answer = field.laneq_json("dead", "retry", "--all")
    assert answer == {"revived": deaths, "no_body": 0, "skipped": 0}
    wait_until(lambda: _depth(field, "keeps").counts.get("succeeded") == deaths, 120)
    assert worker.count("the oldest are dropped") == 1, worker.text
    worker.term()
    assert worker.wait() == 0


def _is_complete(letter: dict[str, Any], fixed: Path) -> None:
    assert letter["task"] == "dies_unless"
    assert letter["lane"] == "normal"
    assert letter["args"][0] == str(fixed)
    assert letter["error"]["type"] == "LookupError"
    assert letter["error"]["message"] == f"number {letter['args'][1]} finds nothing"
    assert "dies_unless" in letter["error"]["traceback"]
    assert (letter["attempt"], letter["max_attempts"]) == (1, 1)
