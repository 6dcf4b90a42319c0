"""The order of lanes and the rule of reserves, as behaviour §2 to §4 promise them."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laneq.options import DEFAULT_LANES
from laneq.order import Head, best, fleet_reserve, may_start, shortfall, usable_lanes, value

SECOND = 1_000_000
NOW = 1_790_000_000 * SECOND
LANES = {lane.name: lane for lane in DEFAULT_LANES}


def head(lane: str, waited_s: float, *, name: str | None = None) -> Head:
    options = LANES[lane]
    return Head(
        name or lane,
        options.priority,
        options.aging,
        options.aging_cap,
        NOW - round(waited_s * SECOND),
    )


def first(*heads: Head) -> str:
    found = best(heads, NOW)
    assert found is not None
    return found.lane


# --- order ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wait_s", "worth"), [(0, 10), (1, 12), (45, 100), (400, 810), (401, 810), (10**9, 810)]
)
def test_the_value_of_a_batch_job_grows_with_its_wait_up_to_the_cap(
    wait_s: float, worth: float
) -> None:
    assert value(10, 2, 800, wait_s) == worth
    assert head("batch", wait_s).value_at(NOW) == pytest.approx(worth)


def test_a_new_critical_job_goes_before_everything() -> None:
    assert first(head("urgent", 10**6), head("critical", 0), head("batch", 10**6)) == "critical"


@pytest.mark.parametrize("lane", ["normal", "batch"])
def test_urgent_beats_lower_lanes_however_long_they_waited(lane: str) -> None:
    assert first(head(lane, 10**8), head("urgent", 0)) == "urgent"


def test_a_batch_job_overtakes_fresh_normal_work_after_45_seconds() -> None:
    assert first(head("batch", 44.999), head("normal", 0)) == "normal"
    assert first(head("batch", 45.001), head("normal", 0)) == "batch"


def test_equal_values_go_to_the_higher_priority() -> None:
    flat = Head("flat", 100, 0, 0, NOW)
    aged = Head("aged", 10, 1, 90, NOW - 3_600 * SECOND)
    assert aged.value_at(NOW) == flat.value_at(NOW)
    assert first(aged, flat) == "flat"
    assert first(flat, aged) == "flat"


def test_equal_values_and_priorities_go_to_the_earlier_job() -> None:
    later, earlier = Head("later", 5, 0, 0, NOW - 1), Head("earlier", 5, 0, 0, NOW - 2)
    assert first(later, earlier) == "earlier"
    assert first(earlier, later) == "earlier"


def test_a_complete_tie_goes_to_the_lane_named_first() -> None:
    assert first(head("batch", 1, name="a"), head("batch", 1, name="b")) == "a"


def test_a_job_that_is_not_ready_for_a_microsecond_comes_second() -> None:
    assert first(Head("next", 5, 2, 800, NOW + 1), Head("now", 5, 2, 800, NOW)) == "now"


def test_no_heads_have_no_best() -> None:
    assert best([], NOW) is None


@settings(max_examples=50)
@given(
    st.lists(st.integers(0, 10**12), min_size=2, max_size=6),
    st.floats(0, 100),
    st.floats(0, 1_000),
    st.integers(0, 10**12),
)
def test_in_a_lane_the_lowest_score_has_the_highest_value_at_any_time(
    scores: list[int], aging: float, cap: float, now: int
) -> None:
    heads = [Head(str(score), 100, aging, cap, score) for score in scores]
    found = best(heads, now)
    assert found is not None
    assert found.value_at(now) == max(one.value_at(now) for one in heads)
    assert found.score_us == min(scores)


# --- admission in one worker ------------------------------------------------


def test_reserved_slots_wait_idle_for_their_lane() -> None:
    # -c 10 --reserve urgent=2: eight slots take batch, two stay free.
    reserve = {"urgent": 2}
    for running in range(10):
        expected = running < 8
        found = may_start("batch", free=10 - running, running={"batch": running}, reserve=reserve)
        assert found is expected
    assert may_start("urgent", free=2, running={"batch": 8}, reserve=reserve)
    assert may_start("urgent", free=1, running={"batch": 8, "urgent": 1}, reserve=reserve)


def test_a_spike_over_the_reserve_takes_shared_slots() -> None:
    assert may_start("urgent", free=5, running={"urgent": 5}, reserve={"urgent": 2})
    assert may_start("batch", free=5, running={"urgent": 5}, reserve={"urgent": 2})


def test_a_worker_reserved_wholly_takes_nothing_else() -> None:
    assert not may_start("batch", free=10, running={}, reserve={"urgent": 10})
    assert usable_lanes(["urgent", "batch"], free=10, running={}, reserve={"urgent": 10}) == (
        "urgent",
    )


def test_without_a_free_slot_nothing_starts() -> None:
    assert not may_start("urgent", free=0, running={}, reserve={})
    assert not may_start("urgent", free=0, running={}, reserve={"urgent": 2})
    assert usable_lanes(["urgent"], free=0, running={}, reserve={"urgent": 2}) == ()
    assert not may_start("urgent", free=-1, running={}, reserve={})


def test_a_lane_may_not_start_in_the_last_slot_that_another_is_short_of() -> None:
    assert usable_lanes(["a", "b", "c"], free=1, running={"c": 1}, reserve={"a": 1, "b": 0}) == (
        "a",
    )


def test_the_shortfall_of_a_reserve_is_what_it_runs_below_it() -> None:
    assert shortfall({"a": 1, "b": 3}, {"a": 2, "b": 2, "c": 1, "d": 0}) == {"a": 1, "c": 1}


names = st.sampled_from(["a", "b", "c", "d"])
amounts = st.dictionaries(names, st.integers(0, 4), max_size=4)


@settings(max_examples=40)
@given(st.integers(0, 12), amounts, amounts)
def test_the_rule_is_the_documented_sum(
    free: int, running: dict[str, int], reserve: dict[str, int]
) -> None:
    for lane in "abcd":
        others = sum(
            max(0, reserve.get(other, 0) - running.get(other, 0))
            for other in "abcd"
            if other != lane
        )
        expected = free > 0 and free - 1 >= others
        assert may_start(lane, free=free, running=running, reserve=reserve) is expected
        usable = usable_lanes("abcd", free=free, running=running, reserve=reserve)
        assert (lane in usable) is expected


@settings(max_examples=40)
@given(st.integers(1, 8), amounts, st.lists(st.tuples(names, st.booleans()), max_size=40))
def test_in_a_worker_a_lane_always_gets_its_reserve_at_once(
    slots: int, wanted: dict[str, int], steps: list[tuple[str, bool]]
) -> None:
    reserve: dict[str, int] = {}
    for lane, n in wanted.items():
        reserve[lane] = min(n, slots - sum(reserve.values()))
    running = dict.fromkeys("abcd", 0)
    for lane, starts in steps:
        free = slots - sum(running.values())
        if starts and may_start(lane, free=free, running=running, reserve=reserve):
            running[lane] += 1
        elif not starts and running[lane]:
            running[lane] -= 1
        free = slots - sum(running.values())
        for other in shortfall(running, reserve):
            assert may_start(other, free=free, running=running, reserve=reserve)
        if not shortfall(running, reserve) and free:
            assert usable_lanes("abcd", free=free, running=running, reserve=reserve) == tuple(
                "abcd"
            )


# --- admission over the fleet -----------------------------------------------


@pytest.mark.parametrize(
    ("reserve", "slots", "running", "granted"),
    [
        ({"urgent": 2}, 10, {}, {"urgent": 2}),
        ({"urgent": 20}, 10, {}, {"urgent": 9}),
        ({"urgent": 6, "batch": 6}, 10, {}, {"urgent": 6, "batch": 3}),
        ({"urgent": 2}, 1, {}, {"urgent": 0}),
        ({"urgent": 2}, 0, {}, {"urgent": 0}),
        ({"a": 1, "b": 1}, 3, {"c": 2}, {"a": 1, "b": 0}),
        ({"a": 2, "b": 2}, 2, {"c": 2}, {"a": 0, "b": 0}),
        ({"a": 2}, 10, {"a": 5}, {"a": 2}),
        ({}, 10, {}, {}),
    ],
)
def test_reserves_are_cut_to_what_the_fleet_can_give(
    reserve: dict[str, int], slots: int, running: dict[str, int], granted: dict[str, int]
) -> None:
    free = slots - sum(running.values())
    assert fleet_reserve(reserve, slots=slots, free=free, running=running) == granted


@settings(max_examples=50)
@given(amounts, st.integers(0, 9), amounts)
def test_the_fleet_never_stands_still_and_never_stops_a_lane_wholly(
    reserve: dict[str, int], slots: int, running: dict[str, int]
) -> None:
    free = slots - sum(running.values())
    granted = fleet_reserve(reserve, slots=slots, free=free, running=running)
    assert all(0 <= granted[lane] <= reserve[lane] for lane in reserve)
    assert sum(granted.values()) <= max(0, slots - 1)
    lacking = shortfall(running, granted)
    assert sum(lacking.values()) <= max(0, free)
    if free > 0:
        for lane in lacking:
            assert may_start(lane, free=free, running=running, reserve=granted)
        assert usable_lanes("abcd", free=free, running=running, reserve=granted)
    # With nothing running beyond its reserve, one slot is open to any lane.
    if slots > 0 and all(n <= granted.get(lane, 0) for lane, n in running.items()):
        assert all(may_start(lane, free=free, running=running, reserve=granted) for lane in "abcd")


def test_the_fleets_reserve_survives_the_loss_of_any_host() -> None:
    # Two hosts of five slots, urgent=4: one is lost with what it ran.
    granted = fleet_reserve({"urgent": 4}, slots=5, free=2, running={"batch": 3})
    assert granted == {"urgent": 2}
    assert not may_start("batch", free=2, running={"batch": 3}, reserve=granted)
    assert may_start("urgent", free=2, running={"batch": 3}, reserve=granted)


def test_small_fleets_are_checked_exhaustively() -> None:
    for slots, a, b, ra, rb, rc in product(
        range(1, 5), range(4), range(4), range(3), range(3), range(3)
    ):
        running = {"a": ra, "b": rb, "c": rc}
        free = slots - ra - rb - rc
        if free <= 0:
            continue
        granted = fleet_reserve({"a": a, "b": b}, slots=slots, free=free, running=running)
        assert usable_lanes("abc", free=free, running=running, reserve=granted)
