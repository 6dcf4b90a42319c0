"""A task whose module takes longer to import in a child process than its jobs may run."""

from __future__ import annotations

import sys
import time

from laneq import LaneQ, Retry

app = LaneQ(namespace="slow-to-import")

if sys.argv[0] == "-c":  # a child process; the tests' own is started in another way
    time.sleep(1.5)


@app.task(name="slow_to_import.quick", executor="process", timeout=1, retry=Retry(1))
def quick() -> str:
    return "quick"
