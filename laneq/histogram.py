"""Durations as counts in logarithmic buckets: any percentile within 5 %.

Bucket b holds durations from ``1.1**b`` up to ``1.1**(b + 1)`` µs, and stands for
their geometric middle, so an estimate is at most a factor of √1.1 (4.9 %) off.
290 buckets reach from 1 µs to 7 days; what is longer than a year counts as a year.
Counts add up over workers, lanes and slices of time, which percentiles do not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from laneq.errors import OptionError

_GROWTH: Final = 1.1

#: A duration's bucket is its natural logarithm times this, cut to an integer.
PER_LOG: Final = 1 / math.log(_GROWTH)
_YEAR_US: Final = 366 * 86_400 * 10**6

#: The bucket of everything that lasts a year or longer.
LAST_BUCKET: Final = int(math.log(_YEAR_US) * PER_LOG)


def bucket_of(us: float) -> int:
    """Return the bucket of a duration in µs; anything under 1 µs counts as 1 µs."""
    if us <= 1:
        return 0
    return int(math.log(min(us, _YEAR_US)) * PER_LOG)


def value_of(bucket: int) -> float:
    """Return the duration in µs that a bucket stands for: its geometric middle."""
    return float(_GROWTH ** (bucket + 0.5))


def percentile(counts: Mapping[int, int], q: float) -> float | None:
    """Estimate a percentile in µs, within 5 %; None where nothing was counted.

    It is the nearest-rank one: the smallest duration that at least the share `q` of
    all durations does not exceed.

    Args:
        counts: bucket → how many durations are in it.
        q: the share, from 0 to 1; 0.99 for the 99th percentile.

    Raises:
        OptionError: `q` is not between 0 and 1.
    """
    if not 0 <= q <= 1:
        raise OptionError("q", f"must be between 0 and 1, not {q!r}")
    total = sum(counts.values())
    if total <= 0:
        return None
    # 0.07 * 100 is a little over 7 in binary, and must not become rank 8.
    rank = max(1, math.ceil(q * total * (1 - 1e-12)))
    seen = 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= rank:
            return value_of(bucket)
    return value_of(max(counts))


def merge(*histograms: Mapping[int, int]) -> dict[int, int]:
    """Return the counts of all histograms together."""
    merged: dict[int, int] = {}
    for counts in histograms:
        for bucket, n in counts.items():
            merged[bucket] = merged.get(bucket, 0) + n
    return merged
