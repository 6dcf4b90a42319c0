"""Submit urgent jobs at given instants, from a process of its own.

Started as ``python -m laneq.bench.producer TASK LANE SECONDS``. It says ``ready``,
reads one line from its standard input, JSON ``{"start_ns": …, "after_ns": [...]}``,
and submits a job at each of these instants. Then it writes ``sent N late_us L``: how
many, and how late the 99th of a hundred submissions was.

An instant is met by sleeping to shortly before it and spinning for the rest. The
instant that the job bears is read right before the call that enqueues it.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from laneq.bench.figures import percentile
from laneq.bench.jobs import build

_SPIN_NS: Final = 150_000


def submit_at(start_ns: int, after_ns: Sequence[int], submit: Callable[[int], object]) -> list[int]:
    """Call `submit` with the present instant at each of the instants; return how late each was.

    Args:
        start_ns: the zero of `after_ns`, on the monotonic clock.
        after_ns: when, in ascending order.
        submit: takes the instant right before the call.
    """
    late = []
    for after in after_ns:
        due_ns = start_ns + after
        while (left_ns := due_ns - time.monotonic_ns()) > _SPIN_NS:
            time.sleep((left_ns - _SPIN_NS) / 1e9)
        while (now_ns := time.monotonic_ns()) < due_ns:
            pass
        late.append(now_ns - due_ns)
        submit(now_ns)
    return late


def main(task: str, lane: str, seconds: float) -> None:
    """Do what the module says."""
    with build() as app:
        calls = app.ref(task).using(lane=lane)
        app.job("0" * 20).state()  # the connection is made, and Redis has answered
        print("ready", flush=True)  # noqa: T201  the benchmark waits for it
        plan = json.loads(sys.stdin.readline())
        gc.collect()
        gc.disable()
        late = submit_at(
            plan["start_ns"], plan["after_ns"], lambda now_ns: calls.enqueue(now_ns, seconds)
        )
        latest = percentile(late, 0.99) or 0
        print(f"sent {len(late)} late_us {latest // 1000}", flush=True)  # noqa: T201  likewise


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
