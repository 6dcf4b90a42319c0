"""Automatic reserves of lanes, sized by one worker of the fleet at a time.

The rule is `sizing.decide_reserve`; here is what it needs of the world. Each worker of a namespace
that has a lane with ``reserve="auto"`` asks for the duty now and then; one has it, for a few
seconds at a time and with a number that rises (its term), and looks about once a second. What it
decides is written with all that it was decided by, so that the next one goes on from there, and
an operator can read why.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from laneq import histogram
from laneq.calls.lanes import LanesInForce
from laneq.calls.reserves import Duty, LaneMeasured, decide, take_duty
from laneq.calls.workers import list_workers
from laneq.drive import AsyncDriver
from laneq.errors import StoreError
from laneq.keys import FINE_US, Keys
from laneq.options import Lane
from laneq.sizing import (
    ReserveAim,
    ReserveDecision,
    ReserveLook,
    ReserveState,
    Runs,
    decide_reserve,
    moments_of,
)
from laneq.worker.lines import log

#: Seconds between the looks of the worker that has the duty.
_LOOK_S: Final = 1.0

#: Seconds that a worker has the duty for, from each look on.
_TTL_S: Final = 5.0

#: Seconds after which a decision that changes nothing is written all the same, so that who takes
#: the duty over knows the last minute.
_WRITE_S: Final = 5.0

#: A wait up to this, in µs, is no lateness: it is how long it takes to hear of a job.
_ROUND_TRIP_US: Final = 5_000

#: Share of the jobs that may wait longer than the lane's `slo`; at all, where it has none.
SHARE: Final = 0.01


class ReserveSizer:
    """The coroutine that takes part in sizing.

    Args:
        driver: the worker's own.
        keys: the namespace.
        worker_id: the worker's incarnation.
        lanes: the lanes in force; None before they are known.
    """

    def __init__(
        self,
        driver: AsyncDriver,
        keys: Keys,
        worker_id: str,
        *,
        lanes: Callable[[], LanesInForce | None],
    ) -> None:
        self._driver = driver
        self._keys = keys
        self._worker_id = worker_id
        self._lanes = lanes
        self._offset_us = 0
        self._is_told = asyncio.Event()
        self._term: int | None = None
        self._states: dict[str, ReserveState] = {}
        self._runs: dict[str, Runs] = {}
        self._written_at: dict[str, float] = {}

    def know(self, lanes: LanesInForce) -> None:
        """Take in the lanes in force."""
        if _automatic(lanes):
            self._is_told.set()
        else:
            self._is_told.clear()

    def keep_time(self, now_us: int) -> None:
        """Take in Redis's clock."""
        self._offset_us = now_us - int(time.monotonic() * 1e6)

    async def run(self) -> None:
        """Ask for the duty, and size while it is this worker's; until cancelled."""
        while True:
            await self._is_told.wait()
            wait_s = _TTL_S
            try:
                wait_s = await self.look()
            except StoreError as error:
                # The claims tell that Redis is away; reserves stay as they are meanwhile.
                log.debug("the reserves could not be sized: %s", error)
            await asyncio.sleep(wait_s)

    async def look(self) -> float:
        """Ask for the duty, and decide where it is this worker's.

        Returns:
            Seconds until the next look.

        Raises:
            StoreError: Redis is away, or refuses.
        """
        lanes = self._lanes()
        automatic = _automatic(lanes) if lanes is not None else {}
        if lanes is None or not automatic:
            return _TTL_S
        now_us = self._offset_us + int(time.monotonic() * 1e6)
        duty = await self._driver.call(
            take_duty(
                self._keys, self._worker_id, lanes.names, now_us=now_us, ttl_us=int(_TTL_S * 1e6)
            )
        )
        self.keep_time(duty.now_us)
        if duty.term is None:
            self._term = None
            left_s = max(0.0, (duty.until_us - duty.now_us) / 1e6)
            return left_s + random.uniform(0.1, 1.0) * _LOOK_S
        if duty.term != self._term:
            # What this worker remembers is of another tenure.
            self._term = duty.term
            self._states.clear()
            self._written_at.clear()
        made: dict[str, dict[str, Any]] = {}
        for name, aim in automatic.items():
            measured = duty.lanes.get(name)
            if measured is not None:
                slots = measured.slots or await self._count_slots(name)
                # In a thread: it may play some thousand jobs through, which takes a while.
                decision = await asyncio.to_thread(self._decide, name, aim, duty, slots)
                if decision is not None:
                    made[name] = decision
        if made and not await self._driver.call(
            decide(self._keys, self._worker_id, term=duty.term, decisions=made)
        ):
            self._term = None
        return _LOOK_S

    async def _count_slots(self, lane: str) -> int:
        workers = await self._driver.call(list_workers(self._keys))
        return sum(worker.slots for worker in workers if lane in worker.lanes)

    def _decide(self, name: str, aim: ReserveAim, duty: Duty, slots: int) -> dict[str, Any] | None:
        """Return the decision on a lane as it is stored; None where nothing is to be written."""
        measured = duty.lanes[name]
        state = self._states.get(name) or _stored_state(measured.decision)
        at = duty.now_us / 1e6
        starts, late = _lateness(measured, aim, since_s=state.observed_from, now_us=duty.now_us)
        look = ReserveLook(
            at=at,
            arrived=measured.enqueued,
            slots=slots,
            run=self._runs_of(name, [measured]),
            others=self._runs_of(
                f"others of {name}", [of for lane, of in duty.lanes.items() if lane != name]
            ),
            starts=starts,
            late=late,
        )
        state, decision = decide_reserve(state, look, aim)
        self._states[name] = state
        is_due = at - self._written_at.get(name, 0.0) >= _WRITE_S
        if not decision.is_change and not is_due:
            return None
        if decision.is_change:
            _tell(name, decision)
        self._written_at[name] = at
        return decision.to_json() | {"state": state.to_json(), "worker": self._worker_id}

    def _runs_of(self, name: str, lanes: list[LaneMeasured]) -> Runs | None:
        """Return the run times of the last seconds; of before, where nothing ended in these."""
        found = moments_of(_added(*(part["r"] for of in lanes for part in (of.now, of.before))))
        if found is not None:
            self._runs[name] = Runs(*found)
        return self._runs.get(name)


