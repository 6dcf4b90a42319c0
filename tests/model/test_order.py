"""order.py and claim.lua make the same choice, whatever lanes, waits and reserves there are."""

from __future__ import annotations

from collections import Counter
from uuid import uuid4

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laneq.calls.workers import Claimed
from laneq.options import Lane
from laneq.order import Head, best, may_start, usable_lanes
from tests.conftest import drop_namespace
from tests.stage import SECOND, START_US, Stage

NAMES = ("a", "b", "c", "d")
points = st.one_of(
    st.integers(-50, 50).map(float),
    st.floats(-1e6, 1e6, allow_nan=False, allow_subnormal=False).map(lambda x: round(x, 3)),
)
lanes = st.lists(
    st.builds(
        lambda priority, aging, cap: {"priority": priority, "aging": aging, "aging_cap": cap},
        points,
        st.one_of(
            st.integers(0, 5).map(float),
            st.floats(0, 100).map(lambda x: round(x, 3)),
            st.sampled_from([1e-9, 1e-6, 1e-4, 1 / 3]),
        ),
        st.one_of(st.integers(0, 100).map(float), st.floats(0, 1e4).map(lambda x: round(x, 3))),
    ),
    min_size=len(NAMES),
    max_size=len(NAMES),
)
# Waits meet at whole seconds, where values are equal, or lie a microsecond apart; and anywhere.
waits = st.lists(
    st.lists(
        st.one_of(
            st.integers(0, 60).map(lambda s: s * SECOND),
            st.integers(0, 10**12),
            st.integers(0, 20),
            st.integers(0, 20).map(lambda us: 10 * SECOND + us),
        ),
        max_size=5,
        unique=True,
    ),
    min_size=len(NAMES),
    max_size=len(NAMES),
)
small = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 3))


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(
    options=lanes,
    waited=waits,
    slots=st.one_of(st.just(1), st.integers(1, 12)),
    reserve=small,
    running=small,
    served=st.sets(st.sampled_from(NAMES), min_size=1),
    listening=st.sets(st.sampled_from(NAMES)),
)
def test_a_claim_starts_what_the_rule_in_python_says(
    raw: redis.Redis, options, waited, slots, reserve, running, served, listening
):
    stage = Stage(raw, f"order-{uuid4().hex[:10]}", is_fake=False)
    try:
        stage.set_clock(START_US)
        stage.publish(*(Lane(name, **o) for name, o in zip(NAMES, options, strict=True)))
        waiting: dict[str, list[tuple[int, str]]] = {}
        for name, lane_waits in zip(NAMES, waited, strict=True):
            jobs = {f"{name}{n}": START_US - wait for n, wait in enumerate(lane_waits)}
            waiting[name] = sorted((score, job_id) for job_id, score in jobs.items())
            if jobs:
                raw.zadd(stage.key("waiting", name), jobs)
                raw.hset(stage.keys.jobs, mapping=dict.fromkeys(jobs, b"t\n"))

        worker = stage.worker("w", slots=slots, serves=sorted(served), reserve=reserve)
        free = slots
        now_running = Counter(running)
        expected = []
        in_force = {lane.name: lane for lane in stage.lanes.lanes}
        while free > 0:
            heads = []
            for name in stage.lanes.names:
                may = may_start(name, free=free, running=now_running, reserve=reserve)
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
            free -= 1

        # Jobs that run already, so that the seats say so.
        for name, n in running.items():
            for i in range(n):
                worker.held[f"{name}r{i}"] = Claimed(f"{name}r{i}", b"", name, 1, 1, 1, 1)
        call = worker.call(free=slots, listening=sorted(listening))
        reply = stage.run(call)
        assert reply is not None
        assert sorted(job.id for job in reply.jobs) == sorted(expected)

        # It is rung exactly when what is left is of no use to a lane that it listens for.
        usable = usable_lanes(sorted(served), free=free, running=now_running, reserve=reserve)
        is_rung = bool(raw.exists(stage.keys.doorbell("w")))
        assert is_rung == bool(set(listening) - set(usable))
        # And every lane that has work left is armed, whoever may take it.
        assert stage.tokens() == [name for name in stage.lanes.names if waiting[name]]
    finally:
        drop_namespace(raw, stage.namespace)
