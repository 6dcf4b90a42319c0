"""Make connections with redis-py, then take the byte stream over.

redis-py does what is not hot: TCP, TLS, AUTH, HELLO 3, SELECT, CLIENT SETNAME,
asking sentinels. What it is given is decided here and nowhere else: no retries,
no health checks, no maintenance notifications, replies as bytes. Afterwards the
socket, or asyncio's stream, belongs to the caller; the redis-py object is gone.

The server is the one in the address; or the one that the sentinels call master; or, if it
turns out to be a node of a cluster, the node that has the namespace.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import redis.asyncio.connection as theirs_async
import redis.connection as theirs
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry
from redis.sentinel import Sentinel

from laneq.drive.address import Address
from laneq.drive.refusals import not_connected, unavailable
from laneq.drive.route import CONNECT_ERRORS, Place, Route
from laneq.errors import RedisUnavailable, StoreError

#: Seconds that one sentinel may take, so that a dead one leaves time for the next.
_SENTINEL_TIMEOUT_S: Final = 0.5
_LEAST_TIMEOUT_S: Final = 0.001


class _Deadline:
    """Bounds a whole connect, where redis-py bounds each of its steps.

    redis-py reads the timeouts anew for each address of a host and for the
    handshake: each gets what is left.
    """

    deadline: float = float("inf")

    @property
    def socket_timeout(self) -> float:
        return max(_LEAST_TIMEOUT_S, self.deadline - time.monotonic())

    @socket_timeout.setter
    def socket_timeout(self, value: float | None) -> None:
        """Take what redis-py sets, to no effect."""

    @property
    def socket_connect_timeout(self) -> float:
        return self.socket_timeout

    @socket_connect_timeout.setter
    def socket_connect_timeout(self, value: float | None) -> None:
        """Likewise."""


class _Told:
    """Keeps what the server says of itself in its answer to HELLO, as redis-py's sync ones do."""

    handshake_metadata: Any = None

    async def read_response(self, *args: Any, **options: Any) -> Any:
        response = await super().read_response(*args, **options)  # type: ignore[misc]
        if isinstance(response, dict) and b"mode" in response:
            self.handshake_metadata = response
        return response


class _AsyncTcpConnection(_Told, theirs_async.Connection):
    pass


class _AsyncTlsConnection(_Told, theirs_async.SSLConnection):
    pass


class _TcpConnection(_Deadline, theirs.Connection):  # type: ignore[misc]
    pass


class _TlsConnection(_Deadline, theirs.SSLConnection):  # type: ignore[misc]
    pass


class _UnixConnection(_Deadline, theirs.UnixDomainSocketConnection):  # type: ignore[misc]
    pass


def _settings(address: Address, client_name: str) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "db": address.db,
        "username": address.username,
        "password": address.password,
        "client_name": client_name,
        "protocol": 3,
        "health_check_interval": 0,
        "retry_on_timeout": False,
        "retry": None,
        "maint_notifications_config": None,
        "driver_info": None,
    }
    if address.scheme == "unix":
        settings["path"] = address.path
    else:
        settings["socket_keepalive"] = True
    if address.is_tls:
        settings |= dict(address.tls)
    return settings


def _told(connection: Any, word: bytes) -> bytes:
    """Return what the server said of itself at the handshake: its ``mode`` or its ``role``."""
    told: bytes = (connection.handshake_metadata or {}).get(word, b"")
    return told


def _check_master(address: Address, connection: Any, place: Place) -> None:
    """Refuse a server that the sentinels call master, and that sees itself as a replica."""
    if _told(connection, b"role") not in {b"", b"master"}:
        raise unavailable(
            address, f"{place[0]}:{place[1]}, the master by its sentinels, is a replica so far"
        )


