"""Slots from rate and run time: the rule of thumb, and Erlang's formula against its definition."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laneq.errors import OptionError
from laneq.sizing import erlang_c, offered_load, reserve_for, servers_for_wait


@pytest.mark.parametrize(
    ("rate", "run_s", "slots"),
    [(30, 0.02, 1), (150, 0.02, 5), (0, 5, 1), (1, 0, 1), (100, 0.1, 15), (10, 0.2, 3)],
)
def test_the_reserve_is_rate_times_run_times_headroom(
    rate: float, run_s: float, slots: int
) -> None:
    assert reserve_for(rate, run_s) == slots


def test_the_headroom_can_be_chosen() -> None:
    assert reserve_for(150, 0.02, 1) == 3
    assert reserve_for(150, 0.02, headroom=2) == 6


@settings(max_examples=60)
@given(st.integers(1, 10_000), st.integers(1, 1_000))
def test_a_whole_number_of_slots_is_never_rounded_up_by_fuzz(slots: int, per_mille: int) -> None:
    run_s = per_mille / 1_000
    assert reserve_for(slots / run_s, run_s, 1) == slots


def by_definition(servers: int, load: Fraction) -> Fraction:
    """Erlang C as it is written in textbooks, in exact arithmetic."""
    last = load**servers / math.factorial(servers) * servers / (servers - load)
    return last / (sum(load**k / math.factorial(k) for k in range(servers)) + last)


@pytest.mark.parametrize("servers", [1, 2, 3, 10, 40])
@pytest.mark.parametrize("share", [Fraction(1, 100), Fraction(1, 2), Fraction(9, 10)])
def test_erlang_c_agrees_with_its_definition(servers: int, share: Fraction) -> None:
    load = servers * share
    exact = float(by_definition(servers, load))
    assert erlang_c(servers, float(load)) == pytest.approx(exact, rel=1e-9)


def test_one_server_waits_as_often_as_it_is_busy() -> None:
    assert erlang_c(1, 0.3) == pytest.approx(0.3)


@pytest.mark.parametrize(("servers", "load"), [(0, 0), (1, 1), (3, 3), (3, 5), (0, 2)])
def test_at_or_over_capacity_everybody_waits(servers: int, load: float) -> None:
    assert erlang_c(servers, load) == 1


def test_without_load_nobody_waits() -> None:
    assert erlang_c(1, 0) == 0
    assert erlang_c(10_000_000, 0.001) == 0


def test_large_pools_are_worked_out_without_overflow() -> None:
    chance = erlang_c(10_000, 9_900)
    assert 0.1 < chance < 0.4
    assert erlang_c(10_000, 5_000) == pytest.approx(0, abs=1e-12)
    assert 9_900 < servers_for_wait(9_900, 1) < 10_200


@settings(max_examples=40)
@given(st.integers(1, 200), st.floats(0.01, 0.99))
def test_another_server_always_helps(servers: int, share: float) -> None:
    load = servers * share
    assert 0 <= erlang_c(servers + 1, load) < erlang_c(servers, load) <= 1


@pytest.mark.parametrize("chance", [0.5, 0.1, 0.01, 0.001])
@pytest.mark.parametrize(("rate", "run_s"), [(30, 0.02), (150, 0.02), (50, 0.2), (1_000, 0.1)])
def test_the_fewest_servers_for_a_wait_are_found(rate: float, run_s: float, chance: float) -> None:
    servers = servers_for_wait(rate, run_s, chance)
    load = rate * run_s
    assert erlang_c(servers, load) <= chance
    assert erlang_c(servers - 1, load) > chance


def test_random_arrivals_need_more_than_the_rule_of_thumb() -> None:
    assert servers_for_wait(30, 0.02) == 4
    assert servers_for_wait(150, 0.02) == 9
    assert servers_for_wait(0, 1) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: reserve_for(-1, 1),
        lambda: reserve_for(1, math.nan),
        lambda: reserve_for(1, 1, -1),
        lambda: reserve_for(1e9, 1e9),
        lambda: offered_load(math.inf, 1),
        lambda: erlang_c(-1, 1),
        lambda: erlang_c(1, math.nan),
        lambda: servers_for_wait(1, 1, 0),
        lambda: servers_for_wait(1, 1, 1),
        lambda: servers_for_wait(1, 1, math.nan),
    ],
)
def test_impossible_numbers_are_refused(call: object) -> None:
    assert callable(call)
    with pytest.raises(OptionError, match="must be between"):
        call()
