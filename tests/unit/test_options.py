"""Options are checked when made, name what is wrong, and lose nothing on the way to Redis."""

from __future__ import annotations

import json
import math
import pickle
import random
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from laneq.errors import OptionError, UsageError
from laneq.options import (
    BACKOFF_NUMBERS,
    DEFAULT_LANES,
    TARGET_VALUE,
    WIRE_NAMES,
    CallOptions,
    Lane,
    Retry,
    TaskOptions,
    WorkerOptions,
    instant_us,
    seconds_from_text,
)
from laneq.order import Head, best
from laneq.order import value as value_of

NAN = float("nan")
INF = float("inf")


def refuses(option: str, value: object, make: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(OptionError, match=rf"^{option}: ") as caught:
        make({option: value})
    assert caught.value.option == option
    assert isinstance(caught.value, UsageError)
    assert isinstance(caught.value, ValueError)


# --- lanes ------------------------------------------------------------------


def test_the_default_lanes_are_the_documented_ones() -> None:
    found = {lane.name: lane.priority for lane in DEFAULT_LANES}
    assert found == {"critical": 10_000, "urgent": 1_000, "normal": 100, "batch": 10}
    assert {(lane.aging, lane.aging_cap) for lane in DEFAULT_LANES} == {(2.0, 800.0)}
    assert {lane.lease_us for lane in DEFAULT_LANES} == {15_000_000}


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("name", ["", "a b", "a/b", "é", "a" * 65, 3, None, "a\n"]),
        ("priority", [True, "3", NAN, INF, 1e6 + 1, -1e6 - 1, None]),
        ("aging", [-1, True, NAN, None]),
        ("aging_cap", [-1, INF]),
        ("reserve", [-1, 1.5, True, "3", None, 100_001]),
        ("slo", [0, -1, True, NAN, INF, "1", timedelta(0), 1e10]),
        ("target", [0, "1", "soon", "30w", True, 1e6]),
        ("max_depth", [0, -1, 1.5, True, "9"]),
        ("max_running", [0, True]),
        ("rate", [100, "100", "0/s", "1/0s", "1/x", "-1/s", True]),
        ("fair_by", ["", "a b", 1, True]),
        ("lease", [0.5, 0, -1, True, NAN, INF, None, 86_401]),
        ("dead_max", [-1, True, 1.5]),
        ("dead_age", [0, -1, NAN]),
        ("paused", [1, 0, "yes", None]),
    ],
)
def test_a_lane_refuses_a_wrong_value_and_names_the_option(option: str, values: list[Any]) -> None:
    for value in values:
        refuses(option, value, lambda given: Lane(**({"name": "x"} | given)))


@pytest.mark.parametrize("lease", [1, 1.0, timedelta(seconds=1)])
def test_times_are_seconds_or_timedelta(lease: Any) -> None:
    assert Lane("x", lease=lease) == Lane("x", lease=1.0)
    assert Lane("x", lease=lease).lease_us == 1_000_000


def test_times_reach_the_wire_as_exact_microseconds() -> None:
    lane = Lane("x", slo=timedelta(microseconds=250_001), dead_age=timedelta(days=3_650))
    assert lane.slo_us == 250_001
    assert lane.dead_age_us == 3_650 * 86_400 * 10**6
    assert lane.target_us is None


@pytest.mark.parametrize("rate", ["100/s", "5/10m", "1/0.5s", "30/250ms", "1/d"])
def test_a_rate_is_starts_per_period(rate: str) -> None:
    assert Lane("x", rate=rate).rate == rate


def full_lane() -> Lane:
    return Lane(
        "x.Y_z-9",
        priority=-2.5,
        aging=0,
        aging_cap=0,
        may_starve=True,
        reserve="auto",
        slo=0.25,
        max_depth=10,
        max_running=3,
        rate="100/s",
        fair_by="tenant",
        lease=2,
        dead_max=None,
        dead_age=None,
        paused=True,
    )


# --- a target says a priority -----------------------------------------------


