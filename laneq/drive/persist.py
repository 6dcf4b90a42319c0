"""How a call is carried through trouble: both drivers follow this, step by step.

A call that meets no trouble never comes here. Otherwise `persist`, a generator
without I/O, says what to do next and is told what came of it:

- NOSCRIPT: the text is sent once, and EVALSHA works from then on.
- The connection broke: the call is repeated once on a fresh one. Whether the
  first try took effect is unknown, so a `once` call is stamped: each try has a
  session key and a number of its own, and a repeat names those of the try before.
  The script looks whether that one was applied.
- The server will answer soon (LOADING and the like): repeated with growing pauses
  until patience runs out.
- Another server will take it (READONLY, MOVED and the like): likewise, each time on
  a connection made anew, to whichever server is the right one by then.

Patience is spent per outage, not per call: calls made when it is spent try once.
So a short restart is ridden out, and a long one does not make each call slow.

Proof that a stamp is exact: a session has at most one call in flight, and its
number grows with each. So the number kept in Redis has reached the one of the
lost call if and only if that call was applied, whatever else the connection
carried and in whichever order it was refused.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Protocol, TypeAlias

import hiredis

from laneq.calls.call import Call
from laneq.drive.address import Address
from laneq.drive.refusals import (
    ELSEWHERE,
    NOSCRIPT,
    PASSING,
    Lost,
    trouble,
    word_of,
)
from laneq.errors import StoreError

Arg: TypeAlias = bytes | str | int | float

#: Encodes one command. Typed here, since hiredis's own stub lacks the result.
pack: Final[Callable[[tuple[Arg, ...]], bytes]] = hiredis.pack_command  # type: ignore[assignment]

#: What stands in the place of a reply when there is none, by class.
TROUBLE: Final = frozenset({hiredis.ReplyError, Lost})

#: Connections that one wait may lose before it gives up.
MOST_BREAKS: Final = 100

#: Seconds of an outage that a wait without a limit of its own rides out, once it has begun.
LONGEST_OUTAGE_S: Final = 30.0

#: Seconds between looks of a wait, where the server has no pushes.
POLL_S: Final = 0.05

#: Seconds that the last attempt gets, however little patience is left.
_LEAST_ATTEMPT_S: Final = 0.25

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
_LAST_DOUBLING: Final = 16

# What fakeredis says to the `#!lua` line of a script.
_NO_FLAGS: Final = "unexpected symbol near '#'"


def backoff_s(tries: int) -> float:
    """Return how many seconds to pause after so many failed tries, counted from 0.

    Grows from 0.05 s to 2 s, with jitter, so that many clients do not come back
    at the same instant.
    """
    longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(tries, _LAST_DOUBLING))
    return random.uniform(longest / 4, longest)


class Session:
    """Names one call at a time to the scripts, over the life of one connection.

    Attributes:
        key: where the script keeps the number of the last call applied.
        seq: number of the last call sent, counted from 1.
    """

    __slots__ = ("key", "seq")

    def __init__(self, prefix: bytes) -> None:
        self.key = prefix + b"session:" + secrets.token_hex(8).encode()
        self.seq = 0


def free_session(wire: Wire, prefix: bytes) -> Session:
    """Return a session of this connection that no call uses."""
    return wire.sessions.pop() if wire.sessions else Session(prefix)


#: Session key and number of the try before; the number is 0 where there was none.
Stamp: TypeAlias = tuple[bytes, int]


@lru_cache(maxsize=128)
def _packed_keys(sha: bytes, keys: tuple[bytes, ...]) -> bytes:
    """Encode what a call has before its arguments, without the count of all."""
    packed = pack((b"EVALSHA", sha, len(keys), *keys))
    return packed[packed.index(b"\n") + 1 :]


def pack_call(call: Call[Any], session: Session | None) -> bytes:
    """Encode the first try of a call.

    Args:
        call: the call.
        session: a free session for a `once` call, else None; its number is raised.
    """
    if session is None:
        # Keys are half of a claim, and the same for each.
        argv, keys = pack(call.argv), call.keys
        args_at = argv.index(b"\n") + 1
        count = 3 + len(keys) + len(call.argv)
        return b"*%d\r\n%b%b" % (count, _packed_keys(call.script.sha, keys), argv[args_at:])
    session.seq += 1
    key = session.key
    count = len(call.keys) + 2
    return pack(
        (b"EVALSHA", call.script.sha, count, key, key, *call.keys, session.seq, 0, *call.argv)
    )


def pack_again(
    call: Call[Any], session: Session | None, before: Stamp | None, *, text: bytes | None
) -> bytes:
    """Encode a later try of a call.

    Args:
        call: the call.
        session: a free session for a `once` call, else None; its number is raised.
        before: the try before, where it is not known whether it was applied.
        text: the script's text, to send it along; None where the server has it.
    """
    opening = (b"EVALSHA", call.script.sha) if text is None else (b"EVAL", text)
    if session is None:
        return pack((*opening, len(call.keys), *call.keys, *call.argv))
    session.seq += 1
    before_key, before_seq = before or (session.key, 0)
    keys = (session.key, before_key, *call.keys)
    return pack((*opening, len(keys), *keys, session.seq, before_seq, *call.argv))


class ServerState:
    """What a driver knows of its server: since when it is away, and how it differs.

    Args:
        patience_s: seconds that calls go on trying, counted from the first failure.
        on_away: told the error when an outage begins.

    Attributes:
        since: when the outage began (monotonic seconds); None while Redis answers.
        is_plain: it is fakeredis: scripts are sent without their ``#!lua`` line, and
            waits ask again and again, since a connection that listens does nothing else.
    """

    __slots__ = ("_on_away", "is_plain", "patience_s", "since")

    def __init__(
        self, patience_s: float, on_away: Callable[[StoreError], None] | None = None
    ) -> None:
        self.patience_s = patience_s
        self._on_away = on_away
        self.since: float | None = None
        self.is_plain = False

    def begin(self, error: StoreError, since: float) -> None:
        """Note a failure; `since` is when the try that failed began (monotonic)."""
        if self.since is None:
            self.since = since
            if self._on_away is not None:
                self._on_away(error)

    def over(self) -> None:
        """Note that Redis answers."""
        self.since = None

    def left_s(self) -> float:
        """Return the seconds of patience left; 0 or less when it is spent."""
        if self.since is None:
            return self.patience_s
        return self.since + self.patience_s - time.monotonic()

    def attempt_s(self, connect_timeout_s: float) -> float:
        """Return the seconds that one attempt to connect may take."""
        left = self.left_s()
        if left <= 0:
            return connect_timeout_s
        return min(connect_timeout_s, max(left, _LEAST_ATTEMPT_S))


class Outage:
    """What a wait does when Redis goes away under it: it goes on to the end of its own time.

    A wait that Redis has never answered fails like any call (fault I4).

    Args:
        give_up_at: when the wait ends, by the monotonic clock; None for never.

    Attributes:
        error: why there is no answer; None while there are answers.
        pause_s: seconds until the next try; None while there are answers.
    """

    __slots__ = ("_is_begun", "_limit", "_own_limit", "_tries", "error", "pause_s")

    def __init__(self, give_up_at: float | None) -> None:
        self._own_limit = self._limit = give_up_at
        self._is_begun = False
        self._tries = 0
        self.error: StoreError | None = None
        self.pause_s: float | None = None

    def over(self) -> None:
        """Note that Redis has answered."""
        self._is_begun = True
        self._tries = 0
        self.error = self.pause_s = None

    def bear(self, error: StoreError) -> float:
        """Return the seconds until the next try.

        Raises:
            StoreError: this one, where no try is left.
        """
        now = time.monotonic()
        if self.error is None and self._own_limit is None:
            self._limit = now + LONGEST_OUTAGE_S
        self.error = error
        pause_s = backoff_s(self._tries)
        if not self._is_begun or not error.is_retryable or now + pause_s >= (self._limit or now):
            raise error
        self._tries += 1
        self.pause_s = pause_s
        return pause_s


class Wire(Protocol):
    """What the steps below need of a connection, sync or async."""

    sessions: list[Session]

    def retire(self) -> None:
        """Use this connection for no further call."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Step: try once to connect. Answer: the wire, or the StoreError thrown in."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Step: wait."""

    seconds: float


class Fresh:
    """Step: get a connection made after the trouble. Answer: the wire."""


@dataclass(frozen=True, slots=True)
class Send:
    """Step: send on this wire. Answer: the reply, or trouble."""

    wire: Any
    packed: bytes


Step: TypeAlias = Attempt | Pause | Fresh | Send


def connecting(address: Address, state: ServerState) -> Generator[Step, Any, Any]:
    """Connect, with patience; return the wire.

    Raises:
        RedisUnavailable: no connection, and patience is spent.
        RedisRefused: the server refused, and will do so again or for too long.
    """
    tries = 0
    while True:
        began = time.monotonic()
        try:
            return (yield Attempt(state.attempt_s(address.connect_timeout_s)))
        except StoreError as error:
            if not error.is_retryable:
                raise
            state.begin(error, began)
            pause_s = backoff_s(tries)
            if state.left_s() <= pause_s:
                raise
        tries += 1
        yield Pause(pause_s)


class Asked:
    """One call, or one plain command, as it is tried and tried again."""

    __slots__ = ("_before", "_call", "_packed", "_text", "session")

    def __init__(self, call: Call[Any] | None, packed: bytes, session: Session | None) -> None:
        self._call = call
        self._packed = packed
        self._text: bytes | None = None
        self._before: Stamp | None = None
        self.session = session

    def can_send_text(self, reply: Any, state: ServerState) -> bool:
        """Send the script's text next, if that cures this error reply and was not tried."""
        text = str(reply)
        if _NO_FLAGS in text:
            state.is_plain = True
        elif word_of(reply) != NOSCRIPT:
            return False
        if self._call is None:
            return False
        script = self._call.script
        text_to_send = script.plain if state.is_plain else script.text
        is_new = text_to_send != self._text
        self._text = text_to_send
        return is_new

    def was_lost(self) -> None:
        """Remember the try whose fate is unknown; its session is not used again."""
        if self._call is not None:
            self._call = self._call.repeated()
        if self.session is not None:
            self._before = (self.session.key, self.session.seq)
            self.session = None

    def pack_for(self, wire: Wire, prefix: bytes) -> bytes:
        """Encode the next try."""
        call = self._call
        if call is None:
            return self._packed
        if call.once and self.session is None:
            self.session = free_session(wire, prefix)
        return pack_again(call, self.session, self._before, text=self._text)


