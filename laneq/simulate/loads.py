"""What a pool is given to do: when jobs arrive, and how long they run.

Arrivals of every kind come from one process of rate 1, whose clock runs as fast as the rate of
the moment says; so each kind can follow rates that change. All randomness comes from the
generator that is handed in: the same seed gives the same jobs, whatever the pool does with them.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Final, Literal

from laneq.errors import OptionError
from laneq.histogram import value_of

Kind = Literal["even", "poisson", "bursts", "gamma"]

#: Kinds of arrivals that a user names.
KINDS: Final = ("even", "poisson", "bursts")

_HALF_A_BUCKET: Final = 0.5


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When jobs of a lane arrive.

    Attributes:
        steps: (second, jobs per second from then on), in order, the first at second 0.
        kind: ``even``; ``poisson``, at random and each by itself; ``bursts``, so many at once
            at random moments; ``gamma``, at random with the index of dispersion `spread`.
        spread: jobs in a burst; for ``gamma`` the variance of counts over their mean.
    """

    steps: tuple[tuple[float, float], ...]
    kind: Kind = "poisson"
    spread: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what is no process."""
        starts = [at for at, _ in self.steps]
        if not starts or starts[0] != 0 or any(b <= a for a, b in zip(starts, starts[1:])):  # noqa: B905, RUF007
            raise OptionError("rate", "its steps must begin at 0 s and follow one another in time")
        if not all(0 <= rate < math.inf for _, rate in self.steps):
            raise OptionError("rate", "must be jobs per second, 0 or more")
        if self.kind == "bursts" and (self.spread < 1 or self.spread != int(self.spread)):
            raise OptionError("arrivals", "a burst has a whole number of jobs, from 1")
        if not 0 < self.spread < math.inf:
            raise OptionError("arrivals", "the dispersion must be above 0")

    @classmethod
    def at(cls, rate: float, kind: Kind = "poisson", spread: float = 1.0) -> Arrivals:
        """Return arrivals of one rate."""
        return cls(((0.0, rate),), kind, spread)

    def mean_rate(self, seconds: float) -> float:
        """Return the jobs per second over the first `seconds`."""
        ends = [at for at, _ in self.steps[1:]] + [math.inf]
        jobs = sum(
            rate * max(0.0, min(end, seconds) - at)
            for (at, rate), end in zip(self.steps, ends, strict=True)
        )
        return jobs / seconds

    def times_us(self, rng: random.Random) -> Iterator[int]:
        """Yield when each job arrives, in µs from the start; without end unless the rate ends."""
        step, (at, rate) = 0, self.steps[0]
        passed = 0.0  # operational time at `at`
        for tick in self._ticks(rng):
            while True:
                end = self.steps[step + 1][0] if step + 1 < len(self.steps) else math.inf
                room = (end - at) * rate if rate else 0.0
                if tick - passed < room:
                    break
                if end == math.inf:
                    return  # the last rate is 0
                passed += room
                step += 1
                at, rate = self.steps[step]
            yield round((at + (tick - passed) / rate) * 1e6)

    def _ticks(self, rng: random.Random) -> Iterator[float]:
        """Yield the arrivals of a process of rate 1."""
        tick = 0.0
        if self.kind == "even":
            tick = rng.random()  # in no step with anything else
            while True:
                yield tick
                tick += 1
        elif self.kind == "bursts":
            size = int(self.spread)
            while True:
                tick += rng.expovariate(1 / size)
                for _ in range(size):
                    yield tick
        elif self.kind == "gamma" and self.spread != 1:
            # A renewal process with gaps of squared variation V has counts of dispersion V.
            shape, scale = 1 / self.spread, self.spread
            while True:
                tick += rng.gammavariate(shape, scale)
                yield tick
        while True:
            tick += rng.expovariate(1.0)
            yield tick


# --- run times --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fixed:
    """Every job runs equally long."""

    seconds: float

    @property
    def mean_s(self) -> float:
        """Return the mean in seconds."""
        return self.seconds

    def draw_us(self, rng: random.Random) -> int:  # noqa: ARG002  one signature for all
        """Return the run time of a job."""
        return round(self.seconds * 1e6)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Anything between two times is equally likely."""

    low_s: float
    high_s: float

    @property
    def mean_s(self) -> float:
        """Return the mean in seconds."""
        return (self.low_s + self.high_s) / 2

    def draw_us(self, rng: random.Random) -> int:
        """Return the run time of a job."""
        return round(rng.uniform(self.low_s, self.high_s) * 1e6)


@dataclass(frozen=True, slots=True)
class Exponential:
    """Many short jobs and few long ones, as an exponential distribution has them."""

    seconds: float

    @property
    def mean_s(self) -> float:
        """Return the mean in seconds."""
        return self.seconds

    def draw_us(self, rng: random.Random) -> int:
        """Return the run time of a job."""
        return round(rng.expovariate(1 / self.seconds) * 1e6) if self.seconds else 0


@dataclass(frozen=True)
class Measured:
    """Run times as a histogram has them (`laneq.histogram`).

    Attributes:
        counts: bucket → jobs.
    """

    counts: Mapping[int, int]

    def __post_init__(self) -> None:
        """Refuse a histogram that has nothing to draw from."""
        if sum(self.counts.values()) <= 0:
            raise OptionError("run", "nothing was measured")

    @cached_property
    def _cumulative(self) -> tuple[list[int], list[int]]:
        buckets = sorted(self.counts)
        return buckets, list(accumulate(self.counts[bucket] for bucket in buckets))

    @property
    def mean_s(self) -> float:
        """Return the mean in seconds."""
        total = sum(self.counts.values())
        return sum(value_of(bucket) * n for bucket, n in self.counts.items()) / total / 1e6

    def draw_us(self, rng: random.Random) -> int:
        """Return the run time of a job: of a bucket as likely as measured, anywhere in it."""
        buckets, sums = self._cumulative
        bucket = buckets[bisect_right(sums, rng.random() * sums[-1])]
        within: float = 1.1 ** (rng.random() - _HALF_A_BUCKET)
        return round(value_of(bucket) * within)


RunTime = Fixed | Uniform | Exponential | Measured
