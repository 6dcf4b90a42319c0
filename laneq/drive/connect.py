"""Make connections with redis-py, then take the byte stream over.

redis-py does what is not hot: TCP, TLS, AUTH, HELLO 3, SELECT, CLIENT SETNAME,
asking sentinels. What it is given is decided here and nowhere else: no retries,
no health checks, no maintenance notifications, replies as bytes. Afterwards the
socket, or asyncio's stream, belongs to the caller; the redis-py object is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
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


def _sentinel_settings(address: Address) -> dict[str, Any]:
    timeout_s = min(_SENTINEL_TIMEOUT_S, address.connect_timeout_s)
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


def open_socket(
    address: Address, client_name: str, *, timeout_s: float | None = None
) -> socket.socket:
    """Return a connected, authenticated socket that speaks RESP3.

    Args:
        address: where to.
        client_name: shown by CLIENT LIST.
        timeout_s: seconds that it may take; None is the address's `connect_timeout_s`.

    Raises:
        RedisUnavailable: no connection in time.
        RedisRefused: the server answered, and refused.
    """
    timeout_s = timeout_s or address.connect_timeout_s
    deadline = time.monotonic() + timeout_s
    connection: Any  # redis-py's own types are not complete
    make: Any
    try:
        settings = _settings(address, client_name)
        if address.scheme == "unix":
            make = _UnixConnection
        else:
            make = _TlsConnection if address.is_tls else _TcpConnection
            settings["host"], settings["port"] = (
                _master(address) if address.has_sentinels else address.hosts[0]
            )
        connection = make(**settings)
        connection.deadline = deadline
        connection.connect()
    except (RedisError, OSError, ValueError) as error:
        raise not_connected(address, error, timeout_s) from error
    taken: socket.socket = connection._sock  # noqa: SLF001  this is the hand-over
    connection._sock = None  # noqa: SLF001
    taken.settimeout(address.read_timeout_s)
    return taken


def _master(address: Address) -> tuple[str, int]:
    settings = _sentinel_settings(address) | {"retry": Retry(NoBackoff(), 0)}
    sentinel: Any = Sentinel(address.hosts, sentinel_kwargs=settings)  # type: ignore[no-untyped-call]
    try:
        host, port = sentinel.discover_master(address.service)
    except RedisError as error:
        raise unavailable(address, _no_master(address)) from error
    finally:
        sentinel.close()
    return str(host), int(port)


async def open_stream(
    address: Address, client_name: str, *, timeout_s: float | None = None
) -> tuple[asyncio.StreamWriter, bytes]:
    """Return a connected, authenticated stream that speaks RESP3.

    The writer's transport is for the caller to take; the writer is to be kept as
    long as the transport, which it closes when it is dropped. With it come the
    bytes that asyncio has read already.

    Args:
        address: where to.
        client_name: shown by CLIENT LIST.
        timeout_s: seconds that it may take; None is the address's `connect_timeout_s`.

    Raises:
        RedisUnavailable: no connection in time.
        RedisRefused: the server answered, and refused.
    """
    timeout_s = timeout_s or address.connect_timeout_s
    connection: Any = None
    try:
        async with asyncio.timeout(timeout_s):
            settings = _settings(address, client_name)
            settings["socket_connect_timeout"] = settings["socket_timeout"] = timeout_s
            if address.scheme == "unix":
                connection = theirs_async.UnixDomainSocketConnection(**settings)
            else:
                host, port = (
                    await _master_async(address) if address.has_sentinels else address.hosts[0]
                )
                kind = theirs_async.SSLConnection if address.is_tls else theirs_async.Connection
                connection = kind(host=host, port=port, **settings)
            await connection.connect()
    except (RedisError, OSError, ValueError) as error:
        await _drop(connection)
        raise not_connected(address, error, timeout_s) from error
    except BaseException:
        await _drop(connection)
        raise
    reader, writer = connection._reader, connection._writer  # noqa: SLF001  the hand-over
    connection._reader = connection._writer = None  # noqa: SLF001
    return writer, bytes(reader._buffer)  # noqa: SLF001


async def _drop(connection: Any) -> None:
    if connection is not None:
        with contextlib.suppress(RedisError, OSError):
            await connection.disconnect(nowait=True)


async def _master_async(address: Address) -> tuple[str, int]:
    settings = _sentinel_settings(address) | {"retry": AsyncRetry(NoBackoff(), 0)}
    sentinel: Any = AsyncSentinel(address.hosts, sentinel_kwargs=settings)  # type: ignore[no-untyped-call]
    try:
        host, port = await sentinel.discover_master(address.service)
    except RedisError as error:
        raise unavailable(address, _no_master(address)) from error
    finally:
        await sentinel.aclose()
    return str(host), int(port)
