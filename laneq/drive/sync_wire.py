"""One connection for blocking callers: one call at a time, as few system calls as can be.

A wire is left either clean, with no reply outstanding, or closed. So an interrupt
(Ctrl-C, an exception raised in the thread) in the middle of a call closes it.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import struct
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import hiredis

from laneq.drive.persist import Session, pack
from laneq.drive.refusals import Lost

_MORE: Final = object()
_READ_BYTES: Final = 65536
_PUSH: Final = hiredis.PushNotification
_PING: Final = pack((b"PING",))
_CLOSED_BY_SERVER: Final = "the connection was closed by the server"


def _limit(sock: socket.socket, timeout_s: float) -> None:
    """Bound each read and write of a socket, in seconds.

    By the kernel where it can be: a timeout of Python's own costs a poll() before
    each read and write.
    """
    if isinstance(sock, ssl.SSLSocket):
        sock.settimeout(timeout_s)
        return
    sock.settimeout(None)
    whole, rest = divmod(timeout_s, 1)
    bound = struct.pack("@ll", int(whole), int(rest * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bound)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, bound)


class SyncWire:
    """A connection that one thread uses at a time.

    Args:
        sock: connected and authenticated, speaking RESP3; owned from now on.
        read_timeout_s: seconds that a reply may take.
        home: the idle ones, where it belongs when no call uses it.
        on_close: told when it closes, for whatever reason.

    Attributes:
        sessions: sessions of this connection that no call uses.
        lost: why it is closed; None while it is open.
        pushed: messages of subscribed channels that came along with replies.
    """

    def __init__(
        self,
        sock: socket.socket,
        read_timeout_s: float,
        *,
        home: list[SyncWire],
        on_close: Callable[[SyncWire], None],
    ) -> None:
        _limit(sock, read_timeout_s)
        self.home = home
        self._on_close = on_close
        self._sock = sock
        self._read_timeout_s = read_timeout_s
        self._pid = os.getpid()
        reader = hiredis.Reader(notEnoughData=_MORE)
        self._feed = reader.feed
        self._gets = reader.gets
        self._sendall = sock.sendall
        self._recv = sock.recv
        self.sessions: list[Session] = []
        self.lost: Lost | None = None
        self.pushed: deque[bytes] = deque()
        # Closes quietly a wire that nobody closed: at exit, or dropped by an interrupt.
        self._finalizer = weakref.finalize(self, sock.close)

    def ask(self, packed: bytes) -> Any:
        """Send one command and return its reply.

        Returns:
            The reply, an error reply as `hiredis.ReplyError`, or `Lost`.
        """
        try:
            self._sendall(packed)
            reply = self._gets()
            while True:
                if reply is _MORE:
                    data = self._recv(_READ_BYTES)
                    if not data:
                        return self._lose(_CLOSED_BY_SERVER)
                    self._feed(data)
                elif reply.__class__ is _PUSH:
                    self._keep(reply)
                else:
                    return reply
                reply = self._gets()
        except (OSError, hiredis.ProtocolError) as error:
            return self._broke(error)
        except BaseException:
            self.close()
            raise

    def _keep(self, push: list[Any]) -> None:
        if push[0] == b"message":
            self.pushed.append(push[2])

    def listen(self, channel: bytes) -> Any:
        """Subscribe to a channel; return the confirmation, an error reply or `Lost`.

        A confirmation that is not a push is that of a server without RESP3's pushes.
        """
        return self._switch(b"SUBSCRIBE", channel)

    def unlisten(self, channel: bytes) -> Any:
        """Unsubscribe, and forget what came; return likewise."""
        answer = self._switch(b"UNSUBSCRIBE", channel)
        self.pushed.clear()
        return answer

    def _switch(self, verb: bytes, channel: bytes) -> Any:
        # In RESP3 the confirmation is a push, an error is a reply.
        confirmation = verb.lower()
        try:
            self._sendall(pack((verb, channel)))
            while True:
                reply = self._gets()
                if reply is _MORE:
                    data = self._recv(_READ_BYTES)
                    if not data:
                        return self._lose(_CLOSED_BY_SERVER)
                    self._feed(data)
                elif isinstance(reply, hiredis.ReplyError) or reply[0] == confirmation:
                    return reply
                else:
                    self._keep(reply)
        except (OSError, hiredis.ProtocolError) as error:
            return self._broke(error)
        except BaseException:
            self.close()
            raise

    def has_news(self) -> bool:
        """Return at once whether `heard` has something to read, were it the connection's end."""
        if self.pushed or (isinstance(self._sock, ssl.SSLSocket) and self._sock.pending()):
            return True
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))

    def heard(self, wait_s: float) -> Any:
        """Return the next message of a subscribed channel.

        The server is asked for a sign of life when it is silent for long, since a
        dead connection and a quiet channel look the same.

        Args:
            wait_s: seconds to wait at most.

        Returns:
            The message, None when the time is over, or `Lost`.
        """
        until = time.monotonic() + wait_s
        try:
            while not self.pushed:
                reply = self._gets()
                if reply is not _MORE:
                    self._keep(reply)
                    continue
                left_s = until - time.monotonic()
                if left_s <= 0:
                    return None
                self._sock.settimeout(min(left_s, self._read_timeout_s))
                try:
                    data = self._recv(_READ_BYTES)
                except TimeoutError:
                    data = None
                finally:
                    _limit(self._sock, self._read_timeout_s)
                if data is None:
                    if time.monotonic() >= until:
                        return None
                    reply = self.ask(_PING)
                    if reply.__class__ is Lost:
                        return reply
                elif not data:
                    return self._lose(_CLOSED_BY_SERVER)
                else:
                    self._feed(data)
        except (OSError, hiredis.ProtocolError) as error:
            return self._broke(error)
        except BaseException:
            self.close()
            raise
        return self.pushed.popleft()

    def _broke(self, error: Exception) -> Lost:
        # A kernel timeout on a blocking socket shows as EAGAIN.
        is_late = isinstance(error, (BlockingIOError, TimeoutError))
        reason = f"no reply within {self._read_timeout_s:g} s" if is_late else str(error)
        return self._lose(reason, error)

    def _lose(self, reason: str, cause: BaseException | None = None) -> Lost:
        lost = Lost(reason)
        lost.__cause__ = cause
        self.lost = lost
        self._shut()
        return lost

    def retire(self) -> None:
        """Close: no call is in flight here when this is asked for."""
        self.close()

    def close(self) -> None:
        """Close the connection; doing so twice does nothing."""
        if self.lost is None:
            self.lost = Lost("closed", is_closing=True)
            self._shut()

    def _shut(self) -> None:
        self._finalizer.detach()
        # In a forked child the connection is the parent's: let go of it, do not end it.
        if self._pid == os.getpid():
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        self._on_close(self)
