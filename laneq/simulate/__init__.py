"""What a pool will do before it is paid for: a simulation by the claim's own rules.

`scenario` says what is simulated (lanes, their load, workers), `loads` when jobs arrive and how
long they run, `engine` carries out one run, `outcome` takes the runs of several seeds together,
`steering` sizes reserves that size themselves, `search` varies a scenario and finds the cheapest
arrangement that holds an objective, `spell` reads a scenario as people write it, `recorded`
makes one of what a live namespace measured, and `published` has the published scenario.

    >>> from laneq.simulate import read_scenario, simulate
    >>> pool = read_scenario(["urgent:rate=30,run=20ms", "batch:backlog=endless,run=100-300ms"])
    >>> simulate(pool.with_lane("urgent", reserve=4), range(3)).lane("urgent").wait_p99_ms.median
    0.0
"""

from __future__ import annotations

from laneq.simulate.outcome import LaneOutcome, Outcome, Range, simulate
from laneq.simulate.scenario import Scenario, Stream, Workers
from laneq.simulate.spell import read_scenario

__all__ = [
    "LaneOutcome",
    "Outcome",
    "Range",
    "Scenario",
    "Stream",
    "Workers",
    "read_scenario",
    "simulate",
]
