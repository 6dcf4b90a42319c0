"""How many slots a pool has: the rule, by table."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from laneq.elastic import (
    BAND,
    HOLD_S,
    REST_LOAD,
    STEP_DOWN_S,
    Fleet,
    LaneLoad,
    Pool,
    Rate,
    averaging_s,
    desired_slots,
    limit_of,
    need_of,
    share_of,
    slots_for_objective,
)
from laneq.sizing import erlang_c


def load(name: str = "urgent", **given: object) -> LaneLoad:
    idle = LaneLoad(
        name,
        priority=1000,
        slo_s=0.5,
        waiting=0,
        head_age_s=0.0,
        arrivals_per_s=0.0,
        run_s=0.1,
        fleet=Fleet(10, 0, 2, 32),
    )
    return replace(idle, **given)  # type: ignore[arg-type]


# --- slots for an objective ---------------------------------------------------------------


@pytest.mark.parametrize("erlangs", [0.1, 0.5, 1, 3, 20, 25.6, 300])
@pytest.mark.parametrize(("run_s", "slo_s"), [(0.1, 0.5), (1, 0.5), (10, 0.5), (1, 3600)])
def test_slots_for_an_objective_are_the_fewest_that_hold_it(erlangs, run_s, slo_s):
    def misses(slots: int) -> float:
        wait = erlang_c(slots, erlangs)
        return 1.0 if slots <= erlangs else wait * math.exp(-(slots - erlangs) * slo_s / run_s)

    slots = slots_for_objective(erlangs, run_s, slo_s)
    assert misses(slots) <= 0.01 < misses(slots - 1)


def test_no_load_needs_no_slot():
    assert slots_for_objective(0, 0.1, 0.5) == 0


def test_a_large_load_is_worked_out_at_once_and_goes_on_from_where_the_sums_end():
    below, above = slots_for_objective(2_000, 0.1, 0.05), slots_for_objective(2_001, 0.1, 0.05)
    assert 2_000 < below <= above < 2_200
    assert slots_for_objective(1e6, 0.1, 0.5) == pytest.approx(1e6, rel=0.01)


# --- needs --------------------------------------------------------------------------------


def test_a_wait_that_would_miss_the_objective_is_drained_within_it_beside_what_arrives():
    need = need_of(load(waiting=180, arrivals_per_s=10, recent_per_s=200, head_age_s=0.0), ())
    assert need.is_missed
    assert need.slots == 200 * 0.1 + 180 * 0.1 / 0.5
    assert need.reason == (
        "lane urgent: 180 waiting × 0.1 s / 10 slots is a wait of 1.8 s, its objective 0.5 s"
    )
    assert need.inputs["predicted_wait_s"] == 1.8


def test_a_wait_within_the_objective_wants_nothing_more():
    calm = load(waiting=20, arrivals_per_s=50)
    assert need_of(calm, ()).slots == need_of(replace(calm, waiting=0), ()).slots


def test_a_load_near_the_limit_misses_although_nothing_waits_yet():
    need = need_of(load(arrivals_per_s=99), ())
    assert need.is_missed
    assert need.slots == slots_for_objective(9.9 / REST_LOAD, 0.1, 0.5)
    assert "99/s × 0.1 s keep 9.9 slots busy" in need.reason


def test_between_growing_and_resting_there_is_a_band():
    steady = load(arrivals_per_s=80)
    need = need_of(steady, ())
    assert not need.is_missed
    assert need.slots > steady.fleet.slots


@pytest.mark.parametrize(
    ("slo_s", "age_s", "is_late"),
    [(0.5, 0.2, False), (0.5, 0.25, True), (10, 8.9, False), (10, 9, True)],
)
def test_a_head_is_late_when_it_would_be_by_the_next_look(slo_s, age_s, is_late):
    head = load(waiting=1, head_age_s=age_s, slo_s=slo_s)
    assert need_of(head, ()).is_late is is_late
    assert not need_of(head, (), heeds_age=False).is_late


def test_a_late_head_adds_slots_to_those_that_did_not_help():
    # Five jobs of 0.1 s: one slot more works them off within the objective.
    need = need_of(load(waiting=5, head_age_s=0.6), ())
    assert need.slots == 11
    assert need.reason == (
        "lane urgent: its first of 5 waiting has waited 0.6 s, its objective 0.5 s"
    )


def test_without_a_known_run_time_a_late_head_doubles_the_slots_but_gives_no_job_two():
    assert need_of(load(waiting=50, head_age_s=1, run_s=None), ()).slots == 20
    assert need_of(load(waiting=3, head_age_s=1, run_s=None), ()).slots == 13


def test_work_of_higher_lanes_goes_first_and_that_of_lower_ones_does_not_count():
    urgent = load()
    higher = load("critical", priority=10_000, slo_s=None, waiting=100, arrivals_per_s=20)
    lower = load("batch", priority=10, slo_s=None, waiting=10_000, arrivals_per_s=500)
    assert need_of(urgent, (lower,)).slots == 0
    assert not need_of(urgent, (lower,)).is_missed
    assert need_of(replace(urgent, waiting=1), (higher, lower)).inputs["waiting"] == 101
    assert need_of(urgent, (higher,)).slots == slots_for_objective(2 / REST_LOAD, 0.1, 0.5)


def test_slots_that_reserves_keep_idle_for_others_come_on_top():
    urgent = load(arrivals_per_s=20)
    alone = need_of(urgent, ()).slots
    lower = load("batch", priority=10, slo_s=None, reserve=3, arrivals_per_s=10)
    assert need_of(urgent, (lower,)).slots == alone + 3
    by_workers = replace(lower, reserve=0, kept=4)
    assert need_of(urgent, (by_workers,)).slots == alone + 4
    # One of the four slots kept for the higher lane is busy with it: that load goes first.
    higher = load("critical", priority=10_000, slo_s=None, reserve=4, arrivals_per_s=10)
    without = need_of(urgent, (replace(higher, reserve=0),)).slots
    assert need_of(urgent, (higher,)).slots == without + 3


def test_slots_that_a_lanes_own_limits_leave_unused_are_not_wanted():
    lane = load(waiting=500, head_age_s=9, arrivals_per_s=100, limit=4)
    need = need_of(lane, ())
    assert (need.slots, need.is_missed) == (4, False)
    few = replace(lane, fleet=Fleet(2, 0, 2, 32))
    assert (need_of(few, ()).slots, need_of(few, ()).is_missed) == (4, True)


def test_work_of_a_higher_lane_that_its_own_limits_hold_back_is_not_ahead():
    urgent = load(waiting=1)
    higher = load("critical", priority=10_000, slo_s=None, waiting=1_000, arrivals_per_s=1_000)
    assert need_of(urgent, (higher,)).slots > 100
    assert need_of(urgent, (replace(higher, limit=2),)).slots <= 6


def test_a_lanes_limit_is_the_tighter_of_running_and_rate():
    assert limit_of(max_running=5, starts_per_s=None, run_s=None) == 5
    assert limit_of(max_running=5, starts_per_s=30, run_s=0.1) == 3
    assert limit_of(max_running=None, starts_per_s=30, run_s=None) is None
    assert limit_of(max_running=None, starts_per_s=None, run_s=1.0) is None


# --- shares -------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [0, 9, 10, 11, 17, 23, 50, 64, 70, 200])
@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_the_shares_of_equal_workers_add_up(wanted, workers):
    fleet = Fleet(0, fixed=5, least=2 * workers, most=32 * workers)
    parts = [
        share_of(wanted, fleet, least=2, most=32, place=(rank + 0.5) / workers)
        for rank in range(workers)
    ]
    assert sum(parts) == min(max(wanted - 5, 2 * workers), 32 * workers)
    assert max(parts) - min(parts) <= 1


def test_the_shares_of_unequal_workers_follow_what_each_can_grow():
    fleet = Fleet(0, least=3, most=43)
    small = share_of(23, fleet, least=2, most=12, place=0.25)
    large = share_of(23, fleet, least=1, most=31, place=0.75)
    assert (small, large) == (7, 16)


# --- decisions ----------------------------------------------------------------------------


def test_a_step_says_value_inputs_and_reason():
    pool = Pool(2, 32)
    lane = load(waiting=180, recent_per_s=200, fleet=Fleet(2, 0, 2, 32))
    step = pool.decide(0.0, 2, [lane])
    assert (step.before, step.value, step.wanted, step.lane) == (2, 32, 56, "urgent")
    assert step.is_step
    assert step.reason.startswith("lane urgent: 180 waiting × 0.1 s / 2 slots")
    assert step.inputs["slots"] == 2


def test_a_worker_takes_its_share_of_what_is_missing_not_all_of_it():
    lane = load(waiting=60, recent_per_s=40, fleet=Fleet(4, 0, 4, 64))
    wanted = 4 + 60 * 0.1 / 0.5
    values = [Pool(2, 32).decide(0.0, 2, [lane], place=place).value for place in (0.25, 0.75)]
    assert sum(values) == wanted


def test_what_workers_of_fixed_size_give_is_not_asked_for_again():
    lane = load(waiting=0, arrivals_per_s=100, fleet=Fleet(42, 40, 2, 32))
    assert not Pool(2, 32).decide(0.0, 2, [lane]).is_step


def test_the_share_tells_a_supervisor_of_more_and_of_less_than_its_workers_can_have():
    crowd = load(waiting=600, recent_per_s=0, fleet=Fleet(26, 10, 16, 16))
    wanted = 600 * 0.1 / 0.5
    assert Pool(8, 8).decide(0.0, 8, [crowd]).share == (wanted - 10) / 2
    calm = load(arrivals_per_s=10, fleet=Fleet(16, 0, 16, 16))
    assert Pool(8, 8).decide(0.0, 8, [calm]).share == need_of(calm, ()).slots / 2


def test_without_an_objective_nothing_changes():
    decision = Pool(2, 32).decide(0.0, 7, [load(slo_s=None, waiting=10_000, head_age_s=99)])
    assert (decision.value, decision.lane) == (7, None)


def test_a_pool_never_goes_below_what_the_fleets_reserves_need():
    lane = load("batch", priority=10, slo_s=None, reserve=5, fleet=Fleet(20, 0, 2, 32))
    pool, slots = Pool(2, 32), 20
    for look in range(200):
        slots = pool.decide(float(look), slots, [replace(lane, fleet=Fleet(slots, 0, 2, 32)), load(
            fleet=Fleet(slots, 0, 2, 32))]).value  # fmt: skip
    assert slots == 6
    step = Pool(2, 32).decide(0.0, 2, [replace(lane, fleet=Fleet(2, 0, 2, 32)), load()])
    assert step.value == 6
    assert "reserves (batch=5) need 6 slots" in step.reason


def test_steps_down_keep_their_distance_and_take_a_third_of_the_surplus():
    pool, slots, steps = Pool(2, 32), 32, []
    for look in range(200):
        step = pool.decide(float(look), slots, [load(fleet=Fleet(slots, 0, 2, 32))])
        if step.is_step:
            steps.append((look, step.value))
        slots = step.value
    assert [value for _, value in steps] == [22, 15, 10, 7, 5, 4, 3, 2]
    assert {after - before for (before, _), (after, _) in pairwise(steps)} == {STEP_DOWN_S}


def test_what_was_wanted_within_the_hold_is_kept():
    pool, lane = Pool(2, 32), load(fleet=Fleet(20, 0, 2, 32))
    pool.decide(0.0, 20, [replace(lane, arrivals_per_s=140)])
    kept = [pool.decide(float(now), 20, [lane]).value for now in range(1, int(HOLD_S) + 1)]
    assert set(kept) == {20}
    assert pool.decide(HOLD_S + 1, 20, [lane]).value < 20


def test_a_late_head_counts_again_only_when_the_last_step_had_its_time():
    pool, lane = Pool(1, 100), load(waiting=5, head_age_s=3, slo_s=3, fleet=Fleet(10, 0, 1, 100))
    assert pool.decide(0.0, 10, [lane]).value == 11
    again = replace(lane, fleet=Fleet(11, 0, 1, 100))
    assert pool.decide(1.0, 11, [again]).value == 11
    assert pool.decide(3.0, 11, [again]).value == 12


def test_the_desired_slots_of_a_namespace_are_those_of_the_lane_that_wants_most():
    urgent = load(arrivals_per_s=100)
    batch = load("batch", priority=10, slo_s=None, arrivals_per_s=3, run_s=2.0)
    found = desired_slots([urgent, batch])
    assert found.lane is None
    assert found.value == 16  # 10 + 6: no lane falls behind for ever
    assert desired_slots([urgent]).value == need_of(urgent, ()).slots
    assert desired_slots([urgent]).lane == "urgent"
    assert desired_slots([]).value == 1
    assert desired_slots([replace(batch, reserve=20)]).value == 21


# --- rates --------------------------------------------------------------------------------


def test_a_rate_knows_the_latest_and_the_average():
    rate = Rate()
    rate.note(100.0, 1_000, over_s=5)
    assert (rate.average, rate.latest) == (0.0, None)
    for second in range(1, 60):
        rate.note(100.0 + second, 1_000 + 40 * second, over_s=5)
    assert rate.latest == 40
    assert rate.average == pytest.approx(40, rel=0.001)
    rate.note(160.0, 0, over_s=5)
    assert rate.latest == 0


def test_arrivals_are_averaged_over_the_objective_and_several_runs():
    assert averaging_s(0.5, 0.1) == 5
    assert averaging_s(60, None) == 60
    assert averaging_s(0.5, 20) == 100
    assert averaging_s(3600, 1) == 600


def test_a_surplus_within_the_band_is_left_alone():
    lane = load(arrivals_per_s=250, fleet=Fleet(40, 0, 2, 64))
    need = need_of(lane, ()).slots
    just_over = math.floor(need / (1 - BAND))
    decision = Pool(2, 64).decide(0.0, just_over, [replace(lane, fleet=Fleet(just_over, 0, 2, 64))])
    assert not decision.is_step
