"""A job's handle: ask how it is, wait for its result, cancel it, give it a new life.

Each pair (``state`` and ``astate``, and so on) is two one-line bodies over the same plan, which a
host carries out: the app, with the driver of either colour.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, Protocol, TypeVar, cast

from laneq.calls import jobs
from laneq.calls.call import Call, Plan, Until
from laneq.calls.lanes import read_lanes
from laneq.errors import JobNotFound, WaitRefused, WrongState
from laneq.keys import Keys
from laneq.model import JobView, State
from laneq.options import Seconds, seconds_of

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)

Lanes = tuple[str, ...]


class Host(Protocol):
    """What a handle needs of its app."""

    @property
    def keys(self) -> Keys:
        """The namespace."""
        ...

    @property
    def known_lanes(self) -> Lanes | None:
        """The namespace's lanes as last read; None before that."""
        ...

    @known_lanes.setter
    def known_lanes(self, lanes: Lanes) -> None: ...

    def carry_out(self, plan: Plan[T], /) -> T:
        """Carry out a plan, blocking."""
        ...

    async def acarry_out(self, plan: Plan[T], /) -> T:
        """Carry out a plan."""
        ...

    def waiting_id(self) -> str | None:
        """Return the id of the job that runs here, or None."""
        ...


class Job(Generic[R_co]):
    """A handle of a job; making one asks nothing of Redis.

    Two handles are equal where they name the same job.

    Attributes:
        id: the job's id.
        deduplicated: whether the enqueue that returned this handle found the job there
            already, and so made no new one.
    """

    __slots__ = ("_host", "deduplicated", "id")

    def __init__(self, host: Host, id: str, deduplicated: bool = False) -> None:  # noqa: FBT001, FBT002  positional for speed: one is made for each job enqueued
        """Note the id; ``app.job(id)`` is the way to make a handle."""
        self._host = host
        self.id = id
        self.deduplicated = deduplicated

    def __repr__(self) -> str:
        return f"<Job {self.id}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Job):
            return NotImplemented
        return self.id == other.id and self._host.keys is other._host.keys

    def __hash__(self) -> int:
        return hash(self.id)

    def state(self) -> State | None:
        """Return where the job is in its life; None where it is unknown or its record ran out.

        Raises:
            StoreError: Redis cannot be reached, or refuses.

        Redis:
            look.lua, one round trip (one more at first, for the names of the lanes).
        """
        return self._host.carry_out(_state(self._host, self.id))

    async def astate(self) -> State | None:
        """Return where the job is in its life; the asynchronous twin of `state`."""
        return await self._host.acarry_out(_state(self._host, self.id))

    def info(self) -> JobView:
        """Return all that Redis knows of the job.

        Raises:
            JobNotFound: no job has this id, or its record has run out.
            StoreError: Redis cannot be reached, or refuses.

        Redis:
            look.lua, one round trip (one more at first, for the names of the lanes).
        """
        return self._host.carry_out(_info(self._host, self.id))

    async def ainfo(self) -> JobView:
        """Return all that Redis knows of the job; the asynchronous twin of `info`."""
        return await self._host.acarry_out(_info(self._host, self.id))

    def result(self, timeout: Seconds | None = None) -> R_co:
        """Wait until the job has ended and return its result.

        Waiting does not poll: the end is announced. Inside a job, ask only for jobs that
        have ended (``timeout=0``): jobs that wait for jobs can fill every slot for ever.

        Args:
            timeout: seconds to wait; 0 to look only, None to wait for ever.

        Raises:
            JobFailed: it is dead; has the remote error's type, message and traceback.
            JobCancelled: it was cancelled.
            JobExpired: it had not started in time.
            JobNotFound: no job has this id, or its record has run out.
            TimeoutError: it has not ended in time.
            WaitRefused: it has not ended, and the caller is a job that would wait for it.
            OptionError: the timeout is no number of seconds from 0.
            StoreError: Redis cannot be reached, or refuses.

        Redis:
            watch.lua, and a subscription to the job's channel while it waits.
        """
        return cast("R_co", self._host.carry_out(_result(self._host, self.id, timeout)))

    async def aresult(self, timeout: Seconds | None = None) -> R_co:
        """Wait until the job has ended and return its result; the twin of `result`."""
        return cast("R_co", await self._host.acarry_out(_result(self._host, self.id, timeout)))

    def cancel(self) -> bool:
        """Cancel the job; false where it had ended already.

        A job that has not started never does. One that runs is told, and is ``cancelled``
        whatever it then returns. That it was cancelled is kept as long as a result would be:
        see ``result_ttl``.

        Raises:
            JobNotFound: no job has this id, or its record has run out.
            StoreError: Redis cannot be reached, or refuses.

        Redis:
            cancel.lua, one round trip (one more at first, for the names of the lanes).
        """
        return self._host.carry_out(_cancel(self._host, self.id))

    async def acancel(self) -> bool:
        """Cancel the job; the asynchronous twin of `cancel`."""
        return await self._host.acarry_out(_cancel(self._host, self.id))

    def retry(self) -> None:
        """Give a job that has ended a new life: waiting, with all its attempts before it.

        Raises:
            JobNotFound: no job has this id, or its record has run out.
            WrongState: it has not ended.
            StoreError: Redis cannot be reached, or refuses.

        Redis:
            revive.lua, one round trip (one more at first, for the names of the lanes).
        """
        self._host.carry_out(_retry(self._host, self.id))

    async def aretry(self) -> None:
        """Give a job that has ended a new life; the asynchronous twin of `retry`."""
        await self._host.acarry_out(_retry(self._host, self.id))


