"""One connection for coroutines: many calls in flight, replies matched in order.

Invariants:

- `_waiters` has one future (or `_Told`) for each command written and not yet answered, in
  the order written. A caller that is cancelled leaves its future there, done, so that
  its reply is still taken off: cancelling never shifts replies.
- In RESP3 the confirmation of (UN)SUBSCRIBE is a push and stands in the place of
  its reply; all other pushes are extra.
- When the connection ends, each waiter gets `Lost` as its result, once.

Writes: a command goes out at once when nothing else is in flight. Others of the
same turn of the loop are gathered and written together at its end.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import hiredis

from laneq.drive.persist import Session, pack
from laneq.drive.refusals import Lost

_MORE: Final = object()
_PUSH: Final = hiredis.PushNotification
_PING: Final = pack((b"PING",))
_CONFIRMATIONS: Final = frozenset({b"subscribe", b"unsubscribe"})

#: Looks of the watchdog at a silent connection before it is given up; the read
#: timeout has as many periods, less the one that the first look may come early.
_LOOKS: Final = 5


class _Told:
    """Stands among the waiters for a caller who is told the reply where it arrives."""

    __slots__ = ("set_result",)

    def __init__(self, answer: Callable[[Any], None]) -> None:
        self.set_result = answer

    def done(self) -> bool:
        return False


class AsyncWire(asyncio.Protocol):
    """A connection that any number of coroutines use at a time.

    Args:
        writer: connected and authenticated, speaking RESP3; owned from now on.
        leftover: bytes that asyncio has read already.
        read_timeout_s: seconds that a reply may take; None sets no watch.
        on_message: told channel and message of each subscribed channel.
        on_lost: told when the connection takes no further call, for whatever reason.

    Attributes:
        loop: the loop that it belongs to.
        peer: where the server is, as the socket has it.
        sessions: sessions of this connection that no call uses.
        lost: why it is closed; None while it is open.
        ended: resolved when the transport is closed too.
    """

    def __init__(
        self,
        writer: asyncio.StreamWriter,
        leftover: bytes,
        *,
        read_timeout_s: float | None,
        on_message: Callable[[bytes, bytes], None],
        on_lost: Callable[[AsyncWire, Lost], None],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.sessions: list[Session] = []
        self.lost: Lost | None = None
        self.ended: asyncio.Future[None] = self.loop.create_future()
        self._waiters: deque[asyncio.Future[Any] | _Told] = deque()
        self._gathered: list[bytes] = []
        self._on_message = on_message
        self._on_lost = on_lost
        self._create_future = self.loop.create_future
        reader = hiredis.Reader(notEnoughData=_MORE)
        self._feed = reader.feed
        self._gets = reader.gets
        self._is_retiring = False
        self.has_listeners = False
        self._heard = self._heard_before = self._silent_looks = 0
        # The writer closes the transport when it is dropped, so it is kept.
        self._writer = writer
        self._transport = writer.transport
        self.peer: Any = self._transport.get_extra_info("peername")
        self._write = self._transport.write
        self._transport.set_protocol(self)
        self._read_timeout_s = read_timeout_s
        self._watchdog: asyncio.TimerHandle | None = None
        if read_timeout_s is not None:
            self._period_s = read_timeout_s / (_LOOKS - 1)
            self._watchdog = self.loop.call_later(self._period_s, self._look)
        if leftover:
            self.data_received(leftover)

    def send(self, packed: bytes) -> asyncio.Future[Any]:
        """Send one command.

        Returns:
            A future of the reply: an error reply is a `hiredis.ReplyError`, a
            connection that ends first `Lost`, both as results.
        """
        waiter: asyncio.Future[Any] = self._create_future()
        if self.lost is not None:
            waiter.set_result(self.lost)
        else:
            self._put(packed, waiter)
        return waiter

    def send_to(self, packed: bytes, answer: Callable[[Any], None]) -> None:
        """Send one command, and have the reply told as soon as it is read.

        That saves the turns of the loop that a future takes to its caller.

        Args:
            packed: the command.
            answer: told what the future of `send` would give, in the midst of reading: it
                may send, and must not raise.
        """
        if self.lost is not None:
            self.loop.call_soon(answer, self.lost)
        else:
            self._put(packed, _Told(answer))

    def _put(self, packed: bytes, waiter: asyncio.Future[Any] | _Told) -> None:
        if not self._waiters:
            self._waiters.append(waiter)
            self._write(packed)
            return
        self._waiters.append(waiter)
        if not self._gathered:
            self.loop.call_soon(self._flush)
        self._gathered.append(packed)

    def _flush(self) -> None:
        if self._gathered and self.lost is None:
            self._write(b"".join(self._gathered))
        self._gathered.clear()

    # --- what the transport says ------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Give each reply to the one who waits for it."""
        self._heard += 1
        waiters, gets = self._waiters, self._gets
        try:
            self._feed(data)
            while (reply := gets()) is not _MORE:
                if reply.__class__ is _PUSH and reply[0] not in _CONFIRMATIONS:
                    self._push(reply)
                    continue
                waiter = waiters.popleft()
                if not waiter.done():
                    waiter.set_result(reply)
        except (hiredis.ProtocolError, IndexError) as error:
            self._lose("it does not speak the Redis protocol", error)
        if self._is_retiring and not waiters:
            self.close()

    def _push(self, push: list[Any]) -> None:
        if push[0] == b"message":
            self._on_message(push[1], push[2])

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell all who wait."""
        self._lose(str(exc) if exc else "the connection was closed by the server", exc)
        if not self.ended.done():
            self.ended.set_result(None)

    # --- the end ----------------------------------------------------------------------

    def _look(self) -> None:
        """Give the connection up when a reply has been due for too long."""
        if self._heard != self._heard_before:
            self._heard_before = self._heard
            self._silent_looks = 0
        elif self._waiters:
            self._silent_looks += 1
            if self._silent_looks >= _LOOKS:
                self._lose(f"no reply within {self._read_timeout_s:g} s", None)
                return
        elif self.has_listeners:
            # A dead connection and a quiet channel look the same: ask for a sign of life.
            self.send(_PING)
        self._watchdog = self.loop.call_later(self._period_s, self._look)

    def _lose(self, reason: str, cause: BaseException | None, *, is_closing: bool = False) -> None:
        if self.lost is not None:
            return
        lost = Lost(reason, is_closing=is_closing)
        lost.__cause__ = cause
        self.lost = lost
        if self._watchdog is not None:
            self._watchdog.cancel()
        self._transport.abort()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(lost)
        self._waiters.clear()
        self._on_lost(self, lost)

    def give_up(self, reason: str) -> None:
        """Close the connection because it is no good; its calls may be repeated."""
        self._lose(reason, None)

    def retire(self) -> None:
        """Take no further call, and close when those in flight have been answered."""
        self._is_retiring = True
        self._on_lost(self, Lost("another server has to be asked"))
        if not self._waiters:
            self.close()

    def close(self) -> None:
        """Close the connection; its calls are not repeated."""
        self._lose("closed", None, is_closing=True)

    def disown(self) -> None:
        """Let go, in a forked child, of a connection that is the parent's.

        Its transport cannot be closed: that would take the socket out of the
        parent's selector. So the descriptor is made to lead nowhere.
        """
        descriptor = self._transport.get_extra_info("socket").fileno()
        if descriptor >= 0:
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, descriptor, inheritable=False)
            os.close(nowhere)
