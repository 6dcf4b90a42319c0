"""A pool, its lanes and their load: what is simulated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from laneq.errors import OptionError, UnknownLane
from laneq.options import Lane
from laneq.simulate.loads import Arrivals, RunTime

#: A backlog that never ends.
ENDLESS: Final = math.inf

#: Most slots of a pool, so that a typing error is no endless simulation.
MAX_SLOTS: Final = 10_000

#: Most jobs that arrive in one run, for the same reason: some minutes.
MAX_ARRIVALS: Final = 10_000_000


@dataclass(frozen=True, slots=True)
class Stream:
    """A lane and what comes into it.

    Attributes:
        lane: the lane: priority, aging, reserve, limits.
        run: how long its jobs run.
        arrivals: when they arrive; None for a lane with a backlog alone.
        backlog: jobs that wait at the start; `ENDLESS` for always some.
    """

    lane: Lane
    run: RunTime
    arrivals: Arrivals | None = None
    backlog: float = 0

    @property
    def name(self) -> str:
        """Return the lane's name."""
        return self.lane.name

    def load(self, seconds: float) -> float:
        """Return the slots that its arrivals keep busy on average over the first `seconds`."""
        return self.arrivals.mean_rate(seconds) * self.run.mean_s if self.arrivals else 0.0


@dataclass(frozen=True, slots=True)
class Workers:
    """Some workers of one kind.

    Attributes:
        slots: slots of each.
        count: how many there are.
        lanes: lanes that they serve; None for all.
        reserve: lane → slots of each that are kept for it.
    """

    slots: int
    count: int = 1
    lanes: tuple[str, ...] | None = None
    reserve: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        """Refuse workers that could not be started."""
        if self.slots < 1 or self.count < 1:
            raise OptionError("worker", "has at least one slot, and there is at least one of it")
        if sum(self.reserve.values()) > self.slots:
            raise OptionError(
                "reserve",
                f"{sum(self.reserve.values())} slots are more than the {self.slots} of the worker",
            )


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is simulated.

    Attributes:
        streams: lanes and their load.
        workers: the pool.
        seconds: length of what is measured; arrivals end with it.
        warm_up: seconds before, which are not measured.
        drain: seconds after, in which no job arrives; what ends then still counts.
        overhead: time that a slot spends on each job beside its run; None for none.
    """

    streams: tuple[Stream, ...]
    workers: tuple[Workers, ...]
    seconds: float = 60.0
    warm_up: float = 5.0
    drain: float = 0.0
    overhead: RunTime | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be simulated."""
        names = [stream.name for stream in self.streams]
        if not names:
            raise OptionError("lane", "there is none: name at least one, with its load")
        for name in names:
            if names.count(name) > 1:
                raise OptionError("lane", f"{name!r} is there twice")
        for workers in self.workers:
            for name in (*(workers.lanes or ()), *workers.reserve):
                if name not in names:
                    raise UnknownLane(name, names)
        if not 1 <= self.slots <= MAX_SLOTS:
            raise OptionError("slots", f"must be from 1 to {MAX_SLOTS:,}, not {self.slots:,}")
        for option, low in (("seconds", 0.001), ("warm_up", 0.0), ("drain", 0.0)):
            value = getattr(self, option)
            if not low <= value <= 1e7:  # noqa: PLR2004  four months
                raise OptionError(option, f"must be {low:g} to 10,000,000 seconds, not {value!r}")
        length = self.warm_up + self.seconds
        jobs = sum(s.arrivals.mean_rate(length) * length for s in self.streams if s.arrivals)
        if jobs > MAX_ARRIVALS:
            raise OptionError(
                "rate",
                f"makes {jobs:,.0f} jobs in {length:g} s; at most {MAX_ARRIVALS:,} are simulated. "
                "Lower it, or simulate fewer seconds",
            )

    @property
    def slots(self) -> int:
        """Return the slots of the pool."""
        return sum(workers.slots * workers.count for workers in self.workers)

    @property
    def reserve(self) -> dict[str, int | str]:
        """Return lane → slots of the pool that are kept for it, by the fleet or by workers."""
        found: dict[str, int | str] = {}
        for stream in self.streams:
            kept = sum(w.reserve.get(stream.name, 0) * w.count for w in self.workers)
            if stream.lane.reserve == "auto":
                found[stream.name] = "auto"
            elif kept or stream.lane.reserve:
                # Slots that workers keep count for the fleet's reserve too.
                found[stream.name] = max(kept, stream.lane.reserve)
        return found

    def stream(self, name: str) -> Stream:
        """Return the stream of a lane.

        Raises:
            UnknownLane: there is none.
        """
        for stream in self.streams:
            if stream.name == name:
                return stream
        raise UnknownLane(name, [stream.name for stream in self.streams])

    def with_lane(self, name: str, **changes: Any) -> Scenario:
        """Return this with some options of a lane changed."""
        self.stream(name)
        streams = tuple(
            replace(stream, lane=stream.lane.changed(**changes)) if stream.name == name else stream
            for stream in self.streams
        )
        return replace(self, streams=streams)

    def with_stream(self, stream: Stream) -> Scenario:
        """Return this with another stream in place of the lane's."""
        self.stream(stream.name)
        streams = tuple(stream if one.name == stream.name else one for one in self.streams)
        return replace(self, streams=streams)

    def with_slots(self, slots: int) -> Scenario:
        """Return this with one worker of so many slots, which serves all lanes."""
        return replace(self, workers=(Workers(slots),))


def by_priority(streams: Sequence[Stream]) -> list[Stream]:
    """Return streams in the order of a namespace's lanes: most urgent first, then by name."""
    return sorted(streams, key=lambda stream: (-stream.lane.priority, stream.name))
