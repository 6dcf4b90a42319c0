"""The driver for blocking callers: a bounded pool of connections, safe in threads.

Connections: at most `max_connections`, made when needed, the last used first.
A connection belongs to the process that made it: a forked child closes its copies
and starts anew.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

from laneq.calls.call import Call, Plan, Until
from laneq.drive.address import Address
from laneq.drive.connect import open_socket
from laneq.drive.persist import (
    MOST_BREAKS,
    POLL_S,
    TROUBLE,
    Arg,
    Asked,
    Attempt,
    Outage,
    Pause,
    Send,
    ServerState,
    Step,
    connecting,
    free_session,
    pack,
    pack_call,
    persist,
)
from laneq.drive.refusals import Lost, timed_out, trouble, unavailable
from laneq.drive.route import Route
from laneq.drive.switches import SWITCHED, SwitchWatch
from laneq.drive.sync_wire import SyncWire
from laneq.errors import StoreError

T = TypeVar("T")

#: Seconds between looks for a connection that was dropped without a word, and for news of
#: the sentinels while a wait has none.
_RECOUNT_S: Final = 1.0
_FOREVER_S: Final = 365 * 86400.0


class SyncDriver:
    """Carry out calls and plans, blocking the thread.

    Safe to share between threads, and usable after a fork. Opens connections when
    they are needed, at most `max_connections`; a wait (`Until`) holds one for as
    long as it lasts. After `close` a further call opens connections anew.

    Args:
        address: where Redis is.
        prefix: the namespace's key prefix, ``b"{laneq:NAME}:"``.
        max_connections: the most connections of this process. A caller that finds
            all busy waits for one, at most the address's `read_timeout_s`.
        client_name: shown by CLIENT LIST.
        patience_s: seconds of an outage that calls try to ride out.
        on_disconnect: told the error when an outage begins.
        on_connect: told of each connection made.
    """

    def __init__(
        self,
        address: Address,
        *,
        prefix: bytes,
        max_connections: int = 32,
        client_name: str = "laneq",
        patience_s: float = 2.0,
        on_disconnect: Callable[[StoreError], None] | None = None,
        on_connect: Callable[[], None] | None = None,
    ) -> None:
        self.address = address
        self._prefix = prefix
        self._max = max_connections
        self._client_name = client_name
        self._on_connect = on_connect
        self._state = ServerState(patience_s, on_disconnect)
        self._route = Route(prefix)
        self._switches = (
            SwitchWatch(address, self._route, client_name) if address.has_sentinels else None
        )
        self._live: weakref.WeakSet[SyncWire] = weakref.WeakSet()
        self._closes = 0
        self._start_afresh()
        _DRIVERS.add(self)

    def _start_afresh(self) -> None:
        self._gate = threading.Condition()
        self._idle: list[SyncWire] = []
        self._opening = 0
        self._waiting = 0

    def _begin_child(self) -> None:
        # The lock may be held by a thread that the child does not have: replace it first.
        inherited = list(self._live)
        self._live = weakref.WeakSet()
        self._start_afresh()
        self._state.over()
        for wire in inherited:
            wire.close()
        if self._switches is not None:
            self._switches.begin_child()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def call(self, call: Call[T]) -> T:
        """Carry out one script call and return its value.

        Raises:
            RedisUnavailable: no connection, or it broke twice.
            RedisRefused: the server answered with an error.

        Redis:
            One round trip; the script's text is sent when the server lacks it.
        """
        closes = self._closes
        wire = self._take(closes)
        session = free_session(wire, self._prefix) if call.once else None
        packed = pack_call(call, session)
        reply = wire.ask(packed)
        if reply.__class__ in TROUBLE:
            steps = self._persist(Asked(call, packed, session), reply, wire)
            reply = self._carry_out(steps, wire, closes)
        else:
            if session is not None:
                wire.sessions.append(session)
            self._give(wire)
        return call.read(reply)

    def command(self, *args: Arg) -> Any:
        """Send a plain command (INFO, PING, CONFIG) and return the raw reply.

        It is repeated once if the connection breaks: send only what may be repeated.

        Raises:
            RedisUnavailable: no connection, or it broke twice.
            RedisRefused: the server answered with an error.
        """
        packed = pack(args)
        closes = self._closes
        wire = self._take(closes)
        reply = wire.ask(packed)
        if reply.__class__ in TROUBLE:
            steps = self._persist(Asked(None, packed, None), reply, wire)
            return self._carry_out(steps, wire, closes)
        self._give(wire)
        return reply

    def run(self, plan: Plan[T]) -> T:
        """Carry out a plan: each step in turn, errors raised where it yields."""
        try:
            step = next(plan)
            while True:
                try:
                    answer = self._until(step) if isinstance(step, Until) else self.call(step)
                except BaseException as error:  # noqa: BLE001  the plan decides
                    step = plan.throw(error)
                else:
                    step = plan.send(answer)
        except StopIteration as end:
            value: T = end.value
            return value

    def close(self) -> None:
        """Close all connections that are idle now, and those in use when they are given back.

        Callers who pause, or need another connection, get RedisUnavailable.
        """
        self._closes += 1
        self._drop_pool()
        if self._switches is not None:
            self._switches.close()

    def _drop_pool(self) -> None:
        idle, self._idle = self._idle, []
        _close_all(idle)

    def _check_open(self, closes: int) -> None:
        """Raise if the driver was closed since there had been so many closes."""
        if self._closes != closes:
            raise unavailable(self.address, "the driver was closed")

    # --- the pool -------------------------------------------------------------------

    def _take(self, closes: int) -> SyncWire:
        if self._switches is not None and self._switches.has_switched():
            self._drop_pool()
        try:
            return self._idle.pop()
        except IndexError:
            return self._take_or_open(closes)

    def _take_or_open(self, closes: int) -> SyncWire:
        found = self._wait_for_room()
        if found is not None:
            return found
        wire = None
        try:
            self._check_open(closes)
            wire = self._carry_out(connecting(self.address, self._state), None, closes)
            return cast("SyncWire", wire)
        finally:
            with self._gate:
                self._opening -= 1
                if wire is not None:
                    self._live.add(wire)
                elif self._waiting:
                    self._gate.notify()

    def _wait_for_room(self) -> SyncWire | None:
        """Return an idle wire, or None when one more may be opened; its place is kept."""
        patience_s = self.address.read_timeout_s
        give_up_at = time.monotonic() + patience_s
        with self._gate:
            self._waiting += 1
            try:
                while True:
                    if self._idle:
                        return self._idle.pop()
                    if len(self._live) + self._opening < self._max:
                        self._opening += 1
                        return None
                    left_s = give_up_at - time.monotonic()
                    if left_s <= 0:
                        raise unavailable(
                            self.address,
                            f"all {self._max} connections were busy for {patience_s:g} s. "
                            "Raise max_connections.",
                        )
                    self._gate.wait(min(left_s, _RECOUNT_S))
            finally:
                self._waiting -= 1

    def _open(self, timeout_s: float, closes: int) -> SyncWire:
        home = self._idle
        sock = open_socket(self.address, self._client_name, timeout_s=timeout_s, route=self._route)
        if self._switches is not None:
            self._switches.begin()
        # Proof that a close meanwhile leaves none open: it counts itself, then puts a new
        # list and ends the watch; here it is the list first and the count last.
        if self._closes != closes:
            home = []
            if self._switches is not None:
                self._switches.close()
        forget = weakref.WeakMethod(self._forget)

        def on_close(wire: SyncWire) -> None:
            if (method := forget()) is not None:
                method(wire)

        wire = SyncWire(sock, self.address.read_timeout_s, home=home, on_close=on_close)
        if self._on_connect is not None:
            self._on_connect()
        return wire

    def _give(self, wire: SyncWire) -> None:
        if self._state.since is not None:
            self._state.over()
        home = wire.home
        home.append(wire)
        # Proof that none is left open: `_drop_pool` puts a new list first and empties the
        # old one then; here the wire is put, then the list compared. One sees the other.
        if home is not self._idle:
            _close_all(home)
        # Proof that no waiter is forgotten: it counts itself, then looks at the idle
        # ones; here the wire is put, then the count read. One sees the other.
        if self._waiting:
            with self._gate:
                self._gate.notify()

    def _forget(self, wire: SyncWire) -> None:
        with self._gate:
            self._live.discard(wire)
            if self._waiting:
                self._gate.notify()

    def _fresh(self, closes: int) -> SyncWire:
        # What broke one connection most likely broke those made before it too.
        _close_all(self._idle)
        return self._take_or_open(closes)

    def _leave(self, wire: SyncWire | None) -> None:
        if wire is not None and wire.lost is None:
            self._give(wire)

    # --- trouble --------------------------------------------------------------------

    def _persist(
        self, asked: Asked, reply: Any, wire: SyncWire, *, is_pinned: bool = False
    ) -> Generator[Step, Any, Any]:
        return persist(
            asked,
            reply,
            wire,
            address=self.address,
            prefix=self._prefix,
            state=self._state,
            is_pinned=is_pinned,
        )

    def _carry_out(
        self, steps: Generator[Step, Any, Any], wire: SyncWire | None, closes: int
    ) -> Any:
        """Do what the steps say, then give back the wire that they end with.

        Args:
            steps: of the call.
            wire: where it was sent; None for one that is not to be given back.
            closes: how often the driver had been closed when the call began.
        """
        try:
            step = next(steps)
            while True:
                try:
                    answer: Any = None
                    match step:
                        case Send(on, packed):
                            answer = on.ask(packed)
                        case Pause(seconds):
                            time.sleep(seconds)
                            self._check_open(closes)
                        case Attempt(timeout_s):
                            answer = self._open(timeout_s, closes)
                        case _:
                            answer = wire = self._fresh(closes)
                except StoreError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            return end.value
        finally:
            self._leave(wire)

    # --- waits ----------------------------------------------------------------------

    def _until(self, until: Until[T]) -> T:
        give_up_at = None
        if until.timeout_s is not None:
            give_up_at = time.monotonic() + until.timeout_s
        closes = self._closes
        if self._state.is_plain:
            return self._poll(until, give_up_at, closes)
        breaks = 0
        outage = Outage(give_up_at)
        wire: SyncWire | None = self._take(closes)
        while True:
            try:
                answer = self._watch(
                    wire or self._fresh(closes), until, give_up_at, outage, closes=closes
                )
            except StoreError as error:
                wire = None
                pause_s = outage.bear(error)
                self._check_open(closes)
                time.sleep(pause_s)
                continue
            if answer.__class__ is not Lost:
                value: T = answer
                return value
            wire = None
            breaks += 1
            if answer.is_closing:
                raise trouble(self.address, answer)
            if breaks > MOST_BREAKS:
                time.sleep(outage.bear(trouble(self.address, answer)))

    def _watch(
        self,
        wire: SyncWire,
        until: Until[Any],
        give_up_at: float | None,
        outage: Outage,
        *,
        closes: int,
    ) -> Any:
        """Wait on one connection; return the value, or `Lost` when it broke."""
        answer = wire.listen(until.channel)
        if answer.__class__ is Lost:
            return answer
        if answer.__class__ in TROUBLE:
            self._give(wire)
            raise trouble(self.address, answer)
        if answer.__class__ is list:
            self._state.is_plain = True
            self._stop_listening(wire, until.channel)
            return self._poll(until, give_up_at, closes)
        try:
            value = self._listen(wire, until, give_up_at, outage)
        except Exception:
            self._stop_listening(wire, until.channel)
            raise
        except BaseException:
            wire.close()
            raise
        self._stop_listening(wire, until.channel)
        return value

    def _listen(
        self, wire: SyncWire, until: Until[Any], give_up_at: float | None, outage: Outage
    ) -> Any:
        value = self._ask_on(wire, until.call)
        if value.__class__ is not Lost:
            outage.over()
        renew_s = _FOREVER_S if until.renew_s is None else until.renew_s
        while value is None:
            left_s = _FOREVER_S if give_up_at is None else give_up_at - time.monotonic()
            message = self._next_news(wire, max(0.0, min(left_s, renew_s)))
            if message is None and left_s <= renew_s:
                raise timed_out(until)
            if message.__class__ is Lost:
                return message
            value = None if message is None else until.read(message)
            if value is None:
                value = self._ask_on(wire, until.call)
        return value

    def _next_news(self, wire: SyncWire, wait_s: float) -> Any:
        """Return what is announced, None when the time is over, or `Lost`."""
        if self._switches is None:
            return wire.heard(wait_s)
        until = time.monotonic() + wait_s
        while True:
            left_s = max(0.0, until - time.monotonic())
            message = wire.heard(min(left_s, _RECOUNT_S))
            if message is not None or not left_s:
                return message
            if wire.home is self._idle and self._switches.has_switched():
                self._drop_pool()
            # Another thread may have seen it first, or closed the driver, and the watch with it.
            if wire.home is not self._idle:
                wire.close()
                return Lost(SWITCHED)

    def _ask_on(self, wire: SyncWire, call: Call[Any]) -> Any:
        packed = pack_call(call, None)
        reply = wire.ask(packed)
        if reply.__class__ in TROUBLE:
            steps = self._persist(Asked(call, packed, None), reply, wire, is_pinned=True)
            reply = self._carry_out(steps, None, self._closes)
            if reply.__class__ is Lost:
                return reply
        return call.read(reply)

    def _stop_listening(self, wire: SyncWire, channel: bytes) -> None:
        if wire.lost is None and wire.unlisten(channel).__class__ in TROUBLE:
            wire.close()
        self._leave(wire)

    def _poll(self, until: Until[T], give_up_at: float | None, closes: int) -> T:
        """Wait at a server that cannot announce anything on this connection (fakeredis)."""
        while True:
            self._check_open(closes)
            if (value := self.call(until.call)) is not None:
                return value
            left_s = _FOREVER_S if give_up_at is None else give_up_at - time.monotonic()
            if left_s <= 0:
                raise timed_out(until)
            time.sleep(min(left_s, POLL_S))


def _close_all(wires: list[SyncWire]) -> None:
    while wires:
        try:
            wire = wires.pop()
        except IndexError:  # another thread was quicker
            return
        wire.close()


_DRIVERS: Final[weakref.WeakSet[SyncDriver]] = weakref.WeakSet()


def _begin_child() -> None:
    for driver in list(_DRIVERS):
        driver._begin_child()  # noqa: SLF001  of this module


os.register_at_fork(after_in_child=_begin_child)
