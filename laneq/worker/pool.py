"""The slots of one worker, made to follow the wait objectives of its lanes.

The rule is in `laneq.elastic`; here is what it needs of the world. A worker that has or sees work
looks once a second, an idle one with its heartbeats or more seldom: one call each time. New slots
claim at once. Slots that are given up end with the jobs that they have: none is stopped for it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import Final

from laneq.calls.lanes import LaneInForce, LanesInForce
from laneq.calls.pool import LaneNow, PoolNow, look_at_pool
from laneq.drive import AsyncDriver
from laneq.elastic import LOOK_S, LaneLoad, Pool, PoolDecision, Rate, averaging_s, limit_of
from laneq.errors import StoreError
from laneq.keys import Keys
from laneq.model import PoolView
from laneq.options import WorkerOptions
from laneq.worker.lines import log
from laneq.worker.slots import Slots

#: Shortest and longest sleep between looks of an idle worker, in seconds; and of one that has
#: its fewest slots, so that only work which none of them may take is news.
_IDLE_S: Final = (LOOK_S, 5.0)
_IDLE_AT_LEAST_S: Final = 10.0


class ElasticSlots:
    """The coroutine that sizes a worker.

    Args:
        driver: the worker's own.
        keys: the namespace.
        worker_id: the worker's incarnation.
        options: its limits and reserves.
        slots: those to be sized.
        on_step: called after each step.
        on_share: told the worker's part of what the fleet wants, each time it changes; it may
            be more than the worker can have.

    Attributes:
        idle_s: seconds between looks while there is no work.
    """

    def __init__(
        self,
        driver: AsyncDriver,
        keys: Keys,
        worker_id: str,
        *,
        options: WorkerOptions,
        slots: Slots,
        on_step: Callable[[], None],
        on_share: Callable[[float], None] | None = None,
    ) -> None:
        self._driver = driver
        self._keys = keys
        self._worker_id = worker_id
        self._slots = slots
        self._on_step = on_step
        self._on_share = on_share
        self._least, self._most = options.least_slots, options.capacity
        self._pool = Pool(self._least, self._most)
        self._reserved = frozenset(options.reserved)
        self._is_all_reserved = sum(options.reserved.values()) >= self._most
        self._lanes: tuple[str, ...] = ()
        self._in_force: dict[str, LaneInForce] = {}
        self._rates: dict[str, Rate] = {}
        self._runs: dict[str, float] = {}
        self._offset_us = 0
        self._has_work = False
        self._share: float | None = None
        self._wanted: int | None = None
        self._before: int | None = None
        self._changed_at: float | None = None
        self._reason = ""
        self.idle_s = _IDLE_S[1]

    def know(self, lanes: LanesInForce, served: Sequence[str]) -> None:
        """Take in the lanes in force, and those that the worker serves."""
        self._in_force = {lane.name: lane for lane in lanes.lanes}
        # Where all slots are reserved, no other lane ever gets one.
        self._lanes = tuple(
            lane for lane in served if not self._is_all_reserved or lane in self._reserved
        )

    def keep_time(self, now_us: int) -> None:
        """Take in Redis's clock."""
        self._offset_us = now_us - int(time.monotonic() * 1e6)

    def view(self) -> PoolView:
        """Return what operators are told; safe to call in any thread."""
        return PoolView(
            min=self._least,
            max=self._most,
            lanes=self._lanes,
            wanted=self._wanted,
            slots_before=self._before,
            changed_at=self._changed_at,
            reason=self._reason,
        )

    async def run(self) -> None:
        """Look and size, until cancelled."""
        looked_at = -math.inf
        while True:
            now = time.monotonic()
            if self._slots.running or self._has_work or now - looked_at >= self._bounded_idle_s():
                looked_at = now
                await self.look()
            await asyncio.sleep(LOOK_S)

    def _bounded_idle_s(self) -> float:
        if self._slots.total <= self._least:
            return _IDLE_AT_LEAST_S
        shortest, longest = _IDLE_S
        return min(max(self.idle_s, shortest), longest)

    async def look(self) -> None:
        """Look once, and take a step where one is due."""
        if not self._lanes:
            return
        now_us = self._offset_us + int(time.monotonic() * 1e6)
        call = look_at_pool(self._keys, self._worker_id, self._lanes, now_us=now_us)
        try:
            found = await self._driver.call(call)
        except StoreError as error:
            # The claims tell that Redis is away; the slots stay as they are meanwhile.
            log.debug("the pool could not be looked at: %s", error)
            return
        self.keep_time(found.now_us)
        self._take(found)

    def _take(self, found: PoolNow) -> None:
        now_s = time.monotonic()
        lanes = [self._load(lane, now_s) for lane in found.lanes if not lane.is_paused]
        self._has_work = any(lane.waiting for lane in lanes)
        step = self._pool.decide(now_s, self._slots.total, lanes, place=found.place)
        self._wanted = None if step.lane is None else step.wanted
        if step.is_step:
            self._apply(step, found.now_us)
        elif step.lane is None:
            self._reason = step.reason
        elif self._before is None:
            self._reason = ""
        share = round(step.share, 2)
        if self._on_share is not None and share != self._share:
            self._share = share
            self._on_share(share)

    def _load(self, lane: LaneNow, now_s: float) -> LaneLoad:
        if lane.runs:
            self._runs[lane.name] = lane.run_s
        run_s, in_force = self._runs.get(lane.name), self._in_force.get(lane.name)
        rate = self._rates.setdefault(lane.name, Rate())
        # What became ready is waiting now or was started since: retries and due jobs too.
        rate.note(now_s, lane.started + lane.waiting, over_s=averaging_s(lane.slo_s, run_s))
        return LaneLoad(
            lane.name,
            priority=lane.priority,
            slo_s=lane.slo_s,
            waiting=lane.waiting,
            head_age_s=lane.head_age_s,
            arrivals_per_s=rate.average,
            recent_per_s=rate.latest,
            run_s=run_s,
            reserve=0 if in_force is None else in_force.reserve_slots,
            limit=None if in_force is None else _limit(in_force, run_s),
            kept=lane.kept,
            fleet=lane.fleet,
        )

    def _apply(self, step: PoolDecision, now_us: int) -> None:
        self._before, self._changed_at, self._reason = step.before, now_us / 1e6, step.reason
        self._slots.resize(step.value)
        log.info(
            "slots %d → %d (%d to %d): %s; over the fleet %d are wanted",
            step.before, step.value, self._least, self._most, step.reason, step.wanted,
        )  # fmt: skip
        self._on_step()


def _limit(lane: LaneInForce, run_s: float | None) -> float | None:
    return limit_of(
        max_running=None if lane.max_running < 0 else lane.max_running,
        starts_per_s=None if lane.start_every_us <= 0 else 1e6 / lane.start_every_us,
        run_s=run_s,
    )