@pytest.mark.parametrize("target", [30, 30.0, "30s", timedelta(seconds=30), "0.5m"])
def test_a_job_that_waited_its_target_is_worth_a_new_urgent_one(target: Any) -> None:
    lane = Lane("reports", target=target)
    assert lane.target == 30
    assert lane.priority == 940
    assert value_of(lane.priority, lane.aging, lane.aging_cap, 30) == TARGET_VALUE
    assert {one.name: one.priority for one in DEFAULT_LANES}["urgent"] == TARGET_VALUE


@given(st.floats(1e-3, 1e4), st.floats(1e-3, 50))
def test_a_target_lane_gains_800_points_after_its_target(target: float, aging: float) -> None:
    lane = Lane("x", target=target, aging=aging)
    assert value_of(lane.priority, aging, lane.aging_cap, target) == pytest.approx(1_000)
    assert value_of(lane.priority, aging, lane.aging_cap, 1e9) == pytest.approx(1_800)
    assert Lane.from_wire(json.loads(json.dumps(lane.to_wire()))).to_wire() == lane.to_wire()


@given(st.floats(0.1, 1e4), st.floats(0.1, 1e4), st.floats(0, 300), st.floats(0, 300))
def test_among_targets_the_job_whose_target_passes_first_goes_first(
    target_a: float, target_b: float, waited_a: float, waited_b: float
) -> None:
    a, b = Lane("a", target=target_a), Lane("b", target=target_b)
    left_a, left_b = target_a - waited_a, target_b - waited_b
    assume(abs(left_a - left_b) > 1e-5)
    heads = [
        Head(lane.name, lane.priority, lane.aging, lane.aging_cap, 10**12 - round(waited * 1e6))
        for lane, waited in ((a, waited_a), (b, waited_b))
    ]
    first = best(heads, 10**12)
    assert first is not None
    assert first.lane == ("a" if left_a < left_b else "b")


def test_a_target_and_another_priority_are_refused_together() -> None:
    with pytest.raises(OptionError, match=r"^priority: cannot be 500 with target=30, which stands"):
        Lane("x", target=30, priority=500)
    with pytest.raises(OptionError, match=r"^priority: "):
        Lane("x", target=30, priority=100.0)  # said, although it is the default
    assert Lane("x", target=30, priority=940) == Lane("x", target=30)


def test_a_target_needs_aging_and_room_under_the_cap() -> None:
    with pytest.raises(OptionError, match=r"^target: needs aging above 0"):
        Lane("x", target=30, aging=0)
    with pytest.raises(OptionError, match=r"^aging_cap: must be at least aging × target = 60"):
        Lane("x", target=30, aging_cap=59)
    assert Lane("x", target=30, aging_cap=60).aging_cap == 60
    with pytest.raises(OptionError, match=r"^target: of 700000 s is a priority of"):
        Lane("x", target=700_000)
    assert Lane("x", target=700_000, aging=1).priority == -699_000


def test_a_change_of_target_or_aging_moves_the_priority_and_a_priority_ends_the_target() -> None:
    lane = Lane("x", target="30s")
    assert lane.changed(aging="4") == Lane("x", target=30, aging=4)
    assert lane.changed(target="10m") == Lane("x", target=600)
    assert Lane("x", aging_cap=5).changed(target="10m") == Lane("x", target=600)
    ended = lane.changed(priority="5")
    assert (ended.target, ended.priority, ended.aging_cap) == (None, 5, 860)
    plain = lane.changed(target="none")
    assert (plain.target, plain.priority) == (None, 940)
    with pytest.raises(OptionError, match=r"^target: needs aging"):
        lane.changed(aging=0)


def test_a_cap_that_was_said_outlives_a_change_of_aging() -> None:
    lane = Lane("x", target=30, aging_cap=2_000)
    assert lane.changed(aging=4) == Lane("x", target=30, aging=4, aging_cap=2_000)


