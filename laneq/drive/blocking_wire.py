"""A connection of its own for blocking pops.

A blocked connection answers nothing else, so it is not the one that carries calls.
Its read timeout is the pop's own timeout and a margin: past that it is stale, and
dropped. What the server gave to a pop is never thrown away: neither by an interrupt
nor by a cancelled caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from laneq.drive.persist import TROUBLE, pack, pack_call
from laneq.drive.refusals import ELSEWHERE, Lost, trouble, word_of
from laneq.errors import RedisUnavailable, StoreError

if TYPE_CHECKING:
    from laneq.calls.call import Call
    from laneq.drive.async_driver import AsyncDriver
    from laneq.drive.async_wire import AsyncWire

#: Seconds after its own timeout that a blocking pop may take to answer.
_MARGIN_S: Final = 5.0
_UNBLOCK_AGAIN_S: Final = 0.01

#: How a server that has become a replica answers a blocking pop.
_DEMOTED: Final = frozenset({"UNBLOCKED", *ELSEWHERE})


class BlockingWire:
    """A connection of its own for blocking pops; one pop at a time.

    A pop that is cancelled goes on at the server until the next one, `interrupt` or
    `aclose`; what it pops is not lost: the next `pop` returns it.

    Attributes:
        pop_error: what the server said to the pop of the last `pop_then`, if it refused.
    """

    def __init__(self, driver: AsyncDriver) -> None:
        self._driver = driver
        self.wire: AsyncWire | None = None
        self._client_id = 0
        self._pending: asyncio.Future[Any] | None = None
        self._is_stopped = False
        self.pop_error: StoreError | None = None

    async def pop(self, keys: Sequence[bytes], timeout_s: float) -> bytes | None:
        """Wait for an element in one of the lists; pop it and return the list's key.

        Args:
            keys: the lists, in the order in which they are looked at.
            timeout_s: seconds until the wait ends with None; above 0.

        Raises:
            RedisUnavailable: no connection, or it broke, or it went stale: no answer
                within 5 s after the timeout. The next pop connects anew.
            RedisRefused: the server answered with an error.
        """
        if self._pending is not None:
            kept = await self._take_back()
            if kept is not None:
                return kept
        self._is_stopped = False
        wire = await self._connected()
        if self._is_stopped:
            return None
        self._pending = wire.send(pack((b"BLPOP", *keys, timeout_s)))
        limit_s = timeout_s + _MARGIN_S
        stale = wire.loop.call_later(
            limit_s, wire.give_up, f"connection stale, no answer for {limit_s:g} s"
        )
        # Also for a pop that is cancelled: the next one waits for it.
        self._pending.add_done_callback(lambda _: stale.cancel())
        return self._read(await asyncio.shield(self._pending))

    async def pop_then(
        self,
        keys: Sequence[bytes],
        timeout_s: float,
        call: Call[Any],
        told: Callable[[Any], None],
    ) -> None:
        """Wait as `pop` does, and have the server carry out a call right after it.

        Both are sent at once; the server keeps the call until the pop has ended, in
        whichever way, and so saves the round trip between the two. The pop's own
        answer is of no interest then, but for an error, which is in `pop_error`.
        Where there is nothing to wait for, the call is sent alone: a pop that was
        cancelled before has got something, or `interrupt` came while this one connected.

        Args:
            keys: as for `pop`.
            timeout_s: likewise.
            call: what to ask.
            told: given the raw reply of the call as soon as it is read, unless it is an
                error; it must not raise.

        Raises:
            RedisUnavailable: no connection, or it broke, or it went stale: whether
                the call took effect is not known. It is not repeated.
            RedisRefused: the call was answered with an error, NOSCRIPT among them:
                it took no effect.
        """
        self.pop_error = None
        kept = None if self._pending is None else await self._take_back()
        self._is_stopped = False
        wire = await self._connected()
        popped: asyncio.Future[Any] | None = None
        limit_s = _MARGIN_S
        if kept is None and not self._is_stopped:
            self._pending = popped = wire.send(pack((b"BLPOP", *keys, timeout_s)))
            limit_s += timeout_s
        stale = wire.loop.call_later(
            limit_s, wire.give_up, f"connection stale, no answer for {limit_s:g} s"
        )
        answered: asyncio.Future[Any] = wire.loop.create_future()

        def take(reply: Any) -> None:
            stale.cancel()  # here: also for a caller that is cancelled
            if not answered.done():
                answered.set_result(reply)
            if reply.__class__ not in TROUBLE:
                told(reply)

        wire.send_to(pack_call(call, None), take)
        try:
            reply = await answered
        finally:
            if popped is not None and popped.done():
                self._pending = None
        said = None if popped is None else popped.result()
        self._close_if_demoted(said)
        self._close_if_demoted(reply)
        if said.__class__ in TROUBLE and said.__class__ is not Lost:
            self.pop_error = trouble(self._driver.address, said)
        if reply.__class__ in TROUBLE:
            raise trouble(self._driver.address, reply)

    def _read(self, reply: Any) -> bytes | None:
        self._pending = None
        if reply.__class__ in TROUBLE:
            self._close_if_demoted(reply)
            raise trouble(self._driver.address, reply)
        return None if reply is None else cast("bytes", reply[0])

    async def interrupt(self) -> None:
        """End the pop under way, if there is one: it returns what it got, or None.

        Once this returns, the server gives nothing more to that pop.
        """
        self._is_stopped = True  # for a pop that is still connecting
        pending = self._pending
        while pending is not None and not pending.done():
            if not await self._is_unblocked():
                # Without the right to unblock, or without Redis: end the connection.
                self._close()
                return
            # The pop may not have reached the server before the order to end it.
            await asyncio.wait((pending,), timeout=_UNBLOCK_AGAIN_S)

    async def _is_unblocked(self) -> bool:
        """Have the server end the pop under way; return whether it was told to."""
        blocked = self.wire
        try:
            calls = await self._driver.connected()
        except StoreError:
            return False
        # Elsewhere, after a failover say, the number is that of somebody else's connection.
        if blocked is None or calls.peer != blocked.peer:
            return False
        reply = await calls.send(pack((b"CLIENT", b"UNBLOCK", self._client_id)))
        return reply.__class__ not in TROUBLE

    async def _take_back(self) -> bytes | None:
        await self.interrupt()
        if self._pending is None:
            return None
        try:
            return self._read(await self._pending)
        except RedisUnavailable:
            return None  # the pop that was cancelled is over, one way or another

    async def aclose(self) -> None:
        """Close the connection."""
        wire = self.wire
        self._close()
        if wire is not None:
            await wire.ended

    def _close_if_demoted(self, reply: Any) -> None:
        if reply.__class__ in TROUBLE and word_of(reply) in _DEMOTED:
            self._close()

    def _close(self) -> None:
        if self.wire is not None:
            self.wire.close()

    async def _connected(self) -> AsyncWire:
        if self.wire is None or self.wire.loop is not asyncio.get_running_loop():
            self._pending = None
            driver = self._driver
            await driver.connected()  # its loop, and its patience
            timeout_s = driver.address.connect_timeout_s
            wire = await driver.open_wire(timeout_s, None, self._lost)
            watch = wire.loop.call_later(timeout_s, wire.give_up, "no answer to CLIENT ID")
            try:
                reply = await wire.send(pack((b"CLIENT", b"ID")))
                driver.check(reply)
            except BaseException:
                wire.close()
                raise
            finally:
                watch.cancel()
            self.wire, self._client_id = wire, reply
            driver.blocking_wires.add(self)
        return self.wire

    def _lost(self, wire: AsyncWire, _lost: Lost) -> None:
        if self.wire is wire:
            self.wire = None
            self._driver.blocking_wires.discard(self)
