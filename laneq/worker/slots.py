"""Slots of one worker: which are free, who has the others, and which lanes may have a free one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from laneq.calls.workers import Seats
from laneq.order import usable_lanes


class Slots:
    """The slots of one process.

    Args:
        total: how many there are.
        reserve: lane → slots kept for it.

    Attributes:
        total: how many there are.
        free: slots without a job; below 0 while more jobs run than a worker that gave slots up
            has now.
        seats: lane → its seats, as claims report them.
    """

    __slots__ = ("_reserve", "free", "seats", "total")

    def __init__(self, total: int, reserve: Mapping[str, int]) -> None:
        self.total = total
        self.free = total
        self._reserve = reserve
        self.seats: dict[str, Seats] = {}

    def know(self, lanes: Iterable[str], served: Collection[str]) -> None:
        """Take in the lanes in force and which of them are served; running jobs stay."""
        for lane in lanes:
            seat = self.seats.setdefault(lane, Seats())
            seat.is_served = lane in served
            seat.reserve = self._reserve.get(lane, 0)

    def resize(self, total: int) -> None:
        """Have so many slots from now on; jobs that have theirs keep them until they end."""
        self.free += total - self.total
        self.total = total

    def give_back(self, lane: str) -> None:
        """Free the slot of a job of this lane."""
        self.free += 1
        self.seats[lane].running -= 1

    @property
    def running(self) -> int:
        """Return how many slots have a job."""
        return self.total - self.free

    def usable_lanes(self, closed: Collection[str]) -> tuple[str, ...]:
        """Return the served lanes of which a job could start now, most urgent lane first."""
        if self.free <= 0:
            return ()
        return usable_lanes(
            [lane for lane, seat in self.seats.items() if seat.is_served and lane not in closed],
            free=self.free,
            running={lane: seat.running for lane, seat in self.seats.items()},
            reserve=self._reserve,
        )

    def listen(self, lanes: Collection[str]) -> None:
        """Note for which lanes a blocking pop is in flight."""
        for lane, seat in self.seats.items():
            seat.is_listening = lane in lanes
