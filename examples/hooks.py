"""Middleware: hooks around every job of an app's workers, here to log how long they take.

Prints::

    begins: resize in lane normal
    ends: resize succeeded at once
    begins: resize in lane normal
    failed: resize with ValueError
    ends: resize dead at once
"""

from __future__ import annotations

import time

from laneq import LaneQ, Middleware, Retry, RunningJob


class Log(Middleware):
    """Methods may be ``async def``; those that are not must not block."""

    def __init__(self) -> None:
        self.began: dict[str, float] = {}

    def before_job(self, job: RunningJob) -> None:
        self.began[job.id] = time.monotonic()
        print(f"begins: {job.task} in lane {job.lane}")

    async def after_job(self, job: RunningJob, outcome: str) -> None:
        took_s = time.monotonic() - self.began.pop(job.id)
        print(f"ends: {job.task} {outcome} {'at once' if took_s < 10 else 'late'}")

    def on_failure(self, job: RunningJob, error: BaseException) -> None:
        print(f"failed: {job.task} with {type(error).__name__}")


app = LaneQ(namespace="hooks", middleware=[Log()])


@app.task(name="resize", retry=Retry(max_attempts=1))
async def resize(width: int) -> int:
    if width <= 0:
        raise ValueError(width)
    return width // 2


if __name__ == "__main__":
    with app.testing() as t:
        app.enqueue_many([resize.call(640), resize.call(0)])
        t.run_all()
