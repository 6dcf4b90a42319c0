"""Keep several worker processes: start them, restart those that crash, pass signals on.

A crew that sizes itself has between `processes` and `processes_max` of them. Each child computes
its part of the slots that the fleet wants (see `laneq.elastic`) and tells it; what all parts need
is what the crew has, more at once, fewer when that has been enough for a while.

Each child is a fresh interpreter that runs the same command for one process. It leads a
process group of its own, so that a terminal's signals reach it through the supervisor only,
and it stops when the supervisor is gone: it holds one end of a socket that closes then.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from laneq.elastic import LOOK_S, STEP_DOWN_S, STEP_DOWN_SHARE
from laneq.options import WorkerOptions
from laneq.worker.lines import log, log_to_stderr
from laneq.worker.notify import notify
from laneq.worker.probe import Probe, ProbeOptions, Touched
from laneq.worker.process import (
    DOUBLED_S,
    HEALTH_FILE,
    IN_CREW,
    PARENT_FD,
    READY,
    WANTS,
    give_signals_back,
    shown,
    take_parent_fd,
)

#: Seconds until a crashed child is started again: at first, and at most.
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 30.0

#: A child that lived this long did not crash because of how it was started.
_STEADY_S: Final = 10.0

#: Seconds that a child gets beyond its grace before it is killed.
_MARGIN_S: Final = 15.0

#: Exit status of a child that a restart would not help: wrong usage, Redis refuses.
_HOPELESS: Final = frozenset({2, 3})

#: What a child's command line has beside that of its supervisor.
_ALONE: Final = ("--processes", "1", "--processes-max", "1")

#: Workers are dismissed while the others would have this share of their slots wanted at most.
_ENOUGH: Final = 0.8

#: Seconds after a worker came or went in which the shares of all are told anew.
_SETTLE_S: Final = 2.5 * LOOK_S

# A float a hair above a whole number is that number.
_FUZZ: Final = 1e-9

_NO_FILES: Final[Mapping[int, Path]] = {}


def supervise(
    app: Any,
    options: WorkerOptions,
    probe: ProbeOptions | None = None,
    *,
    command: Sequence[str] | None = None,
) -> int:
    """Keep ``options.processes`` to ``options.processes_max`` worker processes until told to stop.

    INT and TERM are passed on to the children, so that each drains; a child that ends in
    another way is started again, after a pause that grows while it keeps crashing.

    Args:
        app: named in lines; the children load it themselves.
        options: `processes`, `processes_max`, `grace` and the most slots are used here.
        probe: how it shows whether all of them are well; None for not at all.
        command: the command of one worker; None for that of this process, with
            ``--processes 1 --processes-max 1``.

    Returns:
        The exit status: 0, or that of a child which cannot work at all.

    Raises:
        ConfigError: what `probe` names cannot be used.
    """
    log_to_stderr()
    line = command or [sys.executable, "-m", "laneq", *sys.argv[1:], *_ALONE]
    most = _most_of(options)
    upto = f" to {most}" if most > options.processes else ""
    log.info(
        "supervisor of %d%s workers for %r (pid %d)", options.processes, upto, app, os.getpid()
    )
    wanted = probe or ProbeOptions()
    if not wanted.is_wanted:
        return asyncio.run(_Crew(list(line), options).keep())
    with tempfile.TemporaryDirectory(prefix="laneq-health-") as folder:
        files = {place: Path(folder) / str(place) for place in range(1, most + 1)}
        crew = _Crew(list(line), options, files)
        with shown(Probe(wanted, crew.problems, lambda: {"workers": crew.size})):
            return asyncio.run(crew.keep())


def _most_of(options: WorkerOptions) -> int:
    return options.processes if options.processes_max is None else options.processes_max


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
        self._touched = Touched({})
        self._children: set[asyncio.subprocess.Process] = set()
        self._places: dict[int, asyncio.Task[None]] = {}
        self._dismissals: dict[int, asyncio.Event] = {}
        self._dismissed: set[int] = set()
        self._shares: dict[int, float] = {}
        self._most = _most_of(options)
        self._settled_at = 0.0
        self._enough_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
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
            self._grow(self._options.processes)
            while self._places:
                await asyncio.wait(self._places.values(), return_when=asyncio.FIRST_COMPLETED)
                for place, task in list(self._places.items()):
                    if task.done():
                        self._forget(place)
                        task.result()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            give_signals_back(was_told=self._first_signal > 0)
        return self._status

    # --- size -------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Return how many workers there are to be now."""
        return len(self._places) - len(self._dismissed)

    def _grow(self, size: int) -> None:
        """Fill places until so many are."""
        loop = asyncio.get_running_loop()
        free = (place for place in range(1, self._most + 1) if place not in self._places)
        for place in list(free)[: size - self.size]:
            self._places[place] = loop.create_task(self._keep_one(place))
        self._watch_files()

    def _dismiss(self, place: int) -> None:
        """Have the worker of a place drain, and keep the place empty."""
        self._dismissed.add(place)
        self._shares.pop(place, None)
        self._dismissals.setdefault(place, asyncio.Event()).set()
        self._watch_files()

    def _forget(self, place: int) -> None:
        del self._places[place]
        self._dismissed.discard(place)
        self._dismissals.pop(place, None)
        self._watch_files()

    def _watch_files(self) -> None:
        kept = [place for place in self._places if place not in self._dismissed]
        self._touched.watch(
            {f"worker {place}": self._files[place] for place in kept if place in self._files}
        )

    def _unsettle(self) -> None:
        """Wait a little: shares told before a worker came or went do not add up with those after.

        While one starts they do: it has no part yet, and the others' are of all that is wanted.
        """
        self._settled_at = time.monotonic() + _SETTLE_S
        self._enough_since = None
        self._size_in(_SETTLE_S)

    def _size_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._most > self._options.processes:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._fit)

    def _fit(self) -> None:
        """Have as many workers as their shares need."""
        now = time.monotonic()
        size, capacity = self.size, self._options.capacity
        if self._stopping.is_set():
            return
        if now < self._settled_at:
            self._size_in(self._settled_at - now)
            return
        shares = sum(self._shares.values())
        needed = min(math.ceil(shares / capacity - _FUZZ), self._most)
        if needed > size:
            log.info(
                "workers %d → %d (%d to %d): slots wanted of this crew are %.3g, and one has up to "
                "%d", size, needed, self._options.processes, self._most, shares, capacity,
            )  # fmt: skip
            self._grow(needed)
            return
        enough = max(math.ceil(shares / (_ENOUGH * capacity) - _FUZZ), self._options.processes)
        if enough >= size or len(self._shares) < size:
            self._enough_since = None
            return
        if self._enough_since is None:
            self._enough_since = now
        # The shares are of the most that was wanted in a while: that need not be waited for.
        if now - self._enough_since < STEP_DOWN_S:
            self._size_in(self._enough_since + STEP_DOWN_S - now)
            return
        gone = math.ceil((size - enough) * STEP_DOWN_SHARE)
        log.info(
            "workers %d → %d (%d to %d): slots wanted of this crew are %.3g, and one has up to %d",
            size, size - gone, self._options.processes, self._most, shares, capacity,
        )  # fmt: skip
        for place in sorted(set(self._places) - self._dismissed)[size - gone :]:
            self._dismiss(place)
        self._unsettle()

    # --- stop -------------------------------------------------------------------------

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
        while not self._stopping.is_set() and place not in self._dismissed:
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
            if self._stopping.is_set() or place in self._dismissed:
                return
            crashes = 1 if time.monotonic() - began >= _STEADY_S else crashes + 1
            pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(crashes - 1, 16))
            log.warning("worker %d %s; it is started again in %.1f s", place, _how(status), pause_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._until_to_end(place), pause_s)

    async def _run_one(self, place: int) -> int:
        """Start a child and return its exit status."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with ours:
            with theirs:
                environment = {**os.environ, PARENT_FD: str(theirs.fileno())}
                environment.pop("NOTIFY_SOCKET", None)
                if self._most > self._options.processes:
                    environment[IN_CREW] = "1"
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
            telling = asyncio.ensure_future(self._listen(ours, place))
            try:
                return await self._until_ended(child, place)
            finally:
                telling.cancel()
                await asyncio.gather(telling, return_exceptions=True)
                self._ready.discard(place)
                self._shares.pop(place, None)
                self._children.discard(child)

    async def _listen(self, sock: socket.socket, place: int) -> None:
        """Take in what a child tells, line by line."""
        loop, rest = asyncio.get_running_loop(), b""
        while data := await loop.sock_recv(sock, 4096):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                word, _, value = line.decode().partition(" ")
                if word == READY:
                    self._ready.add(place)
                    if len(self._ready) == self._options.processes:
                        notify("READY=1")
                    self._unsettle()
                elif word == WANTS and place not in self._dismissed:
                    self._shares[place] = float(value)
                    self._fit()

    async def _until_to_end(self, place: int) -> None:
        """Wait until the crew stops, or this place is given up."""
        dismissed = self._dismissals.setdefault(place, asyncio.Event())
        waits = [asyncio.ensure_future(event.wait()) for event in (self._stopping, dismissed)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _until_ended(self, child: asyncio.subprocess.Process, place: int) -> int:
        ended = asyncio.ensure_future(child.wait())
        stopping = asyncio.ensure_future(self._until_to_end(place))
        await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not ended.done():
            if not self._stopping.is_set():
                with contextlib.suppress(ProcessLookupError):
                    child.terminate()
            limit_s = self._options.grace_us / 1e6 + _MARGIN_S
            await asyncio.wait((ended,), timeout=limit_s)
            if not ended.done():
                log.error("worker %d did not end in its grace and is killed", place)
                child.kill()
        return await ended


def _how(status: int) -> str:
    return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
