"""Tasks for fault tests, run by workers that are processes of their own."""

from __future__ import annotations

import asyncio
import time

from laneq import LaneQ, Retry, current_job
from tests.faults.body import lanes, noted

app = LaneQ(lanes=lanes())
ONCE = Retry(1)


@app.task(name="nap")
async def nap(seconds: float, value: str = "slept") -> str:
    """Sleep, in the loop."""
    with noted():
        await asyncio.sleep(seconds)
    return value


@app.task(name="thread_nap")
def thread_nap(seconds: float, value: str = "slept") -> str:
    """Sleep, in a thread."""
    with noted():
        time.sleep(seconds)
    return value


@app.task(name="process_nap", executor="process")
def process_nap(seconds: float, value: str = "slept") -> str:
    """Sleep, in a child process."""
    with noted():
        time.sleep(seconds)
    return value


@app.task(name="fail", retry=ONCE)
async def fail(text: str = "no") -> None:
    """Raise, at the only attempt."""
    with noted():
        raise ValueError(text)


@app.task(name="fail_until", retry=Retry(10, base=0.05, jitter=False))
async def fail_until(attempt: int) -> int:
    """Raise until this attempt, which succeeds."""
    with noted():
        if current_job().attempt < attempt:
            raise ValueError("not yet")
    return attempt
