"""A TCP proxy before Redis that can delay, cut, black-hole, and lose or forge replies.

It serves from one thread of its own. Each method returns once it is in force; what
happens to *one* call returns a `threading.Event` that is set when it has happened, so
that a test waits for it instead of sleeping. Calls are commands as a client sends
them: a pipeline of three is three calls, ``AUTH`` and ``HELLO`` count.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar
from urllib.parse import parse_qs, urlsplit

T = TypeVar("T")
CHUNK = 65536
PATIENCE_S = 10


def value_end(data: bytes | bytearray, at: int) -> int | None:
    """Return the offset behind one RESP value that starts at `at`; None if it is incomplete."""
    line_end = data.find(b"\r\n", at)
    if line_end < 0:
        return None
    kind, number, after = data[at : at + 1], bytes(data[at + 1 : line_end]), line_end + 2
    if kind in b"$=!":
        end = after if int(number) < 0 else after + int(number) + 2
        return end if end <= len(data) else None
    if kind in b"*~>%":
        count = max(int(number), 0) * (2 if kind == b"%" else 1)
        for _ in range(count):
            inner = value_end(data, after)
            if inner is None:
                return None
            after = inner
    return after


def command_words(call: bytes) -> list[bytes]:
    """Return a command in RESP, word by word."""
    if not call.startswith(b"*"):
        return call.split()
    words, at = [], call.find(b"\r\n") + 2
    while at < len(call):
        line_end = call.find(b"\r\n", at)
        start = line_end + 2
        end = start + int(call[at + 1 : line_end])
        words.append(call[start:end])
        at = end + 2
    return words


#: In RESP3 these are answered by a push for each channel, and by nothing else.
SUBSCRIBING = {b"SUBSCRIBE", b"UNSUBSCRIBE", b"PSUBSCRIBE", b"PUNSUBSCRIBE"}


def is_confirmation(push: bytes) -> bool:
    """Return whether a push stands in the place of a reply."""
    return push.split(b"\r\n", 3)[2].upper() in SUBSCRIBING


@dataclass(eq=False)
class OneShot:
    """Something to be done to the next call whose name matches."""

    command: str | None
    error: bytes | None = None
    cut: bool = False
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(eq=False)
class Confirmations:
    """The pushes that are owed to one (UN)SUBSCRIBE, unless it is refused."""

    left: int


class Link:
    """One client connection and the one that it is joined to at the server."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.proxy = proxy
        self.reader, self.writer = reader, writer
        self.server_writer: asyncio.StreamWriter | None = None
        # What to do with each reply that is owed, oldest first; None: pass it on.
        self.owed: deque[OneShot | Confirmations | None] = deque()
        self.is_resp3 = False
        # What is owed then cannot be told from messages, in RESP2.
        self.is_subscribed = False

    async def run(self) -> None:
        try:
            server_reader, self.server_writer = await self.proxy.open_upstream()
        except OSError:
            self.close(reset=True)  # the server is away: no connection to it, and none to here
            return
        pumps = [
            asyncio.ensure_future(self.pump_calls()),
            asyncio.ensure_future(self.pump_replies(server_reader)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self.close()

    def close(self, *, reset: bool = False) -> None:
        for writer in (self.writer, self.server_writer):
            if writer is not None:
                if reset:
                    writer.transport.abort()
                else:
                    writer.close()

    async def pump_calls(self) -> None:
        assert self.server_writer is not None
        async for call in self.values(self.reader):
            words = command_words(call)
            word = words[0].upper()
            name = word.decode()
            self.proxy.calls[name] += 1
            self.is_resp3 |= word == b"HELLO" and words[1:2] == [b"3"]
            is_subscribing = word in SUBSCRIBING
            self.is_subscribed |= word == b"MONITOR" or (is_subscribing and not self.is_resp3)
            shot = self.proxy.take_shot(name)
            if is_subscribing and self.is_resp3 and shot is None:
                self.owed.append(Confirmations(max(1, len(words) - 1)))
            elif not self.is_subscribed or shot is not None:
                self.owed.append(shot)
            if shot is None or shot.error is None:
                self.server_writer.write(call)
                await self.server_writer.drain()
            self.send_forged()

    async def pump_replies(self, server_reader: asyncio.StreamReader) -> None:
        async for reply in self.values(server_reader):
            self.proxy.largest_reply = max(self.proxy.largest_reply, len(reply))
            shot = self.settle(reply)
            if shot is None:
                self.writer.write(reply)
                await self.writer.drain()
            else:
                if shot.cut:
                    self.close(reset=True)
                shot.done.set()
            self.send_forged()

    def settle(self, reply: bytes) -> OneShot | None:
        """Take what a reply was owed for off the list; return what to do with it."""
        is_push = reply.startswith(b">")
        if not self.owed or (is_push and not is_confirmation(reply)):
            return None
        owed = self.owed[0]
        if isinstance(owed, Confirmations) and is_push:
            owed.left -= 1
            if owed.left:
                return None
        self.owed.popleft()
        return None if isinstance(owed, Confirmations) else owed

    def send_forged(self) -> None:
        """Write the forged replies whose turn has come."""
        while self.owed and isinstance(shot := self.owed[0], OneShot) and shot.error is not None:
            self.owed.popleft()
            self.writer.write(b"-" + shot.error + b"\r\n")
            shot.done.set()

    async def values(self, reader: asyncio.StreamReader) -> Any:
        """Yield complete RESP values."""
        pending = bytearray()
        while data := await reader.read(CHUNK):
            await self.proxy.hold()
            pending += data
            at = 0
            while at < len(pending) and (end := value_end(pending, at)) is not None:
                yield bytes(pending[at:end])
                at = end
            del pending[:at]


class Proxy:
    """A proxy on a free TCP port before the server at `upstream`.

    Attributes:
        url: the address to give to the client under test.
        calls: command name → how many of them clients sent.
        largest_reply: bytes of the largest reply so far.
        refused: how many connections were reset at once, see `refuse`.
    """

    def __init__(self, upstream: str) -> None:
        self.upstream = urlsplit(upstream)
        self.calls: Counter[str] = Counter()
        self.largest_reply = 0
        self.refused = 0
        self._delay_s = 0.0
        self._shots: list[OneShot] = []
        self._links: set[Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._refuses = False
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._open.set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._listener = socket.create_server(("127.0.0.1", 0))

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        query = parse_qs(self.upstream.query)
        db = query.get("db", [self.upstream.path.lstrip("/") or "0"])[0]
        return f"redis://127.0.0.1:{self.port}/{db}"

    @property
    def connections(self) -> int:
        """How many client connections are open now."""
        return self._on_loop(lambda: len(self._links))

    # --- what a test asks for ---------------------------------------------------

    def delay(self, seconds: float) -> None:
        """Hold what arrives, in either direction, for so long; 0 ends it."""
        self._on_loop(lambda: setattr(self, "_delay_s", seconds))

    def cut(self) -> None:
        """Reset every connection; new ones are taken."""

        def act() -> None:
            for link in self._links:
                link.close(reset=True)

        self._on_loop(act)

    def refuse(self) -> None:
        """Reset every connection, and each new one at once, until `restore`."""
        self._on_loop(lambda: setattr(self, "_refuses", True))
        self.cut()

    def blackhole(self) -> None:
        """Swallow everything in both directions, without closing, until `restore`.

        What was swallowed is held, and passes when the network is restored.
        """
        self._on_loop(self._open.clear)

    def restore(self) -> None:
        """End `delay`, `refuse` and `blackhole`, and forget one-shots not yet used."""

        def act() -> None:
            self._delay_s, self._refuses = 0.0, False
            self._shots.clear()
            self._open.set()

        self._on_loop(act)

    def swallow_next_reply(self, command: str | None = None) -> threading.Event:
        """Let the server do the next such call, and lose its reply in silence."""
        return self._arm(OneShot(command))

    def cut_before_next_reply(self, command: str | None = None) -> threading.Event:
        """Let the server do the next such call, and reset the connection instead of replying."""
        return self._arm(OneShot(command, cut=True))

    def answer_next(self, error: str, command: str | None = None) -> threading.Event:
        """Answer the next such call with an error, as ``OOM …``; the server never sees it."""
        return self._arm(OneShot(command, error=error.encode()))

    # --- life -------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._accept, sock=self._listener), self._loop
        ).result(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result(PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    async def _shut(self) -> None:
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # lets the transports say good-bye before the loop goes

    # --- used by links ----------------------------------------------------------

    async def open_upstream(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.upstream.scheme == "unix":
            return await asyncio.open_unix_connection(self.upstream.path)
        return await asyncio.open_connection(self.upstream.hostname, self.upstream.port)

    async def hold(self) -> None:
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        await self._open.wait()

    def take_shot(self, name: str) -> OneShot | None:
        for shot in self._shots:
            if shot.command in {None, name}:
                self._shots.remove(shot)
                return shot
        return None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            self.refused += 1
            writer.transport.abort()
            return
        link = Link(self, reader, writer)
        task = asyncio.current_task()
        assert task is not None
        self._links.add(link)
        self._tasks.add(task)
        try:
            # A reset by either side, or by a test, is what this is for.
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await link.run()
        finally:
            link.close()  # also one that was called off before it had reached the server
            self._links.discard(link)
            self._tasks.discard(task)

    def _arm(self, shot: OneShot) -> threading.Event:
        self._on_loop(lambda: self._shots.append(shot))
        return shot.done

    def _on_loop(self, act: Callable[[], T]) -> T:
        async def call() -> T:
            return act()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(PATIENCE_S)
