"""How long a job waits when its worker is killed: from kill -9 to its next start.

Three workers with a job each are killed at different moments between two heartbeats;
another worker takes their jobs over. Redis learns of the death only by the lease that
nobody renews, so the time is between the lease less the interval of the heartbeat and
the lease. The promise is lease + 1 s at the most.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from laneq.bench import jobs
from laneq.bench.crew import Crew
from laneq.bench.figures import Progress, Spread
from laneq.bench.rig import Rig
from laneq.calls.lanes import set_lane
from laneq.options import Lane

Row = dict[str, Any]

_VICTIMS: Final = 3
_START_S: Final = 30.0


def measure(
    rig: Rig, *, leases: Sequence[float] = (15.0, 2.0), progress: Progress
) -> Iterator[Row]:
    """Yield a row for each lease.

    Args:
        rig: the server.
        leases: of the lane, in seconds.
        progress: told what goes on.
    """
    for lease_s in leases:
        lane = Lane("batch", lease=lease_s)
        progress(f"lease {lease_s:g} s")
        yield _row(rig, lane, lease_s)


def _row(rig: Rig, lane: Lane, lease_s: float) -> Row:
    with rig.space() as space, Crew(space) as crew:
        victims = [crew.start_worker("-c", "1") for _ in range(_VICTIMS)]
        for victim in victims:
            victim.wait_ready()
        space.driver.call(set_lane(space.keys, lane.name, {"lease_us": lane.lease_us}))
        with jobs.build(url=space.url, namespace=space.namespace) as app:
            endless = app.tasks["bench.endless"]
            app.enqueue_many([endless.call(number) for number in range(_VICTIMS)])
        first = crew.book.wait_for({jobs.STARTED: _VICTIMS}, timeout_s=_START_S, check=crew.check)
        job_of = {stamp.third: stamp.second for stamp in first}
        heir = crew.start_worker("-c", str(_VICTIMS), "--grace", "0")
        heir.wait_ready()
        killed_ns = {}
        for victim in victims:
            time.sleep(lease_s / 3 / _VICTIMS)  # another moment between two heartbeats
            killed_ns[job_of[victim.pid]] = time.monotonic_ns()
            victim.stop(signal.SIGKILL)
        again = crew.book.wait_for(
            {jobs.STARTED: _VICTIMS}, timeout_s=lease_s + _START_S, check=heir.check
        )
        heir.stop(signal.SIGKILL)  # its jobs never end by themselves
        waits = Spread.of((stamp.first - killed_ns[stamp.second]) / 1e9 for stamp in again).rounded(
            2
        )
    return {
        "lease_s": lease_s,
        "jobs": _VICTIMS,
        "seconds": waits.median,
        "ranges": {"seconds": waits.ends},
        "promised_s": lease_s + 1,
    }
