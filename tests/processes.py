"""`laneq worker` as a process of a test: how it is started, what it prints, its signals."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import psutil
import pytest

from tests.patience import wait_until

#: Seconds for what a process does, which on a loaded machine may be slow to start.
PATIENCE_S: Final = 30.0

#: Seconds for the last lines of a process that has ended.
_LAST_WORDS_S: Final = 1.0


def start_worker(
    app: str,
    *options: str,
    environment: Mapping[str, str],
    folder: Path | None = None,
    before: Sequence[str] = (),
) -> WorkerProcess:
    """Start a worker. Whoever does so calls its `end`, or uses it as a context.

    Args:
        app: the module or file, and the app's name in it, as the command takes them.
        options: further words of the command line.
        environment: variables beside those of this process.
        folder: where it runs; None for where this process does.
        before: a command that starts it, as ``("unshare", "--pid", "--fork")``.
    """
    popen = subprocess.Popen(
        [*before, sys.executable, "-m", "laneq", "worker", app, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env={**os.environ, **environment},
        process_group=0,
    )
    return WorkerProcess(popen, is_wrapped=bool(before))


class WorkerProcess:
    """A `laneq worker` command that runs, and what it has printed.

    Attributes:
        popen: the command that was started; where it was started through another program,
            as `unshare`, that one.
        lines: what it printed, log included.
    """

    def __init__(self, popen: subprocess.Popen[str], *, is_wrapped: bool) -> None:
        self.popen = popen
        self.lines: list[str] = []
        self._is_wrapped = is_wrapped
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def text(self) -> str:
        """All that it has printed so far."""
        return "\n".join(self.lines)

    @property
    def pid(self) -> int:
        """The worker's own process id, as seen from here."""
        if not self._is_wrapped:
            return self.popen.pid
        # Through as many wrappers as there are: each has one child, the worker has none that
        # is there before it is ready.
        process = psutil.Process(self.popen.pid)
        while "laneq" not in process.cmdline()[:3]:
            (process,) = process.children()
        return process.pid

    @property
    def is_running(self) -> bool:
        return self.popen.poll() is None

    def until(self, word: str, *, times: int = 1, within_s: float = PATIENCE_S) -> None:
        """Wait until so many lines with this word have been printed."""
        with self._news:
            seen = self._news.wait_for(lambda: self.count(word) >= times, within_s)
        assert seen, f"no line with {word!r} within {within_s:g} s:\n{self.text}"

    def until_ready(self) -> None:
        """Wait until it takes jobs."""
        self.until("is ready")

    def count(self, word: str) -> int:
        """Return how many lines with this word have been printed."""
        return sum(word in line for line in self.lines)

    def send(self, number: int) -> None:
        """Send a signal to the worker."""
        os.kill(self.pid, number)

    def kill9(self) -> None:
        """End it as the power does, and wait until it is gone."""
        self.send(signal.SIGKILL)
        self.popen.wait(PATIENCE_S)

    def term(self) -> None:
        self.send(signal.SIGTERM)

    def int(self) -> None:
        self.send(signal.SIGINT)

    def hurry(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send it a second signal to stop; for a moment after the first, it is the same one."""

        def is_taken() -> bool:
            self.send(number)
            return self.count("again: handing back") > 0

        wait_until(is_taken, PATIENCE_S, "a hand-back at the second signal")

    def stop(self) -> None:
        """Stop it in its tracks (SIGSTOP); `cont` has it go on."""
        self.send(signal.SIGSTOP)

    def cont(self) -> None:
        self.send(signal.SIGCONT)

    def wait(self, within_s: float = PATIENCE_S) -> Any:
        """Return its exit status, once it has ended."""
        try:
            status = self.popen.wait(within_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the worker did not end within {within_s:g} s:\n{self.text}")
        self._reader.join(_LAST_WORDS_S)
        return status

    def cpu_s(self) -> float:
        """Return the processor time that it has used, in seconds."""
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system

    def family(self) -> list[psutil.Process]:
        """Return the processes that it has started and that live."""
        found = psutil.Process(self.pid).children(recursive=True)
        return [process for process in found if is_alive(process)]

    def end(self) -> None:
        """Kill it and all that it started."""
        if self.is_running:
            # Its child processes end by themselves, when they see that it has gone.
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(self.popen.pid).children(recursive=True):
                    child.kill()
            self.popen.kill()
        self.popen.wait()
        self._reader.join(10)
        assert self.popen.stdout is not None
        self.popen.stdout.close()


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process runs, and is not merely still listed."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
