"""Workers: claim jobs and report outcomes, renew leases, come and go, be listed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, NamedTuple

from laneq.calls.call import Call
from laneq.calls.jobs import NewJob
from laneq.calls.lanes import LaneInForce, LanesInForce
from laneq.keys import Keys
from laneq.model import PoolView, WorkerView
from laneq.scripts import load

Reply = list[Any]

#: Place of `repeated` among the arguments of claim.lua.
_REPEATED: Final = 3

#: Where the digits of the seats stand in a claim's ARGV.
_SEATS_AT: Final = 8

#: And where its limits.
_LIMITED_AT: Final = 12

#: Characters that say which rule a lane has: the first of them, and how many there are.
_KIND_ZERO: Final = ord("0")
_KIND_BASE: Final = 64

#: Most jobs that one claim may start, and most outcomes that it may carry.
CLAIM_MAX: Final = 256

#: Starts that a lane with a rate may catch up, in µs of that rate: claims come when slots
#: become free, not at even times.
CATCH_UP_US: Final = 100_000

#: How long a worker counts as alive after its last heartbeat unless it says otherwise, in µs.
ALIVE_US: Final = 30_000_000


class Claimed(NamedTuple):
    """A job that this worker may run.

    Attributes:
        record: head and payload, for `codec.decode_record`.
        fence: token of this claim; greater than that of each earlier one.
        attempt: counted from 1.
        score_us: its place in the lane: when it became ready, less its boost.
        enqueued_us: when it was enqueued.
    """

    id: str
    record: bytes
    lane: str
    fence: int
    attempt: int
    score_us: int
    enqueued_us: int


@dataclass(slots=True)
class Ended:
    """What a worker reports of one attempt.

    Attributes:
        kind: ``succeeded``, ``cancelled``, ``retried``, ``dead``, ``handed_back``
            or ``snoozed``.
        number: µs to keep the record (succeeded, cancelled) or until it is ready
            again (retried, snoozed).
        body: the encoded result or error.
        children: jobs that it enqueued, to be committed with this outcome.
    """

    lane: str
    id: str
    fence: int
    kind: str
    number: int = 0
    body: bytes = b""
    children: Sequence[NewJob] = ()


@dataclass(slots=True)
class Seats:
    """One lane as a worker sees it at the moment of a claim.

    Attributes:
        is_served: whether the worker takes jobs of the lane.
        running: its jobs of the lane that run now.
        reserve: its slots kept for the lane.
        is_listening: whether it holds a blocking pop on the lane's token.
    """

    is_served: bool = False
    running: int = 0
    reserve: int = 0
    is_listening: bool = False


@dataclass(slots=True)
class ClaimReply:
    """What a claim brought.

    Attributes:
        now_us: Redis's clock.
        wake_after_us: claim again after this long although nothing wakes the
            worker; -1 where another worker has that watch.
        is_more: work was left over for want of time: claim again at once.
        stale: ids whose outcome was refused, since another attempt has them.
        closed: lanes not to listen for: they are paused, or the fleet's reserves leave
            them nothing.
        jobs: what to run.
    """

    now_us: int
    wake_after_us: int
    is_more: bool
    stale: list[str]
    closed: frozenset[str]
    jobs: list[Claimed] = field(default_factory=list)


class ClaimCalls:
    """Builds the claim calls of one worker; keys are bound once per version of the lanes.

    Args:
        keys: the namespace.
        worker_id: the worker's incarnation.
        lanes: the lanes in force; make a new builder when they change.
    """

    def __init__(self, keys: Keys, worker_id: str, lanes: LanesInForce) -> None:
        """Bind keys and indexes."""
        self.lanes = lanes
        self._script = load("claim")
        self._keys = self._script.bind_keys(
            keys, lanes.names, call=keys.call(worker_id), doorbell=keys.doorbell(worker_id)
        )
        self._worker_id = worker_id
        self._index = {name: i for i, name in enumerate(lanes.names, 1)}
        self._names = ("", *lanes.names)
        self._paused = [(lane.name, 4 if lane.is_paused else 0) for lane in lanes.lanes]
        self._rules, self._kinds = _rules(lanes)
        self._limited = _limits(lanes)
        self._served: tuple[str, ...] | None = None
        self._limits_served = b""
        leases = tuple(lane.lease_us for lane in lanes.lanes)
        self._leases = leases[:1] if len(set(leases)) == 1 else leases

    def claim(
        self,
        *,
        seq: int,
        slots: int,
        free: int,
        seats: Mapping[str, Seats],
        outcomes: Sequence[Ended] = (),
        is_repeat: bool = False,
        is_look: bool = False,
        fence_floor: int = 0,
    ) -> Call[ClaimReply | None]:
        """Report outcomes and ask for up to `free` jobs, `CLAIM_MAX` at most.

        Args:
            seq: number of this claim of the worker, counted up by one; the same
                again, with `is_repeat`, to ask for a reply that was lost.
            slots: the worker's slots, free or not.
            free: slots that are free; reserves are weighed against all of them.
            seats: the worker's view of each lane it knows.
            outcomes: at most `CLAIM_MAX`.
            is_repeat: whether this seq may have been applied already.
            is_look: look for expired leases and old records now, not only at intervals.
            fence_floor: greatest fence that this worker has seen.

        The value is None where the lanes have changed: nothing was done, read
        the lanes and ask again.
        """
        argv: list[bytes | str | int] = [
            self._worker_id,
            self.lanes.version,
            seq,
            int(is_repeat),
            fence_floor,
            free,
            CLAIM_MAX,
            int(is_look),
            "",
            self._rules,
            self._kinds,
            slots,
            b"",
            len(self._leases),
            *self._leases,
            0,
        ]
        reserved_at = len(argv) - 1
        reserved_n = 0
        digits = ""
        index = self._index
        for name, digit in self._paused:
            seat = seats.get(name)
            if seat is None:
                digits += str(digit)
                continue
            digits += str(digit + seat.is_served + 2 * seat.is_listening)
            if seat.reserve:
                argv += (index[name], seat.running, seat.reserve)
                reserved_n += 1
        argv[_SEATS_AT] = digits
        if self._limited:
            argv[_LIMITED_AT] = self._limits_of(seats)
        argv[reserved_at] = reserved_n
        argv.append(len(outcomes))
        children: list[bytes | str | int] = []
        n_children = 0
        for i, end in enumerate(outcomes, 1):
            argv += (index[end.lane], end.id, end.fence, end.kind, end.number, end.body)
            for child in end.children:
                children += (i, index[child.lane], child.id, child.record, child.when)
                n_children += 1
        argv.append(n_children)
        argv += children
        return Call(self._script, self._keys, tuple(argv), self._read, again=_REPEATED)

    def _limits_of(self, seats: Mapping[str, Seats]) -> bytes:
        """Return the limits for a worker with these seats."""
        served = tuple(name for name, seat in seats.items() if seat.is_served)
        if served != self._served:
            self._served = served
            self._limits_served = self._limited + f",{','.join(served)},".encode()
        return self._limits_served

    def _read(self, reply: Reply) -> ClaimReply | None:
        if reply[0] == b"config":
            return None
        names = self._names
        jobs = [
            Claimed(
                reply[i].decode(),
                reply[i + 1],
                names[reply[i + 2]],
                int(reply[i + 3]),
                reply[i + 4],
                int(reply[i + 5]),
                int(reply[i + 6]),
            )
            for i in range(6, len(reply), 7)
        ]
        return ClaimReply(
            int(reply[1]),
            reply[2],
            reply[3] == 1,
            [job_id.decode() for job_id in reply[4]],
            frozenset(names[i] for i in reply[5]),
            jobs,
        )


def _rules(lanes: LanesInForce) -> tuple[bytes, bytes]:
    """Return what claims are told of priorities, aging and limits of lanes, see claim.lua.

    Returns:
        The rules that differ, as JSON; and for each lane two characters that say which is its.
    """
    rules = [_rule(lane) for lane in lanes.lanes]
    distinct = list(dict.fromkeys(rules))
    kinds = bytearray()
    for rule in rules:
        kinds += bytes(_KIND_ZERO + digit for digit in divmod(distinct.index(rule), _KIND_BASE))
    return json.dumps(distinct, separators=(",", ":")).encode(), bytes(kinds)


def _rule(lane: LaneInForce) -> tuple[float, ...]:
    order = (lane.priority, lane.aging_per_us, lane.aging_cap)
    if not _is_capped(lane):
        return order
    return (*order, lane.max_running, max(0.0, lane.start_every_us), CATCH_UP_US)


def _is_capped(lane: LaneInForce) -> bool:
    return lane.max_running >= 0 or lane.start_every_us > 0


def _limits(lanes: LanesInForce) -> bytes:
    """Return what claims are told of limits beyond a worker's own slots; nothing without any.

    See lib/limits.lua; the names of the lanes that a worker serves are to follow.
    """
    reserves = [
        f"{i}={lane.reserve_slots}"
        for i, lane in enumerate(lanes.lanes, 1)
        if lane.reserve_slots > 0 and not lane.is_paused
    ]
    is_capped = any(_is_capped(lane) for lane in lanes.lanes)
    if not reserves and not is_capped:
        return b""
    return f"{' '.join(reserves)}|{'1' if is_capped else ''}|".encode()


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a worker says of itself.

    Attributes:
        reserve: lane → reserved slots.
        started_at: seconds since the epoch, by Redis's clock; None before it is known.
        alive_us: how long it counts as alive after each heartbeat, in µs.
        unwell: why it does not work although it lives; empty where it does.
        stuck: jobs that did not end when they were told to; they run on beside the slots.
        pool: how it sizes itself; None where its slots are fixed.
    """

    name: str
    host: str
    pid: int
    slots: int
    reserve: Mapping[str, int]
    lanes: Sequence[str]
    tasks: Sequence[str]
    running: int = 0
    started_at: float | None = None
    alive_us: int = ALIVE_US
    unwell: str = ""
    stuck: int = 0
    pool: PoolView | None = None

    def to_json(self) -> str:
        """Return the registration as it is stored."""
        return json.dumps(
            {
                "name": self.name,
                "host": self.host,
                "pid": self.pid,
                "slots": self.slots,
                "reserve": dict(self.reserve),
                "lanes": list(self.lanes),
                "tasks": list(self.tasks),
                "running": self.running,
                "started_at": self.started_at,
                "alive_us": self.alive_us,
                "unwell": self.unwell,
                "stuck": self.stuck,
                "pool": None if self.pool is None else asdict(self.pool),
            }
        )


