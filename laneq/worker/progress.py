"""Send the progress that jobs report, merged: the last value of each job, ten times a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from laneq.calls.jobs import report_progress
from laneq.drive import AsyncDriver
from laneq.errors import LeaseLost, StoreError
from laneq.keys import Keys
from laneq.worker.lines import Throttle, log
from laneq.worker.runner import Run

_PERIOD_S: Final = 0.1
_QUIET_S: Final = 30.0


class ProgressSender:
    """Sends progress for the jobs of one worker.

    Args:
        driver: the worker's.
        keys: the namespace.
        on_lost: told a run that turned out to have lost its lease.
    """

    def __init__(self, driver: AsyncDriver, keys: Keys, on_lost: Callable[[Run], None]) -> None:
        self._driver = driver
        self._keys = keys
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._fresh: dict[int, Run] = {}
        self._task: asyncio.Task[None] | None = None
        self._rare = Throttle(_QUIET_S)

    def note(self, run: Run) -> None:
        """Take in that a run has progress to send; safe to call in any thread."""
        if run.fence not in self._fresh:
            self._fresh[run.fence] = run
            try:
                self._loop.call_soon_threadsafe(self._begin)
            except RuntimeError:
                # The loop is closed: an abandoned thread reports to nobody.
                return

    def _begin(self) -> None:
        if self._task is None:
            self._task = self._loop.create_task(self._send_all())
            self._task.add_done_callback(self._has_ended)

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if self._fresh and not task.cancelled():
            self._begin()

    async def _send_all(self) -> None:
        while self._fresh:
            for fence in list(self._fresh):
                run = self._fresh.pop(fence)
                if not run.is_over and run.progress is not None:
                    await self._send(run, run.progress)
            await asyncio.sleep(_PERIOD_S)

    async def _send(self, run: Run, value: bytes) -> None:
        try:
            await self._driver.call(
                report_progress(self._keys, run.id, fence=run.fence, value=value)
            )
        except LeaseLost:
            self._on_lost(run)
        except StoreError as error:
            if self._rare.allows("progress"):
                log.warning("progress of job %s was not noted: %s", run.id, error)

    async def aclose(self) -> None:
        """Stop sending."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
