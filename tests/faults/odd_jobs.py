"""Tasks that end in odd ways: what they raise, return and ask for; see the tests that use them."""

from __future__ import annotations

import asyncio

from laneq import LaneQ, Retry
from tests.faults.body import lanes, noted

app = LaneQ(lanes=lanes())
ONCE = Retry(1)
LANE = "normal" if "normal" in app.lanes else next(iter(app.lanes))


@app.task(name="nap", lane=LANE)
async def nap(seconds: float) -> str:
    """Sleep."""
    with noted():
        await asyncio.sleep(seconds)
    return "slept"


@app.task(name="overrun", lane=LANE, timeout=2, retry=ONCE)
async def overrun() -> None:
    """Sleep longer than it may."""
    with noted():
        await asyncio.sleep(60)


@app.task(name="touch", lane=LANE)
async def touch() -> None:
    """Note that it has run."""
    with noted():
        pass
