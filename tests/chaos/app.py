"""The app that the workers of a chaos run load."""

from __future__ import annotations

import os
import stat
import time

from laneq import current_job
from laneq.bench import leash
from tests.chaos import diary
from tests.chaos.tasks import KEEP, LEASE, SOON, build

# The chaos holds the other end of the worker's standard input. What a worker starts for its
# jobs has another one.
if stat.S_ISFIFO(os.fstat(0).st_mode):
    leash.keep()

app = build(keep_s=float(os.environ[KEEP]), lease_s=float(os.environ[LEASE]))


@app.task(name="in_process", executor="process", retry=SOON, result_ttl=float(os.environ[KEEP]))
def in_process(number: str, seconds: float) -> int:
    """Sleep in a process."""
    with diary.noted(number):
        time.sleep(seconds)
    return current_job().fence
