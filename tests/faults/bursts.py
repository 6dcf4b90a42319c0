"""A producer whose ids are in reverse alphabetical order: ``python -m tests.faults.bursts N``.

Waits for a line on its standard input, so that several begin at once; then enqueues N jobs, one
call after the other, in turn over the places named after N, each ``lane`` or ``lane+boost``.
Prints the id and the place of each.
"""

from __future__ import annotations

import os
import sys
import time

from laneq.calls.jobs import enqueue
from tests.faults.odd_jobs import app, touch


def main(n: int, *places: str) -> None:
    kinds = []
    for place in places:
        lane, _, boost = place.partition("+")
        kinds.append(touch.using(lane=lane, boost=float(boost or 0)))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    for number in range(n):
        at = number % len(places)
        new = kinds[at].call().new_job()
        new.id = f"{10**20 - time.monotonic_ns():020d}-{os.getpid()}"
        assert app.sync_driver.call(enqueue(app.keys, (new,))) == frozenset()
        sys.stdout.write(f"{new.id} {places[at]}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
