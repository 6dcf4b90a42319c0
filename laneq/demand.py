"""What lanes ask of the fleet, as a namespace measured it: for sizing, planning and autoscalers.

Arrivals are read from the rings of counts that heartbeats keep, run times from the histograms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from laneq.calls import stats
from laneq.calls.lanes import LanesInForce, read_lanes
from laneq.calls.stats import Depths
from laneq.calls.workers import list_workers
from laneq.drive import SyncDriver
from laneq.elastic import DesiredSlots, Fleet, LaneLoad, desired_slots, limit_of
from laneq.keys import Keys
from laneq.model import WorkerView
from laneq.options import Lane
from laneq.sizing import dispersion_of, moments_of

#: Seconds over which load is measured unless told otherwise.
WINDOW_S: Final = 300


@dataclass(frozen=True, slots=True)
class Demand:
    """What is known of a lane's load; None where nothing was measured.

    Attributes:
        name: the lane.
        lane: as it is in force.
        now: its present.
        rate_per_s: jobs that arrived per second.
        measured_s: over how long.
        run_s: mean run time.
        dispersion: variance of the arrivals' counts over their mean.
        slots: of live workers that serve it.
        kept: slots that single workers keep for it.
        reserve_slots: slots of the fleet that are kept for it now.
        starts_per_s: starts that its `rate` allows; None for no limit.
        notes: lines of its ring of counts, oldest first.
        runs: histogram of run times over that time.
    """

    name: str
    lane: Lane
    now: Depths
    rate_per_s: float | None
    measured_s: float | None
    run_s: float | None
    dispersion: float
    slots: int
    kept: int
    reserve_slots: int
    starts_per_s: float | None
    notes: Sequence[bytes] = field(default=(), repr=False)
    runs: Mapping[int, int] = field(default_factory=dict, repr=False)

    @property
    def head_age_s(self) -> float:
        """Return how long the first waiting job has waited; 0 where none waits."""
        if not self.now.waiting or self.now.head_ready_us is None:
            return 0.0
        return max(self.now.now_us - self.now.head_ready_us, 0) / 1e6

    @property
    def load(self) -> LaneLoad:
        """Return it as `elastic` takes it."""
        return LaneLoad(
            self.name,
            priority=self.lane.priority,
            slo_s=None if self.lane.slo_us is None else self.lane.slo_us / 1e6,
            waiting=self.now.waiting,
            head_age_s=self.head_age_s,
            arrivals_per_s=self.rate_per_s or 0.0,
            run_s=self.run_s,
            reserve=self.reserve_slots,
            kept=self.kept,
            limit=limit_of(
                max_running=self.lane.max_running,
                starts_per_s=self.starts_per_s,
                run_s=self.run_s,
            ),
            fleet=Fleet(self.slots),
        )


def demands(
    driver: SyncDriver,
    keys: Keys,
    *,
    lanes: LanesInForce | None = None,
    workers: Sequence[WorkerView] | None = None,
    window_s: int = WINDOW_S,
) -> list[Demand]:
    """Read what every lane asks for, most urgent first.

    Args:
        driver: of the namespace's Redis.
        keys: the namespace.
        lanes: those in force, where they are known already.
        workers: those that live, likewise.
        window_s: measure over about this long, up to an hour.

    Raises:
        StoreError: Redis is away, or refuses.

    Redis: lanes and workers, where they are not given; depths; two reads for each lane.
    """
    lanes = lanes or driver.call(read_lanes(keys))
    workers = driver.call(list_workers(keys)) if workers is None else workers
    depths = driver.call(stats.depths(keys, lanes.names))
    return [
        _demand(driver, keys, lanes, name, now=now, workers=workers, window_s=window_s)
        for name, now in zip(lanes.names, depths, strict=True)
    ]


def desired(found: Iterable[Demand]) -> DesiredSlots:
    """Return the slots that a namespace wants over its fleet; paused lanes want none."""
    return desired_slots([demand.load for demand in found if not demand.lane.paused])


def _demand(
    driver: SyncDriver,
    keys: Keys,
    lanes: LanesInForce,
    name: str,
    *,
    now: Depths,
    workers: Sequence[WorkerView],
    window_s: int,
) -> Demand:
    notes: list[bytes] = driver.command("LRANGE", keys.of_lane("rates", name), 0, -1)
    since_us = now.now_us - window_s * 1_000_000
    recent = [note for note in notes if _instant_us(note) >= since_us]
    counts = counts_of([*recent, b"%d %d" % (now.now_us, now.counts.get("enqueued", 0))])
    seconds = sum(length for length, _ in counts)
    spread = driver.call(stats.spread(keys, name, now_us=now.now_us, window_s=window_s))
    moments = moments_of(spread["r"])
    in_force = lanes.lane(name)
    serving = [worker for worker in workers if name in worker.lanes]
    return Demand(
        name=name,
        lane=Lane.from_wire(lanes.wire(name)),
        now=now,
        rate_per_s=sum(n for _, n in counts) / seconds if seconds >= 1 else None,
        measured_s=seconds if seconds >= 1 else None,
        run_s=moments[0] if moments else None,
        dispersion=dispersion_of(counts),
        slots=sum(worker.slots for worker in serving),
        kept=sum(worker.reserve.get(name, 0) for worker in serving),
        reserve_slots=in_force.reserve_slots,
        starts_per_s=1e6 / in_force.start_every_us if in_force.start_every_us > 0 else None,
        notes=notes,
        runs=spread["r"],
    )


def _instant_us(note: bytes) -> int:
    word = note.partition(b" ")[0]
    return int(word) if word.isdigit() else 0


def counts_of(notes: Iterable[bytes]) -> list[tuple[float, float]]:
    """Return (seconds, jobs that arrived) between each two notes of a ring of counts.

    A note that is none is skipped, and so is one after which the counts began anew.
    """
    points = []
    for note in notes:
        words = note.split()
        if len(words) > 1 and words[0].isdigit() and words[1].isdigit():
            points.append((int(words[0]) / 1e6, int(words[1])))
    return [(b - a, float(m - n)) for (a, n), (b, m) in pairwise(points) if b > a and m >= n]
