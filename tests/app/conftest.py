"""Apps of a test, the colours in which they are asked, and a worker that does as it is told."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import redis
import uvloop

from laneq import Job, LaneQ
from laneq.calls.lanes import read_lanes
from laneq.codec import encode_error, encode_value
from laneq.model import RemoteError
from tests.stage import Stage

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


class Colour:
    """Asks a method or its asynchronous twin, which has an ``a`` in front of its name.

    The asynchronous colours have a loop in a thread of its own.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_async = name != "sync"
        self.ends: list[LaneQ] = []
        if self.is_async:
            self.loop = LOOPS[name]()
            self.thread = threading.Thread(target=self.loop.run_forever, name="colour")
            self.thread.start()

    def begin(self, target: Any, verb: str, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Ask without waiting for the answer."""
        if self.is_async:
            asked = getattr(target, f"a{verb}")(*args, **kwargs)
            return asyncio.run_coroutine_threadsafe(asked, self.loop)
        future: Future[Any] = Future()

        def work() -> None:
            try:
                future.set_result(getattr(target, verb)(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  handed to who asks the future
                future.set_exception(error)

        threading.Thread(target=work, name="colour", daemon=True).start()
        return future

    def ask(self, target: Any, verb: str, /, *args: Any, **kwargs: Any) -> Any:
        """Ask and wait for the answer; in the synchronous colour in this thread."""
        if not self.is_async:
            return getattr(target, verb)(*args, **kwargs)
        return self.begin(target, verb, *args, **kwargs).result(20)

    def end(self) -> None:
        for app in self.ends:
            self.ask(app, "close")
        if self.is_async:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join()
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()


@pytest.fixture(params=["sync", "asyncio", "uvloop"])
def colour(request: pytest.FixtureRequest) -> Iterator[Colour]:
    """Each way to ask in turn."""
    made = Colour(request.param)
    yield made
    made.end()


@pytest.fixture
def new_app(url: str, namespace: str) -> Iterator[Callable[..., LaneQ]]:
    """Make apps of the test's namespace on the real server; closed at the end."""
    with contextlib.ExitStack() as stack:

        def make(**options: Any) -> LaneQ:
            return stack.enter_context(LaneQ(url, namespace=namespace, **options))

        yield make


@pytest.fixture(params=["server", "testing"])
def app(
    request: pytest.FixtureRequest, new_app: Callable[..., LaneQ], colour: Colour
) -> Iterator[LaneQ]:
    """An app with the default lanes: on a real server, and in ``app.testing()``."""
    made = new_app()
    colour.ends.append(made)
    if request.param == "server":
        yield made
    else:
        with made.testing():
            yield made


class Hand:
    """A worker that does as it is told, on the real server."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.worker = stage.worker("hand", slots=100)

    def take(self) -> list[str]:
        """Claim what there is, and return the ids."""
        self.stage.lanes = self.stage.run(read_lanes(self.stage.keys))
        return self.worker.take()

    def returns(self, job: Job[Any], value: Any, *, keep_s: float = 60) -> None:
        """End a job that was taken with a value."""
        self.worker.finish(job.id, number=int(keep_s * 1e6), body=encode_value(value))

    def raises(self, job: Job[Any], error: RemoteError) -> None:
        """End a job that was taken as a dead letter."""
        self.worker.finish(job.id, "dead", body=encode_error(error))


@pytest.fixture
def hand(raw: redis.Redis, namespace: str) -> Hand:
    """A worker for the test's namespace."""
    return Hand(Stage(raw, namespace, is_fake=False))


def clients(raw: Any, name: str = "laneq") -> list[str]:
    """Return the ids of the server's clients with this name."""
    return [client["id"] for client in raw.client_list() if client["name"] == name]