def persist(
    asked: Asked,
    reply: Any,
    wire: Any,
    *,
    address: Address,
    prefix: bytes,
    state: ServerState,
    is_pinned: bool = False,
) -> Generator[Step, Any, Any]:
    """Carry a call on after its first try met trouble; return the reply.

    Args:
        asked: the call, as it was sent.
        reply: the error reply, or why the connection is gone.
        wire: where it was sent.
        address: the server.
        prefix: the namespace's key prefix, for sessions.
        state: the driver's.
        is_pinned: the call is for this wire alone: `Lost` is returned when it breaks.

    Raises:
        RedisUnavailable: the connection broke twice, or there is none.
        RedisRefused: the server refuses, for good or past patience.
    """
    tries = breaks = 0
    began = time.monotonic()
    while reply.__class__ in TROUBLE:
        if reply.__class__ is Lost:
            if is_pinned:
                return reply
            asked.was_lost()
            breaks += 1
            if reply.is_closing or breaks > 1:
                raise trouble(address, reply)
            wire = yield Fresh()
        elif not asked.can_send_text(reply, state):
            error = trouble(address, reply)
            word = word_of(reply)
            if word not in PASSING:
                raise error
            state.begin(error, began)
            pause_s = backoff_s(tries)
            tries += 1
            if word in ELSEWHERE:
                wire.retire()
                asked.session = None
            if state.left_s() <= pause_s:
                raise error
            yield Pause(pause_s)
            if word in ELSEWHERE:
                if is_pinned:
                    return Lost(f"another server has to be asked: {word}")
                wire = yield Fresh()
        reply = yield Send(wire, asked.pack_for(wire, prefix))
    if asked.session is not None:
        wire.sessions.append(asked.session)
    return reply
