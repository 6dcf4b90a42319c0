"""Enqueue from coroutines: every method that asks Redis has an asynchronous twin.

Prints::

    42 is the answer
    [0, 1, 4, 9]
    nothing within 0.1 s: scheduled
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from laneq import LaneQ

app = LaneQ(namespace="async")


@app.task(lane="urgent", timeout=5)
async def answer(question: str) -> str:
    await asyncio.sleep(0)
    return f"{6 * 7} is the {question}"


@app.task(lane="batch")
def square(n: int) -> int:
    return n * n


async def main() -> None:
    job = await answer.aenqueue("answer")
    print(await job.aresult(timeout=10))

    jobs = await app.aenqueue_many(square.call(n) for n in range(4))  # one round trip
    print(await asyncio.gather(*(job.aresult() for job in jobs)))

    later = await square.using(delay=timedelta(hours=1)).aenqueue(5)
    try:
        await later.aresult(timeout=0.1)
    except TimeoutError:
        print("nothing within 0.1 s:", await later.astate())


if __name__ == "__main__":
    # `async with app:` closes the connections at the end; a test needs none.
    with app.testing():
        asyncio.run(main())
