"""Probes: ask the scripts of work for nothing, to see whether the server lets them work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from laneq.calls.call import Call
from laneq.calls.lanes import LanesInForce
from laneq.calls.workers import ClaimCalls, ClaimReply
from laneq.errors import UnknownLane
from laneq.keys import Keys
from laneq.scripts import load

Reply = list[Any]

#: Keys, and arguments, that the driver itself puts in front of a `once` call.
_STAMPED: Final = 2


def try_enqueue(keys: Keys, lanes: Sequence[str]) -> Call[None]:
    """Enqueue no job, into lanes: refused where a job would be, with OOM or READONLY say.

    Raises (on reading):
        UnknownLane: one of them is gone from the namespace.
    """
    script = load("enqueue")

    def read(reply: Reply) -> None:
        if reply[0] == b"unknown_lane":
            raise UnknownLane(reply[1].decode(), ())

    return Call(
        script,
        script.bind_keys(keys, lanes, session=b"", before=b"")[_STAMPED:],
        script.bind_args({"seq": 0, "before_seq": 0}, lane=[(name,) for name in lanes])[_STAMPED:],
        read,
        once=True,
    )


def try_claim(keys: Keys, look: str, lanes: LanesInForce) -> Call[ClaimReply | None]:
    """Claim for no slot; the value is None where the lanes are no longer these.

    As any claim it takes in what is due and takes back what is lost. It starts nothing.

    Args:
        keys: the namespace.
        look: random, of this look; stands in the place of a worker.
        lanes: the lanes in force.
    """
    # Without limits: they have no say in a claim for no slot, and would note what it has free.
    free = tuple(
        replace(lane, max_running=-1, start_every_us=-1, reserve_slots=0) for lane in lanes.lanes
    )
    calls = ClaimCalls(keys, look, replace(lanes, lanes=free))
    return calls.claim(seq=1, slots=0, free=0, seats={})


def try_commands(keys: Keys, look: str) -> Call[list[str]]:
    """Try each command that an enqueue, a claim and an outcome are made of.

    The value is the server's words for those that it refused, NOPERM say.

    Args:
        keys: the namespace.
        look: random, of this look.
    """
    script = load("probe")
    return Call(
        script,
        script.bind_keys(keys, probe=keys.probe(look)),
        (),
        lambda reply: [error.decode(errors="replace") for error in reply[1]],
    )
