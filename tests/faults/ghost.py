"""A worker without jobs' code: it claims, reports what a test wants, and may lose interest."""

from __future__ import annotations

from laneq.bench.hand import Hand
from laneq.bench.rig import Space
from laneq.calls.lanes import read_lanes
from laneq.calls.workers import CLAIM_MAX, ClaimCalls, Claimed, Ended, Seats
from laneq.ids import worker_id
from tests.faults.field import Field

#: The lane of its jobs; see `laneq.bench.hand`.
LANE = "normal"


class Ghost(Hand):
    """Enqueues, claims and ends jobs by the calls that a worker makes.

    Args:
        field: whose namespace; it gets the default lanes beside its own.
    """

    def __init__(self, field: Field) -> None:
        driver = field.app.sync_driver
        super().__init__(Space(field.url, field.app.address, field.namespace, field.keys, driver))
        # That has published the default lanes too: the field's own ones come last.
        driver.call(field.app.publish_call())
        self._calls = ClaimCalls(field.keys, worker_id(), driver.call(read_lanes(field.keys)))

    def claim_all(self) -> list[Claimed]:
        """Claim all that waits."""
        held: list[Claimed] = []
        while found := self.claim(CLAIM_MAX, running=len(held)):
            held += found
        return held

    def end(self, claimed: list[Claimed], kind: str, *, number: int = 0) -> None:
        """Report jobs as ended in some way."""
        for first in range(0, len(claimed), CLAIM_MAX):
            self._seq += 1
            rows = claimed[first : first + CLAIM_MAX]
            outcomes = [Ended(c.lane, c.id, c.fence, kind, number, b"!no") for c in rows]
            seats = {LANE: Seats(is_served=True, running=0)}
            call = self._calls.claim(
                seq=self._seq, slots=len(rows), free=0, seats=seats, outcomes=outcomes
            )
            assert self._space.driver.call(call) is not None
