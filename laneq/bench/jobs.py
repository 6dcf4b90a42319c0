"""The tasks that are benchmarked, as a user would write them."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from laneq import LaneQ
from laneq.bench.stamps import Pen
from laneq.options import DEFAULT_LANES, Lane

#: Environment variable: how many no-op jobs there are, so that the last one is known.
COUNT: Final = "LANEQ_BENCH_COUNT"

#: Environment variable: options of the lane `urgent`, JSON, that the default one has not.
URGENT_LANE: Final = "LANEQ_BENCH_URGENT_LANE"

#: Kinds of stamps, and what the three numbers of each are.
WORK: Final = "work"  # batch job: 0, start, end
URGENT: Final = "urgent"  # submitted, start, end
FIRST: Final = "first"  # of the first no-op job: end, CPU of the process, 0
LAST: Final = "last"  # of the last no-op job: likewise
LINE: Final = "line"  # submitted, first line, 0
STARTED: Final = "started"  # start, the job's number, pid


def build(
    *,
    url: str | None = None,
    namespace: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> LaneQ:
    """Return an app with the benchmarks' tasks; it is where any app is.

    The lanes are the default ones, but for what the environment says of `urgent`. What a job
    writes down goes to the file that the benchmark names; a process that only enqueues needs none.
    """
    app = LaneQ(url, namespace=namespace, lanes=_lanes(environment))
    diary = _Diary()
    _add_timed(app, diary)
    _add_short(app, diary)
    return app


def _lanes(environment: Mapping[str, str]) -> list[Lane]:
    changes = json.loads(environment.get(URGENT_LANE, "{}"))
    return [replace(lane, **changes) if lane.name == "urgent" else lane for lane in DEFAULT_LANES]


class _Diary:
    """What the jobs of one process write down."""

    def __init__(self) -> None:
        self._pen: Pen | None = None
        self._done = 0
        self._all = int(os.environ.get(COUNT, "0"))

    def write(self, kind: str, first: int, second: int = 0, third: int = 0) -> None:
        if self._pen is None:
            self._pen = Pen.from_environment()
        self._pen.write(kind, first, second, third)

    def count(self) -> None:
        """Count a no-op job; only the first and the last of all write something."""
        self._done += 1
        if self._done == 1:
            self.write(FIRST, time.monotonic_ns(), time.process_time_ns())
        elif self._done == self._all:
            self.write(LAST, time.monotonic_ns(), time.process_time_ns())


async def _last(seconds: float) -> tuple[int, int]:
    """Sleep no less than so long; return start and end. A loop's timer may be 1 ms early."""
    start_ns = now_ns = time.monotonic_ns()
    end_ns = start_ns + int(seconds * 1e9)
    while now_ns < end_ns:
        await asyncio.sleep((end_ns - now_ns) / 1e9)
        now_ns = time.monotonic_ns()
    return start_ns, now_ns


def _add_timed(app: LaneQ, diary: _Diary) -> None:
    @app.task(name="bench.urgent", lane="urgent")
    async def urgent(submitted_ns: int, seconds: float) -> None:
        diary.write(URGENT, submitted_ns, *await _last(seconds))

    @app.task(name="bench.work", lane="batch")
    async def work(seconds: float) -> None:
        diary.write(WORK, 0, *await _last(seconds))

    @app.task(name="bench.endless", lane="batch")
    async def endless(number: int) -> None:
        diary.write(STARTED, time.monotonic_ns(), number, os.getpid())
        await asyncio.Event().wait()


def _add_short(app: LaneQ, diary: _Diary) -> None:
    @app.task(name="bench.noop", result_ttl=0)
    async def noop() -> None:
        diary.count()

    @app.task(name="bench.noop_kept")
    async def noop_kept() -> int:
        diary.count()
        return 1

    @app.task(name="bench.line", result_ttl=0)
    async def line(submitted_ns: int) -> None:
        now_ns = time.monotonic_ns()
        diary.write(LINE, submitted_ns, now_ns)

    @app.task(name="bench.plain")
    async def plain(number: int, text: str) -> None:
        del number, text
