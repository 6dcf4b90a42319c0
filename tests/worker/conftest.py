"""Apps of a test with workers in the test's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from laneq import Job, JobView, LaneQ
from laneq.calls.jobs import look
from laneq.calls.lanes import read_lanes
from laneq.options import WorkerOptions
from laneq.worker import Worker


class Crew:
    """Makes apps and workers of one namespace, and ends them with the test."""

    def __init__(self, url: str, namespace: str, stack: contextlib.AsyncExitStack) -> None:
        self.url = url
        self.namespace = namespace
        self._stack = stack

    def app(self, url: str | None = None, **options: Any) -> LaneQ:
        """Return an app."""
        app = LaneQ(url or self.url, namespace=self.namespace, **options)
        self.closing(app)
        return app

    def closing(self, app: LaneQ) -> None:
        """Close an app at the end of the test."""
        self._stack.push_async_callback(app.aclose)

    async def start(self, app: LaneQ, slots: int = 4, **options: Any) -> Worker:
        """Return a worker that takes jobs."""
        worker = Worker(app, WorkerOptions(concurrency=slots, **options))
        await worker.start()
        self._stack.push_async_callback(worker.stop, 0)
        return worker


@pytest.fixture
async def crew(url: str, namespace: str, request: pytest.FixtureRequest) -> AsyncIterator[Crew]:
    """Apps and workers of the test."""
    if "proxy" in request.fixturenames:
        request.getfixturevalue("proxy")  # so that it outlives the workers
    async with contextlib.AsyncExitStack() as stack:
        yield Crew(url, namespace, stack)


@pytest.fixture
def app(crew: Crew) -> LaneQ:
    """An app with the default lanes."""
    return crew.app()


class Gate:
    """Lets a job say that it has begun, and holds it until the test lets it go.

    One for coroutines; `ThreadGate` is the one for threads.
    """

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.let_go = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def hold(self) -> None:
        self.begun.set()
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@pytest.fixture
def gate() -> Gate:
    """A gate for one coroutine."""
    return Gate()


class ThreadGate:
    """As `Gate`, for a function in a thread. Opened at the end of the test."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()
        self.let_go = threading.Event()

    def hold(self) -> None:
        self._loop.call_soon_threadsafe(self.begun.set)
        self.let_go.wait()
        with contextlib.suppress(RuntimeError):  # the test has ended without it
            self._loop.call_soon_threadsafe(self.ended.set)


@pytest.fixture
async def thread_gate() -> AsyncIterator[ThreadGate]:
    """A gate for one thread."""
    gate = ThreadGate()
    yield gate
    gate.let_go.set()


async def info(app: LaneQ, job: Job[Any]) -> JobView:
    """Return all that is known of a job."""
    lanes = await app.async_driver().call(read_lanes(app.keys))
    (view,) = await app.async_driver().call(look(app.keys, [job.id], lanes=lanes.names))
    assert view is not None
    return view
