"""A namespace with a job in each state, and every kind of damage that can be done to it by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from laneq.calls import workers
from laneq.calls.workers import WorkerInfo
from tests.lua.test_claim_outcomes import ERROR
from tests.stage import SECOND, Stage

Break = Callable[[Stage, Any], object]


def fill(stage: Stage) -> None:
    """Put a job into each state.

    r runs, b runs with progress; k has ended and is kept, d is a dead letter; x is between two
    attempts, s is delayed; h was handed back and waits, w and v wait for the first time.
    """
    stage.put("r", "b", "k", "d", "x", "h")
    stage.put("s", when="+60000000")
    worker = stage.worker(slots=6)
    worker.take()
    info = WorkerInfo("n", "h", 1, 6, {}, stage.lanes.names, ["t"])
    stage.run(workers.register(stage.keys, worker.id, info))
    from tests.lua.test_progress import report

    report(stage, "b", worker.held["b"].fence)
    worker.claim(
        free=0,
        outcomes=[
            worker.ended("k", number=100 * SECOND),
            worker.ended("d", "dead", body=ERROR),
            worker.ended("x", "retried", number=60 * SECOND, body=ERROR),
            worker.ended("h", "handed_back"),
        ],
    )
    stage.put("w", "v")


@dataclass(frozen=True)
class Damage:
    """Something that is broken by hand.

    Attributes:
        kind: what a check must say.
        do: what breaks it.
        after: job → its state after a repair; None for one that is gone.
        left: kinds of problems that no repair can mend.
    """

    kind: str
    do: Break
    after: dict[str, str | None]
    left: frozenset[str] = frozenset()


def _normal(s: Stage, word: str) -> bytes:
    return s.key(word, "normal")


def _run_line(job_id: str, line: str) -> Break:
    return lambda s, c: c.hset(s.keys.runs, job_id, line)


def _end_by_hand(stage: Stage, client: Any) -> None:
    """Let k, which has ended, wait again."""
    client.zrem(stage.keys.ended, "k")
    client.zadd(_normal(stage, "waiting"), {"k": 5})


def _forget_all_but_run_line(stage: Stage, client: Any) -> None:
    client.hdel(stage.keys.jobs, "h")
    client.zrem(_normal(stage, "waiting"), "h")


def _move_letter(stage: Stage, client: Any) -> None:
    client.zrem(_normal(stage, "dead"), "d")
    client.zadd(stage.key("dead", "batch"), {"d": 5})


def _move_lease(stage: Stage, client: Any) -> None:
    until = client.zscore(_normal(stage, "leases"), "r")
    client.zrem(_normal(stage, "leases"), "r")
    client.zadd(stage.key("leases", "batch"), {"r": until})


def _say_it_succeeded(stage: Stage, client: Any) -> None:
    line = client.hget(stage.keys.outcomes, "d")
    client.hset(stage.keys.outcomes, "d", line.replace(b"dead ", b"succeeded ", 1))


def _same_score(word: str, *ids: str) -> Break:
    def do(stage: Stage, client: Any) -> None:
        score = client.zscore(_normal(stage, word), ids[0])
        client.zadd(_normal(stage, word), dict.fromkeys(ids, score))

    return do


def _with_fleet(field: str, value: int | None) -> Break:
    """Reserve slots over the fleet, of which a worker tells what it has; then break a sum."""

    def do(stage: Stage, client: Any) -> None:
        stage.set_lane("urgent", {"reserve": 1})
        stage.worker("w", slots=6).claim(free=2)
        assert stage.audit().problems == []
        if value is None:
            client.hdel(stage.keys.fleet, field)
        else:
            client.hset(stage.keys.fleet, field, value)

    return do


DAMAGES: Final = {
    # --- in no place ---
    "a record that nobody enqueued": Damage(
        "orphan", lambda s, c: c.hset(s.keys.jobs, "ghost", "t\n"), {"ghost": "dead"}
    ),
    "a lane's waiting jobs are gone": Damage(
        "orphan",
        lambda s, c: c.delete(_normal(s, "waiting")),
        {"w": "waiting", "v": "waiting", "h": "waiting"},
    ),
    "a lane's scheduled jobs are gone": Damage(
        "orphan", lambda s, c: c.delete(_normal(s, "scheduled")), {"s": "dead", "x": "waiting"}
    ),
    "a lane's leases are gone": Damage(
        "orphan", lambda s, c: c.delete(_normal(s, "leases")), {"r": "waiting", "b": "waiting"}
    ),
    "the dead letters are gone": Damage(
        "orphan", lambda s, c: c.delete(_normal(s, "dead")), {"d": "dead"}
    ),
    "the ended jobs are gone": Damage(
        "orphan", lambda s, c: c.delete(s.keys.ended), {"k": "succeeded"}
    ),
    "a record that is none, in no place": Damage(
        "orphan", lambda s, c: c.hset(s.keys.jobs, "ghost", "nothing"), {"ghost": "dead"}
    ),
    "a run line of nobody": Damage(
        "orphan", _run_line("ghost", "0 w normal 1 1 1 1 0 0 t"), {"ghost": None}
    ),
    "an unreadable run line of nobody": Damage("orphan", _run_line("ghost", "x"), {"ghost": None}),
    "only the run line is left of a job": Damage("orphan", _forget_all_but_run_line, {"h": "dead"}),
    "a history of nobody": Damage(
        "orphan", lambda s, c: c.hset(s.keys.history, "ghost", "x"), {"ghost": None}
    ),
    "progress of nobody": Damage(
        "orphan", lambda s, c: c.hset(s.keys.progress, "ghost", "x"), {"ghost": None}
    ),
    "a run line of an ended job": Damage(
        "orphan", _run_line("k", "0 w normal 1 1 1 1 0 0 t"), {"k": "succeeded"}
    ),
    "a run line of a dead letter": Damage(
        "orphan", _run_line("d", "0 w normal 1 1 1 1 0 0 t"), {"d": "dead"}
    ),
    # --- in two places ---
    "a job in two lanes": Damage(
        "two places", lambda s, c: c.zadd(s.key("waiting", "batch"), {"w": 5}), {"w": "waiting"}
    ),
    "a job that waits and has a lease": Damage(
        "two places", lambda s, c: c.zadd(_normal(s, "leases"), {"w": 5}), {"w": "waiting"}
    ),
    "a job that runs and waits": Damage(
        "two places", lambda s, c: c.zadd(_normal(s, "waiting"), {"r": 5}), {"r": "running"}
    ),
    "a job that runs in two lanes": Damage(
        "two places", lambda s, c: c.zadd(s.key("leases", "batch"), {"r": 5}), {"r": "running"}
    ),
    "an ended job that waits": Damage(
        "two places", lambda s, c: c.zadd(_normal(s, "waiting"), {"k": 5}), {"k": "succeeded"}
    ),
    "a waiting job among the ended": Damage(
        "two places", lambda s, c: c.zadd(s.keys.ended, {"w": 5}), {"w": "waiting"}
    ),
    "a waiting job among the scheduled": Damage(
        "two places", lambda s, c: c.zadd(s.key("scheduled", "batch"), {"h": 5}), {"h": "waiting"}
    ),
    # --- no record ---
    "a waiting job without a record": Damage(
        "no body", lambda s, c: c.hdel(s.keys.jobs, "w"), {"w": "dead"}
    ),
    "a waiting job whose record is none": Damage(
        "no body", lambda s, c: c.hset(s.keys.jobs, "w", "nothing"), {"w": "dead"}
    ),
    "a scheduled job without a record": Damage(
        "no body", lambda s, c: c.hdel(s.keys.jobs, "s"), {"s": "dead"}
    ),
    "a job between attempts without a record": Damage(
        "no body", lambda s, c: c.hdel(s.keys.jobs, "x"), {"x": "dead"}
    ),
    "a running job without a record": Damage(
        "no body", lambda s, c: c.hdel(s.keys.jobs, "r"), {"r": "running"}, frozenset({"no body"})
    ),
    "a dead letter without a record": Damage(
        "no body", lambda s, c: c.hdel(s.keys.jobs, "d"), {"d": "dead"}, frozenset({"no body"})
    ),
    "every record is gone": Damage(
        "no body",
        lambda s, c: c.delete(s.keys.jobs),
        {"w": "dead", "v": "dead", "h": "dead", "s": "dead", "x": "dead", "r": "running"},
        frozenset({"no body"}),
    ),
    # --- run lines ---
    "a lease without a run line": Damage(
        "run line", lambda s, c: c.hdel(s.keys.runs, "r"), {"r": "waiting"}
    ),
    "a lease without a run line and without a record": Damage(
        "no body", lambda s, c: (c.hdel(s.keys.runs, "r"), c.hdel(s.keys.jobs, "r")), {"r": "dead"}
    ),
    "a lease that was never taken": Damage(
        "run line",
        lambda s, c: (
            c.zrem(_normal(s, "waiting"), "w"), c.zadd(_normal(s, "leases"), {"w": 5})
        ),
        {"w": "waiting"},
    ),
    "a lease with an unreadable run line": Damage(
        "run line", _run_line("r", "x"), {"r": "waiting"}
    ),
    "a lease that no worker holds": Damage(
        "run line", _run_line("r", "7 - normal 1 1 1 1 0 0 t"), {"r": "waiting"}
    ),
    "a lease without a fence": Damage(
        "run line", _run_line("r", "0 w normal 1 1 1 1 0 0 t"), {"r": "waiting"}
    ),
    "a run line of a running job with another lane": Damage(
        "run line", _run_line("r", "7 w batch 1 1 1 1 0 0 t"), {"r": "running"}
    ),
    "a lease in another lane": Damage("run line", _move_lease, {"r": "running"}),
    "a run line of a running job with a lane that is none": Damage(
        "run line", _run_line("r", "7 w typo 1 1 1 1 0 0 t"), {"r": "running"}
    ),
    "a fence of a job that waits": Damage(
        "run line", _run_line("w", "7 w normal 1 1 1 1 0 0 t"), {"w": "waiting"}
    ),
    "an unreadable run line of a job that waits": Damage(
        "run line", _run_line("h", "x"), {"h": "waiting"}
    ),
    "a run line that its record does not tell of": Damage(
        "run line", _run_line("w", "0 w normal 1 1 1 1 0 0 t"), {"w": "waiting"}
    ),
    "a run line that its record tells of is gone": Damage(
        "run line", lambda s, c: c.hdel(s.keys.runs, "x"), {"x": "scheduled"}
    ),
    "a run line of a job that waits with another lane": Damage(
        "run line", _run_line("h", "0 w batch 1 1 1 1 0 0 t"), {"h": "waiting"}
    ),
    "a history that the run line does not tell of": Damage(
        "run line", lambda s, c: c.hset(s.keys.history, "r", "x"), {"r": "running"}
    ),
    "a history of a job that never ran": Damage(
        "run line", lambda s, c: c.hset(s.keys.history, "w", "x"), {"w": "waiting"}
    ),
    "progress that the run line does not tell of": Damage(
        "run line", lambda s, c: c.hset(s.keys.progress, "x", "x"), {"x": "scheduled"}
    ),
    # --- outcomes ---
    "an unreadable outcome of an open job": Damage(
        "outcome", lambda s, c: c.hset(s.keys.outcomes, "w", "x"), {"w": "waiting"}
    ),
    "an outcome of a job that waits": Damage(
        "outcome",
        lambda s, c: c.hset(s.keys.outcomes, "w", "dead normal 1 1 1 1 1 w 7 t\n!no"),
        {"w": "waiting"},
    ),
    "an ended job that waits again": Damage("outcome", _end_by_hand, {"k": "succeeded"}),
    "an ended job without an outcome": Damage(
        "outcome", lambda s, c: c.hdel(s.keys.outcomes, "k"), {"k": None}
    ),
    "a dead letter without an outcome": Damage(
        "outcome", lambda s, c: c.hdel(s.keys.outcomes, "d"), {"d": "dead"}
    ),
    "a dead letter with an unreadable outcome": Damage(
        "outcome", lambda s, c: c.hset(s.keys.outcomes, "d", "x"), {"d": "dead"}
    ),
    "a dead letter whose outcome says that it succeeded": Damage(
        "outcome", _say_it_succeeded, {"d": "succeeded"}
    ),
    "a dead letter of another lane": Damage("outcome", _move_letter, {"d": "dead"}),
    # --- scores ---
    "two waiting jobs of one score": Damage(
        "order", _same_score("waiting", "w", "v"), {"w": "waiting", "v": "waiting"}
    ),
    "two scheduled jobs of one score": Damage(
        "order", _same_score("scheduled", "s", "x"), {"s": "scheduled", "x": "scheduled"}
    ),
    "a job that waits from the future": Damage(
        "order",
        lambda s, c: c.zadd(_normal(s, "waiting"), {"w": s.now() + 3600 * SECOND}),
        {"w": "waiting"},
    ),
    # --- beside the jobs ---
    "a hint that is too late": Damage(
        "hint", lambda s, c: c.hset(s.keys.state, "next_due", s.now() + 3600 * SECOND), {}
    ),
    "no hint": Damage("hint", lambda s, c: c.hdel(s.keys.state, "next_due"), {}),
    "a watcher that nothing tells of": Damage(
        "hint", lambda s, c: c.zadd(s.keys.watchers, {"w": s.now() + SECOND}), {}
    ),
    "two tokens": Damage("wake", lambda s, c: c.rpush(_normal(s, "wake"), 1, 1), {}),
    "a ring of notes that is too long": Damage(
        "bound", lambda s, c: c.rpush(_normal(s, "rates"), *["1 0 0 0 0 0"] * 800), {}
    ),
    "a worker without a heartbeat": Damage(
        "worker", lambda s, c: c.hset(s.keys.workers, "ghost", "{}"), {}
    ),
    "a heartbeat of nobody": Damage(
        "worker", lambda s, c: c.zadd(s.keys.beats, {"ghost": s.now() + SECOND}), {}
    ),
    "a sum of the fleet that is off": Damage("fleet", _with_fleet("free:urgent", 5), {}),
    "the sums of the fleet are gone": Damage("fleet", _with_fleet("slots:urgent", None), {}),
    "a watcher of a job that has ended": Damage(
        "watcher",
        lambda s, c: (
            c.zadd(s.keys.watchers, {"k": s.now() + SECOND}),
            c.hset(s.keys.state, "watched", s.now() + SECOND),
        ),
        {"k": "succeeded"},
    ),
    "a watcher of nobody": Damage(
        "watcher",
        lambda s, c: (
            c.zadd(s.keys.watchers, {"ghost": s.now() + SECOND}),
            c.hset(s.keys.state, "watched", s.now() + SECOND),
        ),
        {},
    ),
    "the lanes in force are lost": Damage(
        "config", lambda s, c: c.hdel(s.keys.state, "config", "version"), {}
    ),
    "an override of no lane": Damage(
        "config", lambda s, c: c.hset(s.keys.overrides, "typo", "{}"), {}, frozenset({"config"})
    ),
    # --- keys ---
    "a key of nobody": Damage(
        "key", lambda s, c: c.set(s.keys.prefix + b"stray", 1), {}, frozenset({"key"})
    ),
    "a lane key of no lane": Damage(
        "key", lambda s, c: c.rpush(s.keys.prefix + b"wake:typo", 1), {}, frozenset({"key"})
    ),
    "a call without an end": Damage(
        "key", lambda s, c: c.persist(s.keys.call("w")), {}, frozenset({"key"})
    ),
    "a permanent key that will expire": Damage(
        "key", lambda s, c: c.expire(s.keys.jobs, 1000), {}, frozenset({"key"})
    ),
    "a key of the wrong type": Damage(
        "key", lambda s, c: c.set(s.key("scheduled", "batch"), 1), {}, frozenset({"key"})
    ),
    # --- counts, which no repair touches ---
    "a count of a lane that is off": Damage(
        "balance of a lane",
        lambda s, c: c.hincrby(_normal(s, "counts"), "succeeded", 1),
        {},
        frozenset({"balance of a lane", "attempts of a lane", "balance of tasks"}),
    ),
    "a count of a task that is off": Damage(
        "balance of a task",
        lambda s, c: c.hincrby(s.keys.task_counts, "t\tenqueued", 1),
        {},
        frozenset({"balance of a task", "balance of tasks"}),
    ),
    "two tasks that are off, and their sum is not": Damage(
        "balance of a task",
        lambda s, c: (
            c.hincrby(s.keys.task_counts, "t\tenqueued", 1),
            c.hincrby(s.keys.task_counts, "u\tenqueued", -1),
        ),
        {},
        frozenset({"balance of a task"}),
    ),
    "an attempt that did not end": Damage(
        "attempts of a lane",
        lambda s, c: c.hincrby(_normal(s, "counts"), "started", 1),
        {},
        frozenset({"attempts of a lane", "balance of tasks"}),
    ),
    "an attempt of a task that did not end": Damage(
        "attempts of a task",
        lambda s, c: c.hincrby(s.keys.task_counts, "t\tstarted", 1),
        {},
        frozenset({"attempts of a task", "balance of tasks"}),
    ),
}  # fmt: skip