def open_socket(
    address: Address,
    client_name: str,
    *,
    timeout_s: float | None = None,
    route: Route | None = None,
) -> socket.socket:
    """Return a connected, authenticated socket that speaks RESP3.

    Args:
        address: where to.
        client_name: shown by CLIENT LIST.
        timeout_s: seconds that it may take; None is the address's `connect_timeout_s`.
        route: what is known of where the namespace is; None for the server in the address.

    Raises:
        RedisUnavailable: no connection in time.
        RedisRefused: the server answered, and refused.
    """
    timeout_s = timeout_s or address.connect_timeout_s
    deadline = time.monotonic() + timeout_s
    connection: Any  # redis-py's own types are not complete
    try:
        settings = _settings(address, client_name)
        if address.scheme == "unix":
            make: Any = _UnixConnection
            connection = make(**settings)
            connection.deadline = deadline
            connection.connect()
        elif address.has_sentinels:
            place = find_master(address, timeout_s)
            connection = _connected(address, settings, place, deadline)
            try:
                _check_master(address, connection, place)
            except RedisUnavailable:
                connection.disconnect()
                raise
            if route is not None:
                route.master = place
        elif route is None:
            connection = _connected(address, settings, address.hosts[0], deadline)
        else:
            connection = _routed(address, settings, route, deadline)
    except CONNECT_ERRORS as error:
        raise not_connected(address, error, timeout_s) from error
    taken: socket.socket = connection._sock  # noqa: SLF001  this is the hand-over
    connection._sock = None  # noqa: SLF001
    taken.settimeout(address.read_timeout_s)
    return taken


def _connected(address: Address, settings: dict[str, Any], place: Place, deadline: float) -> Any:
    make: Any = _TlsConnection if address.is_tls else _TcpConnection
    connection = make(host=place[0], port=place[1], **settings)
    connection.deadline = deadline
    connection.connect()
    return connection


def _routed(address: Address, settings: dict[str, Any], route: Route, deadline: float) -> Any:
    """Connect to the server, or to the node of its cluster that has the namespace."""
    steps = route.seek(address.hosts[0])
    place, left = next(steps)
    while True:
        connection: Any = None
        try:
            connection = _connected(address, settings, place, _share(deadline, left))
            told = None
            if _told(connection, b"mode") == b"cluster":
                connection.send_command("CLUSTER", "MYID")
                id = connection.read_response()
                connection.send_command("CLUSTER", "SLOTS")
                told = id, connection.read_response()
        except CONNECT_ERRORS as error:
            if connection is not None:
                connection.disconnect()
            place, left = steps.throw(error)
            continue
        try:
            place, left = steps.send(told)
        except StopIteration:
            return connection
        except BaseException:
            connection.disconnect()
            raise
        connection.disconnect()


def _share(deadline: float, left: int) -> float:
    """Return until when one place may take, so that a dead one leaves time for those left."""
    now = time.monotonic()
    return now + (deadline - now) / (left + 1)


def _sentinel_settings(address: Address, timeout_s: float) -> dict[str, Any]:
    # One that is dead must leave time for the others and for the server.
    timeout_s = min(_SENTINEL_TIMEOUT_S, timeout_s / (len(address.hosts) + 1))
    settings: dict[str, Any] = {
        "username": address.sentinel_username,
        "password": address.sentinel_password,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
    }
    if address.is_tls:
        settings |= {"ssl": True, **dict(address.tls)}
    return settings


def _no_master(address: Address) -> str:
    return f"none of the sentinels names a live master of service {address.service!r}"


def find_master(address: Address, timeout_s: float) -> Place:
    """Return where the sentinels say that the master is.

    Raises:
        RedisUnavailable: none of them says so in time.
    """
    settings = _sentinel_settings(address, timeout_s) | {"retry": Retry(NoBackoff(), 0)}
    sentinel: Any = Sentinel(address.hosts, sentinel_kwargs=settings)  # type: ignore[no-untyped-call]
    try:
        host, port = sentinel.discover_master(address.service)
    except RedisError as error:
        raise unavailable(address, _no_master(address)) from error
    finally:
        sentinel.close()
    return str(host), int(port)


def open_sentinel_socket(address: Address, client_name: str) -> socket.socket:
    """Return a connection to one of the sentinels, as `open_socket` does to the server.

    Raises:
        RedisUnavailable: none can be reached.
        RedisRefused: the last one answered, and refused.
    """
    for n, each in enumerate(_each_sentinel(address), 1):
        try:
            return open_socket(each, client_name)
        except StoreError:
            if n == len(address.hosts):
                raise
    raise unavailable(address, "it names no sentinel")


async def open_sentinel_stream(
    address: Address, client_name: str
) -> tuple[asyncio.StreamWriter, bytes]:
    """Return a stream to one of the sentinels; the twin of `open_sentinel_socket`."""
    for n, each in enumerate(_each_sentinel(address), 1):
        try:
            return await open_stream(each, client_name)
        except StoreError:
            if n == len(address.hosts):
                raise
    raise unavailable(address, "it names no sentinel")


