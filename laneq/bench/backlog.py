"""Whether a claim gets slower as the backlog grows.

Jobs are claimed and ended ten in a call, in slices of at most half of what waits; the
backlog is filled up again after each slice, which is not timed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from laneq.bench import bare
from laneq.bench.figures import Progress, combine
from laneq.bench.hand import Hand
from laneq.bench.rig import Rig
from laneq.calls.workers import Claimed

Row = dict[str, Any]

_PER_CALL: Final = 10
_DIGITS: Final = {"claims_per_s": 0, "limit_jobs_per_s": 0, "share_of_limit": 2}


def measure(
    rig: Rig,
    *,
    depths: Sequence[int] = (1_000, 100_000, 1_000_000),
    count: int = 10_000,
    runs: int = 3,
    progress: Progress,
) -> Iterator[Row]:
    """Yield a row for each depth.

    Args:
        rig: the server.
        depths: how many jobs wait.
        count: jobs claimed in a run.
        runs: how often it is measured on the same backlog; the row has medians and ranges.
        progress: told what goes on.
    """
    for depth in depths:
        with rig.space() as space:
            progress(f"{depth:,} waiting: enqueueing")
            hand = Hand(space)
            hand.enqueue(depth)
            found = []
            for run in range(1, runs + 1):
                progress(f"{depth:,} waiting: run {run} of {runs}")
                rate = _rate(hand, depth=depth, count=count)
                limit = bare.turn_rate(
                    space, jobs=count, jobs_per_call=_PER_CALL, keeps_results=False
                )
                found.append(
                    {
                        "claims_per_s": rate,
                        "limit_jobs_per_s": limit,
                        "share_of_limit": rate / limit,
                    }
                )
            progress(f"{depth:,} waiting: clearing")
        yield {"waiting": depth, "jobs": count} | combine(found, _DIGITS)


def _rate(hand: Hand, *, depth: int, count: int) -> float:
    took, claimed = 0.0, 0
    held: list[Claimed] = []
    while claimed < count:
        slice_end = claimed + max(min(depth // 2, count - claimed), 1)
        before = claimed
        start = time.monotonic()
        while claimed < slice_end:
            held = hand.claim(_PER_CALL, ended=held)
            claimed += len(held)
        took += time.monotonic() - start
        hand.enqueue(claimed - before)
    hand.claim(0, ended=held)
    return claimed / took
