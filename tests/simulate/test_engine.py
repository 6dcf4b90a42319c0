"""The simulation goes by the claim's own rules, and by the clock of its events."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laneq.options import Lane
from laneq.order import best, fleet_reserve, may_start
from laneq.simulate.engine import Run, SimLane
from laneq.simulate.loads import Arrivals, Exponential, Fixed, RunTime, Uniform
from laneq.simulate.outcome import simulate
from laneq.simulate.scenario import ENDLESS, Scenario, Stream, Workers

NAMES = ("a", "b", "c")


class CheckedRun(Run):
    """Asks the rules once more, in full and one pair at a time, at every start and every event."""

    starts = 0

    def allowed(self, worker: Any, lane: SimLane) -> bool:
        """Ask whether a job of a lane may start on a worker, straight from the rules."""
        if lane.name not in worker.running or lane.running >= lane.max_running:
            return False
        if lane.interval_us and lane.allowed_us() > self._now:
            return False
        if not may_start(
            lane.name, free=worker.free, running=worker.running, reserve=worker.reserve
        ):
            return False
        held = {name: n for name, n in self._wanted.items() if name in worker.running}
        if not held:
            return True
        serving = {n: [w for w in self._workers if n in w.running] for n in held}
        slots = min(sum(w.slots for w in serving[name]) for name in held)
        free = min(sum(w.free for w in serving[name]) for name in held)
        running = {name: other.running for name, other in self.lanes.items() if name in held}
        granted = fleet_reserve(held, slots=slots, free=free, running=running)
        return may_start(lane.name, free=free, running=running, reserve=granted)

    def waiting(self) -> list[SimLane]:
        """Return the lanes whose first job is there."""
        return [lane for lane in self.lanes.values() if lane.head_us <= self._now]

    def _start(self, worker: Any, lane: SimLane) -> None:
        candidates = [one for one in self.waiting() if self.allowed(worker, one)]
        expected = best([one.head() for one in candidates], self._now)
        assert expected is not None
        assert lane.name == expected.lane
        type(self).starts += 1
        super()._start(worker, lane)

    def _next_due(self) -> int:
        if self._now >= 0:
            for worker, lane in itertools.product(self._workers, self.waiting()):
                assert not self.allowed(worker, lane), f"{lane.name} could start"
        return super()._next_due()


lanes = st.builds(
    lambda priority, aging, cap, reserve, limits: (priority, aging, cap, reserve, *limits),
    st.integers(0, 20),
    st.sampled_from([0, 1, 50]),
    st.integers(0, 20),
    st.integers(0, 2),
    st.sampled_from([(None, None), (None, None), (2, None), (None, "20/s"), (1, "5/s")]),
)
loads = st.tuples(
    st.sampled_from(["even", "poisson", "bursts"]),
    st.sampled_from([0, 5, 40]),
    st.sampled_from([0, 3, ENDLESS]),
    st.sampled_from([Fixed(0.02), Uniform(0.01, 0.2), Exponential(0.1)]),
)


def streams_of(found: Sequence[tuple[Any, Any]]) -> tuple[Stream, ...]:
    made = []
    for name, (lane, load) in zip(NAMES, found, strict=False):
        priority, aging, cap, reserve, most, rate = lane
        kind, per_s, backlog, run = load
        options = Lane(
            name,
            priority=priority,
            aging=aging,
            aging_cap=cap,
            reserve=reserve,
            max_running=most,
            rate=rate,
        )
        arrivals = Arrivals.at(per_s, kind, 3 if kind == "bursts" else 1)
        made.append(Stream(options, run, arrivals, backlog))
    return tuple(made)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    streams = streams_of(draw(st.lists(st.tuples(lanes, loads), min_size=1, max_size=3)))
    names = [stream.name for stream in streams]
    shapes = []
    for _ in range(draw(st.integers(1, 3))):
        slots = draw(st.integers(1, 4))
        served = draw(st.one_of(st.none(), st.lists(st.sampled_from(names), min_size=1)))
        kept: dict[str, int] = {}
        if draw(st.booleans()):
            kept[draw(st.sampled_from(served or names))] = draw(st.integers(1, slots))
        lanes_ = tuple(dict.fromkeys(served)) if served else None
        shapes.append(Workers(slots, draw(st.integers(1, 2)), lanes_, kept))
    return Scenario(streams, tuple(shapes), seconds=1, warm_up=0)


@settings(max_examples=60, deadline=None)
@given(scenarios(), st.integers(0, 5))
def test_every_start_is_the_one_that_the_rules_say_and_none_is_left_out(
    scenario: Scenario, seed: int
) -> None:
    CheckedRun.starts = 0
    measured = CheckedRun(scenario, seed).carry_out()
    assert sum(lane.done for lane in measured.values()) <= CheckedRun.starts


@settings(max_examples=40, deadline=None)
@given(scenarios(), st.integers(0, 5))
def test_no_job_is_lost_or_made_up(scenario: Scenario, seed: int) -> None:
    run = Run(scenario, seed)
    measured = run.carry_out()
    for stream in scenario.streams:
        if stream.backlog == ENDLESS:
            continue
        lane = measured[stream.name]
        running = run.lanes[stream.name].running
        came = run.lanes[stream.name].arrived_by(10**12)
        assert came + stream.backlog == lane.done + running + lane.left
        assert lane.arrived == came


def one_lane(
    run: RunTime, arrivals: Arrivals | None, *, slots: int, backlog: float = 0, **options: Any
) -> Scenario:
    lane = Lane("a", **options)
    return Scenario(
        (Stream(lane, run, arrivals, backlog),), (Workers(slots),), seconds=100, warm_up=0
    )


def test_a_backlog_is_worked_off_at_the_rate_of_the_slots() -> None:
    lane = Run(one_lane(Fixed(0.5), None, slots=4, backlog=300), 1).carry_out()["a"]
    assert lane.done == 300
    assert lane.busy_us == 300 * 500_000
    lane = Run(one_lane(Fixed(0.5), None, slots=4, backlog=ENDLESS), 1).carry_out()["a"]
    assert lane.done == 800


def test_even_arrivals_that_fit_never_wait_and_others_queue_without_bound() -> None:
    fits = simulate(one_lane(Fixed(0.1), Arrivals.at(19, "even"), slots=2), [1]).lane("a")
    assert fits.wait_max_ms.high == 0
    assert fits.keeps_up
    grows = simulate(one_lane(Fixed(0.1), Arrivals.at(25, "even"), slots=2), [1]).lane("a")
    assert not grows.keeps_up
    assert grows.left.median == pytest.approx(500, abs=5)
    assert grows.wait_max_ms.high == pytest.approx(20_000, rel=0.02)


def test_what_still_waits_at_the_end_counts_with_its_wait_so_far() -> None:
    scenario = one_lane(Fixed(1_000), Arrivals.at(1, "even"), slots=1)
    lane = simulate(scenario, [1]).lane("a")
    assert lane.arrived.median == 100
    assert lane.wait_max_ms.median == pytest.approx(98_700, abs=1_000)
    assert lane.wait_p50_ms.median == pytest.approx(49_000, abs=1_500)


def test_a_queue_of_random_arrivals_waits_as_erlang_says() -> None:
    # M/M/3 at 80 %: C(3, 2.4) = 0.647; a job that waits does for run / (slots - load).
    scenario = Scenario(
        (Stream(Lane("a"), Exponential(0.1), Arrivals.at(24)),),
        (Workers(3),),
        seconds=3_000,
        warm_up=20,
    )
    waits = Run(scenario, 3).carry_out()["a"].waits_us
    assert sum(wait > 0 for wait in waits) / len(waits) == pytest.approx(0.647, abs=0.03)
    assert sum(waits) / len(waits) / 1e6 == pytest.approx(0.647 * 0.1 / 0.6, rel=0.1)


def test_a_rate_is_kept_and_does_not_hold_up_other_lanes() -> None:
    limited = Stream(Lane("a", priority=100, rate="10/s"), Fixed(0.001), None, ENDLESS)
    free = Stream(Lane("b", priority=1), Fixed(0.001), None, ENDLESS)
    measured = Run(Scenario((limited, free), (Workers(1),), seconds=10, warm_up=0), 1).carry_out()
    assert 99 <= measured["a"].done <= 102
    assert measured["b"].done >= 9_890


def test_a_lane_at_its_max_running_leaves_the_other_slots() -> None:
    limited = Stream(Lane("a", priority=100, max_running=2), Fixed(0.1), None, ENDLESS)
    free = Stream(Lane("b", priority=1), Fixed(0.1), None, ENDLESS)
    measured = Run(
        Scenario((limited, free), (Workers(5, 2),), seconds=10, warm_up=0), 1
    ).carry_out()
    assert measured["a"].done == 200
    assert measured["b"].done == 800


def test_a_reserve_over_the_fleet_holds_over_workers_that_keep_none_themselves() -> None:
    urgent = Stream(Lane("a", priority=100, reserve=3), Fixed(0.02), Arrivals.at(10, "even"))
    batch = Stream(Lane("b", priority=1), Fixed(1.0), None, ENDLESS)
    outcome = simulate(Scenario((urgent, batch), (Workers(2, 5),), seconds=20, warm_up=2), [1, 2])
    assert outcome.lane("a").wait_max_ms.high == 0
    assert outcome.lane("b").busy.median == 7


def test_the_same_seed_gives_the_same_jobs_to_every_arrangement() -> None:
    scenario = one_lane(Uniform(0.1, 0.3), Arrivals.at(30), slots=3)
    first, again = simulate(scenario, [7]), simulate(scenario, [7])
    assert first == again
    other = simulate(one_lane(Uniform(0.1, 0.3), Arrivals.at(30), slots=9), [7])
    assert other.lane("a").arrived == first.lane("a").arrived
    assert simulate(scenario, [8]) != first


@pytest.mark.parametrize(
    ("kind", "spread", "expected"),
    [("even", 1, 0), ("poisson", 1, 1), ("bursts", 8, 8), ("gamma", 4.0, 4), ("gamma", 0.25, 0.25)],
)
def test_arrivals_have_the_rate_and_the_dispersion_that_they_say(
    kind: Any, spread: float, expected: float
) -> None:
    import random

    arrivals = Arrivals(((0.0, 20.0), (1_000.0, 50.0)), kind, spread)
    times = itertools.takewhile(lambda us: us < 3_000e6, arrivals.times_us(random.Random(1)))
    counts = [0] * 3_000
    for us in times:
        counts[int(us / 1e6)] += 1
    slow, fast = counts[:1_000], counts[1_000:]
    assert sum(slow) / 1_000 == pytest.approx(20, rel=0.05)
    assert sum(fast) / 2_000 == pytest.approx(50, rel=0.05)
    mean = sum(fast) / len(fast)
    variance = sum((n - mean) ** 2 for n in fast) / len(fast)
    # In windows of a second a renewal process has not quite reached its dispersion.
    assert variance / mean == pytest.approx(expected, rel=0.2, abs=0.05)
    assert arrivals.mean_rate(3_000) == pytest.approx(40)


def test_a_rate_that_ends_ends_the_arrivals() -> None:
    import random

    arrivals = Arrivals(((0.0, 10.0), (5.0, 0.0), (8.0, 10.0), (9.0, 0.0)), "even")
    times = list(arrivals.times_us(random.Random(1)))
    assert 58 <= len(times) <= 61
    assert not [us for us in times if 5.1e6 < us < 7.9e6]
