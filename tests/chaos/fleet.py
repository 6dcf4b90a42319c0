"""The workers of a chaos run: started as a user starts them, and never for long."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

import psutil

from tests.chaos import diary

ROOT: Final = Path(__file__).parents[2]

#: What a worker never says unless something is wrong with it.
_ALARMS: Final = re.compile(
    r"CRITICAL|the claim loop failed|the heartbeat failed|Task exception was never retrieved|"
    r"never awaited|Traceback \(most recent call last\)"
)

#: Seconds that jobs get when a worker is told to stop.
GRACE_S: Final = 3.0

_READY_S: Final = 60.0
_GONE_S: Final = 30.0


class Post:
    """A place in the fleet, with a worker on it most of the time.

    Attributes:
        name: of the place.
        worker: of the one on it now: the place, and how often it was filled.
        is_stopped: whether its processes are stopped by SIGSTOP.
        is_leaving: whether it was told to end, or was ended; somebody is to fill the place.
    """

    def __init__(
        self, name: str, options: Sequence[str], *, environment: Mapping[str, str], folder: Path
    ) -> None:
        self.name = name
        self.is_stopped = False
        self.is_leaving = False
        self._options = options
        self._environment = environment
        self._starts = 0
        self._log = folder / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def worker(self) -> str:
        return f"{self.name}.{self._starts}"

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def is_ready(self) -> bool:
        """Whether the worker has said that it takes jobs."""
        return "is ready" in self.log.rpartition(f"--- {self.worker}\n")[2]

    @property
    def log(self) -> str:
        """All that the workers of this place have written."""
        return self._log.read_text("utf-8", "replace") if self._log.exists() else ""

    def start(self) -> None:
        """Put a new worker on the place."""
        self._starts += 1
        with self._log.open("ab") as log:
            log.write(f"--- {self.worker}\n".encode())
            log.flush()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "laneq", "worker", "tests.chaos.app:app", *self._options],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, **self._environment, diary.WORKER: self.worker},
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        """Wait until the worker takes jobs."""
        give_up_at = time.monotonic() + _READY_S
        while not self.is_ready:
            if not self.is_alive or time.monotonic() > give_up_at:
                raise RuntimeError(f"worker {self.worker} did not become ready:\n{self.log}")
            time.sleep(0.05)

    def processes(self) -> list[psutil.Process]:
        """Return the worker's processes: itself, and what it has started."""
        if self.process is None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self.process.pid)
            return [parent, *parent.children(recursive=True)]
        return []

    def signal(self, number: signal.Signals, processes: Sequence[psutil.Process]) -> None:
        """Send a signal to some of the worker's processes."""
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def kill(self) -> None:
        """Kill the worker and all that it started, as the end of a machine does."""
        processes = self.processes()
        # The first one first, or it would see its children end.
        self.signal(signal.SIGKILL, processes)
        self.reap()

    def term(self) -> None:
        """Tell the worker to stop."""
        if self.process is not None and self.is_alive:
            self.process.send_signal(signal.SIGTERM)

    def reap(self) -> int:
        """Wait until the worker has ended; return its status."""
        if self.process is None:
            return 0
        status = self.process.wait(_GONE_S)
        if self.process.stdin is not None:
            self.process.stdin.close()
        return status


class Fleet:
    """All places; a context manager that leaves no process.

    Args:
        posts: the places.
    """

    def __init__(self, posts: Sequence[Post]) -> None:
        self.posts = list(posts)

    def __enter__(self) -> Self:
        for post in self.posts:
            post.start()
        return self

    def __exit__(self, *_: object) -> None:
        for post in self.posts:
            if post.is_alive:
                post.kill()
            else:
                post.reap()

    def alarms(self) -> list[str]:
        """Return lines of the workers that must not be, with what stands around them."""
        found = []
        for post in self.posts:
            lines = post.log.splitlines()
            for n, line in enumerate(lines):
                if _ALARMS.search(line):
                    found.append(f"{post.name}: " + " | ".join(lines[max(0, n - 1) : n + 12]))
        return found
