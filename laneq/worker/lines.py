"""Log lines of a worker: one logger, and lines that do not repeat themselves for ever."""

from __future__ import annotations

import logging
import time
from typing import Final

#: The logger of everything that a worker says.
log: Final = logging.getLogger("laneq.worker")

_MOST_TOPICS: Final = 1_000


class Throttle:
    """Lets one line of a topic through per period.

    Args:
        period_s: seconds for which a topic is silent after a line of it.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._last: dict[str, float] = {}

    def allows(self, topic: str) -> bool:
        """Return whether a line of this topic may be written now."""
        now = time.monotonic()
        last = self._last.get(topic)
        if last is not None and now - last < self._period_s:
            return False
        if len(self._last) >= _MOST_TOPICS:
            self._last.clear()
        self._last[topic] = now
        return True


def log_to_stderr() -> None:
    """Show the lines of laneq, unless the program has set up logging itself."""
    logger = logging.getLogger("laneq")
    if logging.getLogger().handlers or logger.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
