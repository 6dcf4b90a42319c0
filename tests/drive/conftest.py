"""The drivers under test, in every colour, and scripts to give them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

import pytest
import redis

from laneq.calls.call import Call
from laneq.drive import Address, AsyncDriver, SyncDriver
from laneq.keys import keys_of
from laneq.scripts import Script
from tests import colours
from tests.colours import COLOURS, LOOPS

D = TypeVar("D", SyncDriver, AsyncDriver)


def script(name: str, body: str) -> Script:
    """Make a script from its text."""
    plain = body.encode()
    text = b"#!lua\n" + plain
    return Script(
        name=name,
        text=text,
        plain=plain,
        sha=hashlib.sha1(text).hexdigest().encode(),
        flags=(),
        keys=(),
        lane_keys=(),
        args=(),
        groups=(),
    )


ECHO = script("echo", "return ARGV[1]")
COUNT = script("count", "return redis.call('INCR', KEYS[1])")
GET = script("get", "return redis.call('GET', KEYS[1])")

# As in enqueue.lua: whether the try before was applied is told by its session.
COUNT_ONCE = script(
    "count_once",
    """
    local before_seq = tonumber(ARGV[2])
    if before_seq > 0 and tonumber(redis.call('GET', KEYS[2]) or '0') >= before_seq then
      return 'again'
    end
    redis.call('SET', KEYS[1], ARGV[1], 'EX', 60)
    return redis.call('INCR', KEYS[3])
    """,
)


def echo(text: bytes | str) -> Call[bytes]:
    """Return a call that answers with what it was given."""
    return Call(ECHO, (), (text,), bytes)


class Counter:
    """A number in Redis that calls raise, and a channel of its own."""

    def __init__(self, raw: redis.Redis, namespace: str) -> None:
        self.raw: Any = raw
        self.key = keys_of(namespace).prefix + b"counts:n"
        self.channel = keys_of(namespace).prefix + b"channel"

    @property
    def value(self) -> int:
        return int(self.raw.get(self.key) or 0)

    def count(self) -> Call[Any]:
        return Call(COUNT, (self.key,), (), lambda reply: reply)

    def count_once(self) -> Call[Any]:
        return Call(COUNT_ONCE, (self.key,), (), lambda reply: reply, once=True)

    def get(self) -> Call[bytes | None]:
        return Call(GET, (self.key,), (), lambda reply: reply)


def open_driver(kind: type[D], url: str, namespace: str, **options: Any) -> D:
    """Open a driver of a namespace; options are the driver's, and the timeouts of the address."""
    timeouts = {
        name: options.pop(name)
        for name in ("connect_timeout_s", "read_timeout_s")
        if name in options
    }
    address = Address.parse(url, **timeouts)
    return kind(address, prefix=keys_of(namespace).prefix, **options)


def open_sync(url: str, namespace: str, **options: Any) -> SyncDriver:
    """Open a driver whose connections bear the namespace's name."""
    return open_driver(SyncDriver, url, namespace, client_name=namespace, **options)


def open_async(url: str, namespace: str, **options: Any) -> AsyncDriver:
    """Open a driver whose connections bear the namespace's name."""
    return open_driver(AsyncDriver, url, namespace, client_name=namespace, **options)


class Colour(colours.Colour):
    """Opens drivers of one colour, each behind blocking methods."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._drivers: list[Driven] = []

    def open(self, url: str, namespace: str = "drive", **options: Any) -> Driven:
        kind: Any = AsyncDriver if self.is_async else SyncDriver
        driver = open_driver(kind, url, namespace, **options)
        driven = Driven(self, driver)
        self._drivers.append(driven)
        return driven

    def end(self) -> None:
        for driven in self._drivers:
            driven.close()
        super().end()


class Driven:
    """One driver of a colour."""

    def __init__(self, colour: Colour, driver: Any) -> None:
        self.colour = colour
        self.driver = driver

    def begin(self, verb: str, *args: Any) -> Future[Any]:
        return self.colour.begin(lambda: getattr(self.driver, verb)(*args))

    def call(self, call: Call[Any]) -> Any:
        return self.begin("call", call).result(20)

    def run(self, plan: Any) -> Any:
        return self.begin("run", plan).result(20)

    def command(self, *args: Any) -> Any:
        return self.begin("command", *args).result(20)

    def close(self) -> None:
        self.begin("aclose" if self.colour.is_async else "close").result(20)


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> Iterator[Colour]:
    """Each kind of driver in turn."""
    made = Colour(request.param)
    yield made
    made.end()


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Run a coroutine on each kind of loop, as `asyncio.run` does."""

    def run_one(coroutine: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            return runner.run(coroutine)

    return run_one


@pytest.fixture
def counter(raw: redis.Redis, namespace: str) -> Counter:
    """A number in Redis."""
    return Counter(raw, namespace)


def clients(raw: Any, name: str) -> list[str]:
    """Return the ids of the server's clients with this name."""
    return [client["id"] for client in raw.client_list() if client["name"] == name]
