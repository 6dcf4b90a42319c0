"""Which job starts next, and on which slots: the claim's rules, without Redis.

`claim.lua` does the same. The simulation and the worker, which must know what to listen for, use
this module, so that each rule is written once in each language.

**Order.** A waiting job's value at time t is ``priority + min(aging × wait, aging_cap)``. Inside
a lane it falls with the score (the µs of readiness, less the boost), so only heads are compared.
Equal values: the higher priority, then the lower score, then the lane that is named first.

**Admission.** A job of lane x may start only if the slots still free after it are enough for what
the other lanes' reserves are short of::

    free - 1 ≥ Σ over y ≠ x of max(0, reserve_y - running_y)

The rule is the same in one worker, over its slots, and over the fleet, over the slots of its pool:
all live workers that serve a lane with a reserve. In a worker it keeps what it needs: a lane short
of its reserve can start at once, always. A fleet can shrink below its reserves; so for the fleet
they are first cut to what can be had (`fleet_reserve`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

_PER_SECOND: Final = 1_000_000


def value(priority: float, aging: float, aging_cap: float, wait_s: float) -> float:
    """Return what a job that has waited `wait_s` seconds is worth.

    A wait below zero counts as none: the score of a job in a fair lane may lie ahead of now.
    """
    return priority + max(0.0, min(aging * wait_s, aging_cap))


@dataclass(frozen=True, slots=True)
class Head:
    """The first waiting job of a lane.

    Attributes:
        lane: the lane's name.
        priority, aging, aging_cap: the lane's; points, points per second, points.
        score_us: the microsecond at which the job became ready, less its boost.
    """

    lane: str
    priority: float
    aging: float
    aging_cap: float
    score_us: int

    def value_at(self, now_us: int) -> float:
        """Return what the job is worth at an instant, in µs since the epoch."""
        # Points per µs, times µs: the order of the script's operations, so that both round alike.
        gain = self.aging / _PER_SECOND * (now_us - self.score_us)
        return self.priority + max(0.0, min(gain, self.aging_cap))


def best(heads: Iterable[Head], now_us: int) -> Head | None:
    """Return the head that starts next; None where there is none.

    The highest value wins; of equal values the higher priority, then the lower score, then the
    one that comes first in `heads`.
    """
    return max(
        heads,
        key=lambda head: (head.value_at(now_us), head.priority, -head.score_us),
        default=None,
    )


def shortfall(running: Mapping[str, int], reserve: Mapping[str, int]) -> dict[str, int]:
    """Return how many jobs each lane runs below its reserve; lanes that lack none are left out."""
    return {
        lane: slots - running.get(lane, 0)
        for lane, slots in reserve.items()
        if slots > running.get(lane, 0)
    }


def may_start(
    lane: str, *, free: int, running: Mapping[str, int], reserve: Mapping[str, int]
) -> bool:
    """Tell whether one more job of `lane` may start: the admission rule.

    Whether the lane is served, not paused and under its limits is for the caller to know.

    Args:
        lane: the lane of the job.
        free: slots that run nothing: of the worker, or of the pool.
        running: lane → jobs that run in the same place; a lane that is missing runs none.
        reserve: lane → slots kept for it; a lane that is missing has none. Over the fleet, what
            `fleet_reserve` returns.
    """
    lacking = shortfall(running, reserve)
    return free - 1 >= sum(lacking.values()) - lacking.get(lane, 0)


def usable_lanes(
    served: Iterable[str], *, free: int, running: Mapping[str, int], reserve: Mapping[str, int]
) -> tuple[str, ...]:
    """Return the served lanes of which one more job may start, in the order given.

    It is what a worker listens for: a wake-up for any other lane would be spent on a worker that
    cannot use it.
    """
    lacking = shortfall(running, reserve)
    # The slots that no reserve needs; a lane that is itself short may also take what it lacks.
    spare = free - sum(lacking.values())
    return tuple(lane for lane in served if spare + lacking.get(lane, 0) >= 1)


def fleet_reserve(
    reserve: Mapping[str, int], *, slots: int, free: int, running: Mapping[str, int]
) -> dict[str, int]:
    """Cut the fleet's reserves to what its slots allow, the first lanes served first.

    Two bounds hold for what is returned. All reserves together leave at least one slot of the
    fleet open to the other lanes, so that these never stop wholly. And what the reserves lack is
    not more than is free: when hosts are lost, reserves that can no longer all be met do not keep
    each other's slots idle.

    Args:
        reserve: lane → declared slots, in the order in which lanes are to get theirs: highest
            priority first. Leave out lanes that no live worker serves.
        slots: slots of the pool.
        free: those that run nothing.
        running: lane → jobs that run in the fleet.
    """
    open_to_reserves = max(0, slots - 1)
    free = max(0, free)
    granted = {}
    for lane, wanted in reserve.items():
        used = running.get(lane, 0)
        kept = min(wanted, open_to_reserves)
        if kept > used:
            kept = used + min(kept - used, free)
            free -= kept - used
        granted[lane] = kept
        open_to_reserves -= kept
    return granted