def _automatic(lanes: LanesInForce) -> dict[str, ReserveAim]:
    """Return what is to be held by each lane whose reserve sizes itself."""
    return {
        lane.name: ReserveAim(share=SHARE, within_s=_objective_s(lanes, lane.name))
        for lane in lanes.lanes
        if lane.reserve == "auto" and not lane.is_paused
    }


def _objective_s(lanes: LanesInForce, name: str) -> float:
    slo_us = Lane.from_wire(lanes.wire(name)).slo_us
    return 0.0 if slo_us is None else slo_us / 1e6


def _stored_state(decision: Mapping[str, Any] | None) -> ReserveState:
    stored = decision.get("state") if decision else None
    return ReserveState.from_json(stored) if stored else ReserveState()


def _lateness(
    measured: LaneMeasured, aim: ReserveAim, *, since_s: float, now_us: int
) -> tuple[int, int]:
    """Return the starts since an instant, as far as whole slices tell, and the late ones."""
    slice_s = now_us // FINE_US * FINE_US / 1e6
    waits: list[dict[int, int]] = []
    if since_s <= slice_s:
        waits.append(measured.now["w"])
    if since_s <= slice_s - FINE_US / 1e6:
        waits.append(measured.before["w"])
    added = _added(*waits)
    # A wait of a few milliseconds is the round trip, not a slot that was missing.
    limit_us = max(aim.within_s * 1e6, _ROUND_TRIP_US)
    late = sum(n for bucket, n in added.items() if histogram.value_of(bucket) > limit_us)
    return sum(added.values()), late


def _added(*histograms: dict[int, int]) -> dict[int, int]:
    total: dict[int, int] = {}
    for one in histograms:
        for bucket, n in one.items():
            total[bucket] = total.get(bucket, 0) + n
    return total


def _tell(name: str, decision: ReserveDecision) -> None:
    log.info(
        "reserve of lane %s: %d → %d slots (%s)",
        name,
        decision.before,
        decision.value,
        decision.reason,
    )
