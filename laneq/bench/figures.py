"""Medians over runs and percentiles over jobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

#: Told in words what goes on, for a progress line.
Progress = Callable[[str], None]


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the least value that at least `share` of the values do not exceed.

    None where there are no values.

    >>> percentile([4.0, 1.0, 3.0, 2.0], 0.5)
    2.0
    """
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)), 1) - 1]


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over several runs; None where no run had one.

    Attributes:
        median: the middle one.
        low: the least.
        high: the greatest.
        n: runs that had the figure.
    """

    median: float | None
    low: float | None
    high: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread:
        """Take the figures of all runs together."""
        known = [value for value in values if value is not None]
        if not known:
            return cls(None, None, None, 0)
        return cls(median(known), min(known), max(known), len(known))

    def rounded(self, digits: int) -> Spread:
        """Return it with so many digits after the point; 0 gives whole numbers."""

        def cut(value: float | None) -> float | None:
            if value is None:
                return None
            return round(value, digits) if digits else round(value)

        return Spread(cut(self.median), cut(self.low), cut(self.high), self.n)

    @property
    def ends(self) -> list[float | None]:
        """Least and greatest, as a row of `--json` has them."""
        return [self.low, self.high]


def combine(rows: Sequence[dict[str, Any]], digits: dict[str, int]) -> dict[str, Any]:
    """Return the medians of some figures of each run's row, and their ranges.

    Args:
        rows: one for each run.
        digits: the figures' names, and how many digits after the point to keep.
    """
    spreads = {
        name: Spread.of(row[name] for row in rows).rounded(places)
        for name, places in digits.items()
    }
    medians: dict[str, Any] = {name: spread.median for name, spread in spreads.items()}
    medians["runs"] = len(rows)
    medians["ranges"] = {name: spread.ends for name, spread in spreads.items()}
    return medians