def test_a_stored_target_that_the_priority_does_not_follow_is_dropped() -> None:
    wire = Lane("x", target=30).to_wire()
    assert Lane.from_wire(wire | {"priority": 7}).target is None
    assert Lane.from_wire(wire | {"aging": 0}).target is None
    assert Lane.from_wire(wire | {"aging_cap": 1}).target is None
    assert Lane.from_wire(wire | {"priority": 940.000000000001}).target == 30


def test_the_wait_objective_is_the_slo_or_else_the_target() -> None:
    assert Lane("x").wait_objective is None
    assert Lane("x", target="30s").wait_objective == 30
    assert Lane("x", target="30s", slo="250ms").wait_objective == 0.25


# --- on the wire ------------------------------------------------------------


@pytest.mark.parametrize("lane", [Lane("x"), full_lane(), Lane("x", target=0.123456)])
def test_a_lane_survives_the_wire(lane: Lane) -> None:
    wire = json.loads(json.dumps(lane.to_wire()))
    assert Lane.from_wire(wire) == lane
    assert set(wire) == set(WIRE_NAMES.values())
    times = [key for key in wire if key.endswith("_us")]
    assert sorted(times) == ["dead_age_us", "lease_us", "slo_us", "target_us"]
    assert all(wire[key] is None or type(wire[key]) is int for key in times)


def test_a_stored_lane_of_another_version_is_read() -> None:
    assert Lane.from_wire({"name": "x", "colour": "red"}) == Lane("x")


@pytest.mark.parametrize("wire", [{}, {"name": "x", "lease_us": "15"}, {"name": "x", "slo_us": 0}])
def test_a_broken_stored_lane_is_refused(wire: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        Lane.from_wire(wire)


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        ("reserve", "3", 3),
        ("reserve", "auto", "auto"),
        ("priority", "1e3", 1000.0),
        ("paused", "true", True),
        ("paused", "Off", False),
        ("may_starve", "no", False),
        ("may_starve", "True", True),
        ("lease", "30", 30.0),
        ("lease", " 1m", 60.0),
        ("slo", "250ms", 0.25),
        ("slo", "none", None),
        ("dead_age", "7d", 7 * 86400.0),
        ("dead_max", "None", None),
        ("max_depth", "5", 5),
        ("rate", "10/m", "10/m"),
        ("rate", "none", None),
        ("fair_by", "tenant", "tenant"),
        ("aging", "0", 0.0),
    ],
)
def test_an_operators_text_is_read_by_the_options_kind(option: str, text: str, value: Any) -> None:
    changed = full_lane().changed(**{option: text})
    assert getattr(changed, option) == value
    assert changed == full_lane().changed(**{option: value})


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("reserve", "some"),
        ("reserve", "1.5"),
        ("reserve", "none"),
        ("priority", "high"),
        ("priority", "nan"),
        ("paused", "maybe"),
        ("may_starve", "none"),
        ("lease", "none"),
        ("lease", "0.1"),
        ("lease", "1w"),
        ("lease", "inf"),
        ("slo", "-1"),
        ("slo", "--"),
        ("max_depth", "ten"),
        ("rate", "fast"),
    ],
)
def test_an_operators_wrong_text_is_refused(option: str, text: str) -> None:
    with pytest.raises(OptionError, match=rf"^{option}: "):
        Lane("x").changed(**{option: text})


def test_an_unknown_lane_option_suggests_the_nearest() -> None:
    with pytest.raises(OptionError, match="Did you mean 'reserve'"):
        Lane("x").changed(reserv="3")


def test_a_lane_cannot_be_renamed() -> None:
    with pytest.raises(OptionError, match="unknown option"):
        Lane("x").changed(name="y")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("1.5", 1.5), ("250ms", 0.25), ("5 m", 300), ("2h", 7200), ("1e2s", 100)],
)
def test_durations_are_read_as_people_type_them(text: str, seconds: float) -> None:
    assert seconds_from_text("delay", text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "nan", "inf", "1e999", "1 2", "five", "\u0661"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"^delay: "):
        seconds_from_text("delay", text)


