"""The driver for coroutines: one connection, shared by all callers of a loop.

Connections: one, and one more for each `BlockingWire`. They belong to the loop
that runs at first use. A later use from another loop moves the driver there. When
a loop ends in the usual way (`asyncio.run`), its connections are closed with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Generator
from types import TracebackType
from typing import Any, Final, Generic, NamedTuple, Self, TypeAlias, TypeVar

from laneq.calls.call import Call, Plan, Until
from laneq.drive.address import Address
from laneq.drive.async_wire import AsyncWire
from laneq.drive.blocking_wire import BlockingWire
from laneq.drive.connect import open_stream
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
    backoff_s,
    connecting,
    free_session,
    pack,
    pack_call,
    persist,
)
from laneq.drive.refusals import Lost, timed_out, trouble, unavailable
from laneq.drive.route import Route
from laneq.drive.switches import SWITCHED, SwitchListener
from laneq.errors import StoreError

T = TypeVar("T")

#: Seconds that the first asking of a wait may take, however short the wait: who waits
#: for no time at all still learns what is there.
_FIRST_ASK_S: Final = 1.0

#: Seconds that a closed connection may take to be gone.
_LINGER_S: Final = 1.0

_PING: Final = pack((b"PING",))

_get_loop = asyncio.get_running_loop

#: Told each message of a channel; `Lost` when some may have been missed, or when the
#: driver is closing.
Listener: TypeAlias = Callable[[bytes | Lost], None]


class Begun(NamedTuple, Generic[T]):
    """A call that was sent, and where."""

    call: Call[T]
    packed: bytes
    wire: AsyncWire


def is_trouble(reply: Any) -> bool:
    """Return whether a raw reply is an error, or none at all."""
    return reply.__class__ in TROUBLE


class AsyncDriver:
    """Carry out calls and plans in coroutines.

    One connection carries the calls of all callers. It is made at the first use and
    made again when it broke; callers who find it broken share one reconnect.
    Not for use by loops of several threads at a time. After `aclose` a further call
    connects anew.

    Args:
        address: where Redis is.
        prefix: the namespace's key prefix, ``b"{laneq:NAME}:"``.
        client_name: shown by CLIENT LIST.
        patience_s: seconds of an outage that calls try to ride out; ``math.inf`` waits
            until Redis is back.
        on_disconnect: told the error when an outage begins.
        on_connect: told of each connection made.
    """

    def __init__(
        self,
        address: Address,
        *,
        prefix: bytes,
        client_name: str = "laneq",
        patience_s: float = 2.0,
        on_disconnect: Callable[[StoreError], None] | None = None,
        on_connect: Callable[[], None] | None = None,
    ) -> None:
        self.address = address
        self.client_name = client_name
        self._prefix = prefix
        self._state = ServerState(patience_s, on_disconnect)
        self._on_connect = on_connect
        self._route = Route(prefix)
        self._switches: SwitchListener | None = None
        if address.has_sentinels:
            self._switches = SwitchListener(address, self._route, client_name, self._switched)
        self._listeners: dict[bytes, list[Listener]] = {}
        self._subscribers: dict[tuple[bytes, Callable[[bytes], None]], Listener] = {}
        self._start_afresh()
        _DRIVERS.add(self)

    def _start_afresh(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wire: AsyncWire | None = None
        self._connecting: asyncio.Task[AsyncWire] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._guard: AsyncGenerator[None] | None = None
        self._closes = 0
        self._stay: object | None = None
        self.blocking_wires: set[BlockingWire] = set()
        if self._switches is not None:
            self._switches.forget()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def call(self, call: Call[T]) -> T:
        """Carry out one script call and return its value.

        A caller that is cancelled does not know whether the call took effect.

        Raises:
            RedisUnavailable: no connection, or it broke twice.
            RedisRefused: the server answered with an error.

        Redis:
            One round trip; the script's text is sent when the server lacks it.
        """
        wire = self._wire
        if wire is None or wire.loop is not _get_loop():
            wire = await self.connected()
        session = free_session(wire, self._prefix) if call.once else None
        packed = pack_call(call, session)
        reply = await wire.send(packed)
        if reply.__class__ in TROUBLE:
            return call.read(await self._persist(Asked(call, packed, session), reply, wire))
        if session is not None:
            wire.sessions.append(session)
        if self._state.since is not None:
            self._state.over()
        return call.read(reply)

    @property
    def is_ready(self) -> bool:
        """Return whether there is a connection, and no outage, so that `begin` can send."""
        wire = self._wire
        return wire is not None and wire.lost is None and self._state.since is None

    def begin(self, call: Call[T], answer: Callable[[Any], None]) -> Begun[T]:
        """Send a call at once, on the connection that there is.

        For one who cannot afford the turns of the loop that awaiting `call` takes. To be
        called in the loop that the driver is used in; not for a `once` call.

        Args:
            call: what to ask.
            answer: told the raw reply as soon as it is read; it must not raise. What
                `is_trouble` is for `carry_on`, the rest for the call's own `read`.

        Raises:
            RuntimeError: there is no connection; see `is_ready`.
        """
        wire = self._wire
        if wire is None:
            raise RuntimeError("the driver is not connected")
        begun = Begun(call, pack_call(call, None), wire)
        wire.send_to(begun.packed, answer)
        return begun

    async def carry_on(self, begun: Begun[T], reply: Any) -> T:
        """Go on after trouble with a call that was begun, as `call` does.

        Args:
            begun: the call.
            reply: what its `answer` was told.

        Raises:
            RedisUnavailable: no connection, or it broke twice.
            RedisRefused: the server answered with an error.
        """
        asked = Asked(begun.call, begun.packed, None)
        return begun.call.read(await self._persist(asked, reply, begun.wire))

    async def command(self, *args: Arg) -> Any:
        """Send a plain command (INFO, PING, CONFIG) and return the raw reply.

        It is repeated once if the connection breaks: send only what may be repeated.

        Raises:
            RedisUnavailable: no connection, or it broke twice.
            RedisRefused: the server answered with an error.
        """
        packed = pack(args)
        wire = await self.connected()
        reply = await wire.send(packed)
        if reply.__class__ in TROUBLE:
            return await self._persist(Asked(None, packed, None), reply, wire)
        return reply

    async def run(self, plan: Plan[T]) -> T:
        """Carry out a plan: each step in turn, errors raised where it yields."""
        try:
            step = next(plan)
            while True:
                try:
                    if isinstance(step, Until):
                        answer = await self._until(step)
                    else:
                        answer = await self.call(step)
                except BaseException as error:  # noqa: BLE001  the plan decides
                    step = plan.throw(error)
                else:
                    step = plan.send(answer)
        except StopIteration as end:
            value: T = end.value
            return value

    async def subscribe(self, channel: bytes, callback: Callable[[bytes], None]) -> None:
        """Have each message of a channel given to a callback, until `unsubscribe`.

        The subscription is restored after a reconnect, which is begun at once; what
        was announced meanwhile is lost. The callback must not block. fakeredis announces
        nothing here.

        Raises:
            RedisUnavailable: no connection.
            RedisRefused: the server answered with an error.
        """

        def listener(news: bytes | Lost) -> None:
            if isinstance(news, bytes):
                callback(news)

        if (channel, callback) not in self._subscribers:
            await self._listen(channel, listener)
            self._subscribers[channel, callback] = listener

    def unsubscribe(self, channel: bytes, callback: Callable[[bytes], None]) -> None:
        """End what `subscribe` began; a callback that is not subscribed is left alone."""
        listener = self._subscribers.pop((channel, callback), None)
        if listener is not None:
            self._unlisten(channel, listener)

    def blocking(self) -> BlockingWire:
        """Return a connection of its own for blocking pops; it connects at the first pop."""
        return BlockingWire(self)

    async def aclose(self) -> None:
        """Close all connections and end all waits; callers get RedisUnavailable."""
        self._closes += 1
        if self._loop is not None and self._loop is not _get_loop():
            self._leave_loop()
        guard, self._guard = self._guard, None
        if guard is not None:
            await guard.aclose()
        await self._shut()

    # --- connections ------------------------------------------------------------------

    async def connected(self) -> AsyncWire:
        """Return the connection of this loop, made now if need be, with patience.

        Raises:
            RedisUnavailable: no connection.
            RedisRefused: the server answered with an error.
        """
        loop = _get_loop()
        if self._loop is not loop:
            await self._enter_loop(loop)
        wire = self._wire
        while wire is None or wire.lost is not None:  # it may break before we come to it
            if self._connecting is None or self._connecting.done():
                self._connecting = loop.create_task(self._connect())
                self._connecting.add_done_callback(self._has_connected)
            wire = await self._join(self._connecting)
        return wire

    async def _join(self, connecting: asyncio.Task[AsyncWire]) -> AsyncWire:
        try:
            # The caller may be cancelled; the others still wait for the same connection.
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if connecting.cancelled() and task is not None and not task.cancelling():
                raise unavailable(self.address, "the driver was closed") from None
            raise

    @staticmethod
    def _has_connected(task: asyncio.Task[AsyncWire]) -> None:
        if not task.cancelled():
            task.exception()  # looked at, though all who waited may be gone

    async def _connect(self) -> AsyncWire:
        wire: AsyncWire = await self._carry_out(connecting(self.address, self._state))
        return wire

    async def _attempt(self, timeout_s: float) -> AsyncWire:
        wire = await self.open_wire(timeout_s, self.address.read_timeout_s, self._lost_main)
        try:
            # Subscriptions come first: whoever asks on this connection can rely on them.
            channels = () if self._state.is_plain else self._listeners
            commands = [pack((b"SUBSCRIBE", channel)) for channel in channels]
            if self._state.since is not None:
                commands.append(_PING)  # a server that is loading lets us in and refuses this
            for reply in [await sent for sent in [wire.send(each) for each in commands]]:
                self.check(reply)
        except BaseException:
            wire.close()
            raise
        if wire.lost is not None:
            raise unavailable(self.address, wire.lost.reason)
        if self._loop is not wire.loop:
            wire.close()
            raise unavailable(self.address, "the driver is in use by another event loop")
        wire.has_listeners = bool(self._listeners)
        self._wire = wire
        if self._switches is not None:
            self._switches.begin()
        self._state.over()
        if self._on_connect is not None:
            self._on_connect()
        return wire

    def check(self, reply: Any) -> None:
        """Raise laneq's error for a reply that is none."""
        if reply.__class__ in TROUBLE:
            raise trouble(self.address, reply)

    async def open_wire(
        self,
        timeout_s: float,
        read_timeout_s: float | None,
        on_lost: Callable[[AsyncWire, Lost], None],
    ) -> AsyncWire:
        """Return one more connection of this driver's kind; the caller closes it."""
        writer, leftover = await open_stream(
            self.address, self.client_name, timeout_s=timeout_s, route=self._route
        )
        return AsyncWire(
            writer,
            leftover,
            read_timeout_s=read_timeout_s,
            on_message=self._heard,
            on_lost=on_lost,
        )

    def _lost_main(self, wire: AsyncWire, lost: Lost) -> None:
        if self._wire is not wire:
            return
        self._wire = None
        if not lost.is_closing:
            self._state.begin(trouble(self.address, lost), time.monotonic())
            self._tell_listeners(lost)

    def _switched(self) -> None:
        """Leave a server that is not the master any more."""
        for wire in self._wires():
            wire.give_up(SWITCHED)

    async def _enter_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not None:
            self._leave_loop()
        self._loop = loop
        # An asynchronous generator that is not finished is closed by the loop's own
        # shutdown: the last moment at which connections can be closed properly.
        self._stay = object()
        self._guard = _until_loop_ends(weakref.ref(self), self._stay)
        await anext(self._guard)

    def _leave_loop(self) -> None:
        """Forget a loop that is not the running one, and end its connections there."""
        loop, wires = self._loop, self._all_wires()
        blocking = self.blocking_wires
        self._start_afresh()
        self.blocking_wires = blocking
        for wire in wires:
            # A loop that was closed without its own shutdown closes nothing any more.
            with contextlib.suppress(RuntimeError):
                if loop is not None:
                    loop.call_soon_threadsafe(wire.close)

    def _wires(self) -> list[AsyncWire]:
        found = [self._wire, *(each.wire for each in self.blocking_wires)]
        return [wire for wire in found if wire is not None]

    def _all_wires(self) -> list[AsyncWire]:
        """Return all connections, the one to a sentinel included."""
        listening = self._switches.wire if self._switches is not None else None
        return self._wires() if listening is None else [*self._wires(), listening]

    async def _shut(self) -> None:
        self._loop = self._stay = None
        tasks = [task for task in (self._connecting, self._keeper) if task is not None]
        wires = self._all_wires()
        if self._switches is not None:
            if self._switches.task is not None:
                tasks.append(self._switches.task)
            self._switches.forget()
        for task in tasks:
            task.cancel()
        self._wire = self._connecting = self._keeper = None
        for wire in wires:
            wire.close()
        self._tell_listeners(Lost("the driver was closed", is_closing=True))
        self._listeners.clear()
        self._subscribers.clear()
        if tasks or wires:
            await asyncio.wait([*tasks, *(wire.ended for wire in wires)], timeout=_LINGER_S)

    def _begin_child(self) -> None:
        """Forget, in a forked child, what belongs to the parent."""
        _INHERITED.append((self._all_wires(), self._guard))
        for wire in self._all_wires():
            wire.disown()
        self._start_afresh()
        self._listeners.clear()
        self._subscribers.clear()
        self._state.over()

    # --- trouble ----------------------------------------------------------------------

    async def _persist(
        self, asked: Asked, reply: Any, wire: AsyncWire, *, is_pinned: bool = False
    ) -> Any:
        steps = persist(
            asked,
            reply,
            wire,
            address=self.address,
            prefix=self._prefix,
            state=self._state,
            is_pinned=is_pinned,
        )
        answer = await self._carry_out(steps)
        if answer.__class__ not in TROUBLE:
            self._state.over()
        return answer

    async def _carry_out(self, steps: Generator[Step, Any, Any]) -> Any:
        """Do what the steps say, unless the driver is closed meanwhile."""
        closes = self._closes
        try:
            step = next(steps)
            while True:
                if self._closes != closes:
                    steps.close()
                    raise unavailable(self.address, "the driver was closed")
                try:
                    answer: Any = None
                    match step:
                        case Send(wire, packed):
                            answer = await wire.send(packed)
                        case Pause(seconds):
                            await asyncio.sleep(seconds)
                        case Attempt(timeout_s):
                            answer = await self._attempt(timeout_s)
                        case _:
                            answer = await self.connected()
                except StoreError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            return end.value

    # --- channels ---------------------------------------------------------------------

    def _heard(self, channel: bytes, message: bytes) -> None:
        for listener in tuple(self._listeners.get(channel, ())):
            try:
                listener(message)
            except Exception as error:  # noqa: BLE001  of a callback: the others go on
                context = {"message": "a subscriber raised", "exception": error}
                _get_loop().call_exception_handler(context)

    def _tell_listeners(self, lost: Lost) -> None:
        """Tell all who listen that something may have been missed; reconnect for them."""
        for listeners in tuple(self._listeners.values()):
            for listener in tuple(listeners):
                listener(lost)
        # A keeper that is done has seen a connection, which may be the one just lost.
        is_kept = self._keeper is not None and not self._keeper.done()
        if self._listeners and not is_kept and self._loop is not None:
            self._keeper = self._loop.create_task(self._keep_connected())

    async def _keep_connected(self) -> None:
        tries = 0
        while self._listeners and self._wire is None:
            try:
                await self.connected()
            except StoreError:
                # Whoever calls meanwhile is told; the listeners have nobody to tell.
                await asyncio.sleep(backoff_s(tries))
                tries += 1

    async def _listen(self, channel: bytes, listener: Listener) -> None:
        wire = await self.connected()
        self._listeners.setdefault(channel, []).append(listener)
        if self._state.is_plain:
            return
        wire.has_listeners = True
        try:
            # Also where the channel has listeners: the answer tells that it is in force.
            reply = await wire.send(pack((b"SUBSCRIBE", channel)))
            if reply.__class__ is Lost:
                await self.connected()  # subscribes, as the channel is listed
            else:
                self.check(reply)
                if reply.__class__ is list:
                    self._state.is_plain = True
                    await wire.send(pack((b"UNSUBSCRIBE", channel)))
        except BaseException:
            self._unlisten(channel, listener)
            raise

    def _unlisten(self, channel: bytes, listener: Listener) -> None:
        listeners = self._listeners.get(channel, [])
        if listener in listeners:
            listeners.remove(listener)
        if not listeners and self._listeners.pop(channel, None) is not None:
            wire = self._wire
            if wire is not None and not self._state.is_plain:
                wire.send(pack((b"UNSUBSCRIBE", channel)))
                wire.has_listeners = bool(self._listeners)

    async def _until(self, until: Until[T]) -> T:
        inbox: asyncio.Queue[bytes | Lost] = asyncio.Queue()
        wait_s = until.timeout_s
        began = _get_loop().time()
        outage = Outage(None if wait_s is None else time.monotonic() + wait_s)
        limit = asyncio.timeout(None if wait_s is None else max(wait_s, _FIRST_ASK_S))
        try:
            async with limit:
                await self._listen(until.channel, inbox.put_nowait)
                try:
                    value = await self._ask_for_wait(until.call)
                    outage.over()
                    if wait_s is not None:
                        limit.reschedule(began + wait_s)
                    while value is None:
                        news = await self._next_news(inbox, outage.pause_s or until.renew_s)
                        if isinstance(news, bytes):
                            value = until.read(news)
                        elif news is not None and news.is_closing:
                            raise unavailable(self.address, news.reason)
                        if value is None:
                            value = await self._ask_in_wait(until.call, outage)
                    return value
                finally:
                    self._unlisten(until.channel, inbox.put_nowait)
        except TimeoutError:
            if limit.expired():
                raise outage.error or timed_out(until) from None
            raise

    async def _next_news(
        self, inbox: asyncio.Queue[bytes | Lost], wait_s: float | None
    ) -> bytes | Lost | None:
        """Return what was announced; None when it is time to ask instead."""
        limit_s = POLL_S if self._state.is_plain else wait_s
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(inbox.get(), limit_s)
        return None

    async def _ask_in_wait(self, call: Call[T | None], outage: Outage) -> T | None:
        """Ask as `_ask_for_wait`; None, to try again, while the wait rides out an outage."""
        try:
            value = await self._ask_for_wait(call)
        except StoreError as error:
            outage.bear(error)
            return None
        outage.over()
        return value

    async def _ask_for_wait(self, call: Call[T]) -> T:
        """Ask, on one connection after another: a wait may see more than two of them break."""
        reply: Any = None
        for _ in range(MOST_BREAKS):
            wire = await self.connected()
            packed = pack_call(call, None)
            reply = await wire.send(packed)
            if reply.__class__ in TROUBLE:
                asked = Asked(call, packed, None)
                reply = await self._persist(asked, reply, wire, is_pinned=True)
            if reply.__class__ is not Lost:
                return call.read(reply)
            if reply.is_closing:
                break
        raise trouble(self.address, reply)


async def _until_loop_ends(driver: weakref.ref[AsyncDriver], stay: object) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        still = driver()
        # The driver may have left this loop, and even have come back to it.
        if still is not None and still._stay is stay:  # noqa: SLF001  of this module
            await still._shut()  # noqa: SLF001


_DRIVERS: Final[weakref.WeakSet[AsyncDriver]] = weakref.WeakSet()

#: Connections of the parent process, kept in a child so that nothing there closes them.
_INHERITED: Final[list[Any]] = []


def _begin_child() -> None:
    for driver in list(_DRIVERS):
        driver._begin_child()  # noqa: SLF001  of this module


os.register_at_fork(after_in_child=_begin_child)