# --- plans --------------------------------------------------------------------

Asking = Generator[Call[Any] | Until[Any], Any, T]


def _read_lanes(host: Host) -> Asking[Lanes]:
    in_force = yield read_lanes(host.keys)
    host.known_lanes = in_force.names
    return host.known_lanes or ()


def _in_lanes(host: Host, ask: Callable[[Lanes], Asking[T]]) -> Asking[T]:
    # Where the job is not found, the names of the lanes may have been read too long ago.
    known = host.known_lanes
    if known is not None:
        try:
            return (yield from ask(known))
        except JobNotFound:
            if (yield from _read_lanes(host)) == known:
                raise
    return (yield from ask(host.known_lanes or (yield from _read_lanes(host))))


def _state(host: Host, job_id: str) -> Asking[State | None]:
    def ask(lanes: Lanes) -> Asking[State]:
        state: State = yield jobs.state_of(host.keys, job_id, lanes=lanes)
        return state

    try:
        return (yield from _in_lanes(host, ask))
    except JobNotFound:
        return None


def _info(host: Host, job_id: str) -> Asking[JobView]:
    def ask(lanes: Lanes) -> Asking[JobView]:
        views: list[JobView | None] = yield jobs.look(host.keys, [job_id], lanes=lanes)
        view = views[0]
        if view is None:
            raise JobNotFound(job_id)
        return view

    return (yield from _in_lanes(host, ask))


def _result(host: Host, job_id: str, timeout: Seconds | None) -> Asking[Any]:
    timeout_s = None if timeout is None else seconds_of("timeout", timeout)
    waiting_id = host.waiting_id()
    until = jobs.until_ended(host.keys, job_id, timeout_s=timeout_s)
    if waiting_id is not None or timeout_s == 0:
        outcome = yield until.call
        if outcome is None and timeout_s == 0:
            raise TimeoutError(f"job {job_id} has not ended")
        if outcome is None:
            raise WaitRefused(job_id, waiting_id or "")
    else:
        try:
            outcome = yield until
        except TimeoutError as error:
            within = "" if timeout_s is None else f" within {timeout_s:g} s"
            raise TimeoutError(f"job {job_id} has not ended{within}") from error
    return outcome.value(job_id)


def _cancel(host: Host, job_id: str) -> Asking[bool]:
    def ask(lanes: Lanes) -> Asking[bool]:
        done = yield jobs.cancel(host.keys, job_id, lanes=lanes, keep_us=jobs.KEEP_US)
        return bool(done.word != "ended")

    return (yield from _in_lanes(host, ask))


def _retry(host: Host, job_id: str) -> Asking[None]:
    def ask(lanes: Lanes) -> Asking[None]:
        (word,) = yield jobs.revive(host.keys, [job_id], lanes=lanes)
        match word:
            case "revived":
                return
            case "no_body":
                raise WrongState(job_id, "left without its arguments", "retry")
            case "open":
                state = yield jobs.state_of(host.keys, job_id, lanes=lanes)
                raise WrongState(job_id, state, "retry")
            case _:
                raise JobNotFound(job_id)

    yield from _in_lanes(host, ask)