def register(keys: Keys, worker_id: str, info: WorkerInfo) -> Call[int]:
    """List a worker as alive for a while; the value is Redis's clock in µs."""
    script = load("register")
    return Call(
        script,
        script.bind_keys(keys),
        script.bind_args({"worker_id": worker_id, "info": info.to_json(), "ttl": info.alive_us}),
        lambda reply: int(reply[1]),
    )


def leave(keys: Keys, worker_id: str) -> Call[None]:
    """Take a worker off the list."""
    script = load("leave")
    return Call(
        script,
        script.bind_keys(keys, call=keys.call(worker_id), doorbell=keys.doorbell(worker_id)),
        script.bind_args({"worker_id": worker_id}),
        lambda _: None,
    )


def pass_on(keys: Keys, lanes: Iterable[str]) -> Call[None]:
    """Give the wake-ups of lanes, which a worker took and cannot use, to others."""
    script = load("pass_on")
    return Call(script, script.bind_keys(keys, lanes), script.bind_args(), lambda _: None)


class Held(NamedTuple):
    """A lease to renew, for `lease_us` from now."""

    lane: str
    id: str
    fence: int
    lease_us: int


class Sample(NamedTuple):
    """`n` measurements in one histogram bucket of a lane; field ``w``, ``r`` or ``l`` + bucket."""

    lane: str
    field: str
    n: int


