"""Carry out calls on Redis, in two colours: the only package that imports redis.

`SyncDriver` and `AsyncDriver` do the same: take a `Call` or a plan, return its
value, turn what goes wrong into laneq's errors. `Address` says where Redis is.
Connections: a `SyncDriver` has at most `max_connections`, an `AsyncDriver` one,
and one more for each `BlockingWire`.
"""

from __future__ import annotations

from laneq.drive.address import Address
from laneq.drive.async_driver import AsyncDriver, Begun, is_trouble
from laneq.drive.blocking_wire import BlockingWire
from laneq.drive.persist import backoff_s
from laneq.drive.sync_driver import SyncDriver

__all__ = [
    "Address",
    "AsyncDriver",
    "Begun",
    "BlockingWire",
    "SyncDriver",
    "backoff_s",
    "is_trouble",
]
