"""Measure laneq the way a user would, beside the limit of this Redis in the same run.

One file per benchmark: `lanes`, `throughput`, `latency`, `enqueue`, `claim`, `memory`,
`backlog`, `recovery`. What they share: `rig` (the server and a namespace of their
own), `crew` (worker processes), `hand` (a worker without jobs), `stamps` (what jobs
write down, outside Redis), `bare` (the limits), `figures` (medians and percentiles).

Invariants: workers are real processes of ``laneq worker`` with nothing switched
off; a namespace that holds anything is never touched, and none is left behind;
processes are stopped by pid. Nothing here prints: rows go to the caller, who shows
them.
"""
