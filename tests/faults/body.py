"""What job bodies of fault tests use: the RUNLOG, and the lanes that the test chose.

The RUNLOG is what the bodies did, in a file that no fault of Redis can touch.

Each entry is one line, written by one call to a file opened for appending, so that the entries
of any number of processes stand whole and in order. Times are Redis's, from the machine's
monotonic clock and the distance between the two, which the test measured: a body that notes
something asks no server for the time, and adds no connection.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from laneq import Lane, current_job

#: Names in a worker's environment: of the RUNLOG's file, of the distance in µs from the
#: monotonic clock to Redis's, and of the lanes, JSON rows of Lane's options.
PATH: Final = "LANEQ_FAULT_RUNLOG"
DISTANCE: Final = "LANEQ_FAULT_DISTANCE_US"
LANES: Final = "LANEQ_FAULT_LANES"


def lanes() -> list[Lane]:
    """Return the lanes that the test chose."""
    return [Lane(**row) for row in json.loads(os.environ[LANES])]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line: `word` is ``start``, ``end``, ``raise`` or a test's own; `at_us` Redis time."""

    id: str
    attempt: int
    pid: int
    word: str
    at_us: int


def note(word: str) -> None:
    """Append an entry of the running job."""
    job = current_job()
    at_us = time.monotonic_ns() // 1000 + int(os.environ[DISTANCE])
    line = f"{job.id} {job.attempt} {os.getpid()} {word} {at_us}\n".encode()
    fd = os.open(os.environ[PATH], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, line)
    finally:
        os.close(fd)


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """Note the start of a body, and its end; ``raise`` where it did not come to its end."""
    note("start")
    try:
        yield
    except BaseException:
        note("raise")
        raise
    note("end")


def entries(path: Path) -> list[Entry]:
    """Return all entries, in the order in which they were written."""
    if not path.exists():
        return []
    rows = (line.split(" ") for line in path.read_text().splitlines())
    return [Entry(id, int(n), int(pid), word, int(at)) for id, n, pid, word, at in rows]
