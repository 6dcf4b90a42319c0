"""Warn when a lane drops dead letters since it keeps no more: their number is a setting.

A drop is no error, so nobody hears of it by itself, and it happens in the very incident for
which the letters are kept (fault G4). The number dropped is counted beside the lane's events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from laneq.calls import stats
from laneq.calls.lanes import LanesInForce
from laneq.drive import AsyncDriver
from laneq.errors import StoreError
from laneq.keys import Keys
from laneq.worker.lines import Throttle, log

#: Seconds from a death to the look at its lane, so that many deaths are one look.
_DELAY_S: Final = 1.0

#: Seconds between two warnings of one lane.
_QUIET_S: Final = 3600.0


class LetterWatch:
    """Looks at lanes in which jobs of this worker have died.

    Args:
        driver: the worker's.
        keys: the namespace.
        lanes: the lanes in force.
    """

    def __init__(
        self, driver: AsyncDriver, keys: Keys, lanes: Callable[[], LanesInForce | None]
    ) -> None:
        self._driver = driver
        self._keys = keys
        self._lanes = lanes
        self._loop = asyncio.get_running_loop()
        self._died: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._look: asyncio.Task[None] | None = None
        self._rare = Throttle(_QUIET_S)

    def note(self, lane: str) -> None:
        """Take in that a job of a lane has died."""
        self._died.add(lane)
        if self._timer is None:
            self._timer = self._loop.call_later(_DELAY_S, self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._look = self._loop.create_task(self._look_at(sorted(self._died)))
        self._died.clear()

    async def _look_at(self, names: list[str]) -> None:
        in_force = self._lanes()
        limits = {lane.name: lane.dead_max for lane in in_force.lanes} if in_force else {}
        names = [name for name in names if limits.get(name, -1) >= 0]
        if not names:
            return
        try:
            depths = await self._driver.call(stats.depths(self._keys, names))
        except StoreError as error:
            # The claim loop says so; the next death asks again.
            log.debug("dead letters were not looked at: %s", error)
            return
        for name, depth in zip(names, depths, strict=True):
            dropped = depth.counts.get("dropped", 0)
            is_full = depth.dead_letters >= limits[name]
            if dropped and is_full and self._rare.allows(name):
                log.warning(
                    "lane %s keeps %d dead letters (dead_max): the oldest are dropped, %d so far. "
                    "`laneq lanes show %s` has the number; `laneq lanes set %s dead_max=...` "
                    "keeps more.",
                    name, limits[name], dropped, name, name,
                )  # fmt: skip

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._look is not None:
            self._look.cancel()
