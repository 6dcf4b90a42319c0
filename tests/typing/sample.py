"""How user code is typed: every line is checked by mypy and by pyright, both strict.

A line that must be refused ends in ``# expect: error``; the test looks that each checker
complains about exactly these. It is never run.
"""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from laneq import (
    Job,
    JobView,
    Lane,
    LaneQ,
    PreparedTask,
    Retry,
    RunningJob,
    State,
    TaskCall,
    current_job,
)

app = LaneQ(
    "redis://127.0.0.1:6379/0",
    namespace="typing",
    lanes=[Lane("urgent", priority=1000, reserve=2, slo=0.25), Lane("batch", priority=10)],
    connect_timeout=timedelta(seconds=1),
)


@app.task
def plain(doc: str, *, deep: bool = False) -> int:
    """A task without brackets."""
    return len(doc)


@app.task(lane="urgent", timeout=5, retry=Retry(max_attempts=5), expires=datetime.now(UTC))
async def charge(order_id: int) -> str:
    """An asynchronous task with options."""
    return str(order_id)


@app.task()
def nothing() -> None:
    """A task that returns nothing."""


assert_type(plain("a"), int)
coroutine: Coroutine[Any, Any, str] = charge(1)


def blocking() -> None:
    """The blocking colour."""
    job = plain.enqueue("a.txt", deep=True)
    assert_type(job, Job[int])
    assert_type(job.result(timeout=10), int)
    assert_type(job.state(), State | None)
    assert_type(job.cancel(), bool)
    assert_type(job.info(), JobView)
    assert_type(charge.enqueue(17).result(), str)
    assert_type(charge.using(delay=30, lane="batch").enqueue(17), Job[str])
    prepared: PreparedTask[[int], str] = charge.using(at=datetime.now(UTC))
    assert_type(prepared.call(17), TaskCall[str])
    assert_type(plain.call("a"), TaskCall[int])
    assert_type(app.enqueue_many([plain.call(d) for d in ("a", "b")]), list[Job[int]])
    assert_type(app.enqueue("shop.tasks.reindex", 1, deep=True), Job[Any])
    assert_type(app.ref("x").using(lane="batch", delay=5).enqueue("a"), Job[Any])
    assert_type(app.job("id"), Job[Any])
    with app, app.testing() as t:
        assert_type(t.run_all(), int)


async def asynchronous() -> None:
    """The asynchronous colour."""
    job = await charge.aenqueue(17)
    assert_type(job, Job[str])
    assert_type(await job.aresult(10), str)
    assert_type(await job.astate(), State | None)
    assert_type(await plain.using(boost=3).aenqueue("a"), Job[int])
    assert_type(await app.aenqueue_many(plain.call(d) for d in "ab"), list[Job[int]])
    async with app, app.testing() as t:
        assert_type(await t.arun_all(advance=True), int)


def inside() -> None:
    """What a running job may do."""
    job = current_job()
    assert_type(job, RunningJob)
    assert_type(job.enqueue(charge.call(1)), Job[str])
    assert_type(job.deadline, datetime | None)
    job.progress(1, 10, "begun")
    if job.is_cancelled:
        job.give_up("cancelled")
    job.retry(delay=timedelta(minutes=1))


def refused() -> None:
    """What a checker is to refuse."""
    plain.enqueue(1)  # expect: error
    plain.enqueue()  # expect: error
    plain.enqueue("a", depth=3)  # expect: error
    plain.call(b"a")  # expect: error
    charge.using(delay=30).enqueue("17")  # expect: error
    plain.using(dealy=30)  # expect: error
    plain.using(executor="fibre")  # expect: error
    app.task(laen="urgent")  # expect: error
    app.enqueue_many(["a.txt"])  # expect: error
    current_job().enqueue(plain)  # expect: error
    assert_type(plain.enqueue("a").result(), str)  # expect: error
