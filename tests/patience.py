"""Bounded waits for what another thread, process or server does and tells nobody about.

Where there is an event, a future, or a line that a process prints, wait for that; this is for
the rest. Each wait ends at the moment its condition holds, and fails after so many seconds.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

PATIENCE_S: Final = 10.0

_POLL_S: Final = 0.005


def wait_until(condition: Callable[[], T], within_s: float = PATIENCE_S, what: str = "") -> T:
    """Return the condition's value as soon as it is true; fail after so many seconds."""
    give_up_at = time.monotonic() + within_s
    while not (value := condition()):
        if time.monotonic() > give_up_at:
            raise _too_late(within_s, what)
        time.sleep(_POLL_S)
    return value


async def await_until(
    condition: Callable[[], Any], within_s: float = PATIENCE_S, what: str = ""
) -> Any:
    """As `wait_until`, in a loop; the condition may be a coroutine function."""
    try:
        async with asyncio.timeout(within_s) as limit:
            while True:
                value = condition()
                if inspect.iscoroutine(value):
                    value = await value
                if value:
                    return value
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        if not limit.expired():
            raise
        raise _too_late(within_s, what) from None


def _too_late(within_s: float, what: str) -> AssertionError:
    return AssertionError(f"not within {within_s:g} s: {what or 'what the test waits for'}")
