"""The exit statuses, and which error ends in which: one table for all commands."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from laneq.errors import LaneqError, StoreError, UsageError


class Status(IntEnum):
    """What the exit status of a command says."""

    DONE = 0
    BAD_NEWS = 1  #: the answer is bad news: a failed job, an id that is unknown
    USAGE = 2  #: wrong usage: nothing was done
    STORE = 3  #: Redis cannot be reached, or refuses
    INTERRUPTED = 130


#: First match wins, so an exception stands above its parents.
_OF_ERROR: Final[tuple[tuple[type[LaneqError], Status], ...]] = (
    (StoreError, Status.STORE),
    (UsageError, Status.USAGE),
    (LaneqError, Status.BAD_NEWS),
)


def status_of(error: LaneqError) -> Status:
    """Return the exit status that an error ends in."""
    return next(status for kind, status in _OF_ERROR if isinstance(error, kind))
