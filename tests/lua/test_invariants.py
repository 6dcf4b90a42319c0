"""tests/invariants.py finds what is broken, each kind of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.lua.test_claim_outcomes import ERROR
from tests.stage import SECOND, Stage

Break = Callable[[Stage, Any], object]

BREAKS: dict[str, tuple[str, Break]] = {
    "a record in no place": ("orphan", lambda s, c: c.hset(s.keys.jobs, "ghost", "t\n")),
    "a waiting job without a record": ("no body", lambda s, c: c.hdel(s.keys.jobs, "w")),
    "a job in two lanes": ("two places", lambda s, c: c.zadd(s.key("waiting", "batch"), {"w": 5})),
    "a job that waits and runs": (
        "two places", lambda s, c: c.zadd(s.key("leases", "normal"), {"w": 5}),
    ),
    "a lease without a run line": ("run line", lambda s, c: c.hdel(s.keys.runs, "r")),
    "a run line of no form": ("run line", lambda s, c: c.hset(s.keys.runs, "r", "x")),
    "a fence of a job that does not run": (
        "run line", lambda s, c: c.hset(s.keys.runs, "w", "7 w normal 1 1 1 1 0 0 t"),
    ),
    "a lease in another lane than its run line says": (
        "run line", lambda s, c: c.hset(s.keys.runs, "r", "7 w batch 1 1 1 1 0 0 t"),
    ),
    "a run line of an ended job": (
        "orphan", lambda s, c: c.hset(s.keys.runs, "k", "0 w normal 1 1 1 1 0 0 t"),
    ),
    "an outcome of an open job": ("outcome", lambda s, c: c.hset(s.keys.outcomes, "w", "x")),
    "an ended job without an outcome": ("outcome", lambda s, c: c.hdel(s.keys.outcomes, "k")),
    "a history of nobody": ("orphan", lambda s, c: c.hset(s.keys.history, "ghost", "x")),
    "progress of nobody": ("orphan", lambda s, c: c.hset(s.keys.progress, "ghost", "x")),
    "two jobs of one score": (
        "order", lambda s, c: c.zadd(s.key("waiting", "normal"), {"w": 5, "v": 5}),
    ),
    "a job that waits from the future": (
        "order", lambda s, c: c.zadd(s.key("waiting", "normal"), {"w": s.now() + 1}),
    ),
    "two tokens": ("wake", lambda s, c: c.rpush(s.key("wake", "normal"), 1, 1)),
    "a hint that is too late": (
        "hint", lambda s, c: c.hset(s.keys.state, "next_due", s.now() + 3600 * SECOND),
    ),
    "no hint": ("hint", lambda s, c: c.hdel(s.keys.state, "next_due")),
    "a count of a lane that is off": (
        "balance of a lane", lambda s, c: c.hincrby(s.key("counts", "normal"), "succeeded", 1),
    ),
    "a count of a task that is off": (
        "balance of a task", lambda s, c: c.hincrby(s.keys.task_counts, "t\tenqueued", 1),
    ),
    "an attempt that did not end": (
        "attempts of a lane", lambda s, c: c.hincrby(s.key("counts", "normal"), "started", 1),
    ),
    "an attempt of a task that did not end": (
        "attempts of a task", lambda s, c: c.hincrby(s.keys.task_counts, "t\tstarted", 1),
    ),
    "a key of nobody": ("key", lambda s, c: c.set(s.keys.prefix + b"stray", 1)),
    "a lane key of no lane": ("key", lambda s, c: c.rpush(s.keys.prefix + b"wake:typo", 1)),
    "a call without an end": ("key", lambda s, c: c.set(s.keys.call("w"), 1)),
}  # fmt: skip


@pytest.fixture
def busy(stage: Stage) -> Stage:
    """A namespace with a job in each state."""
    stage.put("r", "k", "d", "x")
    stage.put("s", when="+60000000")
    worker = stage.worker(slots=4)
    worker.take()
    worker.claim(
        free=0,
        outcomes=[
            worker.ended("k", number=SECOND),
            worker.ended("d", "dead", body=ERROR),
            worker.ended("x", "retried", number=60 * SECOND, body=ERROR),
        ],
    )
    stage.put("w", "v")
    return stage


def test_a_namespace_in_order_has_no_problem(busy):
    assert busy.problems() == []


@pytest.mark.parametrize("what", BREAKS)
def test_what_is_broken_is_found(busy, what):
    kind, break_it = BREAKS[what]
    break_it(busy, busy.client)
    found = {problem.kind for problem in busy.problems()}
    assert kind in found
    busy.client.delete(busy.keys.prefix + b"stray", busy.keys.prefix + b"wake:typo")
    busy.client.delete(busy.keys.call("w"))
    busy.allowed = found
