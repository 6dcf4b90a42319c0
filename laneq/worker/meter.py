"""What a worker measures: wait, run time and latency of its jobs, as histogram buckets.

The loop counts, the heartbeat takes the counts away and sends them. No lock: the heartbeat
swaps the table and keeps it until its next round before it reads it, so that an increment
that began before the swap is in it by then.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log

from laneq.calls.workers import Sample
from laneq.histogram import PER_LOG, bucket_of

Counts = dict[int, int]

# A lane's table has all three kinds: the key is the bucket plus the offset of its kind.
_RUN = 1_000
_LATENCY = 2_000
# Below this, the bucket is worked out here: a call for each would cost as much again.
_USUAL_US = 1e12
_FIELDS = ("w", "r", "l")


class Meter:
    """Counts of all lanes since they were last taken.

    Attributes:
        has_counts: whether there is something to take.
    """

    __slots__ = ("_counts", "_retired")

    def __init__(self) -> None:
        self._counts: dict[str, Counts] = {}
        self._retired: dict[str, Counts] = {}

    def note(self, lane: str, wait_us: float, run_us: float, latency_us: float) -> None:
        """Count one job that ended; all in microseconds."""
        table = self._counts.get(lane)
        if table is None:
            table = self._counts.setdefault(lane, {})
        get = table.get
        key = int(log(wait_us) * PER_LOG) if 1 < wait_us < _USUAL_US else bucket_of(wait_us)
        table[key] = get(key, 0) + 1
        key = _RUN + (int(log(run_us) * PER_LOG) if 1 < run_us < _USUAL_US else bucket_of(run_us))
        table[key] = get(key, 0) + 1
        key = _LATENCY + (
            int(log(latency_us) * PER_LOG) if 1 < latency_us < _USUAL_US else bucket_of(latency_us)
        )
        table[key] = get(key, 0) + 1

    @property
    def has_counts(self) -> bool:
        """Return whether a call of `take` or the one after would bring something."""
        return bool(self._counts or self._retired)

    def take(self) -> list[Sample]:
        """Return what was counted up to the call before this one, and retire what is new."""
        ready, self._retired, self._counts = self._retired, self._counts, {}
        return list(_samples(ready))

    def put_back(self, samples: list[Sample]) -> None:
        """Count samples again that could not be sent; called by the taker only."""
        for lane, field, n in samples:
            table = self._retired.setdefault(lane, {})
            key = int(field[1:]) + 1_000 * _FIELDS.index(field[0])
            table[key] = table.get(key, 0) + n


def _samples(counts: dict[str, Counts]) -> Iterator[Sample]:
    for lane, table in counts.items():
        for key, n in table.items():
            kind, bucket = divmod(key, 1_000)
            yield Sample(lane, f"{_FIELDS[kind]}{bucket}", n)
