"""order.py and claim.lua make the same choice, whatever lanes, waits and reserves there are."""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import uuid4

import pytest
import redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from laneq.calls.workers import Claimed, Ended
from laneq.options import Lane
from laneq.order import Head, best, may_start, usable_lanes
from tests.conftest import drop_namespace
from tests.stage import SECOND, START_US, Stage

NAMES = tuple("abcdefghijkl")
points = st.one_of(
    st.integers(-50, 50).map(float),
    st.floats(-1e6, 1e6, allow_nan=False, allow_subnormal=False).map(lambda x: round(x, 3)),
)
rules = st.builds(
    lambda priority, aging, cap: {"priority": priority, "aging": aging, "aging_cap": cap},
    points,
    st.one_of(
        st.integers(0, 5).map(float),
        st.floats(0, 100).map(lambda x: round(x, 3)),
        st.sampled_from([1e-9, 1e-6, 1e-4, 1 / 3]),
    ),
    st.one_of(st.integers(0, 100).map(float), st.floats(0, 1e4).map(lambda x: round(x, 3))),
)
# A few that differ, or many that are of a kind or two.
lanes = st.one_of(
    st.lists(rules, min_size=4, max_size=4),
    st.lists(rules, min_size=1, max_size=2).flatmap(
        lambda kinds: st.lists(st.sampled_from(kinds), min_size=2, max_size=len(NAMES))
    ),
)
# Waits meet at whole seconds, where values are equal, or lie a microsecond apart; and anywhere.
waits = st.lists(
    st.lists(
        st.one_of(
            st.integers(0, 60).map(lambda s: s * SECOND),
            st.integers(0, 10**12),
            st.integers(0, 20),
            st.integers(0, 20).map(lambda us: 10 * SECOND + us),
            st.integers(0, 3).map(lambda us: 40 * SECOND + us),
        ),
        max_size=5,
        unique=True,
    ),
    min_size=len(NAMES),
    max_size=len(NAMES),
)
some = st.sets(st.sampled_from(NAMES))
small = st.dictionaries(st.sampled_from(NAMES[:4]), st.integers(0, 3))


ALIKE = {"priority": 0.0, "aging": 1.0, "aging_cap": 1_000.0}


def of_waits(*waits_s: list[float]) -> Any:
    """Return an example: lanes that are alike, with jobs that waited so many seconds."""
    waited = [[round(wait * SECOND) for wait in of_lane] for of_lane in waits_s]
    nothing: dict[str, Any] = {"reserve": {}, "running": {}, "unserved": set(), "listening": set()}
    return {"options": [ALIKE] * len(waited), "waited": waited, "ended": set(), **nothing}


def put(stage: Stage, raw: redis.Redis, lane: str, waits_us: list[int]) -> list[tuple[int, str]]:
    """Put jobs that waited so long into a lane, and return score and id of each in order."""
    jobs = {f"{lane}{n}": START_US - wait for n, wait in enumerate(waits_us)}
    if jobs:
        raw.zadd(stage.key("waiting", lane), jobs)
        raw.hset(stage.keys.jobs, mapping=dict.fromkeys(jobs, b"t\n"))
    return sorted((score, job_id) for job_id, score in jobs.items())


@pytest.mark.slow
# A job that waits a microsecond longer, in a lane that is looked at later.
@example(**of_waits([40], [40.000001]), slots=1, max_running={}, full=set())
# The best lane but one is full: a lane that was set aside for it, unread or read, comes next.
@example(**of_waits([70], [100], [90], [85]), slots=2, max_running={"c": 1}, full={"c"})
@example(**of_waits([100, 99, 85], [90], [80]), slots=3, max_running={"b": 1}, full={"b"})
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(
    options=lanes,
    waited=waits,
    slots=st.one_of(st.just(1), st.integers(1, 12)),
    reserve=small,
    running=small,
    unserved=some,
    listening=some,
    max_running=st.dictionaries(st.sampled_from(NAMES), st.integers(1, 3)),
    full=some,
    ended=some,
)
def test_a_claim_starts_what_the_rule_in_python_says(
    raw: redis.Redis,
    options,
    waited,
    slots,
    reserve,
    running,
    unserved,
    listening,
    max_running,
    full,
    ended,
):
    names = NAMES[: len(options)]
    served = set(names) - unserved or {"a"}
    reserve, running = (
        {name: n for name, n in of_lane.items() if name in names} for of_lane in (reserve, running)
    )
    listening = listening & set(names)
    stage = Stage(raw, f"order-{uuid4().hex[:10]}", is_fake=False)
    try:
        stage.set_clock(START_US)
        stage.publish(
            *(
                Lane(name, **rule, max_running=max_running.get(name))
                for name, rule in zip(names, options, strict=True)
            )
        )
        waiting = {
            name: put(stage, raw, name, lane_waits)
            for name, lane_waits in zip(names, waited, strict=False)
        }
        # As many run elsewhere as may.
        full = full & max_running.keys() & set(names)
        for name in full:
            leases = {f"{name}l{n}": START_US + 60 * SECOND for n in range(max_running[name])}
            raw.zadd(stage.key("leases", name), leases)

        worker = stage.worker("w", slots=slots, serves=sorted(served), reserve=reserve)
        free = slots
        now_running = Counter(running)
        expected = []
        started: Counter[str] = Counter()
        in_force = {lane.name: lane for lane in stage.lanes.lanes}
        while free > 0:
            heads = []
            for name in stage.lanes.names:
                may = may_start(name, free=free, running=now_running, reserve=reserve)
                may = may and name not in full and started[name] < max_running.get(name, slots)
                if name in served and waiting[name] and may:
                    rule = in_force[name]
                    heads.append(
                        Head(
                            name,
                            rule.priority,
                            rule.aging_per_us * 1e6,
                            rule.aging_cap,
                            waiting[name][0][0],
                        )
                    )
            head = best(heads, START_US)
            if head is None:
                break
            expected.append(waiting[head.lane].pop(0)[1])
            now_running[head.lane] += 1
            started[head.lane] += 1
            free -= 1

        # Jobs that run already, so that the seats say so.
        for name, n in running.items():
            for i in range(n):
                worker.held[f"{name}r{i}"] = Claimed(f"{name}r{i}", b"", name, 1, 1, 1, 1)
        # Lanes that a job just ended in are looked at last; of these nobody knows the job.
        outcomes = [Ended(name, "gone", 1, "succeeded") for name in sorted(ended & set(names))]
        call = worker.call(free=slots, listening=sorted(listening), outcomes=outcomes)
        reply = stage.run(call)
        assert reply is not None
        assert sorted(job.id for job in reply.jobs) == sorted(expected)

        # It is rung exactly when what is left is of no use to a lane that it listens for.
        usable = usable_lanes(sorted(served), free=free, running=now_running, reserve=reserve)
        is_rung = bool(raw.exists(stage.keys.doorbell("w")))
        assert is_rung == bool(set(listening) - set(usable))
        # And every lane that has work left is armed, whoever may take it, unless it was found
        # at its max_running.
        left = [name for name in stage.lanes.names if waiting[name]]
        tokens = stage.tokens()
        assert set(tokens) <= set(left)
        assert all(
            name in full or started[name] == max_running.get(name)
            for name in left
            if name not in tokens
        )
        assert not [name for name in tokens if started[name] == max_running.get(name)]
    finally:
        drop_namespace(raw, stage.namespace)
