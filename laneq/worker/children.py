"""Run jobs in child processes, which can be killed at any moment.

A pool of warm processes, each with a job at a time. A child is known to be dead as soon as its
socket closes. It is started by exec, never by a bare fork, so it is safe beside threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final, cast

import msgpack

from laneq.model import RemoteError
from laneq.worker.child import Home, Order
from laneq.worker.lines import log
from laneq.worker.outcomes import Verdict

_NO_LIMIT: Final = 0

_PROGRAM: Final = "from laneq.worker.child import main; main({})"


class Child(asyncio.Protocol):
    """One child process, as the worker sees it.

    Attributes:
        token: what the caller knows its job by; None while it has none.
        is_doomed: it is to be killed, or was; one that is not started yet never is.
        has_come: it has come as far as to a job's function.
    """

    def __init__(self, pool: Children) -> None:
        self._pool = pool
        self._unpacker = msgpack.Unpacker(max_buffer_size=_NO_LIMIT)
        self._transport: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self.process: subprocess.Popen[bytes] | None = None
        self.token: Any = None
        self.is_doomed = self.has_come = False
        self.on_begun: Callable[[], None] | None = None
        self.on_progress: Callable[[bytes], None] | None = None

    def spawn(self) -> socket.socket:
        """Start the process; return the worker's end of its socket."""
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(  # noqa: S603  our own module
                [sys.executable, "-c", _PROGRAM.format(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                process_group=0,
                env=_environment(),
            )
        ours.setblocking(False)
        return ours

    def send(self, *message: Any) -> None:
        """Send a message, at the latest when the child is connected."""
        data: bytes = msgpack.packb(message)
        if self._transport is None:
            self._unsent.append(data)
        else:
            self._transport.write(data)

    def kill(self) -> None:
        """Kill the process and what it started."""
        self.is_doomed = True
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    # --- what the transport says ------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Tell the child how this process finds modules."""
        self._transport = cast("asyncio.Transport", transport)
        self.send("begin", sys.path, *self._pool.home.packed())
        self._transport.writelines(self._unsent)
        self._unsent.clear()

    def data_received(self, data: bytes) -> None:
        """Take in messages."""
        self._unpacker.feed(data)
        for kind, *rest in self._unpacker:
            if kind == "progress":
                if self.on_progress is not None:
                    self.on_progress(rest[0])
            elif kind == "begun":
                self.has_come = True
                if self.on_begun is not None:
                    self.on_begun()
            elif kind == "ended":
                self._pool.ended(self, _verdict(rest))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio's signature
        """Take in that the child is dead, or as good as."""
        self.kill()
        self._pool.lost(self)

    def close(self) -> None:
        """Let the child go; it kills itself when its socket closes."""
        if self._transport is not None:
            self._transport.close()
        self.kill()

    def how(self) -> str:
        """Say how the process ended."""
        if self.process is None:
            return "was not started"
        try:
            # It closed its socket, so it is dead or was killed just now.
            code = self.process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        if code < 0:
            return f"was killed by signal {-code}"
        return f"exited with status {code}"


def _environment() -> dict[str, str]:
    # Enough to find this package; the rest of the path follows in the first message.
    paths = [path for path in sys.path if path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}


def _verdict(message: list[Any]) -> Verdict:
    kind, number, body, error, problem, children = message
    told = RemoteError(*error) if error else None
    return Verdict(kind, number, body, told, problem, [tuple(row) for row in children])


class Children:
    """The child processes of one worker: made when needed, reused, replaced when dead.

    Args:
        loop: the worker's.
        home: where the worker's app is.
        deliver: told token and outcome of each job, or, where the process died under it, how.

    Attributes:
        keeps_spare: a child that died under its job is replaced at once, not by the next job.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        home: Home,
        *,
        deliver: Callable[[Any, Verdict | str], None],
    ) -> None:
        self._loop = loop
        self.home = home
        self._deliver = deliver
        self._idle: list[Child] = []
        self._busy: dict[int, Child] = {}
        self._starting: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self.keeps_spare = True

    def start(
        self,
        token: Any,
        order: Order,
        *,
        on_begun: Callable[[], None],
        on_progress: Callable[[bytes], None],
    ) -> None:
        """Run a job in a child.

        Args:
            token: what the caller knows the job by.
            order: the job.
            on_begun: told when its function is called, the process is there and has imported it.
            on_progress: told what it reports.
        """
        child = self._idle.pop() if self._idle else self._open()
        child.token = token
        child.on_begun, child.on_progress = on_begun, on_progress
        self._busy[id(token)] = child
        child.send("run", *order)

    def warm_up(self) -> None:
        """Start one child before there is a job for it."""
        if not self._idle and not self._busy:
            self._idle.append(self._open())

    def _open(self) -> Child:
        child = Child(self)
        task = self._loop.create_task(self._connect(child))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)
        return child

    async def _connect(self, child: Child) -> None:
        if child.is_doomed:
            self.lost(child)
            return
        try:
            sock = child.spawn()
            await self._loop.create_unix_connection(lambda: child, sock=sock)
        except (OSError, ValueError) as error:
            log.error("a child process cannot be started: %s", error)
            self._forget(child)
            if child.token is not None:
                self._deliver(child.token, f"could not be started: {error}")

    def kill(self, token: Any) -> None:
        """Kill the child that has this job; its death is told like any other."""
        child = self._busy.get(id(token))
        if child is not None:
            child.kill()

    @property
    def alive(self) -> int:
        """Return how many children there are."""
        return len(self._idle) + len(self._busy)

    def fit(self, most: int) -> None:
        """End idle children while there are more than `most` in all."""
        while self._idle and self.alive > most:
            self._idle.pop().close()

    def ended(self, child: Child, verdict: Verdict) -> None:
        """Take in the outcome of a child's job."""
        token, child.token = child.token, None
        child.on_begun = child.on_progress = None
        if self._busy.pop(id(token), None) is not None and not self._is_closed:
            self._idle.append(child)
        self._deliver(token, verdict)

    def lost(self, child: Child) -> None:
        """Take in that a child has died."""
        self._forget(child)
        how = child.how()
        if child.token is not None and not self._is_closed:
            if self.keeps_spare and child.has_come:
                # The next job shall not hold its slot while a process starts.
                self._idle.append(self._open())
            self._deliver(child.token, how)

    def _forget(self, child: Child) -> None:
        if child in self._idle:
            self._idle.remove(child)
        self._busy.pop(id(child.token), None)

    async def aclose(self) -> None:
        """Kill all children and wait until they are gone."""
        self._is_closed = True
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        children = [*self._idle, *self._busy.values()]
        for child in children:
            child.close()
        for child in children:
            if child.process is not None:
                await self._loop.run_in_executor(None, child.process.wait)