# --- retries ----------------------------------------------------------------


class Highest:
    """Jitter that never shortens a delay."""

    def random(self) -> float:
        """Return 1, the bound that `random.Random` stays below."""
        return 1.0


@pytest.mark.parametrize(
    ("retry", "delays"),
    [
        (Retry(), [1, 2, 4, 8]),
        (Retry(base=3, cap=7), [3, 6, 7, 7]),
        (Retry(backoff="linear", base=2, cap=5), [2, 4, 5, 5]),
        (Retry(backoff="fixed", base=timedelta(seconds=2)), [2, 2, 2, 2]),
        (Retry(base=3600), [600, 600, 600, 600]),
        (Retry(schedule=[1, timedelta(hours=1), 5]), [1, 3600, 5, 5]),
        (Retry(backoff=lambda attempt: 700.0 * attempt), [700, 1400, 2100, 2800]),
        (Retry(backoff=lambda _: timedelta(minutes=1)), [60, 60, 60, 60]),
        (Retry(base=0), [0, 0, 0, 0]),
    ],
)
def test_backoffs_follow_their_kind(retry: Retry, delays: list[float]) -> None:
    assert [retry.delay_s(attempt, Highest()) for attempt in range(1, 5)] == [
        (delay, None) for delay in delays
    ]


@pytest.mark.parametrize("backoff", ["exponential", "linear", "fixed"])
@pytest.mark.parametrize("base", [0.000001, 0.001, 3600.0, 1e9])
def test_fault_g3_no_attempt_overflows_the_delay(backoff: Any, base: float) -> None:
    retry = Retry(5_000, backoff=backoff, base=base, cap=1e9)
    rng = random.Random(7)
    for attempt in (1, 2, 31, 63, 64, 65, 1_023, 1_024, 1_100, 5_000, 10**9):
        longest, _ = retry.delay_s(attempt, Highest())
        delay, problem = retry.delay_s(attempt, rng)
        assert 0 <= delay <= longest <= 1e9
        assert problem is None
    if backoff == "exponential":
        assert retry.delay_s(5_000, Highest()) == (1e9, None)


def raises(_attempt: int) -> float:
    raise RuntimeError("no backoff today")


class Unprintable(Exception):
    """An error whose text raises."""

    def __str__(self) -> str:
        """Raise."""
        raise ValueError("no text")


def ends_the_program(_: int) -> float:
    """Raise what no ``except Exception`` catches."""
    raise KeyboardInterrupt


def raises_unprintable(_attempt: int) -> float:
    raise Unprintable


@pytest.mark.parametrize(
    "function",
    [
        raises,
        raises_unprintable,
        lambda _: NAN,
        lambda _: INF,
        lambda _: -1,
        lambda _: "x",
        lambda _: None,
        lambda _: True,
        lambda: 1.0,
        sys.exit,
        ends_the_program,
    ],
)
def test_fault_g3_a_broken_backoff_function_gives_the_default_delay_and_says_so(
    function: Any,
) -> None:
    delay, problem = Retry(9, backoff=function).delay_s(3, Highest())
    assert delay == 4
    assert problem is not None
    assert problem.startswith("backoff function failed after attempt 3")


def test_a_coroutine_function_is_no_backoff() -> None:
    async def later(attempt: int) -> float:
        return attempt

    with pytest.raises(OptionError, match=r"^backoff: must be a plain function"):
        Retry(backoff=later)  # type: ignore[arg-type]


def test_jitter_draws_evenly_from_zero_to_the_backoff() -> None:
    rng = random.Random(1)
    delays = [Retry(base=8).delay_s(1, rng)[0] for _ in range(1_000)]
    assert 0 <= min(delays) < 0.5
    assert 7.5 < max(delays) <= 8
    assert Retry(base=8, jitter=False).delay_s(1, rng) == (8, None)


