"""A scenario of what a live namespace measured: its lanes, load, run times and workers.

Arrivals are those of the last hour at most, as the rings of counts have them: how many came
between two notes, some seconds apart. They are repeated with the same rates in the same order, and
with the dispersion that the counts show within.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from laneq.demand import Demand, counts_of
from laneq.errors import OptionError
from laneq.histogram import merge
from laneq.model import WorkerView
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
    demands: Sequence[Demand],
    workers: Sequence[WorkerView],
    *,
    pool: Sequence[Workers] = (),
    seconds: float = 60.0,
    warm_up: float = 5.0,
) -> Scenario:
    """Make a scenario of what was measured; lanes in which nothing happened are left out.

    Args:
        demands: of each lane.
        workers: those that live.
        pool: workers in place of those.
        seconds: length of what is simulated.
        warm_up: seconds before.

    Raises:
        OptionError: there is nothing to simulate: no worker, or no load.
    """
    # A lane of which nothing ran yet runs as long as the others.
    all_runs = merge(*(one.runs for one in demands))
    streams = []
    for one in demands:
        arrivals = arrivals_of(one.notes, seconds + warm_up)
        run = one.runs or all_runs
        if run and (arrivals or one.now.waiting):
            streams.append(Stream(one.lane, Measured(dict(run)), arrivals, one.now.waiting))
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