def _each_sentinel(address: Address) -> Iterator[Address]:
    """Yield the address of each sentinel, as that of a plain server."""
    for place in address.hosts:
        yield replace(
            address,
            scheme=address.scheme.removesuffix("+sentinel"),
            hosts=(place,),
            service="",
            db=0,
            username=address.sentinel_username,
            password=address.sentinel_password,
            connect_timeout_s=min(_SENTINEL_TIMEOUT_S, address.connect_timeout_s),
            sentinel_username=None,
            sentinel_password=None,
        )


async def open_stream(
    address: Address,
    client_name: str,
    *,
    timeout_s: float | None = None,
    route: Route | None = None,
) -> tuple[asyncio.StreamWriter, bytes]:
    """Return a connected, authenticated stream that speaks RESP3.

    The writer's transport is for the caller to take; the writer is to be kept as
    long as the transport, which it closes when it is dropped. With it come the
    bytes that asyncio has read already.

    Args:
        address: where to.
        client_name: shown by CLIENT LIST.
        timeout_s: seconds that it may take; None is the address's `connect_timeout_s`.
        route: what is known of where the namespace is; None for the server in the address.

    Raises:
        RedisUnavailable: no connection in time.
        RedisRefused: the server answered, and refused.
    """
    timeout_s = timeout_s or address.connect_timeout_s
    try:
        async with asyncio.timeout(timeout_s):
            settings = _settings(address, client_name)
            settings["socket_connect_timeout"] = settings["socket_timeout"] = timeout_s
            connection: Any = await _opened(address, settings, route, timeout_s)
    except CONNECT_ERRORS as error:
        raise not_connected(address, error, timeout_s) from error
    reader, writer = connection._reader, connection._writer  # noqa: SLF001  the hand-over
    connection._reader = connection._writer = None  # noqa: SLF001
    return writer, bytes(reader._buffer)  # noqa: SLF001


async def _opened(
    address: Address, settings: dict[str, Any], route: Route | None, timeout_s: float
) -> Any:
    if address.scheme == "unix":
        connection = theirs_async.UnixDomainSocketConnection(**settings)
        return await _connected_async(connection)
    if address.has_sentinels:
        place = await find_master_async(address, timeout_s)
        connection = await _connected_async(_made_async(address, settings, place))
        try:
            _check_master(address, connection, place)
        except RedisUnavailable:
            await _drop(connection)
            raise
        if route is not None:
            route.master = place
        return connection
    if route is None:
        return await _connected_async(_made_async(address, settings, address.hosts[0]))
    return await _routed_async(address, settings, route, time.monotonic() + timeout_s)


def _made_async(address: Address, settings: dict[str, Any], place: Place) -> Any:
    kind = _AsyncTlsConnection if address.is_tls else _AsyncTcpConnection
    return kind(host=place[0], port=place[1], **settings)


async def _connected_async(connection: Any) -> Any:
    try:
        await connection.connect()
    except BaseException:
        await _drop(connection)
        raise
    return connection


async def _routed_async(
    address: Address, settings: dict[str, Any], route: Route, deadline: float
) -> Any:
    """Connect to the server, or to the node of its cluster that has the namespace."""
    steps = route.seek(address.hosts[0])
    place, left = next(steps)
    while True:
        connection = _made_async(address, settings, place)
        try:
            async with asyncio.timeout(_share(deadline, left) - time.monotonic()):
                await connection.connect()
                told = None
                if _told(connection, b"mode") == b"cluster":
                    await connection.send_command("CLUSTER", "MYID")
                    id = await connection.read_response()
                    await connection.send_command("CLUSTER", "SLOTS")
                    told = id, await connection.read_response()
        except CONNECT_ERRORS as error:
            await _drop(connection)
            place, left = steps.throw(error)
            continue
        except BaseException:
            await _drop(connection)
            raise
        try:
            place, left = steps.send(told)
        except StopIteration:
            return connection
        except BaseException:
            await _drop(connection)
            raise
        await _drop(connection)


async def _drop(connection: Any) -> None:
    with contextlib.suppress(RedisError, OSError):
        await connection.disconnect(nowait=True)


async def find_master_async(address: Address, timeout_s: float) -> Place:
    """Return where the sentinels say that the master is; the twin of `find_master`."""
    settings = _sentinel_settings(address, timeout_s) | {"retry": AsyncRetry(NoBackoff(), 0)}
    sentinel: Any = AsyncSentinel(address.hosts, sentinel_kwargs=settings)  # type: ignore[no-untyped-call]
    try:
        host, port = await sentinel.discover_master(address.service)
    except RedisError as error:
        raise unavailable(address, _no_master(address)) from error
    finally:
        await sentinel.aclose()
    return str(host), int(port)