def test_a_job_may_retry_until_its_attempts_are_spent() -> None:
    retry = Retry(max_attempts=3)
    assert [retry.may_retry(ValueError(), attempt) for attempt in (1, 2, 3, 4)] == [
        True,
        True,
        False,
        False,
    ]
    assert not Retry(1).may_retry(ValueError(), 1)
    assert retry.may_retry(None, 2)
    assert not retry.may_retry(None, 3)


def test_retry_on_and_never_on_choose_by_exception() -> None:
    retry = Retry(retry_on=(OSError, KeyError), never_on=FileNotFoundError)
    assert retry.may_retry(ConnectionError(), 1)
    assert retry.may_retry(KeyError(), 1)
    assert not retry.may_retry(FileNotFoundError(), 1)
    assert not retry.may_retry(ValueError(), 1)
    assert not Retry().may_retry(SystemExit(3), 1)


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("max_attempts", [0, -1, 1.5, True, "3", None]),
        ("backoff", ["expo", None, 3]),
        ("base", [-1, NAN, INF, True, "1", None]),
        ("cap", [-1, NAN, INF, True]),
        ("jitter", [1, None, 0.5]),
        ("schedule", [[], "12", [1, -1], [True], 3, [NAN]]),
        ("retry_on", ["ValueError", ValueError(), [int], None]),
        ("never_on", [3, [None]]),
    ],
)
def test_a_retry_refuses_a_wrong_value_and_names_the_option(option: str, values: list[Any]) -> None:
    for value in values:
        refuses(option, value, lambda given: Retry(**given))


def test_a_schedule_stands_in_place_of_a_backoff() -> None:
    with pytest.raises(OptionError, match="together"):
        Retry(schedule=[1], backoff="fixed")


def test_what_a_record_says_of_retries_takes_the_place_of_the_tasks() -> None:
    found = Retry().with_record(max_attempts=7, base_us=1, cap_us=10**15, backoff=1, jitter=0)
    assert found == Retry(7, backoff="linear", base=0.000001, cap=1e9, jitter=False)
    for backoff, number in BACKOFF_NUMBERS.items():
        assert Retry().with_record(backoff=number).backoff == backoff


def test_a_record_overrides_only_what_it_names() -> None:
    declared = Retry(9, schedule=[1, 2], retry_on=OSError)
    assert declared.with_record() == declared
    assert declared.with_record(max_attempts=2) == Retry(2, schedule=[1, 2], retry_on=OSError)
    assert declared.with_record(backoff=0) == Retry(9, backoff="fixed", retry_on=OSError)
    assert declared.with_record(backoff=99).backoff == "exponential"


# --- tasks and calls --------------------------------------------------------


def test_a_task_has_the_documented_defaults() -> None:
    options = TaskOptions()
    assert options.result_ttl_us == 300_000_000
    assert options.retry == Retry(3)
    assert options.timeout_us is None
    assert options.expires_us is None
    assert options.boost_us == 0
    assert options.executor is None


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("name", ["", "a b", "a\tb", "a\nb", "x" * 201, 3, "\ud800"]),
        ("lane", ["", "a b", 3]),
        ("boost", [-1, 1e7 + 1, NAN, True, "1"]),
        ("timeout", [0, -1, NAN, INF, True, "1", timedelta(0)]),
        ("retry", [3, None, "3", True]),
        ("expires", [0, -1, NAN, "1", datetime(2030, 1, 1)]),  # noqa: DTZ001
        ("result_ttl", [-1, NAN, None, True]),
        ("executor", ["threads", "", 3]),
    ],
)
def test_a_task_refuses_a_wrong_value_and_names_the_option(option: str, values: list[Any]) -> None:
    for value in values:
        refuses(option, value, TaskOptions.of)
        refuses(option, value, lambda given: TaskOptions().using(**given))


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("delay", [-1, NAN, INF, True, "1", None, timedelta(seconds=-1)]),
        ("at", [datetime(2030, 1, 1), 3, "now"]),  # noqa: DTZ001
        ("at", [datetime(1969, 1, 1, tzinfo=UTC), datetime(2300, 1, 1, tzinfo=UTC)]),
    ],
)
def test_a_call_refuses_a_wrong_time_and_names_the_option(option: str, values: list[Any]) -> None:
    for value in values:
        refuses(option, value, lambda given: TaskOptions().using(**given))


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    with pytest.raises(OptionError, match=r"^tiemout: unknown option.*Did you mean 'timeout'"):
        TaskOptions.of({"tiemout": 3})
    with pytest.raises(OptionError, match=r"^dely: unknown option.*Did you mean 'delay'"):
        TaskOptions().using(dely=3)


