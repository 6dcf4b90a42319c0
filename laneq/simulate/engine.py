"""The simulation of one run: events in the order of time, and the claim's rules in between.

What may start and what starts first is asked of `laneq.order`, which is tested against the
scripts. What is simulated beside it, as real workers do it:

- A worker that ends a job claims at once, for as long as it has a free slot and work for it.
- A job that arrives wakes one worker that may start it: the one that has listened longest.
- What one end makes possible in another worker (a lane below its `max_running` again, a slot of
  the fleet that no reserve needs any more) is started at the same instant.
- Starts of a lane with a `rate` are evenly spaced, but for a little that may be caught up.
- Reserves of the fleet bind the workers that serve a reserved lane; the slots of all workers that
  serve it are its pool, and of several pools the least counts.

Between its events nothing can start: each event either starts all that it made possible, or
changes nothing for the others. So arrivals into a lane that has jobs waiting are no events at
all: they are looked at when their turn comes, and a long backlog costs nothing.

Times are integers, in µs from the start of the run.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import chain, repeat, takewhile
from typing import Final

from laneq.calls.workers import CATCH_UP_US
from laneq.order import Head, best, fleet_reserve, usable_lanes
from laneq.simulate.scenario import ENDLESS, Scenario, Stream, Workers, by_priority

_NEVER: Final = 1 << 62
_RATE: Final = re.compile(r"(\d+)/([\d.]+)?(ms|s|m|h|d)")
_UNITS_US: Final = {"ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3.6e9, "d": 86.4e9}


@dataclass(slots=True)
class LaneRun:
    """What one run measured of a lane.

    Attributes:
        waits_us: of the jobs that arrived while it was measured, in the order of their start;
            those that still wait at the end count with their wait so far.
        latencies_us: of those of them that ended.
        arrived: jobs that arrived while it was measured.
        done: jobs that ended while it was measured, those of the backlog too.
        busy_us: slot time that they took while it was measured.
        left: jobs that wait at the end; of an endless backlog none is counted.
    """

    waits_us: list[int] = field(default_factory=list)
    latencies_us: list[int] = field(default_factory=list)
    arrived: int = 0
    done: int = 0
    busy_us: int = 0
    left: int = 0


class SimLane:
    """A lane while it is simulated.

    Attributes:
        head_us: when the first job that has not started became ready; `_NEVER` for none.
        backlog: jobs of the backlog that have not started.
        running: its jobs that run in the pool.
        started: jobs started so far.
        measured: what is measured of it.
    """

    __slots__ = (
        "_arrivals",
        "_counted",
        "_counting",
        "_head",
        "_rng",
        "_stream",
        "_tat_us",
        "backlog",
        "burst_us",
        "head_us",
        "interval_us",
        "max_running",
        "measured",
        "name",
        "running",
        "started",
    )

    def __init__(self, stream: Stream, seed: int, *, last_us: int) -> None:
        """Draw the first arrival; there are none from `last_us` on."""
        self._stream = stream
        self.backlog = stream.backlog
        self.name = stream.name
        self._rng = random.Random(f"{seed} {stream.name} runs")
        word = f"{seed} {stream.name} arrivals"
        self._arrivals = _ready_us(stream, random.Random(word), last_us)
        # The same arrivals again: they are counted ahead of the starts.
        self._counting = _arriving_us(stream, random.Random(word), last_us)
        self._counted = (0, next(self._counting, _NEVER))
        self._head: Head | None = None
        self.head_us = next(self._arrivals, _NEVER)
        self.running = 0
        self.started = 0
        self.max_running = stream.lane.max_running or _NEVER
        self.interval_us, self.burst_us = _gcra(stream.lane.rate)
        self._tat_us = 0.0  # theoretical arrival time: when the rate is whole again
        self.measured = LaneRun()

    def head(self) -> Head:
        """Return the first waiting job, as the rules look at it."""
        if self._head is None:
            lane = self._stream.lane
            self._head = Head(self.name, lane.priority, lane.aging, lane.aging_cap, self.head_us)
        return self._head

    def may_start(self, now_us: int) -> bool:
        """Tell whether its own limits let one more job start."""
        return self.running < self.max_running and (
            not self.interval_us or self._tat_us - self.burst_us <= now_us
        )

    def allowed_us(self) -> float:
        """Return when its rate allows the next start."""
        return self._tat_us - self.burst_us if self.interval_us else 0

    def start(self, now_us: int) -> tuple[int, int]:
        """Take the first job out; return when it arrived, -1 for the backlog, and its run time."""
        ready_us = self.head_us if self.backlog <= 0 else -1
        self.backlog -= 1
        self.head_us = next(self._arrivals, _NEVER)
        self._head = None
        self.running += 1
        self.started += 1
        if self.interval_us:
            self._tat_us = max(self._tat_us, now_us) + self.interval_us
        return ready_us, self._stream.run.draw_us(self._rng)

    def arrived_by(self, now_us: int) -> int:
        """Count the jobs that have arrived up to now; those of the backlog do not count."""
        n, at_us = self._counted
        while at_us <= now_us:
            n, at_us = n + 1, next(self._counting, _NEVER)
        self._counted = (n, at_us)
        return n

    def rest_us(self) -> Iterator[int]:
        """Yield when each job that has not started arrived; the lane is over with that."""
        while self.head_us != _NEVER:
            yield self.head_us if self.backlog <= 0 else -1
            self.backlog -= 1
            self.head_us = next(self._arrivals, _NEVER)


def _ready_us(stream: Stream, rng: random.Random, last_us: int) -> Iterator[int]:
    if stream.backlog == ENDLESS:
        return repeat(0)
    return chain(repeat(0, int(stream.backlog)), _arriving_us(stream, rng, last_us))


def _arriving_us(stream: Stream, rng: random.Random, last_us: int) -> Iterator[int]:
    arriving = stream.arrivals.times_us(rng) if stream.arrivals else iter(())
    return takewhile(lambda at_us: at_us < last_us, arriving)


def _gcra(rate: str | None) -> tuple[float, float]:
    """Return the µs from one start to the next, and how far behind starts may catch up."""
    found = _RATE.fullmatch(rate) if rate else None
    if not found:
        return 0.0, 0.0
    starts, period_us = int(found[1]), float(found[2] or 1) * _UNITS_US[found[3]]
    return period_us / starts, float(CATCH_UP_US)


class _SimWorker:
    """A worker while it is simulated; what its own reserves allow is remembered by what it runs."""

    __slots__ = ("_allowed", "free", "held", "names", "reserve", "running", "serves", "slots")

    def __init__(self, shape: Workers, lanes: Sequence[SimLane]) -> None:
        served = [lane for lane in lanes if shape.lanes is None or lane.name in shape.lanes]
        self.names = tuple(lane.name for lane in served)
        self.serves = frozenset(self.names)
        self.reserve = dict(shape.reserve)
        self.running = dict.fromkeys(self.names, 0)
        self.slots = self.free = shape.slots
        #: The reserved lanes that it serves: reserves of the fleet bind it for their sake.
        self.held: tuple[str, ...] = ()
        self._allowed: dict[tuple[int, ...], frozenset[str]] = {}

    def allowed(self) -> frozenset[str]:
        """Return the lanes of which it may start one more job."""
        if not self.reserve:
            return self.serves
        key = (self.free, *self.running.values())
        found = self._allowed.get(key)
        if found is None:
            usable = usable_lanes(
                self.names, free=self.free, running=self.running, reserve=self.reserve
            )
            found = self._allowed[key] = frozenset(usable)
        return found


#: Called every second of a run with the instant in µs: returns lane → reserve of the fleet.
Steering = Callable[[int, "Run"], Mapping[str, int]]


class Run:
    """One run of a scenario.

    Args:
        scenario: what to simulate.
        seed: of everything that is random; the same jobs for the same seed.
        steer: sets the fleet's reserves while it runs; None where they are fixed.
        look_s: seconds between two looks of `steer`.

    Attributes:
        lanes: by name, most urgent first.
        slots: of the pool.
    """

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        *,
        steer: Steering | None = None,
        look_s: float = 1.0,
    ) -> None:
        """Put the pool together."""
        self._scenario = scenario
        streams = by_priority(scenario.streams)
        self._from_us = round(scenario.warm_up * 1e6)
        last_us = self._from_us + round(scenario.seconds * 1e6)
        self._end_us = last_us + round(scenario.drain * 1e6)
        self.lanes = {s.name: SimLane(s, seed, last_us=last_us) for s in streams}
        all_lanes = list(self.lanes.values())
        self._workers = [
            _SimWorker(shape, all_lanes) for shape in scenario.workers for _ in range(shape.count)
        ]
        self.slots = scenario.slots
        self._wanted: dict[str, int] = {}
        self._all = tuple(all_lanes)
        self._names = tuple(self.lanes)
        # Reserved lane → slots of its pool, and those of them that are free.
        self._pool: dict[str, int] = {}
        self._pool_free: dict[str, int] = {}
        self._allowed: dict[tuple[object, ...], frozenset[str]] = {}
        self._keep({s.name: s.lane.reserve for s in streams if isinstance(s.lane.reserve, int)})
        self._steer = steer
        self._starts: list[tuple[str, int, int, int]] = []
        self._look_us = round(look_s * 1e6)
        # Whether an end in one worker can let another one start something.
        self._spreads = (
            bool(self._wanted or steer or any(s.lane.max_running is not None for s in streams))
            and len(self._workers) > 1
        )
        self._overhead_rng = random.Random(f"{seed} overhead")
        self._ends: list[tuple[int, int, _SimWorker, SimLane, int]] = []
        self._order = 0
        self._now = -1
        # Workers with a free slot, the one that has listened longest first.
        self._listening = dict.fromkeys(self._workers)

    def carry_out(self) -> dict[str, LaneRun]:
        """Simulate it; return what was measured, lane by lane."""
        next_look = 0 if self._steer else _NEVER
        while True:
            due = min(self._next_due(), next_look)
            end = self._ends[0][0] if self._ends else _NEVER
            # What arrives at the same instant is there before a slot becomes free.
            now = min(due, end)
            if now > self._end_us:
                return self._close()
            self._now = now
            if due <= end:
                if due == next_look:
                    next_look += self._look_us
                    self._look()
                self._dispatch()
            else:
                self._end(heappop(self._ends))

    def _next_due(self) -> int:
        """Return when the next job arrives in a lane that has none, or a rate allows a start."""
        now = self._now
        due = _NEVER
        for lane in self._all:
            at = lane.head_us
            if at <= now:
                if not lane.interval_us:
                    continue
                at = math.ceil(lane.allowed_us())
            if now < at < due:
                due = at
        return due

    def _look(self) -> None:
        if self._steer is None:
            return
        wanted = self._steer(self._now, self)
        self._keep(wanted)

    def _keep(self, wanted: Mapping[str, int]) -> None:
        """Take over reserves of the fleet, most urgent lane first."""
        kept = {name: wanted[name] for name in self._names if wanted.get(name)}
        if kept == self._wanted:
            return
        self._wanted = kept
        self._allowed.clear()
        self._pool = dict.fromkeys(kept, 0)
        self._pool_free = dict.fromkeys(kept, 0)
        for worker in self._workers:
            worker.held = tuple(name for name in kept if name in worker.serves)
            for name in worker.held:
                self._pool[name] += worker.slots
                self._pool_free[name] += worker.free

    @property
    def now_us(self) -> int:
        """Return the instant of the simulation."""
        return self._now

    def take_starts(self) -> list[tuple[str, int, int, int]]:
        """Return what `steer` has not seen: lane, instant, wait and run time of each start."""
        taken, self._starts = self._starts, []
        return taken

    # --- what happens ---

    def _end(self, event: tuple[int, int, _SimWorker, SimLane, int]) -> None:
        now, _, worker, lane, ready_us = event
        worker.running[lane.name] -= 1
        worker.free += 1
        for name in worker.held:
            self._pool_free[name] += 1
        lane.running -= 1
        if now >= self._from_us:
            measured = lane.measured
            measured.done += 1
            if self._from_us <= ready_us:
                measured.latencies_us.append(now - ready_us)
        ready = self._ready()
        if ready:
            self._claim(worker, ready)
            if self._spreads:
                self._dispatch()
        elif worker not in self._listening:
            self._listening[worker] = None

    def _dispatch(self) -> None:
        """Start whatever may start anywhere."""
        ready = self._ready()
        if not ready:
            return
        started = True
        while started:
            started = False
            # Workers of one kind that keep nothing for themselves may all start the same.
            closed: set[frozenset[str]] = set()
            for worker in list(self._listening):
                if worker.serves in closed and not worker.reserve:
                    continue
                if self._claim(worker, ready):
                    ready = self._ready()
                    if not ready:
                        return
                    closed.clear()
                    # Where reserves are cut to what can be had, a start can open a lane to
                    # workers that were asked before.
                    started = bool(self._wanted)
                elif not worker.reserve:
                    closed.add(worker.serves)

    def _ready(self) -> list[SimLane]:
        """Return the lanes that have a job which their own limits let start."""
        now = self._now
        return [lane for lane in self._all if lane.head_us <= now and lane.may_start(now)]

    def _allowed_to(self, worker: _SimWorker) -> frozenset[str]:
        """Return the lanes of which a worker may start one more job, by all reserves."""
        held = worker.held
        if not held:
            return worker.allowed()
        free = min(self._pool_free[name] for name in held)
        key = (held, free, *[self.lanes[name].running for name in held])
        found = self._allowed.get(key)
        if found is None:
            running = {name: self.lanes[name].running for name in held}
            granted = fleet_reserve(
                {name: self._wanted[name] for name in held},
                slots=min(self._pool[name] for name in held),
                free=free,
                running=running,
            )
            usable = usable_lanes(self._names, free=free, running=running, reserve=granted)
            found = self._allowed[key] = frozenset(usable)
        return found & worker.allowed() if found else found

    def _claim(self, worker: _SimWorker, ready: list[SimLane]) -> bool:
        """Start on a worker all that may, best first; tell whether anything was started."""
        started = False
        while worker.free:
            if started:
                ready = self._ready()
            allowed = self._allowed_to(worker)
            mine = [lane for lane in ready if lane.name in allowed]
            if not mine:
                break
            self._start(worker, mine[0] if len(mine) == 1 else self._best(mine))
            started = True
        if not worker.free:
            self._listening.pop(worker, None)
        elif started or worker not in self._listening:
            # It listens anew, behind those that have listened all the time.
            self._listening.pop(worker, None)
            self._listening[worker] = None
        return started

    def _best(self, lanes: Sequence[SimLane]) -> SimLane:
        head = best([lane.head() for lane in lanes], self._now)
        return lanes[0] if head is None else self.lanes[head.lane]

    def _start(self, worker: _SimWorker, lane: SimLane) -> None:
        now = self._now
        ready_us, run_us = lane.start(now)
        if self._scenario.overhead is not None:
            run_us += self._scenario.overhead.draw_us(self._overhead_rng)
        worker.running[lane.name] += 1
        worker.free -= 1
        for name in worker.held:
            self._pool_free[name] -= 1
        self._order += 1
        heappush(self._ends, (now + run_us, self._order, worker, lane, ready_us))
        if self._steer:
            self._starts.append((lane.name, now, now - max(ready_us, 0), run_us))
        measured = lane.measured
        if ready_us >= self._from_us:
            measured.waits_us.append(now - ready_us)
        # Only the part of its time that is measured counts.
        start, end = max(now, self._from_us), min(now + run_us, self._end_us)
        if end > start:
            measured.busy_us += end - start

    def _close(self) -> dict[str, LaneRun]:
        for lane in self.lanes.values():
            measured = lane.measured
            if lane.backlog != ENDLESS:
                for ready_us in lane.rest_us():
                    measured.left += 1
                    if ready_us >= self._from_us:
                        measured.waits_us.append(self._end_us - ready_us)
            measured.arrived = len(measured.waits_us)
        return {name: lane.measured for name, lane in self.lanes.items()}
