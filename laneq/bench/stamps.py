"""What jobs write down about themselves: lines in a local file, so that Redis is not disturbed.

All times are of the monotonic clock, which is one for all processes of a host, in
nanoseconds. A line is written with one system call on a descriptor opened for
appending, so lines of several processes do not mix.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from laneq.errors import BenchFailed, ConfigError

#: Environment variable by which a worker is told where to write.
VARIABLE: Final = "LANEQ_BENCH_STAMPS"

_LOOK_S: Final = 0.02


class Stamp(NamedTuple):
    """What one job wrote: its kind and three instants or other numbers, in ns."""

    kind: str
    first: int
    second: int
    third: int


class Pen:
    """Appends stamps; made in the process that writes."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    @classmethod
    def from_environment(cls) -> Pen:
        """Open the file that the benchmark has named."""
        path = os.environ.get(VARIABLE)
        if not path:
            raise ConfigError(
                f"${VARIABLE} names no file: this app is for `laneq bench`, which sets it"
            )
        return cls(path)

    def write(self, kind: str, first: int, second: int = 0, third: int = 0) -> None:
        """Append one stamp."""
        os.write(self._fd, f"{kind} {first} {second} {third}\n".encode())


@dataclass(slots=True)
class Book:
    """Reads the stamps of one run as they come."""

    path: Path
    _at: int = 0

    def read_new(self) -> list[Stamp]:
        """Return the stamps that came since the last look, in the order of writing."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        found = []
        for line in whole.decode().splitlines():
            kind, first, second, third = line.split(" ")
            found.append(Stamp(kind, int(first), int(second), int(third)))
        return found

    def wait_for(
        self, kinds: Mapping[str, int], *, timeout_s: float, check: Callable[[], None]
    ) -> list[Stamp]:
        """Wait until so many stamps of each kind have come; return all of those kinds.

        Args:
            kinds: kind → how many.
            timeout_s: seconds that they may take.
            check: called now and then; raises where they will never come.

        Raises:
            BenchFailed: they did not come in time.
        """
        give_up_at = time.monotonic() + timeout_s
        found: list[Stamp] = []
        missing = Counter(kinds)
        while missing.total() > 0:
            if time.monotonic() > give_up_at:
                short = ", ".join(f"{n} of {kinds[kind]} {kind!r}" for kind, n in missing.items())
                raise BenchFailed(f"jobs have not written {short} within {timeout_s:g} s")
            check()
            time.sleep(_LOOK_S)
            new = [stamp for stamp in self.read_new() if stamp.kind in kinds]
            found += new
            missing = missing - Counter(stamp.kind for stamp in new)
        return found
