"""Jobs that end in every way, for workers that run while the namespace is checked."""

from __future__ import annotations

import asyncio

from laneq import Lane, LaneQ, Retry, current_job

app = LaneQ(
    lanes=[
        Lane("urgent", priority=1000, lease=2),
        Lane("normal", priority=100, lease=2, dead_max=50),
        Lane("batch", priority=10, lease=2),
    ],
)
snoozed: set[str] = set()
SOON = Retry(max_attempts=2, backoff="fixed", base=0.02, jitter=False)


@app.task(lane="normal", result_ttl=1)
async def quick(n: int) -> int:
    return n


@app.task(lane="urgent", result_ttl=0)
async def forgotten() -> None:
    return None


@app.task(lane="batch", result_ttl=0)
async def slow() -> None:
    await asyncio.sleep(0.05)


@app.task(lane="normal", retry=SOON, result_ttl=0)
async def fails_once() -> None:
    if current_job().attempt == 1:
        raise ValueError("the first time")


@app.task(lane="batch", retry=SOON)
async def fails() -> None:
    raise ValueError("x" * 2000)


@app.task(lane="normal", result_ttl=1)
async def snoozes() -> None:
    job = current_job()
    job.progress(1, 2, "half")
    if job.id not in snoozed:
        snoozed.add(job.id)
        job.snooze(0.05)


@app.task(lane="normal", result_ttl=0)
async def parent() -> None:
    for n in range(3):
        current_job().enqueue(quick.call(n))
    current_job().enqueue(forgotten.using(delay=0.05).call())
