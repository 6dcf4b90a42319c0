"""How two revisions compare by measurements in pairs, and how sure that is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Literal

#: Fewer pairs say nothing of how far chance goes.
LEAST_PAIRS: Final = 5

_RESAMPLES: Final = 5_000
_TAIL: Final = 0.05  # of each end of a 90 % interval
_SEED: Final = 1

Verdict = Literal["yes", "no", "open"]


@dataclass(frozen=True, slots=True)
class Pairs:
    """One figure of both revisions, once for each round.

    Attributes:
        base: of the revision that is compared with.
        this: of the other, round by round in the same order.
        is_rate: whether more is better; less is, of a time.
    """

    base: Sequence[float]
    this: Sequence[float]
    is_rate: bool

    @property
    def ratio(self) -> float:
        """How many times as good this one is as the base: the ratio of the medians."""
        return self._ratio(range(len(self.base)))

    @property
    def ratios(self) -> list[float]:
        """The same of each pair, the least first."""
        return sorted(self._ratio([i]) for i in range(len(self.base)))

    def _ratio(self, rounds: Sequence[int]) -> float:
        base = median([self.base[i] for i in rounds])
        this = median([self.this[i] for i in rounds])
        return this / base if self.is_rate else base / this

    def interval(self) -> tuple[float, float] | None:
        """Return the 90 % interval of the ratio, by a bootstrap over the pairs; None for too few.

        Pairs are drawn with replacement, as many as there are, 5,000 times over: 5 % of the
        ratios that come out lie below the interval and 5 % above.
        """
        n = len(self.base)
        if n < LEAST_PAIRS:
            return None
        draw = random.Random(_SEED)
        found = sorted(self._ratio(draw.choices(range(n), k=n)) for _ in range(_RESAMPLES))
        cut = round(_TAIL * _RESAMPLES)
        return found[cut], found[-1 - cut]

    def holds(self, tolerance: float) -> Verdict:
        """Return whether this one is no worse than the base by more than a share."""
        interval = self.interval()
        if interval is None:
            return "open"
        low, high = interval
        if low >= 1 - tolerance:
            return "yes"
        return "no" if high < 1 - tolerance else "open"
