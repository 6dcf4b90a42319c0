"""What producers were told: which jobs there are, and what was asked of them since."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Wanted:
    """One job that a producer wanted.

    Attributes:
        number: what the producer calls it; the job has it as an argument.
        kind: its task.
        lane: where it waits.
        id: the job's id, where the enqueue was acknowledged. Of one that ended in an error
            nobody knows whether the job exists: it may, but once only.
        cancel_ns: when a cancel was confirmed, by the monotonic clock; 0 without one.
        may_be_cancelled: whether a cancel was sent, whatever became of it.
        revived_ns: when it was given new lives.
        unsure_revivals: how many were sent whose answer does not say what they did.
    """

    number: str
    kind: str
    lane: str
    id: str | None = None
    cancel_ns: int = 0
    may_be_cancelled: bool = False
    revived_ns: tuple[int, ...] = ()
    unsure_revivals: int = 0

    @property
    def was_revived(self) -> bool:
        """Whether it has, or may have, had more than one life."""
        return bool(self.revived_ns) or self.unsure_revivals > 0


class Ledger:
    """All jobs that producers wanted; used by many threads.

    Attributes:
        calls: what producers, waiters and operators did, and how it went: word → number.
        wrong: what they were told that must not be, as sentences.
        open_jobs: jobs that were open at the last look; producers wait when it is too many.
    """

    def __init__(self) -> None:
        self.wanted: dict[str, Wanted] = {}
        self.calls: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.open_jobs = 0
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._recent: list[Wanted] = []

    def want(self, kind: str, lane: str) -> Wanted:
        """Note a job before it is enqueued."""
        with self._lock:
            wanted = Wanted(str(next(self._numbers)), kind, lane)
            self.wanted[wanted.number] = wanted
        return wanted

    def acknowledge(self, wanted: Wanted, job: Any) -> None:
        """Note that an enqueue returned."""
        wanted.id = job.id
        with self._lock:
            self.calls["enqueued"] += 1
            self._recent.append(wanted)
            if len(self._recent) > 2_000:
                del self._recent[:1_000]

    def count(self, word: str, n: int = 1) -> None:
        """Note that something was done."""
        with self._lock:
            self.calls[word] += n

    def complain(self, sentence: str) -> None:
        """Note an answer that must not be."""
        with self._lock:
            self.wrong.append(sentence)

    def recent(self) -> list[Wanted]:
        """Return jobs that were acknowledged a short time ago."""
        with self._lock:
            return self._recent[-500:]

    def acknowledged(self) -> Iterator[Wanted]:
        """Yield all jobs whose enqueue returned."""
        return (wanted for wanted in list(self.wanted.values()) if wanted.id is not None)


def now_ns() -> int:
    """Return the time that diary and ledger have in common."""
    return time.monotonic_ns()
