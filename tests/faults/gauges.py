"""What the tests of growth and speed look at: the slow log, MONITOR, another client's PING.

A machine under load keeps every process waiting now and then. What is measured is therefore
compared with a limit and the noise: how late this machine wakes a process up at the same time.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlsplit

import redis

from tests.faults.field import ROOT

#: Commands that read all of something that grows, or look through all keys.
_NEVER: Final = frozenset({"KEYS", "SCAN", "SMEMBERS", "LREM", "SORT", "FLUSHALL", "FLUSHDB"})
_RANGES: Final = frozenset({"LRANGE", "ZRANGE", "ZREVRANGE"})
_BY_SCORE: Final = frozenset({"ZRANGEBYSCORE", "ZREVRANGEBYSCORE"})


class Percentiles(NamedTuple):
    """Milliseconds: of PINGs, and of how late the pinger was woken up."""

    ping_p99: float
    ping_max: float
    noise_p99: float
    noise_max: float


class Pinger:
    """Another client, in a process of its own, that sends a PING every few milliseconds."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.pinger", url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def stop(self) -> Percentiles:
        """Stop and return what was measured."""
        said, _ = self._process.communicate("stop\n", timeout=30)
        return Percentiles(**json.loads(said))


class SlowLog:
    """The calls that the server took long for."""

    def __init__(self, raw: redis.Redis, *, over_us: int, most: int = 20_000) -> None:
        self._raw: Any = raw
        raw.config_set("slowlog-max-len", most)
        raw.config_set("slowlog-log-slower-than", over_us)
        raw.slowlog_reset()

    def entries(self) -> list[tuple[float, str]]:
        """Return milliseconds and the beginning of each call, the slowest first."""
        rows = self._raw.slowlog_get(20_000)
        return sorted((row["duration"] / 1000, repr(row["command"][:80])) for row in rows)[::-1]

    def durations_us(self, word: bytes) -> list[int]:
        """Return the microseconds of each logged call of one command."""
        rows = self._raw.slowlog_get(20_000)
        return [row["duration"] for row in rows if row["command"].upper().startswith(word)]

    def reset(self) -> None:
        self._raw.slowlog_reset()


class Monitor:
    """All commands that the server carries out, those inside scripts too; a context manager."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lines: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._is_over = threading.Event()

    def __enter__(self) -> Self:
        parts = urlsplit(self._url)
        if parts.scheme == "unix":
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.connect(parts.path)
        else:
            self._socket = socket.create_connection((parts.hostname or "", parts.port or 6379))
        self._socket.sendall(b"MONITOR\r\n")
        assert self._socket.recv(5) == b"+OK\r\n"
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _read(self) -> None:
        with self._socket.makefile("r", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                self._lines.append(line)

    def commands(self) -> list[list[str]]:
        """Return the words of each command, the command itself in capitals."""
        found = []
        for line in list(self._lines):
            _, bracket, rest = line.partition("] ")
            words = rest.strip().split('" "')
            if bracket and words[0].startswith('"'):
                words = [words[0].lstrip('"'), *words[1:]]
                words[-1] = words[-1].removesuffix('"')
                found.append([words[0].upper(), *words[1:]])
        return found


def unbounded(commands: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the commands whose work grows with what is waiting, dead or foreign."""
    found = []
    for command in commands:
        name = command[0]
        is_all = name in _RANGES and list(command[2:4]) == ["0", "-1"]
        has_no_limit = name in _BY_SCORE and "LIMIT" not in [word.upper() for word in command]
        if name in _NEVER or is_all or has_no_limit:
            found.append(list(command[:8]))
    return found
