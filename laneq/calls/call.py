"""What to ask Redis and how to read the answer, as data.

A `Call` is one script call, an `Until` one wait for an announcement; a plan
is a generator that yields them. Nothing here does I/O: `laneq.drive` has the
two drivers, sync and async, that carry them out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    from laneq.scripts import Script

T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One script call: what to ask and how to read the answer.

    Attributes:
        script: the script to run.
        keys: its KEYS, in the order of its header; those that a `once` call
            is stamped with are not among them.
        argv: its ARGV, likewise.
        read: turns the raw reply (bytes, int, lists) into the value; raises a
            LaneqError where the reply's status word says so.
        once: the call is not idempotent, so the driver stamps it: before
            `keys` it puts a session key and the one of the try before, before
            `argv` the numbers of the two. A session has one call in flight at
            most, and a repeat after a broken connection takes effect at most
            once.
        again: place in `argv` of a flag that a repeat after a broken connection sets
            to 1, for a script that finds its first try by itself; None for no such flag.
    """

    script: Script
    keys: tuple[bytes, ...]
    argv: tuple[bytes | str | int, ...]
    read: Callable[[Any], T]
    once: bool = False
    again: int | None = None

    def repeated(self) -> Call[T]:
        """Return the call as it is sent again when it is not known whether it was applied."""
        if self.again is None:
            return self
        argv = (*self.argv[: self.again], 1, *self.argv[self.again + 1 :])
        return replace(self, argv=argv)


@dataclass(frozen=True, slots=True)
class Until(Generic[T]):
    """A wait for what is announced on a pub/sub channel, without polling.

    Attributes:
        channel: where it is announced.
        call: asked once subscribed, and again after each reconnect and each
            message that does not end the wait; a value that is not None ends it.
        read: reads a message; a value that is not None ends the wait.
        timeout_s: seconds until the wait ends with `TimeoutError`; None waits on.
        renew_s: seconds of silence after which `call` is asked again; None for never.
    """

    channel: bytes
    call: Call[T | None]
    read: Callable[[bytes], T | None]
    timeout_s: float | None
    renew_s: float | None = None


#: Several steps: each yield is answered with the value of the call or wait.
Plan: TypeAlias = Generator[Call[Any] | Until[Any], Any, T]


def step_through(steps: Generator[S, Any, T], act: Callable[[S], Any]) -> T:
    """Carry out a generator of steps, as a `Plan` is one, and return its value.

    Args:
        steps: each of its yields is answered with what `act` returns; what that raises is
            raised where it yields.
        act: carries out one step.
    """
    try:
        step = next(steps)
        while True:
            try:
                answer = act(step)
            except BaseException as error:  # noqa: BLE001  the generator decides
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        value: T = end.value
        return value


async def astep_through(steps: Generator[S, Any, T], act: Callable[[S], Awaitable[Any]]) -> T:
    """Carry out a generator of steps; the asynchronous twin of `step_through`."""
    try:
        step = next(steps)
        while True:
            try:
                answer = await act(step)
            except BaseException as error:  # noqa: BLE001  the generator decides
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        value: T = end.value
        return value
