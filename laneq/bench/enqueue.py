"""How many jobs a second one producer enqueues: one by one, and in bulk.

The limits are loops over one connection that store the same bytes in a script of the
commands that this needs: one job in a call, and as many as a bulk call has; and as many
calls in flight as there are coroutines.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from laneq.bench import bare, jobs
from laneq.bench.figures import Progress, combine
from laneq.bench.rig import Rig, Space
from laneq.calls.jobs import BATCH

Row = dict[str, Any]

_ARGS: Final = (12345, "user@example.com")
_SCALE: Final = 10
_DIGITS: Final = {"jobs_per_s": 0, "limit_jobs_per_s": 0, "share_of_limit": 2}

_HANDLERS: Final = 50
_GATHERED: Final = f"aenqueue ×{_HANDLERS}"


def measure(rig: Rig, *, count: int = 50_000, runs: int = 3, progress: Progress) -> Iterator[Row]:
    """Yield a row for each way to enqueue.

    Args:
        rig: the server.
        count: jobs of a bulk run; single calls do a tenth of it.
        runs: how often each is measured; the row has medians and ranges.
        progress: told what goes on.
    """
    ways: dict[str, Callable[[Space, int], float]] = {
        "enqueue": _single,
        "aenqueue": _single_async,
        _GATHERED: _single_gathered,
        "enqueue_many": _bulk,
        "aenqueue_many": _bulk_async,
    }
    for way, rate_of in ways.items():
        is_bulk = way.endswith("many")
        n = count if is_bulk else max(count // _SCALE, 1)
        found = []
        for run in range(1, runs + 1):
            progress(f"{way}: run {run} of {runs}")
            with rig.space() as space:
                rate = rate_of(space, n)
                limit = bare.store_rate(
                    space,
                    jobs=n,
                    jobs_per_call=BATCH if is_bulk else 1,
                    in_flight=_HANDLERS if way == _GATHERED else 1,
                )
            found.append(
                {"jobs_per_s": rate, "limit_jobs_per_s": limit, "share_of_limit": rate / limit}
            )
        yield {"way": way, "jobs": n} | combine(found, _DIGITS)


def _single(space: Space, n: int) -> float:
    with jobs.build(url=space.url, namespace=space.namespace) as app:
        task = app.tasks["bench.plain"]
        task.enqueue(*_ARGS)
        start = time.monotonic()
        for _ in range(n):
            task.enqueue(*_ARGS)
        return n / (time.monotonic() - start)


def _bulk(space: Space, n: int) -> float:
    with jobs.build(url=space.url, namespace=space.namespace) as app:
        task = app.tasks["bench.plain"]
        task.enqueue(*_ARGS)
        start = time.monotonic()
        app.enqueue_many([task.call(*_ARGS) for _ in range(n)])
        return n / (time.monotonic() - start)


def _single_async(space: Space, n: int) -> float:
    async def go() -> float:
        async with jobs.build(url=space.url, namespace=space.namespace) as app:
            task = app.tasks["bench.plain"]
            await task.aenqueue(*_ARGS)
            start = time.monotonic()
            for _ in range(n):
                await task.aenqueue(*_ARGS)
            return n / (time.monotonic() - start)

    return asyncio.run(go())


def _single_gathered(space: Space, n: int) -> float:
    """Fifty coroutines that enqueue one by one, as the handlers of a web server do."""

    async def go() -> float:
        async with jobs.build(url=space.url, namespace=space.namespace) as app:
            task = app.tasks["bench.plain"]
            await task.aenqueue(*_ARGS)

            async def handle(share: int) -> None:
                for _ in range(share):
                    await task.aenqueue(*_ARGS)

            shares = [n // _HANDLERS + (i < n % _HANDLERS) for i in range(_HANDLERS)]
            start = time.monotonic()
            await asyncio.gather(*map(handle, shares))
            return n / (time.monotonic() - start)

    return asyncio.run(go())


def _bulk_async(space: Space, n: int) -> float:
    async def go() -> float:
        async with jobs.build(url=space.url, namespace=space.namespace) as app:
            task = app.tasks["bench.plain"]
            await task.aenqueue(*_ARGS)
            start = time.monotonic()
            await app.aenqueue_many([task.call(*_ARGS) for _ in range(n)])
            return n / (time.monotonic() - start)

    return asyncio.run(go())
