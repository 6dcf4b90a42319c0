"""Health: can work be enqueued, claimed and acknowledged, is each lane served, is none too late.

`examine` is a plan: it asks, and judges the answers. It disturbs no lane: nothing is enqueued
or started, no count and no order changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from laneq.calls import probe, stats, workers
from laneq.calls.call import Call, Plan
from laneq.calls.lanes import LanesInForce, read_lanes
from laneq.calls.stats import Depths
from laneq.errors import RedisRefused, UnknownLane
from laneq.keys import Keys
from laneq.model import WorkerView
from laneq.wording import NOTHING_PUBLISHED

#: A lane is far too late when its first job has waited for this many times its `slo`.
TOO_OLD: Final = 10

#: Times that the lanes are read again because somebody changes them meanwhile.
_READINGS: Final = 3

_OOM: Final = "OOM"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a namespace is unwell.

    Attributes:
        kind: ``over_limit``, ``enqueue``, ``claim``, ``acknowledge``, ``no_lanes``,
            ``no_worker``, ``not_served``, ``stuck_worker``, ``too_old`` or ``unreadable``.
        lane: the lane that it is about; None for all.
        detail: what, which, what to do.
    """

    kind: str
    lane: str | None
    detail: str


@dataclass(frozen=True, slots=True)
class LaneHealth:
    """A lane as far as its health goes.

    Attributes:
        paused: whether an operator has paused it: then nobody has to serve it.
        workers: live workers that work and have a slot for it.
        oldest_wait_s: how long its first job has waited; None where none waits.
        slo_s: its wait objective; None for none.
    """

    name: str
    paused: bool
    workers: int
    oldest_wait_s: float | None
    slo_s: float | None


@dataclass(frozen=True, slots=True)
class Health:
    """What a look at the health of a namespace found; well where there is no reason.

    Attributes:
        can_enqueue: whether the server takes a job.
        can_claim: whether a worker can be given one.
        can_acknowledge: whether its outcome can be recorded.
        workers: live workers.
    """

    can_enqueue: bool
    can_claim: bool
    can_acknowledge: bool
    workers: int
    lanes: tuple[LaneHealth, ...]
    reasons: tuple[Reason, ...]

    @property
    def is_well(self) -> bool:
        """Whether nothing is wrong."""
        return not self.reasons


def examine(keys: Keys, look: str) -> Plan[Health]:
    """Look at the health of a namespace, in six round trips.

    Args:
        keys: the namespace.
        look: random, of this look.

    Raises:
        RedisUnavailable: it cannot be reached.
        RedisRefused: not even its lanes can be read.
    """
    lanes: LanesInForce = yield read_lanes(keys)
    if not lanes.names:
        return Health(
            can_enqueue=False,
            can_claim=False,
            can_acknowledge=False,
            workers=0,
            lanes=(),
            reasons=(_no_lanes(keys, lanes),),
        )
    reasons: list[Reason] = []
    can_enqueue = yield from _can_enqueue(keys, lanes, reasons)
    can_claim = yield from _can_claim(keys, look, lanes=lanes, reasons=reasons)
    if can_claim and not (yield from _may_send_all(keys, look, reasons)):
        can_enqueue = can_claim = False
    alive: list[WorkerView] = []
    found: tuple[LaneHealth, ...] = ()
    depths, error = yield from _answer(stats.depths(keys, lanes.names))
    if error is not None:
        reasons.append(Reason("unreadable", None, f"the lanes cannot be read: {error}"))
    else:
        alive = yield workers.list_workers(keys)
        found = tuple(_lanes(lanes, depths, [worker for worker in alive if not worker.unwell]))
        reasons += _unserved(found, alive)
        reasons += _late(found)
    return Health(
        can_enqueue=can_enqueue,
        can_claim=can_claim,
        can_acknowledge=can_claim,
        workers=len(alive),
        lanes=found,
        reasons=tuple(reasons),
    )


# --- can work go through ------------------------------------------------------


def _answer(call: Call[Any]) -> Plan[tuple[Any, RedisRefused | None]]:
    """Ask, and take a refusal for an answer."""
    try:
        answer = yield call
    except RedisRefused as error:
        return None, error
    return answer, None


