"""How many bytes of Redis a job takes while it waits, while it runs and once it has ended.

From the difference of ``used_memory`` before and after, divided by the jobs. The
limit is what a sorted set of the ids and one hash of the same records take: the least
with which a waiting job can be looked up.
"""

from __future__ import annotations

from typing import Any, Final

from laneq.bench import bare
from laneq.bench.figures import Progress
from laneq.bench.hand import Hand
from laneq.bench.rig import Rig
from laneq.calls.workers import CLAIM_MAX, Claimed

Row = dict[str, Any]

_KEEP_US: Final = 3_600_000_000


def measure(rig: Rig, *, count: int = 100_000, progress: Progress) -> list[Row]:
    """Return a row for each state of a job.

    Args:
        rig: the server; others that use it at the same time distort the figures.
        count: jobs, whose arguments are ``(12345, "user@example.com")``.
        progress: told what goes on.
    """
    rows: list[Row] = []

    def note(state: str, bytes_each: float) -> None:
        rows.append({"state": state, "jobs": count, "bytes_per_job": round(bytes_each)})

    with rig.space() as space:
        progress("the limit")
        limit = bare.stored_bytes(space, jobs=count, used=rig.used_memory)
        hand = Hand(space)
        hand.enqueue(1)  # what is there once, whatever the number of jobs
        hand.claim(1, ended=hand.claim(1))
        empty = rig.used_memory()
        progress("waiting")
        hand.enqueue(count)
        note("waiting", (rig.used_memory() - empty) / count)
        progress("running")
        held: list[Claimed] = []
        while jobs := hand.claim(CLAIM_MAX, running=len(held)):
            held += jobs
        note("running", (rig.used_memory() - empty) / count)
        progress("finished, result kept")
        for first in range(0, count, CLAIM_MAX):
            hand.claim(0, ended=held[first : first + CLAIM_MAX], keep_us=_KEEP_US)
        note("finished, result kept", (rig.used_memory() - empty) / count)
    with rig.space() as space:
        hand = Hand(space)
        hand.claim(1, ended=hand.claim(1))
        empty = rig.used_memory()
        progress("finished, no result kept")
        hand.enqueue(count)
        ended: list[Claimed] = hand.claim(CLAIM_MAX)
        while ended:
            ended = hand.claim(CLAIM_MAX, ended=ended)
        note("finished, no result kept", (rig.used_memory() - empty) / count)
    for row in rows:
        row["limit_bytes_per_job"] = round(limit) if row["state"] == "waiting" else None
    return rows
