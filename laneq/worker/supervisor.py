"""Keep several worker processes: start them, restart those that crash, pass signals on.

Each child is a fresh interpreter that runs the same command for one process. It leads a
process group of its own, so that a terminal's signals reach it through the supervisor only,
and it stops when the supervisor is gone: it holds one end of a socket that closes then.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from laneq.options import WorkerOptions
from laneq.worker.lines import log, log_to_stderr
from laneq.worker.notify import notify
from laneq.worker.probe import Probe, ProbeOptions, Touched
from laneq.worker.process import DOUBLED_S, HEALTH_FILE, PARENT_FD, shown, take_parent_fd

#: Seconds until a crashed child is started again: at first, and at most.
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 30.0

#: A child that lived this long did not crash because of how it was started.
_STEADY_S: Final = 10.0

#: Seconds that a child gets beyond its grace before it is killed.
_MARGIN_S: Final = 15.0

#: Exit status of a child that a restart would not help: wrong usage, Redis refuses.
_HOPELESS: Final = frozenset({2, 3})

_NO_FILES: Final[Mapping[int, Path]] = {}


def supervise(
    app: Any,
    options: WorkerOptions,
    probe: ProbeOptions | None = None,
    *,
    command: Sequence[str] | None = None,
) -> int:
    """Keep ``options.processes`` worker processes until told to stop.

    INT and TERM are passed on to the children, so that each drains; a child that ends in
    another way is started again, after a pause that grows while it keeps crashing.

    Args:
        app: named in lines; the children load it themselves.
        options: `processes` and `grace` are used here.
        probe: how it shows whether all of them are well; None for not at all.
        command: the command of one worker; None for that of this process, with
            ``--processes 1``.

    Returns:
        The exit status: 0, or that of a child which cannot work at all.

    Raises:
        ConfigError: what `probe` names cannot be used.
    """
    log_to_stderr()
    line = command or [sys.executable, "-m", "laneq", *sys.argv[1:], "--processes", "1"]
    log.info("supervisor of %d workers for %r (pid %d)", options.processes, app, os.getpid())
    wanted = probe or ProbeOptions()
    if not wanted.is_wanted:
        return asyncio.run(_Crew(list(line), options).keep())
    with tempfile.TemporaryDirectory(prefix="laneq-health-") as folder:
        files = {place: Path(folder) / str(place) for place in range(1, options.processes + 1)}
        crew = _Crew(list(line), options, files)
        with shown(Probe(wanted, crew.problems, lambda: {"workers": options.processes})):
            return asyncio.run(crew.keep())


class _Crew:
    """The places of the workers.

    Args:
        command: starts a worker.
        options: how many there are, and what they do.
        files: place → the file that its worker is to touch while it is well.
    """

    def __init__(
        self, command: list[str], options: WorkerOptions, files: Mapping[int, Path] = _NO_FILES
    ) -> None:
        self._command = command
        self._options = options
        self._files = files
        self._touched = Touched({f"worker {place}": path for place, path in files.items()})
        self._children: set[asyncio.subprocess.Process] = set()
        self._ready: set[int] = set()
        self._stopping = asyncio.Event()
        self._first_signal = 0.0
        self._status = 0

    async def keep(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._take, number)
        parent_fd = take_parent_fd()
        if parent_fd >= 0:
            loop.add_reader(parent_fd, self._parent_gone, parent_fd)
        try:
            places = range(1, self._options.processes + 1)
            await asyncio.gather(*(self._keep_one(place) for place in places))
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
        return self._status

    def problems(self) -> tuple[str, ...]:
        """Return what is wrong with the workers now; in any thread."""
        return () if self._stopping.is_set() else self._touched.problems()

    def _take(self, number: int) -> None:
        now = time.monotonic()
        if self._stopping.is_set() and now - self._first_signal < DOUBLED_S:
            return
        if not self._stopping.is_set():
            self._first_signal = now
            notify("STOPPING=1")
        self._stop(number)

    def _parent_gone(self, fd: int) -> None:
        asyncio.get_running_loop().remove_reader(fd)
        log.warning("the process that started the supervisor has gone; all stop")
        self._stop(signal.SIGTERM)

    def _stop(self, number: int) -> None:
        self._stopping.set()
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(number)

    async def _keep_one(self, place: int) -> None:
        """Keep one place filled until the crew stops, or the child has done its work."""
        crashes = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            status = await self._run_one(place)
            if status == 0 and (self._options.burst or self._stopping.is_set()):
                return
            if status in _HOPELESS:
                if not self._stopping.is_set():
                    log.error("worker %d ended with status %d; all stop", place, status)
                    self._status = status
                    self._stop(signal.SIGTERM)
                return
            if self._stopping.is_set():
                return
            crashes = 1 if time.monotonic() - began >= _STEADY_S else crashes + 1
            pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(crashes - 1, 16))
            log.warning("worker %d %s; it is started again in %.1f s", place, _how(status), pause_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)

    async def _run_one(self, place: int) -> int:
        """Start a child and return its exit status."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with ours:
            with theirs:
                environment = {**os.environ, PARENT_FD: str(theirs.fileno())}
                environment.pop("NOTIFY_SOCKET", None)
                if place in self._files:
                    environment[HEALTH_FILE] = str(self._files[place])
                child = await asyncio.create_subprocess_exec(
                    *self._command,
                    env=environment,
                    pass_fds=(theirs.fileno(),),
                    process_group=0,
                )
            self._children.add(child)
            if self._stopping.is_set():
                child.terminate()
            telling = asyncio.ensure_future(self._until_ready(ours, place))
            try:
                return await self._until_ended(child, place)
            finally:
                telling.cancel()
                await asyncio.gather(telling, return_exceptions=True)
                self._ready.discard(place)
                self._children.discard(child)

    async def _until_ready(self, sock: socket.socket, place: int) -> None:
        if await asyncio.get_running_loop().sock_recv(sock, 16):
            self._ready.add(place)
            if len(self._ready) == self._options.processes:
                notify("READY=1")

    async def _until_ended(self, child: asyncio.subprocess.Process, place: int) -> int:
        ended = asyncio.ensure_future(child.wait())
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not ended.done():
            limit_s = self._options.grace_us / 1e6 + _MARGIN_S
            await asyncio.wait((ended,), timeout=limit_s)
            if not ended.done():
                log.error("worker %d did not end in its grace and is killed", place)
                child.kill()
        return await ended


def _how(status: int) -> str:
    return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
