"""How people are told of times, in commands and reasons, and what is told in several places."""

from __future__ import annotations

from typing import Final

#: Why a namespace has no lanes, and what to do.
NOTHING_PUBLISHED: Final = (
    "nothing was published there yet. A worker that starts does it, and a first enqueue. Another "
    "namespace is chosen with --namespace, another Redis with --url."
)

_MINUTE: Final = 60.0


def duration(seconds: float | None) -> str:
    """Return a duration for people: ``21.3 ms``, ``4.2 s``, ``3m20s``, ``2h05m``, ``6d03h``."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < _MINUTE:
        return f"{seconds:.3g} s"
    for unit, part, big, small in ((3600, 60, "m", "s"), (86400, 3600, "h", "m")):
        if seconds < unit:
            whole = round(seconds)
            return f"{whole // part}{big}{whole % part * 60 // part:02d}{small}"
    whole = round(seconds)
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"
