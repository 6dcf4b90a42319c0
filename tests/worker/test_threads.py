"""Threads for plain functions: reuse, replacement, and the exception that ends them."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from typing import Any

from laneq.errors import JobTimeout
from laneq.worker.threads import Threads, Work


class Token:
    """What a run is to the threads."""

    began = 0.0


class Caller:
    """Starts calls and collects what came of them."""

    def __init__(self) -> None:
        self.ended: asyncio.Queue[tuple[Any, Any, BaseException | None]] = asyncio.Queue()
        self.threads = Threads(asyncio.get_running_loop(), lambda *end: self.ended.put_nowait(end))

    def call(self, function: Any, *args: Any) -> Token:
        token = Token()
        context = contextvars.copy_context()
        self.threads.start(Work(token, context, function, args, {}))
        return token

    async def end(self) -> tuple[Any, Any, BaseException | None]:
        async with asyncio.timeout(10):
            return await self.ended.get()


async def test_threads_are_reused() -> None:
    caller = Caller()
    names = set()
    for _ in range(10):
        caller.call(lambda: threading.current_thread().name)
        names.add((await caller.end())[1])
    assert len(names) == 1
    assert caller.threads.alive == 1
    caller.threads.close()


async def test_an_exception_is_handed_over() -> None:
    caller = Caller()
    token = caller.call(int, "x")
    ended, value, error = await caller.end()
    assert ended is token
    assert value is None
    assert isinstance(error, ValueError)
    assert token.began > 0
    caller.threads.close()


async def test_an_interrupt_ends_python_code_and_its_thread_is_not_used_again() -> None:
    caller = Caller()
    begun = threading.Event()

    def spin() -> None:
        begun.set()
        while True:
            time.sleep(0.001)

    token = caller.call(spin)
    await asyncio.to_thread(begun.wait)
    assert caller.threads.interrupt(token)
    assert not caller.threads.interrupt(token)
    assert isinstance((await caller.end())[2], JobTimeout)
    assert caller.threads.alive == 0
    caller.call(lambda: "next")
    assert (await caller.end())[1] == "next"
    caller.threads.close()


async def test_an_interrupt_of_a_call_that_has_ended_does_nothing() -> None:
    caller = Caller()
    token = caller.call(lambda: 1)
    await caller.end()
    assert not caller.threads.interrupt(token)
    caller.threads.close()


async def test_interrupts_that_race_with_the_end_lose_no_call() -> None:
    caller = Caller()
    for n in range(300):
        token = caller.call(lambda n=n: sum(range(n * 10)))
        caller.threads.interrupt(token)
        ended, value, error = await caller.end()
        assert ended is token
        assert isinstance(error, JobTimeout) or value == sum(range(n * 10))
    assert caller.ended.empty()
    caller.threads.close()
