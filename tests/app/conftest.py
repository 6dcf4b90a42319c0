"""Apps of a test, the colours in which they are asked, and a worker that does as it is told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import redis

from laneq import Job, LaneQ
from laneq.calls.lanes import read_lanes
from laneq.codec import encode_error, encode_value
from laneq.model import RemoteError
from tests import colours
from tests.colours import COLOURS
from tests.stage import Stage


class Colour(colours.Colour):
    """Asks a method or its asynchronous twin, which has an ``a`` in front of its name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.ends: list[LaneQ] = []

    def start(self, target: Any, verb: str, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Ask without waiting for the answer."""
        method = getattr(target, f"a{verb}" if self.is_async else verb)
        return self.begin(lambda: method(*args, **kwargs))

    def ask(self, target: Any, verb: str, /, *args: Any, **kwargs: Any) -> Any:
        """Ask and wait for the answer; in the synchronous colour in this thread."""
        if not self.is_async:
            return getattr(target, verb)(*args, **kwargs)
        return self.start(target, verb, *args, **kwargs).result(20)

    def end(self) -> None:
        for app in self.ends:
            self.ask(app, "close")
        super().end()


@pytest.fixture(params=COLOURS)
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