@dataclass(frozen=True, slots=True)
class BeatReply:
    """What a heartbeat learned: Redis's clock, leases lost, cancels requested."""

    now_us: int
    lost: frozenset[str]
    cancels: frozenset[str]


def beat(
    keys: Keys,
    worker_id: str,
    info: WorkerInfo,
    *,
    now_us: int,
    lanes: Iterable[str],
    leases: Sequence[Held],
    samples: Sequence[Sample] = (),
) -> Call[BeatReply]:
    """Renew all leases of a worker, and add what it measured since the last.

    Args:
        keys: the namespace.
        worker_id: the worker's incarnation.
        info: its registration, with the number of jobs that run now.
        now_us: about Redis's clock, to name the histogram slices.
        lanes: lanes that leases and samples are of, and whose counts are noted.
        leases: every lease that the process holds.
        samples: histogram increments.
    """
    script = load("beat")
    names = tuple(lanes)
    index = {name: i for i, name in enumerate(names, 1)}
    fixed = script.bind_keys(keys)
    per_lane: list[bytes] = []
    for name in names:
        per_lane += (
            keys.of_lane("leases", name),
            keys.fine(name, now_us),
            keys.coarse(name, now_us),
            keys.of_lane("counts", name),
            keys.of_lane("rates", name),
        )

    def read(reply: Reply) -> BeatReply:
        return BeatReply(
            int(reply[1]),
            frozenset(job_id.decode() for job_id in reply[2]),
            frozenset(job_id.decode() for job_id in reply[3]),
        )

    return Call(
        script,
        (*fixed, *per_lane),
        script.bind_args(
            {"worker_id": worker_id, "info": info.to_json(), "ttl": info.alive_us},
            lease=[(index[held.lane], held.id, held.fence, held.lease_us) for held in leases],
            sample=[(index[sample.lane], sample.field, sample.n) for sample in samples],
        ),
        read,
    )


def list_workers(keys: Keys) -> Call[list[WorkerView]]:
    """List live workers, at most 1,000."""
    script = load("workers")

    def read(reply: Reply) -> list[WorkerView]:
        out: list[WorkerView] = []
        for i in range(2, len(reply), 3):
            info = json.loads(reply[i + 2])
            alive_us = info.get("alive_us", ALIVE_US)  # older workers do not say
            out.append(
                WorkerView(
                    id=reply[i].decode(),
                    name=info["name"],
                    host=info["host"],
                    pid=info["pid"],
                    slots=info["slots"],
                    reserve=info["reserve"],
                    running=info["running"],
                    lanes=tuple(info["lanes"]),
                    tasks=tuple(info["tasks"]),
                    started_at=info["started_at"],
                    last_heartbeat_at=(int(float(reply[i + 1])) - alive_us) / 1e6,
                    unwell=info.get("unwell", ""),
                    stuck=info.get("stuck", 0),
                    pool=_pool(info.get("pool")),
                )
            )
        return out

    return Call(script, script.bind_keys(keys), (), read)


_POOL: Final = tuple(option.name for option in fields(PoolView))


def _pool(info: Mapping[str, Any] | None) -> PoolView | None:
    # A newer worker may say more.
    if info is None:
        return None
    known = {name: info[name] for name in _POOL}
    return PoolView(**(known | {"lanes": tuple(known["lanes"])}))
