"""A shop with a lane where a customer waits and one for what can be done later.

Start workers: ``laneq worker examples.shop:app -c 10 --reserve urgent=2``. Then, elsewhere:
``laneq enqueue examples.shop.charge 17 --wait`` and ``laneq enqueue examples.shop.reindex a.txt``.
"""

from __future__ import annotations

import asyncio
import time

from laneq import Lane, LaneQ, Retry

app = LaneQ(lanes=[Lane("urgent", priority=1000, slo=0.25), Lane("batch", priority=10)])


@app.task(lane="urgent", timeout=5, retry=Retry(max_attempts=5))
async def charge(order_id: int) -> str:
    """Charge the customer of an order."""
    await asyncio.sleep(0.02)
    return f"order {order_id} is paid"


@app.task(lane="batch")
def reindex(doc: str) -> int:
    """Index a document again; returns how many words it has."""
    time.sleep(0.2)
    return len(doc.split())
