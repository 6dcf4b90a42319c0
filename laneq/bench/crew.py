"""Worker processes of a benchmark: started as a user starts them, stopped by pid.

They are children in sessions of their own, so that Ctrl-C reaches the benchmark
alone, which then stops them. They hold the end of a pipe on their standard input
and end when it breaks: no worker outlives a benchmark that was killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

import laneq
from laneq.bench import leash
from laneq.bench.rig import Space
from laneq.bench.stamps import VARIABLE, Book
from laneq.errors import BenchFailed, ConfigError

_READY_S: Final = 30.0
_STOP_S: Final = 20.0
_TAIL_LINES: Final = 12


class Child:
    """A process that says ``ready``; started at once.

    Args:
        arguments: of ``python``, as ``["-m", "laneq", "worker"]``.
        environment: variables beside those of this process.
        what: its name in messages.
    """

    def __init__(
        self, arguments: Sequence[str], *, environment: Mapping[str, str], what: str
    ) -> None:
        self.what = what
        self._lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self._is_ready = threading.Event()
        self._is_stopping = False
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_python_path(), leash.VARIABLE: "1", **environment},
            start_new_session=True,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, name=f"bench-{what}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    @property
    def tail(self) -> str:
        """The last lines that it wrote."""
        return "\n".join(self._lines) or "(nothing)"

    def wait_ready(self) -> None:
        """Wait until it has written a line with the word ``ready``.

        Raises:
            BenchFailed: it ended, or did not say so in time.
        """
        give_up_at = time.monotonic() + _READY_S
        while not self._is_ready.wait(0.02):
            if self.process.poll() is not None:
                self._reader.join()
                if self._is_ready.is_set():
                    return
                raise BenchFailed(
                    f"{self.what} ended while starting (exit {self.process.returncode}). "
                    f"It said:\n{self.tail}"
                )
            if time.monotonic() > give_up_at:
                raise BenchFailed(
                    f"{self.what} was not ready within {_READY_S:g} s. It said:\n{self.tail}"
                )

    def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        if self.process.stdin is None:
            raise ConfigError(f"{self.what} has no standard input")
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def check(self) -> None:
        """See that it lives, unless it was stopped.

        Raises:
            BenchFailed: it ended by itself.
        """
        if self.process.poll() is not None and not self._is_stopping:
            self._reader.join()
            raise BenchFailed(
                f"{self.what} ended (exit {self.process.returncode}). It said:\n{self.tail}"
            )

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Signal it; one that has ended is left alone."""
        self._is_stopping = True
        if self.process.poll() is None:
            self.process.send_signal(how)

    def wait(self) -> None:
        """Wait until it has ended, and kill it if it will not."""
        try:
            self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def _read(self) -> None:
        if self.process.stdout is None:
            return
        for line in self.process.stdout:
            self._lines.append(line.rstrip())
            if "ready" in line:
                self._is_ready.set()


def _python_path() -> dict[str, str]:
    # A checkout that is not installed: the children import the same laneq as this process.
    home = str(Path(laneq.__file__).resolve().parent.parent)
    given = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": home + (os.pathsep + given if given else "")}


class Crew:
    """The processes of one run, and the file that their jobs write to; a context manager.

    Args:
        space: the namespace that they work in.
    """

    def __init__(self, space: Space) -> None:
        """Note where; nothing is started yet."""
        self._space = space
        self._children: list[Child] = []
        self._workers: list[Child] = []

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="laneq-bench-")
        self.book = Book(Path(self._folder.name) / "stamps")
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.stop()
        for child in self._children:
            child.wait()
        self._folder.cleanup()

    def start(self, arguments: Sequence[str], *, what: str, **environment: str) -> Child:
        """Start a process of ``python`` that knows the server, the namespace and the file."""
        child = Child(
            arguments,
            environment={
                "LANEQ_URL": self._space.url,
                "LANEQ_NAMESPACE": self._space.namespace,
                VARIABLE: str(self.book.path),
                **environment,
            },
            what=what,
        )
        self._children.append(child)
        return child

    def start_worker(self, *options: str, **environment: str) -> Child:
        """Start ``laneq worker`` with the benchmarks' app; it is not ready yet."""
        worker = self.start(
            ["-m", "laneq", "worker", "laneq.bench.app:app", *options],
            what=f"worker {' '.join(options)}",
            **environment,
        )
        self._workers.append(worker)
        return worker

    def check(self) -> None:
        """See that all workers live that were not stopped.

        Raises:
            BenchFailed: one does not.
        """
        for worker in self._workers:
            worker.check()
