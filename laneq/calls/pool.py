"""What a pool that sizes itself is told: its lanes' work, and the slots of the fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from laneq.calls.call import Call
from laneq.elastic import Fleet
from laneq.keys import FINE_US, Keys
from laneq.scripts import load

Reply = list[Any]


@dataclass(frozen=True, slots=True)
class LaneNow:
    """One lane at the moment of the call, and the settings that it has then.

    Attributes:
        slo_s: wait objective in seconds; None for none.
        waiting: jobs that are ready; 0 for a lane that no lane with an objective waits for.
        head_age_s: how long the first of them has waited.
        started: starts since the namespace was made.
        runs: jobs of which the run time was measured in the last seconds.
        run_s: their mean; 0 without any.
        fleet: the slots that serve it.
        kept: slots that single workers keep for it.
    """

    name: str
    slo_s: float | None
    priority: float
    is_paused: bool
    waiting: int
    head_age_s: float
    started: int
    runs: int
    run_s: float
    fleet: Fleet
    kept: int


@dataclass(frozen=True, slots=True)
class PoolNow:
    """What a worker is told of its lanes and of the fleet.

    Attributes:
        place: the worker's among those that can change their slots, for `elastic.share_of`.
    """

    now_us: int
    place: float
    lanes: tuple[LaneNow, ...]


def look_at_pool(keys: Keys, worker_id: str, lanes: Sequence[str], *, now_us: int) -> Call[PoolNow]:
    """Read what lanes ask for and which slots serve them.

    Args:
        keys: the namespace.
        worker_id: who asks.
        lanes: those that it can serve.
        now_us: about Redis's clock, to name the histogram slices.

    Redis: pool, one round trip, O(lanes).
    """
    script = load("pool")
    per_lane: list[bytes] = []
    for name in lanes:
        per_lane += (
            keys.of_lane("waiting", name),
            keys.of_lane("scheduled", name),
            keys.of_lane("counts", name),
            keys.fine(name, now_us),
            keys.fine(name, now_us - FINE_US),
            keys.coarse(name, now_us),
        )

    def read(reply: Reply) -> PoolNow:
        now = int(reply[1])
        return PoolNow(
            now,
            (int(reply[2]) + 0.5) / max(int(reply[3]), 1),
            tuple(_lane(name, row, now) for name, row in zip(lanes, reply[4:], strict=True)),
        )

    return Call(
        script,
        (*script.bind_keys(keys), *per_lane),
        script.bind_args({"worker_id": worker_id}),
        read,
    )


def _lane(name: str, row: Reply, now_us: int) -> LaneNow:
    slo_us, priority, paused, waiting, ready, started, runs, run_us, *slots = row
    return LaneNow(
        name=name,
        slo_s=None if slo_us < 0 else slo_us / 1e6,
        priority=float(priority),
        is_paused=paused == 1,
        waiting=waiting,
        head_age_s=max(now_us - int(ready), 0) / 1e6 if waiting else 0.0,
        started=started,
        runs=runs,
        run_s=int(run_us) / 1e6,
        fleet=Fleet(*slots[:4]),
        kept=slots[4],
    )
