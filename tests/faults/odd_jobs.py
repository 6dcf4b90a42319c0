"""Tasks that end in odd ways: what they raise, return and ask for; see the tests that use them."""

from __future__ import annotations

import asyncio

from laneq import LaneQ, Retry
from tests.faults.body import lanes, noted

app = LaneQ(lanes=lanes())
ONCE = Retry(1)


@app.task(name="nap")
async def nap(seconds: float) -> str:
    """Sleep."""
    with noted():
        await asyncio.sleep(seconds)
    return "slept"


@app.task(name="overrun", timeout=2, retry=ONCE)
async def overrun() -> None:
    """Sleep longer than it may."""
    with noted():
        await asyncio.sleep(60)
