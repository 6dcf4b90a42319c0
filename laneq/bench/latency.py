"""How soon an idle worker starts a job: from the enqueue call to the job's first line.

One job each 20 ms. Beside it two limits, at the same pace in the same run: a bare
PING, and a hand-over between two processes by LPUSH and BLPOP, which no queue on
Redis can beat.
"""

from __future__ import annotations

import time
from typing import Any, Final

from laneq.bench import bare, jobs
from laneq.bench.crew import Crew
from laneq.bench.figures import Progress, combine, percentile
from laneq.bench.popper import POPPED
from laneq.bench.producer import submit_at
from laneq.bench.rig import Rig, Space
from laneq.bench.stamps import Stamp
from laneq.drive.persist import pack

Row = dict[str, Any]

_EVERY_S: Final = 0.02
_PATIENCE_S: Final = 30.0
_WARM_UP: Final = 10

_DIGITS: Final = {
    f"{what}{point}_ms": 3 for what in ("", "handover_", "ping_") for point in ("p50", "p99")
}


def measure(
    rig: Rig, *, count: int = 250, runs: int = 3, slots: int = 10, progress: Progress
) -> Row:
    """Return the percentiles of laneq and of the two limits.

    Args:
        rig: the server.
        count: jobs of a run.
        runs: how often it is measured; the row has medians and ranges.
        slots: slots of the worker.
        progress: told what goes on.
    """
    found = []
    for run in range(1, runs + 1):
        progress(f"run {run} of {runs}")
        found.append(run_once(rig, count=count, slots=slots))
    return {"slots": slots, "jobs": count} | combine(found, _DIGITS)


def run_once(rig: Rig, *, count: int, slots: int) -> Row:
    """Measure one run, and the limits right after it."""
    with rig.space() as space, Crew(space) as crew:
        worker = crew.start_worker("-c", str(slots))
        worker.wait_ready()
        with jobs.build(url=space.url, namespace=space.namespace) as app:
            line = app.tasks["bench.line"]
            _pace(count + _WARM_UP, line.enqueue)
            stamps = crew.book.wait_for(
                {jobs.LINE: count + _WARM_UP}, timeout_s=_PATIENCE_S, check=crew.check
            )
        worker.stop()
        worker.wait()
        return (
            _points("", _waits(stamps))
            | _points("handover_", _handover(space, crew, count))
            | _points("ping_", bare.ping_times(space.address, count=count, every_s=_EVERY_S))
        )


def _pace(count: int, submit: Any) -> None:
    every_ns = int(_EVERY_S * 1e9)
    submit_at(time.monotonic_ns(), [i * every_ns for i in range(1, count + 1)], submit)


def _handover(space: Space, crew: Crew, count: int) -> list[float]:
    key = space.keys.prefix + b"bare:handover"
    count += _WARM_UP
    popper = crew.start(
        ["-m", "laneq.bench.popper", key.decode(), str(count)], what="the far end of a hand-over"
    )
    popper.wait_ready()
    with bare.Bare(space.address) as near:
        _pace(count, lambda now_ns: near.ask(pack((b"LPUSH", key, now_ns))))
        # No check that it lives: it ends by itself after the last.
        stamps = crew.book.wait_for({POPPED: count}, timeout_s=_PATIENCE_S, check=lambda: None)
    return _waits(stamps)


def _waits(stamps: list[Stamp]) -> list[float]:
    return [(stamp.second - stamp.first) / 1e9 for stamp in stamps[_WARM_UP:]]


def _points(prefix: str, waits: list[float]) -> Row:
    found = {}
    for point, share in (("p50", 0.5), ("p99", 0.99)):
        value = percentile(waits, share)
        found[f"{prefix}{point}_ms"] = None if value is None else value * 1e3
    return found
