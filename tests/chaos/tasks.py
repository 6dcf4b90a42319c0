"""The tasks of a chaos run: each way in which a job can end, and each place where one can run.

A job's result is the fence of the attempt that returned it, so that the books can tell which
attempt was believed.

The one that runs in processes of its own is in `tests.chaos.app`, where those can find it;
producers call it by its name.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from laneq import Lane, LaneQ, Retry, current_job
from tests.chaos import diary

#: Names of the life of records and of the lease in seconds, in a worker's environment.
KEEP: Final = "LANEQ_CHAOS_KEEP"
LEASE: Final = "LANEQ_CHAOS_LEASE"

#: Attempts of a task that is to succeed in the end, however many workers it loses.
MANY: Final = 30

#: The lane that is purged now and then; in no other is a job ever dropped.
SCRAP: Final = "scrap"

LANES: Final = ("urgent", "normal", "batch", SCRAP)

_PRIORITIES: Final = (1000, 100, 10, 50)
SOON: Final = Retry(MANY, base=0.05, cap=0.5)
_TWICE: Final = Retry(2, base=0.05, cap=0.5)


def build(
    *, url: str | None = None, namespace: str | None = None, keep_s: float, lease_s: float
) -> LaneQ:
    """Return an app with the tasks of a chaos run.

    Args:
        url: where Redis is; None for that of the environment.
        namespace: likewise.
        keep_s: seconds that records of ended jobs are kept.
        lease_s: of every lane.
    """
    lanes = [
        Lane(name, priority=priority, lease=lease_s, dead_max=None)
        for name, priority in zip(LANES, _PRIORITIES, strict=True)
    ]
    app = LaneQ(url, namespace=namespace, lanes=lanes)

    def task(name: str, **options: Any) -> Callable[..., Any]:
        given: Any = {"name": name, "retry": SOON, "result_ttl": keep_s} | options
        return app.task(**given)

    _add_plain(task)
    _add_that_end_otherwise(task)

    @task("parent")
    async def parent(number: str, children: int) -> int:
        with diary.noted(number):
            quick = app.tasks["quick"]
            for n in range(children):
                child = current_job().enqueue(quick.call(f"{number}.{n}", 0.0))
                diary.write(diary.CHILD, number, child.id)
        return current_job().fence

    return app


def _add_plain(task: Callable[..., Any]) -> None:
    @task("quick")
    async def quick(number: str, seconds: float) -> int:
        with diary.noted(number):
            await asyncio.sleep(seconds)
        return current_job().fence

    @task("in_thread")
    def in_thread(number: str, seconds: float) -> int:
        with diary.noted(number):
            time.sleep(seconds)
        return current_job().fence

    @task("tells")
    async def tells(number: str, seconds: float) -> int:
        with diary.noted(number):
            for n in range(10):
                current_job().progress(n, 10)
                await asyncio.sleep(seconds / 10)
        return current_job().fence

    @task("snoozes")
    async def snoozes(number: str, seconds: float) -> int:
        with diary.noted(number):
            age = datetime.now(UTC) - current_job().enqueued_at
            if age.total_seconds() < seconds:
                current_job().snooze(0.2)
        return current_job().fence

    @task("flaky")
    async def flaky(number: str, failures: int) -> int:
        with diary.noted(number):
            if current_job().attempt <= failures:
                raise ValueError("not yet")
        return current_job().fence

    @task("once", retry=Retry(1))
    async def once(number: str, seconds: float) -> int:
        with diary.noted(number):
            await asyncio.sleep(seconds)
        return current_job().fence


def _add_that_end_otherwise(task: Callable[..., Any]) -> None:
    @task("doomed", retry=_TWICE)
    async def doomed(number: str) -> int:
        with diary.noted(number):
            raise ValueError("never")

    @task("quits")
    async def quits(number: str) -> int:
        with diary.noted(number):
            current_job().give_up("enough")

    @task("too_long", retry=_TWICE, timeout=0.2)
    async def too_long(number: str) -> int:
        with diary.noted(number):
            await asyncio.sleep(60)
        return current_job().fence

    @task("expires", expires=0.5)
    async def expires(number: str, seconds: float) -> int:
        with diary.noted(number):
            await asyncio.sleep(seconds)
        return current_job().fence
