"""A scenario of what a live namespace measured: its lanes, load, run times and workers.

Arrivals are those of the last hour at most, as the rings of counts have them: how many came
between two notes, some seconds apart. They are repeated with the same rates in the same order, and
with the dispersion that the counts show within.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from laneq.errors import OptionError
from laneq.histogram import merge
from laneq.model import WorkerView
from laneq.options import Lane
from laneq.simulate.loads import Arrivals, Measured
from laneq.simulate.scenario import Scenario, Stream, Workers
from laneq.sizing import dispersion_of, local_dispersion

#: Counts are put together until an interval has so many jobs on average: fewer say nothing.
_JOBS: Final = 20.0

#: Arrivals of a smaller dispersion are even.
_EVEN: Final = 0.05

#: Times that the dispersion from one interval to the next is exceeded where rates vary.
_VARIES: Final = 3.0

#: Longest interval with one rate, in seconds.
_LONGEST_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Recording:
    """What was measured of a lane.

    Attributes:
        lane: as it is in force.
        notes: lines of its ring of counts, oldest first: µs, jobs enqueued, and more.
        run: histogram of run times.
        waiting: jobs that wait now.
    """

    lane: Lane
    notes: Sequence[bytes]
    run: Mapping[int, int]
    waiting: int = 0


def counts_of(notes: Iterable[bytes]) -> list[tuple[float, float]]:
    """Return (seconds, jobs that arrived) between each two notes of a ring."""
    points = []
    for note in notes:
        words = note.split()
        if len(words) > 1 and words[0].isdigit() and words[1].isdigit():
            points.append((int(words[0]) / 1e6, int(words[1])))
    return [(b - a, float(m - n)) for (a, n), (b, m) in pairwise(points) if b > a and m >= n]


def arrivals_of(notes: Iterable[bytes], seconds: float) -> Arrivals | None:
    """Return the arrivals that a ring of counts shows, over `seconds`; None where there are none.

    Rates that differ no more over the whole time than from one interval to the next are one
    rate; else each interval keeps its own, and they are repeated for as long as is asked.
    """
    counts = counts_of(notes)
    jobs, length = sum(n for _, n in counts), sum(s for s, _ in counts)
    if not jobs:
        return None
    rate = jobs / length
    merged: list[tuple[float, float]] = []
    span, found = 0.0, 0.0
    for s, n in counts:
        span, found = span + s, found + n
        if span * rate >= _JOBS or span >= _LONGEST_S:
            merged.append((span, found))
            span, found = 0.0, 0.0
    if span:
        merged.append((span, found))
    dispersion, local = dispersion_of(counts), max(1.0, local_dispersion(counts))
    if dispersion <= _VARIES * local or len(merged) < 2:  # noqa: PLR2004
        if dispersion < _EVEN:
            return Arrivals.at(rate, "even")
        return Arrivals.at(rate, "gamma", dispersion)
    steps: list[tuple[float, float]] = []
    at = 0.0
    while at < seconds:
        for s, n in merged:
            steps.append((at, n / s))
            at += s
            if at >= seconds:
                break
    # What varies over time is in the steps, the rest within them.
    return Arrivals(tuple(steps), "gamma", local)


def scenario_of(
    recordings: Sequence[Recording],
    workers: Sequence[WorkerView],
    *,
    pool: Sequence[Workers] = (),
    seconds: float = 60.0,
    warm_up: float = 5.0,
) -> Scenario:
    """Make a scenario of what was measured; lanes in which nothing happened are left out.

    Args:
        recordings: of each lane.
        workers: those that live.
        pool: workers in place of those.
        seconds: length of what is simulated.
        warm_up: seconds before.

    Raises:
        OptionError: there is nothing to simulate: no worker, or no load.
    """
    # A lane of which nothing ran yet runs as long as the others.
    all_runs = merge(*(one.run for one in recordings))
    streams = []
    for one in recordings:
        arrivals = arrivals_of(one.notes, seconds + warm_up)
        run = one.run or all_runs
        if run and (arrivals or one.waiting):
            streams.append(Stream(one.lane, Measured(dict(run)), arrivals, one.waiting))
    if not streams:
        raise OptionError(
            "live", "no jobs ran and arrived within the last hour: name lanes with --lane instead"
        )
    names = {stream.name for stream in streams}
    shapes = list(pool)
    for worker in () if pool else workers:
        lanes = tuple(lane for lane in worker.lanes if lane in names)
        if lanes:
            reserve = {lane: n for lane, n in worker.reserve.items() if lane in names}
            shapes.append(Workers(worker.slots, 1, lanes, reserve))
    if not shapes:
        raise OptionError("live", "no worker lives that serves these lanes: give --slots")
    return Scenario(tuple(streams), tuple(shapes), seconds=seconds, warm_up=warm_up)
