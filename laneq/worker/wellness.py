"""Whether a worker works: its claims and heartbeats are answered, and its loop turns.

That its process lives says little: it may be cut off, blocked, or deaf. What is looked at is
progress: counters that rise, or must rise soon. Nothing here does I/O; a look may be made in
any thread, as often as is wanted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, NamedTuple

#: Seconds without progress after which a worker is unwell, beyond the time between two claims
#: or two heartbeats of one that is well.
LIMIT_S: Final = 10.0

#: Shortest of these limits: less would be hit by a busy machine.
SHORTEST_S: Final = 0.5


class Signs(NamedTuple):
    """What can be seen of a worker at one moment.

    Attributes:
        claims: claims that Redis has answered.
        beats: heartbeats that it has answered.
        turns: times that the loop has answered.
        must_claim: whether a claim has to be answered soon: a slot is free, or an outcome
            is to be reported.
        claim_every_s: the longest time between two claims of an idle worker, in seconds.
        beat_every_s: the longest time between two heartbeats, in seconds.
    """

    claims: int
    beats: int
    turns: int
    must_claim: bool
    claim_every_s: float
    beat_every_s: float


class _Pulse:
    """A counter that has to rise."""

    __slots__ = ("_count", "_since")

    def __init__(self, now: float) -> None:
        self._count = -1
        self._since = now

    def note(self, count: int, now: float, *, is_excused: bool = False) -> None:
        if count != self._count or is_excused:
            self._count, self._since = count, now

    def age_s(self, now: float) -> float:
        return now - self._since


class Wellness:
    """Says whether a worker is well.

    Args:
        signs: returns what is seen now.
        clock: the monotonic clock, in seconds.
        limit_s: seconds without progress after which it is unwell.
    """

    def __init__(
        self,
        signs: Callable[[], Signs],
        clock: Callable[[], float],
        *,
        limit_s: float = LIMIT_S,
    ) -> None:
        self._signs = signs
        self._clock = clock
        self.limit_s = limit_s
        self._lock = threading.Lock()
        now = self._looked_at = clock()
        self._claims, self._beats, self._turns = _Pulse(now), _Pulse(now), _Pulse(now)

    def problems(self) -> tuple[str, ...]:
        """Return what is wrong with the worker now; nothing where it is well."""
        with self._lock:
            now, signs = self._clock(), self._signs()
            # A process that stood still, stopped by a signal say, has to get going again first.
            has_slept = now - self._looked_at > self.limit_s
            self._looked_at = now
            self._claims.note(signs.claims, now, is_excused=has_slept or not signs.must_claim)
            self._beats.note(signs.beats, now, is_excused=has_slept)
            self._turns.note(signs.turns, now, is_excused=has_slept)
            found = []
            turn_s = self._turns.age_s(now)
            if turn_s > self.limit_s:
                found.append(f"its event loop has not turned for {turn_s:.0f} s")
            beat_s = self._beats.age_s(now)
            if beat_s > self.limit_s + signs.beat_every_s:
                found.append(f"no heartbeat of it has been answered for {beat_s:.0f} s")
            claim_s = self._claims.age_s(now)
            if claim_s > self.limit_s + signs.claim_every_s:
                found.append(f"no claim of it has been answered for {claim_s:.0f} s")
            return tuple(found)
