"""Hear from the sentinels at once when they have made another server the master.

After a failover the old master, where it still lives, takes writes for ten seconds and more,
until the sentinels have made it a replica; they then close its connections, but what was
written is lost. So a driver whose server is found by sentinels listens to one of them, and
gives its connections up when the master has changed. With no sentinel in reach it goes on
with the server that it has.

Two forms: `SwitchWatch` is looked at before each call of a blocking driver, `SwitchListener`
tells a driver of coroutines.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from laneq.drive.address import Address
from laneq.drive.async_wire import AsyncWire
from laneq.drive.connect import (
    find_master,
    find_master_async,
    open_sentinel_socket,
    open_sentinel_stream,
)
from laneq.drive.persist import TROUBLE, backoff_s, pack
from laneq.drive.refusals import Lost, trouble
from laneq.drive.route import Route
from laneq.drive.sync_wire import SyncWire
from laneq.errors import StoreError

_CHANNEL: Final = b"+switch-master"

#: Seconds between tries to find a sentinel that can be listened to.
_AGAIN_S: Final = 2.0

#: How much longer than a try in vain a blocking caller is left alone after it.
_PAUSE_FOR_TRY: Final = 20

#: Seconds of silence after which a sentinel is asked for a sign of life.
_SILENCE_S: Final = 4.0

#: Seconds that a blocking look may take to read what has arrived.
_READ_S: Final = 0.01

#: Why a connection is given up.
SWITCHED: Final = "the sentinels have made another server the master"


def _names(message: bytes, address: Address) -> bool:
    """Return whether a message is about the service of an address."""
    return message.partition(b" ")[0] == address.service.encode()


class SwitchWatch:
    """For blocking callers: listens to a sentinel, and is looked at now and then.

    Args:
        address: one with sentinels.
        route: has the master that the driver found last.
        client_name: shown by CLIENT LIST.
    """

    def __init__(self, address: Address, route: Route, client_name: str) -> None:
        self._address = address
        self._route = route
        self._client_name = client_name
        self._start_afresh()

    def _start_afresh(self) -> None:
        self._lock = threading.Lock()
        self._wire: SyncWire | None = None
        self._try_at = 0.0
        self._has_moved = False

    def begin_child(self) -> None:
        """Leave, in a forked child, the connection to the parent."""
        wire = self._wire
        self._start_afresh()
        if wire is not None:
            wire.close()

    def begin(self) -> None:
        """Listen from now on; the next look tells of what came before."""
        with self._lock:
            self._listen()

    def has_switched(self) -> bool:
        """Return whether the master has changed since the last look."""
        if not self._lock.acquire(blocking=False):
            return False  # another thread looks
        try:
            return self._look()
        finally:
            self._lock.release()

    def close(self) -> None:
        """Listen no longer."""
        with self._lock:
            self._try_at = 0.0
            if self._wire is not None:
                self._wire.close()
                self._wire = None

    def _look(self) -> bool:
        if self._wire is None:
            self._listen()
        elif self._wire.has_news():
            message = self._wire.heard(_READ_S)
            # Several may have come at once: what is read already shows at no socket.
            while message is not None and message.__class__ is not Lost:
                self._has_moved = self._has_moved or _names(message, self._address)
                message = self._wire.heard(0.0)
            if message.__class__ is Lost:
                self._wire = None
                self._listen()
        found, self._has_moved = self._has_moved, False
        return found

    def _listen(self) -> None:
        began = time.monotonic()
        if self._wire is not None or began < self._try_at:
            return
        self._try_at = began + _AGAIN_S
        try:
            self._wire = self._subscribed()
            # What was told before is not known.
            master = find_master(self._address, self._address.connect_timeout_s)
            if self._route.master not in {None, master}:
                self._has_moved = True
        except StoreError:
            # None in reach: whoever connects is told so. Others do not wait for it for long.
            now = time.monotonic()
            self._try_at = max(self._try_at, now + (now - began) * _PAUSE_FOR_TRY)

    def _subscribed(self) -> SyncWire:
        sock = open_sentinel_socket(self._address, self._client_name)
        wire = SyncWire(sock, _SILENCE_S, home=[], on_close=lambda _: None)
        reply = wire.listen(_CHANNEL)
        if reply.__class__ in TROUBLE:
            wire.close()
            raise trouble(self._address, reply)
        return wire


class SwitchListener:
    """For coroutines: listens to a sentinel, and tells.

    Args:
        address: one with sentinels.
        route: has the master that the driver found last.
        client_name: shown by CLIENT LIST.
        on_switch: called when the master has changed.
    """

    def __init__(
        self, address: Address, route: Route, client_name: str, on_switch: Callable[[], None]
    ) -> None:
        self._address = address
        self._route = route
        self._client_name = client_name
        self._on_switch = on_switch
        self.wire: AsyncWire | None = None
        #: Looks for a sentinel, at first and when the one that was listened to has gone, and asks
        #: it for the master.
        self.task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Listen from now on, as soon as a sentinel can be reached."""
        if self.wire is None and self.task is None:
            self.task = asyncio.get_running_loop().create_task(self._listen())

    def forget(self) -> None:
        """Forget the connection, which belongs to another loop or process."""
        self.wire = self.task = None

    async def _listen(self) -> None:
        tries = 0
        while not await self._has_subscribed():
            await asyncio.sleep(_AGAIN_S + backoff_s(tries))
            tries += 1
        with contextlib.suppress(StoreError):
            # What was told before is not known.
            master = await find_master_async(self._address, self._address.connect_timeout_s)
            if self._route.master not in {None, master}:
                self._on_switch()
        # Not before: who closes meanwhile calls the question off, which has a connection too.
        if self.task is asyncio.current_task():
            self.task = None

    async def _has_subscribed(self) -> bool:
        try:
            writer, leftover = await open_sentinel_stream(self._address, self._client_name)
        except StoreError:
            return False  # none in reach: whoever connects is told so
        wire = AsyncWire(
            writer,
            leftover,
            read_timeout_s=_SILENCE_S,
            on_message=self._heard,
            on_lost=self._lost,
        )
        try:
            reply: Any = await wire.send(pack((b"SUBSCRIBE", _CHANNEL)))
        except BaseException:
            wire.close()
            raise
        if reply.__class__ in TROUBLE:
            wire.close()
            return False
        wire.has_listeners = True
        self.wire = wire
        return True

    def _heard(self, _channel: bytes, message: bytes) -> None:
        if _names(message, self._address):
            self._on_switch()

    def _lost(self, wire: AsyncWire, lost: Lost) -> None:
        if self.wire is wire:
            self.wire = None
            if not lost.is_closing:
                if self.task is not None:
                    self.task.cancel()  # it asks for the master, as the next one will
                    self.task = None
                self.begin()
