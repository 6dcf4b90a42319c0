"""Look once at how the server is set up, and warn of what loses jobs."""

from __future__ import annotations

from typing import Any

from laneq.drive import AsyncDriver
from laneq.errors import RedisRefused, StoreError
from laneq.worker.lines import log


async def warn_of_server(driver: AsyncDriver) -> None:
    """Warn of an eviction policy that drops jobs, and of a server that persists nothing.

    Many managed servers forbid CONFIG; that is one line, and no reason not to start.
    """
    try:
        reply = await driver.command(
            b"CONFIG", b"GET", b"maxmemory-policy", b"maxmemory", b"save", b"appendonly"
        )
    except RedisRefused as error:
        log.info(
            "could not check maxmemory-policy and persistence (%s). The policy must be noeviction.",
            error.word,
        )
        return
    except StoreError as error:
        log.info("could not check maxmemory-policy and persistence: %s", error)
        return
    settings = _texts(reply)
    policy = settings.get("maxmemory-policy", "noeviction")
    if policy != "noeviction":
        limit = "" if settings.get("maxmemory", "0") != "0" else " (no limit is set for now)"
        log.warning(
            "Redis has maxmemory-policy %s%s: it may drop jobs when memory is short. "
            "Set it to noeviction.",
            policy,
            limit,
        )
    if settings.get("appendonly") == "no" and settings.get("save") == "":
        log.warning(
            "Redis persists nothing: a restart of the server loses all jobs. Set appendonly to yes."
        )


def _texts(reply: Any) -> dict[str, str]:
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {name.decode().lower(): value.decode() for name, value in pairs}
