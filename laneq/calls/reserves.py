"""Automatic reserves: who sizes them, what is measured for it, and what was decided."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from laneq.calls.call import Call
from laneq.keys import FINE_US, Keys
from laneq.scripts import load

Reply = list[Any]
Buckets = dict[str, dict[int, int]]


@dataclass(frozen=True, slots=True)
class LaneMeasured:
    """What is measured of one lane.

    Attributes:
        decision: what was decided last, as it is stored; None before the first time.
        enqueued: jobs that ever arrived.
        slots: of the live workers that serve the lane; 0 where these are not counted.
        now, before: histograms (``w`` wait, ``r`` run: bucket → jobs) of the ten seconds that
            pass now, and of those before.
    """

    decision: Mapping[str, Any] | None
    enqueued: int
    slots: int
    now: Buckets
    before: Buckets


@dataclass(frozen=True, slots=True)
class Duty:
    """The duty of sizing.

    Attributes:
        now_us: Redis's clock.
        term: number of this tenure; None where another worker has the duty.
        until_us: until when that one has it; 0 where it is the caller's.
        lanes: what is measured, by lane; empty where it is another's.
    """

    now_us: int
    term: int | None
    until_us: int
    lanes: Mapping[str, LaneMeasured]


def take_duty(
    keys: Keys, worker_id: str, lanes: Sequence[str], *, now_us: int, ttl_us: int
) -> Call[Duty]:
    """Take or keep the duty of sizing for `ttl_us`, and read what was measured of these lanes.

    Args:
        keys: the namespace.
        worker_id: the worker's incarnation.
        lanes: every lane of the namespace.
        now_us: about Redis's clock, to name the histogram slices.
        ttl_us: microseconds until another worker may take the duty.
    """
    script = load("size")
    per_lane: list[bytes] = []
    for name in lanes:
        per_lane += (
            keys.of_lane("counts", name),
            keys.fine(name, now_us),
            keys.fine(name, now_us - FINE_US),
        )

    def read(reply: Reply) -> Duty:
        if reply[0] == b"other":
            return Duty(int(reply[1]), None, int(reply[2]), {})
        return Duty(
            int(reply[1]),
            reply[2],
            0,
            {
                name: LaneMeasured(
                    decision=json.loads(row[0]) if row[0] else None,
                    enqueued=int(row[1]),
                    slots=int(row[2]),
                    now=_buckets(row[3]),
                    before=_buckets(row[4]),
                )
                for name, row in zip(lanes, reply[3:], strict=True)
            },
        )

    return Call(
        script,
        (*script.bind_keys(keys), *per_lane),
        script.bind_args({"worker_id": worker_id, "ttl": ttl_us}, lane=[(n,) for n in lanes]),
        read,
    )


def decide(
    keys: Keys, worker_id: str, *, term: int, decisions: Mapping[str, Mapping[str, Any]]
) -> Call[bool]:
    """Write decisions by lane; the value is False where the duty is another's by now."""
    script = load("decide")
    return Call(
        script,
        script.bind_keys(keys),
        script.bind_args(
            {"worker_id": worker_id, "term": term},
            decision=[(lane, json.dumps(dict(made))) for lane, made in decisions.items()],
        ),
        lambda reply: bool(reply[0] == b"ok"),
    )


def _buckets(flat: Sequence[bytes]) -> Buckets:
    found: Buckets = {"w": {}, "r": {}}
    for i in range(0, len(flat), 2):
        name = flat[i].decode()
        if name[:1] in found and name[1:].isdecimal():
            found[name[0]][int(name[1:])] = int(flat[i + 1])
    return found
