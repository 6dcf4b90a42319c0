"""`laneq check` finds every kind of damage, and `--repair` mends it or says that it cannot."""

from __future__ import annotations

import contextlib
import random

import pytest
import redis

from laneq import check
from tests.lua.damage import DAMAGES, fill
from tests.stage import SECOND, Stage


@pytest.fixture
def busy(stage: Stage) -> Stage:
    """A namespace with a job in each state."""
    fill(stage)
    return stage


def kinds(report: check.Report) -> set[str]:
    return {problem.kind for problem in report.problems}


def test_a_namespace_in_order_has_no_problem_and_needs_no_repair(busy):
    before = busy.snapshot()
    report = busy.audit(is_repair=True)
    assert (report.problems, report.repairs, report.notes) == ([], [], [])
    now = busy.snapshot()
    before["state"].pop(b"clock"), now["state"].pop(b"clock")
    assert now == before


def test_every_kind_of_problem_is_told_of_and_made_by_hand():
    assert {damage.kind for damage in DAMAGES.values()} == set(check.KINDS) - {"balance of tasks"}
    assert "balance of tasks" in DAMAGES["an attempt that did not end"].left


@pytest.mark.parametrize("what", DAMAGES)
def test_damage_is_found_mended_and_then_gone(busy, what):
    damage = DAMAGES[what]
    damage.do(busy, busy.client)
    assert damage.kind in kinds(busy.audit())

    mended = busy.audit(is_repair=True)
    assert kinds(mended) == damage.left
    if not damage.left:
        assert damage.kind in {repair.kind for repair in mended.repairs}
    assert {job_id: busy.state(job_id) for job_id in damage.after} == damage.after or (
        damage.kind == "key"
    )

    again = busy.audit(is_repair=True)
    assert kinds(again) == damage.left
    assert again.repairs == []
    busy.allow(*damage.left)


@pytest.mark.parametrize("what", [what for what in DAMAGES if DAMAGES[what].after])
def test_what_was_mended_runs_to_its_end(busy, what):
    damage = DAMAGES[what]
    damage.do(busy, busy.client)
    busy.audit(is_repair=True)
    other = busy.worker("other", slots=30)
    for _ in range(3):
        busy.forward(61 * SECOND)
        other.claim(is_look=True)
        for job_id in list(other.held):
            other.finish(job_id, number=SECOND)
    assert not any(busy.places(word) for word in ("waiting", "scheduled", "leases"))
    left = kinds(busy.audit())
    assert left <= damage.left
    busy.allow(*left)


@pytest.mark.parametrize("seed", range(12))
def test_damages_together_leave_at_most_sums_that_are_off(busy, seed):
    """Where much is lost no part tells of the whole; what is left is told, and listed only."""
    mixed = [what for what in DAMAGES if "wrong type" not in what and "fleet" not in what]
    chosen = random.Random(seed).sample(mixed, 3)
    for what in chosen:
        # One may have taken away what the other breaks.
        with contextlib.suppress(redis.ResponseError, redis.DataError, TypeError, AttributeError):
            DAMAGES[what].do(busy, busy.client)
    left = kinds(busy.audit(is_repair=True))
    sums = {kind for kind in check.KINDS if kind.startswith(("balance", "attempts"))}
    assert left <= sums | {"no body", "config", "key"}, chosen
    again = busy.audit(is_repair=True)
    assert (kinds(again), again.repairs) == (left, []), chosen
    busy.allow(*left)