def _can_enqueue(keys: Keys, lanes: LanesInForce, reasons: list[Reason]) -> Plan[bool]:
    try:
        _, error = yield from _answer(probe.try_enqueue(keys, lanes.names))
    except UnknownLane as unknown:
        reasons.append(Reason("enqueue", unknown.lane, f"lane {unknown.lane!r} was taken away"))
        return False
    if error is None:
        return True
    if error.word == _OOM:
        reasons.append(Reason("over_limit", None, f"over limit, nothing can be enqueued: {error}"))
    else:
        reasons.append(Reason("enqueue", None, f"nothing can be enqueued: {error}"))
    return False


def _can_claim(keys: Keys, look: str, *, lanes: LanesInForce, reasons: list[Reason]) -> Plan[bool]:
    for _ in range(_READINGS):
        reply, error = yield from _answer(probe.try_claim(keys, look, lanes))
        if error is not None:
            detail = f"no job can be claimed and no outcome recorded: {error}"
            reasons.append(Reason("claim", None, detail))
            return False
        if reply is not None:
            return True
        lanes = yield read_lanes(keys)
    detail = "no job can be claimed: the lanes in force change all the time, or their state is lost"
    reasons.append(Reason("claim", None, detail))
    return False


def _may_send_all(keys: Keys, look: str, reasons: list[Reason]) -> Plan[bool]:
    """Ask whether scripts may send their commands also where there is work.

    Claims and outcomes are one script: beyond a claim, this is what is left to ask.
    """
    refused, error = yield from _answer(probe.try_commands(keys, look))
    if error is not None:
        refused = [str(error)]
    if not refused:
        return True
    detail = (
        f"the server refuses commands that jobs need: {'; '.join(dict.fromkeys(refused))}. Give "
        "the user all commands of scripts on the keys and channels of the namespace (ACL SETUSER)."
    )
    reasons.append(Reason("acknowledge", None, detail))
    return False


def _no_lanes(keys: Keys, lanes: LanesInForce) -> Reason:
    if lanes.declared:
        detail = (
            f"namespace {keys.namespace!r} has lost its state (evicted, or deleted by hand): "
            "nothing can be claimed until a worker or a producer starts, which publishes it again"
        )
    else:
        detail = f"namespace {keys.namespace!r} has no lanes: {NOTHING_PUBLISHED}"
    return Reason("no_lanes", None, detail)


# --- who serves what ----------------------------------------------------------


def serves(worker: WorkerView, lane: str) -> bool:
    """Return whether a worker has a slot that may take the lane's jobs."""
    if lane not in worker.lanes:
        return False
    return worker.reserve.get(lane, 0) > 0 or sum(worker.reserve.values()) < worker.slots


def _lanes(
    lanes: LanesInForce, depths: Sequence[Depths], alive: Sequence[WorkerView]
) -> Iterator[LaneHealth]:
    for lane, depth in zip(lanes.lanes, depths, strict=True):
        oldest = None
        if depth.head_ready_us is not None:
            oldest = max((depth.now_us - depth.head_ready_us) / 1e6, 0.0)
        slo_us = lanes.wire(lane.name).get("slo_us")
        yield LaneHealth(
            name=lane.name,
            paused=lane.is_paused,
            workers=sum(serves(worker, lane.name) for worker in alive),
            oldest_wait_s=oldest,
            slo_s=None if slo_us is None else slo_us / 1e6,
        )


def _unserved(lanes: Sequence[LaneHealth], alive: Sequence[WorkerView]) -> Iterator[Reason]:
    if not alive:
        yield Reason("no_worker", None, "no live worker: nothing is run. Start one: laneq worker.")
        return
    for worker in alive:
        if worker.unwell:
            yield Reason(
                "stuck_worker",
                None,
                f"worker {worker.name} (host {worker.host}, pid {worker.pid}) lives but does not "
                f"work: {worker.unwell}",
            )
    for lane in lanes:
        if not lane.paused and lane.workers == 0:
            yield Reason(
                "not_served",
                lane.name,
                f"lane {lane.name!r} is served by no live worker that works: each leaves it out "
                "(--lanes), or keeps all its slots for other lanes (--reserve)",
            )


def _late(lanes: Sequence[LaneHealth]) -> Iterator[Reason]:
    for lane in lanes:
        waited, slo = lane.oldest_wait_s, lane.slo_s
        if lane.paused or waited is None or slo is None or waited <= TOO_OLD * slo:
            continue
        yield Reason(
            "too_old",
            lane.name,
            f"lane {lane.name!r} is far too late: its first job has waited {waited:.3g} s, over "
            f"{TOO_OLD} times its slo of {slo:g} s. See laneq lanes show {lane.name}.",
        )
