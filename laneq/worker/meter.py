"""What a worker measures: wait, run time and latency of its jobs, as histogram buckets.

The loop notes durations as they are and sorts them into buckets by the hundred, since that
costs a fifth; the heartbeat takes the counts away and sends them. No lock: the heartbeat swaps
the tables and keeps them until its next round before it reads them, so that what was being
noted at the swap is in them by then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import repeat
from math import log
from operator import mul
from typing import Final

from laneq.calls.workers import Sample
from laneq.histogram import LAST_BUCKET, PER_LOG

#: Jobs that are noted before their durations are sorted into buckets.
_MOST_NOTED: Final = 200

_FIELDS: Final = ("w", "r", "l")


class _Table:
    """Durations of one lane in microseconds, and the buckets of earlier ones."""

    __slots__ = ("counts", "latency", "run", "wait")

    def __init__(self) -> None:
        self.wait: list[float] = []
        self.run: list[float] = []
        self.latency: list[float] = []
        self.counts: tuple[Counter[int], Counter[int], Counter[int]] = (
            Counter(), Counter(), Counter(),
        )  # fmt: skip

    def sort(self) -> None:
        """Sort what was noted into buckets."""
        noted = (self.wait, self.run, self.latency)
        self.wait, self.run, self.latency = [], [], []
        for counts, durations in zip(self.counts, noted, strict=True):
            counts.update(_buckets(durations))


def _buckets(durations: Iterable[float]) -> Iterator[int]:
    """Return the bucket of each duration, as `histogram.bucket_of` does, in C throughout."""
    at_least_one = map(max, durations, repeat(1))
    logs = map(mul, map(log, at_least_one), repeat(PER_LOG))
    return map(min, map(int, logs), repeat(LAST_BUCKET))


class Meter:
    """Counts of all lanes since they were last taken."""

    __slots__ = ("_retired", "_tables")

    def __init__(self) -> None:
        self._tables: dict[str, _Table] = {}
        self._retired: dict[str, _Table] = {}

    def note(self, lane: str, wait_us: float, run_us: float, latency_us: float) -> None:
        """Note one job that ended; all in microseconds."""
        table = self._tables.get(lane)
        if table is None:
            table = self._tables.setdefault(lane, _Table())
        table.run.append(run_us)
        table.latency.append(latency_us)
        table.wait.append(wait_us)
        if len(table.wait) >= _MOST_NOTED:
            table.sort()

    @property
    def has_counts(self) -> bool:
        """Return whether a call of `take`, or the one after it, would bring something."""
        return bool(self._tables or self._retired)

    def take(self) -> list[Sample]:
        """Return what was counted up to the call before this one, and retire what is new."""
        ready, self._retired, self._tables = self._retired, self._tables, {}
        samples = []
        for lane, table in ready.items():
            table.sort()
            for field, counts in zip(_FIELDS, table.counts, strict=True):
                samples += [Sample(lane, f"{field}{bucket}", n) for bucket, n in counts.items()]
        return samples

    def put_back(self, samples: Iterable[Sample]) -> None:
        """Count samples again that could not be sent; for the one who took them."""
        for lane, field, n in samples:
            table = self._retired.setdefault(lane, _Table())
            table.counts[_FIELDS.index(field[0])][int(field[1:])] += n
