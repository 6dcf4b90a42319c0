"""What the bodies of jobs did, in a file that no fault of Redis can touch.

Each entry is one line, written by one call to a file opened for appending, so that the entries
of any number of processes stand whole. Times are of the machine's monotonic clock, which is
one for all processes. A worker is named by its place in the fleet and how often it was started
there: no process id, which may come again.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from laneq import current_job
from laneq.errors import JobControl

#: Names of the file and of the worker, in a worker's environment.
PATH: Final = "LANEQ_CHAOS_DIARY"
WORKER: Final = "LANEQ_CHAOS_WORKER"

#: Words of an entry. A body that is to fail, or puts itself off, ends as it was meant to;
#: `STOPPED` is one that was stopped from outside: a timeout, a cancel, a shutdown.
START: Final = "start"
OK: Final = "ok"
FAILED: Final = "failed"
PUT_OFF: Final = "put_off"
STOPPED: Final = "stopped"
CHILD: Final = "child"


class Entry(NamedTuple):
    """One line.

    Attributes:
        word: what happened.
        id: the job.
        number: what its producer called it.
        fence: of the attempt.
        worker: where it ran.
        at_ns: when, by the monotonic clock.
        extra: the id of a child.
    """

    word: str
    id: str
    number: str
    fence: int
    worker: str
    at_ns: int
    extra: str


_fds: dict[int, int] = {}


def write(word: str, number: str, extra: str = "-") -> None:
    """Append an entry of the running job."""
    # One descriptor for each process: a child does not write through its parent's.
    fd = _fds.get(os.getpid())
    if fd is None:
        fd = os.open(os.environ[PATH], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        _fds[os.getpid()] = fd
    job = current_job()
    line = (
        f"{word} {job.id} {number} {job.fence} {os.environ[WORKER]} {time.monotonic_ns()} {extra}\n"
    )
    os.write(fd, line.encode())


@contextlib.contextmanager
def noted(number: str) -> Iterator[None]:
    """Note the start of a body and how it ended."""
    write(START, number)
    try:
        yield
    except Exception:
        write(FAILED, number)
        raise
    except JobControl:
        write(PUT_OFF, number)
        raise
    except BaseException:
        write(STOPPED, number)
        raise
    write(OK, number)


def read(path: Path) -> list[Entry]:
    """Return all entries in the order of writing."""
    found = []
    with path.open() as lines:
        for line in lines:
            word, job_id, number, fence, worker, at_ns, extra = line.split()
            found.append(Entry(word, job_id, number, int(fence), worker, int(at_ns), extra))
    return found
