"""Reserves that size themselves: each term, and the decision from look to look."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laneq.errors import OptionError
from laneq.histogram import bucket_of
from laneq.sizing import (
    ReserveAim,
    ReserveDecision,
    ReserveLook,
    ReserveState,
    Runs,
    decide_reserve,
    dispersion_of,
    late_share,
    moments_of,
    safety_factor,
    servers_for_wait,
    square_root_staffing,
)

URGENT, BATCH = Runs(0.02, 0.0), Runs(0.2, 0.083)


# --- terms ------------------------------------------------------------------


@pytest.mark.parametrize(("share", "z"), [(0.5, 0.506), (0.1, 1.420), (0.01, 2.375)])
def test_the_safety_factor_solves_the_formula_of_halfin_and_whitt(share: float, z: float) -> None:
    assert safety_factor(share) == pytest.approx(z, abs=0.001)


@settings(max_examples=60)
@given(st.floats(0.01, 300), st.sampled_from([0.1, 0.01, 0.001]))
def test_for_random_arrivals_square_root_staffing_refined_is_erlangs_answer(
    load: float, chance: float
) -> None:
    assert square_root_staffing(load, chance=chance).slots == servers_for_wait(load, 1, chance)


def test_the_refinement_is_small_in_large_pools_and_matters_in_small_ones() -> None:
    small, large = square_root_staffing(0.6), square_root_staffing(1_000)
    assert small.load + small.spread == pytest.approx(2.44, abs=0.01)
    assert small.slots == 4, "the square root alone would say 3"
    assert large.refinement < 0.03 * large.spread
    assert square_root_staffing(50_000).slots == pytest.approx(50_531, abs=1)


@pytest.mark.parametrize(("dispersion", "slots"), [(0, 5), (1, 9), (4, 14), (20, 24)])
def test_arrivals_that_bunch_more_need_more(dispersion: float, slots: int) -> None:
    assert square_root_staffing(3, dispersion=dispersion).slots == slots


def counts(rng: random.Random, *, rate: float, burst: int, n: int) -> Iterator[tuple[float, float]]:
    for _ in range(n):
        jobs, at = 0, rng.expovariate(rate / burst)
        while at < 1:
            jobs += burst
            at += rng.expovariate(rate / burst)
        yield 1.0, jobs


@pytest.mark.parametrize(("burst", "expected"), [(1, 1), (5, 5), (20, 20)])
def test_dispersion_is_found_and_chance_is_not_taken_for_it(burst: int, expected: float) -> None:
    found = [
        dispersion_of(list(counts(random.Random(seed), rate=40, burst=burst, n=60)))
        for seed in range(30)
    ]
    if burst == 1:
        assert found.count(1.0) >= 29
    assert sum(found) / len(found) == pytest.approx(expected, rel=0.15)


def test_even_arrivals_have_no_dispersion_once_that_is_certain() -> None:
    assert dispersion_of([(1.0, 30.0)] * 60) == 0
    assert dispersion_of([(1.0, 30.0)] * 6) == 1
    assert dispersion_of([]) == 1
    assert dispersion_of([(1.0, 0.0)] * 60) == 1


def test_moments_of_a_histogram() -> None:
    assert moments_of({}) is None
    mean, variation = moments_of({bucket_of(20_000): 5}) or (0, 0)
    assert mean == pytest.approx(0.02, rel=0.05)
    assert variation == pytest.approx(0, abs=1e-9)
    draw = random.Random(1)
    spread: dict[int, int] = {}
    for _ in range(20_000):
        bucket = bucket_of(draw.expovariate(1 / 200_000))
        spread[bucket] = spread.get(bucket, 0) + 1
    mean, variation = moments_of(spread) or (0, 0)
    assert mean == pytest.approx(0.2, rel=0.03)
    assert variation == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize(
    ("rate", "within_s", "fewest"),
    [(30, 0.05, 1), (30, 0.02, 2), (150, 0.1, 1), (150, 0.05, 3), (150, 0.02, 5)],
)
def test_what_is_played_finds_the_smallest_reserve_that_holds(
    rate: float, within_s: float, fewest: int
) -> None:
    def late(reserve: int) -> float:
        return late_share(
            reserve, rate_per_s=rate, run=URGENT, within_s=within_s, slots=10, others=BATCH
        )

    assert late(fewest) <= 0.01 < late(fewest - 1)
    assert late(fewest) == late(fewest), "the same jobs each time"


def test_without_slots_or_with_too_much_load_all_are_late() -> None:
    assert late_share(0, rate_per_s=9, run=URGENT, within_s=1, slots=0, others=BATCH) == 1
    assert late_share(2, rate_per_s=900, run=URGENT, within_s=1, slots=10, others=BATCH) == 1


# --- the decision -----------------------------------------------------------


class Lane:
    """Looks once a second at a lane with random arrivals."""

    def __init__(self, aim: ReserveAim | None = None, *, seed: int = 1, slots: int = 10) -> None:
        self.aim = aim
        self.state = ReserveState()
        self.look = ReserveLook(100.0, 0, slots, URGENT, BATCH)
        self.rng = random.Random(seed)
        self.decisions: list[ReserveDecision] = []

    def go(self, seconds: int, *, rate: float, burst: int = 1, late: float = 0.0) -> None:
        """Go on for a while: jobs per second, jobs at once, share of the starts that are late."""
        for _, jobs in counts(self.rng, rate=rate, burst=burst, n=seconds):
            self.look = replace(
                self.look,
                at=self.look.at + 1,
                arrived=self.look.arrived + int(jobs),
                starts=self.look.starts + int(jobs),
                late=round((self.look.starts + jobs) * late),
            )
            since = self.state.observed_from
            self.state, decision = decide_reserve(self.state, self.look, self.aim)
            # What is kept between two looks survives Redis.
            stored = json.loads(json.dumps(self.state.to_json()))
            assert ReserveState.from_json(stored) == self.state
            if self.state.observed_from != since:
                self.look = replace(self.look, starts=0, late=0)
            self.decisions.append(decision)

    @property
    def changes(self) -> list[ReserveDecision]:
        return [decision for decision in self.decisions if decision.is_change]

    @property
    def value(self) -> int:
        return self.decisions[-1].value


def test_nothing_measured_is_one_slot() -> None:
    lane = Lane()
    lane.look = replace(lane.look, run=None)
    lane.go(3, rate=0.001)
    assert lane.value == 1
    assert "nothing was measured yet" in lane.decisions[-1].reason


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("rate", "slots"), [(30, 4), (150, 9)])
def test_by_default_the_reserve_is_erlangs_answer(rate: float, slots: int, seed: int) -> None:
    lane = Lane(seed=seed, slots=20)
    lane.go(90, rate=rate)
    assert lane.value == slots
    terms = lane.decisions[-1].terms
    assert terms["load"] + terms["spread"] + terms["refinement"] == pytest.approx(
        terms["wanted"], abs=1
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_steady_load_moves_nothing_once_it_is_known(seed: int) -> None:
    lane = Lane(ReserveAim(within_s=0.02), seed=seed)
    lane.go(300, rate=30)
    late = [decision for decision in lane.changes if decision.at > 100 + 130]
    assert not late, [decision.reason for decision in late]
    assert lane.value == 2


@pytest.mark.parametrize("seed", range(8))
def test_a_step_up_is_followed_within_five_looks_and_a_step_down_within_two_minutes(
    seed: int,
) -> None:
    lane = Lane(seed=seed, slots=20)
    lane.go(70, rate=30)
    assert lane.value == 4
    lane.go(5, rate=150)
    assert lane.value in {8, 9}
    lane.go(70, rate=150)
    assert lane.value == 9
    lane.go(150, rate=30)
    assert lane.value == 4
    downs = [decision.at for decision in lane.changes if decision.value < decision.before]
    assert all(b - a >= 60 for a, b in pairwise(downs))


def test_it_goes_down_at_most_once_a_minute_and_to_what_the_minute_wanted() -> None:
    lane = Lane(seed=3, slots=40)
    lane.go(30, rate=500)
    high = lane.value
    lane.go(40, rate=200)
    lane.go(300, rate=10)
    downs = [decision for decision in lane.changes if decision.value < decision.before]
    assert downs[0].before == high
    assert len(downs) >= 2
    assert all(b.at - a.at >= 60 for a, b in pairwise(downs))
    held = next(d for d in lane.decisions if d.value > d.terms["wanted"])
    assert "held at" in held.reason


@pytest.mark.parametrize("idle", [1, 2, 3])
@pytest.mark.parametrize("rate", [30, 150])
def test_a_load_that_begins_after_a_few_idle_looks_is_no_burst(idle: int, rate: float) -> None:
    wanted = []
    for seed in range(3):
        steady, late = (Lane(ReserveAim(within_s=0.05), seed=seed) for _ in range(2))
        late.go(idle, rate=1e-9)
        for lane in (steady, late):
            lane.go(90, rate=rate)
        wanted.append(late.value - steady.value)
    assert sorted(wanted)[1] <= 1


@pytest.mark.parametrize("slots", [10, 100, 1_000])
@pytest.mark.parametrize("rate", [0.001, 0.03, 1])
def test_what_is_played_for_rare_jobs_is_bounded(rate: float, slots: int) -> None:
    state = ReserveState()
    began = time.process_time()
    for second in range(5):
        look = ReserveLook(
            at=1e9 + 1_000 * second,
            arrived=int(1_000 * second * rate),
            slots=slots,
            run=Runs(20, 1),
            others=BATCH,
        )
        state, _ = decide_reserve(state, look, ReserveAim(within_s=1))
    assert time.process_time() - began < 20  # it was minutes


def test_bursts_are_seen_in_the_dispersion() -> None:
    lane = Lane(seed=2, slots=60)
    lane.go(120, rate=100, burst=10)
    inputs = lane.decisions[-1].inputs
    assert inputs["dispersion"] == pytest.approx(10, rel=0.5)
    assert lane.value >= square_root_staffing(2, dispersion=5).slots


def test_jobs_that_are_late_all_the_same_add_a_slot_and_calm_takes_it_back() -> None:
    lane = Lane(ReserveAim(within_s=0.05), seed=1)
    lane.go(60, rate=30)
    assert lane.value == 1
    lane.go(2, rate=30, late=0.3)
    assert lane.value >= 2
    trim = lane.decisions[-1].terms["trim"]
    assert trim >= 1
    assert "late all the same" in lane.decisions[-1].reason
    lane.go(300 * int(trim) + 70, rate=30)
    assert lane.decisions[-1].terms["trim"] == 0
    assert lane.value == 1


def test_the_late_jobs_of_a_step_are_not_counted_twice() -> None:
    lane = Lane(ReserveAim(within_s=0.05), seed=4)
    lane.go(60, rate=30)
    lane.go(1, rate=150, late=0.5)
    assert lane.decisions[-1].terms["trim"] == 0
    assert lane.value >= 2


@pytest.mark.parametrize(("slots", "value"), [(10, 9), (2, 1), (1, 0), (0, 0)])
def test_never_all_slots(slots: int, value: int) -> None:
    lane = Lane(slots=slots)
    lane.go(30, rate=2_000)
    assert lane.value == value
    if value:
        assert "stays open to others" in lane.decisions[-1].reason


def test_hosts_that_are_lost_take_their_reserve_with_them_at_once() -> None:
    lane = Lane(slots=20)
    lane.go(60, rate=150)
    assert lane.value == 9
    lane.look = replace(lane.look, slots=5)
    lane.go(1, rate=150)
    assert lane.value == 4


def test_counts_that_begin_anew_begin_the_measuring_anew() -> None:
    lane = Lane(slots=20)
    lane.go(30, rate=150)
    lane.look = replace(lane.look, arrived=-100)
    lane.go(1, rate=150)
    assert len(lane.state.looks) == 1
    lane.go(30, rate=150)
    assert lane.value == 9


def test_the_decision_is_data() -> None:
    lane = Lane(ReserveAim(within_s=0.05), seed=1)
    lane.go(30, rate=150)
    stored = json.loads(json.dumps(lane.decisions[-1].to_json()))
    assert set(stored) == {"value", "before", "at", "inputs", "terms", "reason"}
    assert stored["inputs"]["rate_per_s"] == pytest.approx(150, rel=0.1)
    assert stored["terms"]["freed"] < 0
    assert stored["reason"].startswith(f"{stored['inputs']['sure_per_s']:.3g}/s (")
    with pytest.raises(TypeError):
        lane.decisions[-1].inputs["rate_per_s"] = 0  # type: ignore[index]


def test_a_state_that_is_none_is_refused_and_an_empty_one_is_the_first() -> None:
    assert ReserveState.from_json({}) == ReserveState()
    for broken in ({"value": "x"}, {"looks": [1]}, {"model": 3}):
        with pytest.raises(OptionError):
            ReserveState.from_json(broken)


@pytest.mark.parametrize("wrong", [{"share": 0}, {"share": 0.9}, {"within_s": -1}])
def test_an_aim_that_cannot_be_held_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(OptionError):
        ReserveAim(**wrong)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 30), st.floats(0, 5)), max_size=40))
def test_whatever_is_seen_the_reserve_is_from_one_to_all_slots_but_one(
    steps: list[tuple[int, int, float]],
) -> None:
    state, arrived, at = ReserveState(), 0, 50.0
    lowered: float | None = None
    for jobs, slots, seconds in steps:
        arrived, at = arrived + jobs, at + seconds
        look = ReserveLook(at, arrived, slots, URGENT, BATCH)
        state, decision = decide_reserve(state, look)
        assert min(1, max(slots - 1, 0)) <= decision.value <= max(slots - 1, 0)
        if decision.value < decision.before and decision.before <= slots - 1:
            assert lowered is None or at - lowered >= 60
            lowered = at
