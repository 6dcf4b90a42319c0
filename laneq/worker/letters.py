"""Warn when a lane drops dead letters since it keeps no more: their number is a setting.

A drop is no error, so nobody hears of it by itself, and it happens in the very incident for
which the letters are kept (fault G4). The number dropped is counted beside the lane's events.
A worker looks soon after a job of its own has died, and now and then, since jobs of workers that
were lost die without a worker that reports it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from laneq.calls import stats
from laneq.calls.lanes import LanesInForce
from laneq.drive import AsyncDriver
from laneq.errors import StoreError
from laneq.keys import Keys
from laneq.worker.lines import Throttle, log

#: Seconds from a death to the look at its lane, so that many deaths are one look.
_DELAY_S: Final = 1.0

#: Seconds between looks at all lanes.
_EVERY_S: Final = 60.0

#: Seconds between two warnings of one lane.
_QUIET_S: Final = 3600.0


class LetterWatch:
    """Looks at the dead letters of lanes.

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
        self._dropped: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._now_and_then = self._loop.call_later(_EVERY_S, self._look_at_all)
        self._looks: set[asyncio.Task[None]] = set()
        self._rare = Throttle(_QUIET_S)

    def note(self, lane: str) -> None:
        """Take in that a job of a lane has died."""
        self._died.add(lane)
        if self._timer is None:
            self._timer = self._loop.call_later(_DELAY_S, self._look_at_died)

    def _look_at_died(self) -> None:
        self._timer = None
        died, self._died = self._died, set()
        # Of a lane that is full, a letter was dropped for each that came.
        self._begin(died, is_news=True)

    def _look_at_all(self) -> None:
        self._now_and_then = self._loop.call_later(_EVERY_S, self._look_at_all)
        lanes = self._lanes()
        if lanes is not None:
            self._begin(lanes.names, is_news=False)

    def _begin(self, names: Iterable[str], *, is_news: bool) -> None:
        look = self._loop.create_task(self._look(sorted(names), is_news=is_news))
        self._looks.add(look)
        look.add_done_callback(self._looks.discard)

    async def _look(self, names: list[str], *, is_news: bool) -> None:
        in_force = self._lanes()
        limits = {lane.name: lane.dead_max for lane in in_force.lanes} if in_force else {}
        names = [name for name in names if limits.get(name, -1) >= 0]
        if not names:
            return
        try:
            depths = await self._driver.call(stats.depths(self._keys, names))
        except StoreError as error:
            # The claim loop says so; the next look asks again.
            log.debug("dead letters were not looked at: %s", error)
            return
        for name, depth in zip(names, depths, strict=True):
            dropped = depth.counts.get("dropped", 0)
            before = 0 if is_news else self._dropped.get(name, dropped)
            self._dropped[name] = dropped
            is_full = depth.dead_letters >= limits[name]
            if dropped > before and is_full and self._rare.allows(name):
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
        self._now_and_then.cancel()
        for look in self._looks:
            look.cancel()