@pytest.mark.parametrize("option", ["delay", "at"])
def test_when_to_start_is_an_option_of_calls_alone(option: str) -> None:
    with pytest.raises(OptionError, match="unknown option"):
        TaskOptions.of({option: 3})


def test_a_call_keeps_its_tasks_options_and_changes_what_it_names() -> None:
    task = TaskOptions(lane="urgent", timeout=5, retry=Retry(5))
    call = task.using(lane="batch", delay=timedelta(seconds=30))
    assert call == CallOptions(lane="batch", timeout=5.0, retry=Retry(5), delay=30.0)
    assert call.delay_us == 30_000_000
    assert call.at_us is None


def test_the_later_of_delay_and_at_counts() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    assert TaskOptions().using(delay=3).using(at=at) == CallOptions(at=at)
    assert TaskOptions().using(at=at).using(delay=3) == CallOptions(delay=3)
    assert TaskOptions().using(at=at).using(lane="x") == CallOptions(at=at, lane="x")
    with pytest.raises(OptionError, match=r"^at: cannot be given together with delay"):
        TaskOptions().using(delay=3, at=at)


def test_one_instant_in_three_zones_is_the_same_microsecond() -> None:
    at = datetime(2030, 6, 1, 12, 0, 0, 1, tzinfo=UTC)
    zones = [UTC, timezone(timedelta(hours=9)), timezone(timedelta(hours=-5, minutes=-30))]
    found = {TaskOptions().using(at=at.astimezone(zone)).at_us for zone in zones}
    assert found == {1_906_545_600_000_001}


@settings(max_examples=30)
@given(st.datetimes(datetime(1970, 1, 1), datetime(2199, 12, 31)))  # noqa: DTZ001
def test_instants_are_exact_to_the_microsecond(at: datetime) -> None:
    at_us = instant_us(at.replace(tzinfo=UTC))
    assert datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at_us) == at.replace(
        tzinfo=UTC
    )
    assert math.log2(at_us + 10**15 + 1) < 53


def test_expiry_is_relative_or_absolute() -> None:
    relative = TaskOptions(expires=timedelta(minutes=1))
    assert (relative.expires_us, relative.expires_at_us) == (60_000_000, None)
    absolute = TaskOptions(expires=datetime(1970, 1, 2, tzinfo=UTC))
    assert (absolute.expires_us, absolute.expires_at_us) == (None, 86_400_000_000)


@pytest.mark.parametrize(
    "retry",
    [
        Retry(backoff=lambda _: 1.0),
        Retry(schedule=[1]),
        Retry(retry_on=OSError),
        Retry(never_on=OSError),
    ],
)
def test_code_cannot_be_sent_with_a_call(retry: Retry) -> None:
    with pytest.raises(OptionError, match="cannot be sent with a call"):
        TaskOptions().using(retry=retry)
    assert TaskOptions(retry=retry).using(delay=1).retry == retry
    assert TaskOptions(retry=retry).using(retry=retry).retry == retry


# --- workers ----------------------------------------------------------------


def test_a_worker_has_the_documented_defaults() -> None:
    options = WorkerOptions()
    assert options.concurrency == 10
    assert options.lanes is None
    assert options.grace_us == 30_000_000
    assert options.poll_us == 1_000_000
    assert options.reserved == {}


def test_reserving_all_means_every_slot() -> None:
    options = WorkerOptions(concurrency=4, reserve={"urgent": "all"})
    assert options.reserved == {"urgent": 4}


