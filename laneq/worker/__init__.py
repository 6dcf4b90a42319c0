"""Workers: claim jobs, run them, report how they ended.

`Worker` is one worker inside a running event loop; `run_worker` is a process that is one;
`supervise` keeps several such processes. `ProbeOptions` say how they show whether they work.
`ends_when_told` is for the time before any of these runs.
"""

from __future__ import annotations

from laneq.options import WorkerOptions
from laneq.worker.probe import ProbeOptions
from laneq.worker.process import ends_when_told, run_worker
from laneq.worker.supervisor import supervise
from laneq.worker.worker import Worker

__all__ = [
    "ProbeOptions",
    "Worker",
    "WorkerOptions",
    "ends_when_told",
    "run_worker",
    "supervise",
]
