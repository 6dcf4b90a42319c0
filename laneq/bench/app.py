"""The app that the benchmarks' workers load: ``laneq worker laneq.bench.app:app``."""

from __future__ import annotations

from laneq.bench import leash
from laneq.bench.jobs import build

leash.keep()
app = build()