def test_a_reserve_of_none_is_left_out() -> None:
    options = WorkerOptions(concurrency=4, reserve={"urgent": 2, "batch": 0})
    assert options.reserved == {"urgent": 2}


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("concurrency", [0, -1, 1.5, True, "4", 10_001]),
        ("lanes", [[], "urgent", ["a b"], 3]),
        ("reserve", [{"a b": 1}, ["urgent"], {"a": 6, "b": 5}, 3]),
        ("grace", [-1, NAN, True, None]),
        ("burst", [1, None]),
        ("name", ["", "a b", 3]),
        ("processes", [0, True, 1.5]),
        ("poll", [0, 61, NAN]),
    ],
)
def test_a_worker_refuses_a_wrong_value_and_names_the_option(
    option: str, values: list[Any]
) -> None:
    for value in values:
        refuses(option, value, lambda given: WorkerOptions(**given))


@pytest.mark.parametrize("slots", [-1, 11, 1.5, True, "some", None])
def test_a_reserve_is_a_number_of_the_workers_slots(slots: Any) -> None:
    with pytest.raises(OptionError, match=r"^reserve urgent: "):
        WorkerOptions(reserve={"urgent": slots})


def test_a_reserve_for_a_lane_that_is_not_served_is_refused() -> None:
    with pytest.raises(OptionError, match="'urgent' is not served"):
        WorkerOptions(lanes=["batch"], reserve={"urgent": 1})
    assert WorkerOptions(lanes=["batch", "urgent"], reserve={"urgent": 1}).lanes == (
        "batch",
        "urgent",
    )


def test_options_can_be_handed_to_a_child_process() -> None:
    options = WorkerOptions(reserve={"urgent": 2})
    assert pickle.loads(pickle.dumps(options)) == options
    assert pickle.loads(pickle.dumps(full_lane())) == full_lane()


def test_a_worker_that_sizes_itself_has_limits_around_its_first_slots() -> None:
    options = WorkerOptions(concurrency=2, max_slots=32)
    assert (options.least_slots, options.capacity) == (2, 32)
    options = WorkerOptions(concurrency=8, min_slots=2, max_slots=32)
    assert (options.least_slots, options.capacity) == (2, 32)
    fixed = WorkerOptions(concurrency=8)
    assert (fixed.least_slots, fixed.capacity) == (8, 8)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"min_slots": 2}, "min_slots: needs max_slots"),
        ({"min_slots": 4, "max_slots": 2}, "max_slots: must be at least min_slots, 4, not 2"),
        ({"max_slots": 2}, "max_slots: must be at least the 10 slots that the worker starts with"),
        ({"min_slots": 12, "max_slots": 20}, "concurrency: is 10, but the worker may have 12 to"),
        ({"min_slots": 0, "max_slots": 20}, "min_slots: must be between 1"),
        ({"max_slots": True}, "max_slots: must be a whole number"),
        ({"processes": 4, "processes_max": 3}, "processes_max: must be between 4"),
        ({"concurrency": 2, "max_slots": 4, "reserve": {"urgent": 5}}, "must be between 0 and 4"),
        (
            {"concurrency": 2, "max_slots": 4, "reserve": {"urgent": 3, "normal": 2}},
            "needs 5 slots, but max_slots is 4. Raise max_slots",
        ),
    ],
)
def test_limits_of_a_worker_that_cannot_be_are_refused(given: dict[str, Any], what: str) -> None:
    with pytest.raises(OptionError, match=re.escape(what)):
        WorkerOptions(**given)


def test_a_worker_that_sizes_itself_keeps_what_its_reserves_need() -> None:
    options = WorkerOptions(concurrency=2, max_slots=32, reserve={"urgent": 4, "normal": 1})
    assert options.least_slots == 5
    everything = WorkerOptions(concurrency=2, max_slots=32, reserve={"urgent": "all"})
    assert (everything.reserved, everything.least_slots) == ({"urgent": 32}, 2)
