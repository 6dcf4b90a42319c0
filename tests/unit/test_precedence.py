"""What a lane's priority means, against `order.best`: the algebra is exact, with caps and ties."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from laneq.options import DEFAULT_LANES, Lane
from laneq.order import Head, best
from laneq.precedence import Meeting, Rule, meeting, standing, starvation, unsaid, unsaid_text

SECOND = 1_000_000
NOW = 4_000_000_000 * SECOND
EPSILON_S = 1e-3


DEFAULTS = [Rule.of(lane) for lane in DEFAULT_LANES]
CRITICAL, URGENT, NORMAL, BATCH = DEFAULTS


def goes_first(own: Rule, own_wait_s: float, other: Rule, other_wait_s: float) -> bool:
    """Ask the claim's own rule."""
    heads = [
        Head(rule.lane, rule.priority, rule.aging, rule.aging_cap, NOW - round(wait_s * SECOND))
        for rule, wait_s in ((own, own_wait_s), (other, other_wait_s))
    ]
    found = best(heads, NOW)
    assert found is not None
    return found.lane == own.lane


# Quarters are exact in binary, and equal values, caps and priorities are frequent.
points = st.integers(-8, 40).map(lambda n: n / 4)
rules = st.builds(
    Rule,
    st.just("own"),
    points,
    st.sampled_from([0, 0.25, 0.5, 1, 2, 4]),
    st.integers(0, 60).map(lambda n: n / 4),
)
others = rules.map(lambda rule: replace(rule, lane="other"))
waits = st.integers(0, 4_000).map(lambda n: n / 16)


@settings(max_examples=150)
@given(rules, others)
def test_overtaking_new_jobs_begins_exactly_where_it_is_said(own: Rule, other: Rule) -> None:
    after_s = meeting(own, other).overtakes_new_after_s
    if after_s is None:
        assert not goes_first(own, 10**6, other, 0)
        return
    assert goes_first(own, after_s + EPSILON_S, other, 0)
    if after_s > EPSILON_S:
        assert not goes_first(own, after_s - EPSILON_S, other, 0)
        assert not goes_first(own, after_s, other, 0), "equal values go to the higher priority"


@settings(max_examples=100)
@given(rules, others)
def test_both_sides_of_a_meeting_say_the_same(own: Rule, other: Rule) -> None:
    one, two = meeting(own, other), meeting(other, own)
    assert one.overtaken_after_s == two.overtakes_new_after_s
    assert one.is_level == two.is_level
    assert (one.sure_after_s is None) != (one.starves_behind_s is None)
    assert one.sure_after_s is not None or two.sure_after_s is not None


@settings(max_examples=150)
@given(rules, others, waits, waits)
def test_after_the_bound_nothing_of_the_other_lane_goes_first(
    own: Rule, other: Rule, more_s: float, other_wait_s: float
) -> None:
    bound_s = meeting(own, other).sure_after_s
    assume(bound_s is not None)
    assert bound_s is not None
    wait_s = bound_s + more_s + EPSILON_S
    ends_level = (own.priority, own.limit) == (other.priority, other.limit)
    if not ends_level or other_wait_s < wait_s:
        assert goes_first(own, wait_s, other, other_wait_s)


@settings(max_examples=150)
@given(rules, others, st.floats(0, 1))
def test_before_the_bound_there_is_a_job_that_goes_first(
    own: Rule, other: Rule, share: float
) -> None:
    bound_s = meeting(own, other).sure_after_s
    ends_level = (own.priority, own.limit) == (other.priority, other.limit)
    assume(bound_s is not None and bound_s > 2 * EPSILON_S and not ends_level)
    assert bound_s is not None
    assert not goes_first(own, share * (bound_s - EPSILON_S), other, 10**6)


@settings(max_examples=150)
@given(rules, others, waits)
def test_without_a_bound_a_lane_that_is_late_enough_always_goes_first(
    own: Rule, other: Rule, wait_s: float
) -> None:
    late_s = meeting(own, other).starves_behind_s
    assume(late_s is not None)
    assert late_s is not None
    assert not goes_first(own, wait_s, other, late_s + EPSILON_S)
    if late_s > EPSILON_S:
        assert goes_first(own, 10**6, other, late_s - EPSILON_S), "less late, and it gets a turn"


@settings(max_examples=150)
@given(rules, others, waits)
def test_of_two_jobs_ready_together_the_one_said_goes_first(
    own: Rule, other: Rule, wait_s: float
) -> None:
    flips = meeting(own, other).flips
    assume(all(abs(wait_s - at) > EPSILON_S for at, _ in flips))
    past = [lane for at, lane in flips if at < wait_s]
    if past:
        equal = own.priority == other.priority and own.priority + min(
            own.aging * wait_s, own.aging_cap
        ) == other.priority + min(other.aging * wait_s, other.aging_cap)
        assert equal or goes_first(own, wait_s, other, wait_s) == (past[-1] == "own")


def test_the_flips_of_lanes_that_cross_twice_are_all_told() -> None:
    slow_high = Rule("a", 10, 1, 100)
    fast_capped = Rule("b", 0, 3, 30)
    assert meeting(slow_high, fast_capped).flips == ((0.0, "a"), (5.0, "b"), (20.0, "a"))
    assert meeting(slow_high, fast_capped).text == (
        "Goes first, but is overtaken by jobs of b that have waited 3.33 s. Of two jobs that "
        "became ready together a is first, b from 5 s, a from 20 s on. Nothing of b goes first "
        "after 20 s."
    )


@pytest.mark.parametrize(
    ("own", "other", "text"),
    [
        (
            BATCH,
            NORMAL,
            (
                "Overtakes new jobs of normal after 45 s. There is no bound: it waits for as long "
                "as normal is 5m55s late or more."
            ),
        ),
        (
            NORMAL,
            BATCH,
            (
                "Goes first, but is overtaken by jobs of batch that have waited 45 s. Nothing of "
                "batch goes first after 5m55s."
            ),
        ),
        (
            BATCH,
            URGENT,
            (
                "Never overtakes urgent: starts only while no job of urgent waits. There is no "
                "bound to its wait."
            ),
        ),
        (URGENT, BATCH, "Is never overtaken by batch."),
        (
            NORMAL,
            replace(NORMAL, lane="other"),
            "Level with other: the job that became ready first goes first.",
        ),
        (
            NORMAL,
            Rule("fast", 100, 4, 1_000),
            (
                "Level with fast at first; the jobs of fast gain faster. There is no bound: it "
                "waits for as long as fast is 3m20s late or more."
            ),
        ),
        (
            NORMAL,
            Rule("fast", 100, 4, 800),
            (
                "Level with fast at first; the jobs of fast gain faster. Nothing of fast that "
                "became ready after it goes first after 6m40s."
            ),
        ),
    ],
)
def test_a_meeting_is_told_in_words(own: Rule, other: Rule, text: str) -> None:
    assert meeting(own, other).text == text


def test_a_standing_says_the_worst_wait_or_that_there_is_none() -> None:
    assert standing("critical", DEFAULTS).sure_after_s == 0
    assert "next slot" in standing("critical", DEFAULTS).text
    assert standing("normal", DEFAULTS).starved_by == ("critical", "urgent")
    assert standing("batch", DEFAULTS).text == (
        "The wait has no bound: critical, urgent and normal can keep its jobs waiting for ever."
    )
    two = [NORMAL, replace(BATCH, aging_cap=1_000)]
    assert standing("batch", two).sure_after_s == 445
    assert standing("batch", two).text.startswith("After 7m25s the first of its jobs starts")
    assert standing("normal", [NORMAL]).text.startswith("It is the only lane")


def test_lanes_with_targets_bound_one_anothers_waits() -> None:
    soon, later = (Rule.of(Lane(name, target=s)) for name, s in (("soon", 10), ("later", 600)))
    assert standing("soon", [soon, later]).sure_after_s == 410
    assert meeting(later, soon).overtakes_new_after_s == 590
    # Both end at 1,800 points, where the nearer target has the higher priority.
    assert meeting(later, soon).starves_behind_s == 410


# --- starvation -------------------------------------------------------------


def test_the_default_lanes_starve_behind_those_above_as_is_promised() -> None:
    found = {one.lane: one for one in starvation(DEFAULTS)}
    assert found["urgent"].by == {"critical": 0}
    assert found["normal"].by == {"critical": 0, "urgent": 0}
    assert found["batch"].by == {"critical": 0, "urgent": 0, "normal": 355}
    assert found["batch"].strict_by == ("critical", "urgent")
    assert "critical" not in found
    assert "or normal is 5m55s late" in found["batch"].text
    assert "laneq lanes set batch reserve=1" in found["batch"].text


@pytest.mark.parametrize("kept", [1, "auto"])
def test_a_reserve_ends_starvation(kept: int | str) -> None:
    assert starvation([NORMAL, replace(BATCH, reserve=kept)]) == []
    assert starvation([NORMAL, BATCH], reserved={"batch": 1}) == []
    assert [one.lane for one in starvation([NORMAL, BATCH], reserved={"normal": 1})] == ["batch"]


def test_a_larger_cap_turns_the_tables_and_level_lanes_starve_nobody() -> None:
    assert [one.by for one in starvation([NORMAL, replace(BATCH, aging_cap=889)])] == [
        {"normal": 399.5}
    ]
    assert [one.by for one in starvation([NORMAL, replace(BATCH, aging_cap=891)])] == [
        {"batch": 445}
    ]
    assert starvation([NORMAL, replace(NORMAL, lane="twin")]) == []


def test_limits_of_the_others_end_starvation_where_they_leave_a_slot() -> None:
    limited = replace(NORMAL, max_running=3)
    assert starvation([limited, BATCH], slots=4) == []
    assert starvation([limited, BATCH], slots=3) != []
    assert starvation([limited, BATCH]) != [], "how many slots there are is not known"
    assert starvation([URGENT, limited, BATCH], slots=100) != [], "one of the two has no limit"
    kept = replace(Rule("idle", -100, 0, 0), reserve=2)
    assert [one.lane for one in starvation([limited, BATCH, kept], slots=6)] == []
    assert [one.lane for one in starvation([limited, BATCH, kept], slots=5)] == ["batch"]


@settings(max_examples=100)
@given(st.lists(rules, min_size=1, max_size=4))
def test_a_lane_starves_exactly_where_its_standing_has_no_bound(found: list[Rule]) -> None:
    named = [replace(rule, lane=f"l{i}") for i, rule in enumerate(found)]
    starving = {one.lane for one in starvation(named)}
    for rule in named:
        assert (standing(rule.lane, named).sure_after_s is None) == (rule.lane in starving)
    assert len(starving) < len(named), "the first of all lanes never starves"


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_a_reserve_that_the_fleet_cannot_keep_ends_nothing(slots: int) -> None:
    greedy, small = replace(URGENT, reserve=4), replace(BATCH, reserve=1)
    starving = [one.lane for one in starvation([greedy, small], slots=slots)]
    assert starving == ["batch"], "the first lanes get theirs first, and one slot stays open"
    assert starvation([greedy, small], slots=6) == []
    assert starvation([greedy, small]) == [], "how many slots there are is not known"


# --- said and unsaid --------------------------------------------------------


def unsaid_of(*rules: Rule, slots: int | None = None) -> dict[str, tuple[str, ...]]:
    found = [one for one in starvation(rules, slots=slots) if one.unsaid_by]
    assert slots is not None or unsaid(rules) == found
    return {one.lane: one.unsaid_by for one in found}


HIGH = Rule("high", 5_000, 2, 800)
LOW = Rule("low", 10, 2, 800)


@settings(max_examples=300)
@given(rules, others)
def test_what_must_be_said_is_exactly_that_no_wait_of_a_lane_that_ages_gets_past_a_new_job(
    own: Rule, other: Rule
) -> None:
    must_say = own.ages and not goes_first(own, 10**6, other, 0)
    assert unsaid_of(own, other).get("own", ()) == (("other",) if must_say else ())
    assert unsaid_of(replace(own, may_starve=True), replace(other, may_starve=True)) == {}


@pytest.mark.parametrize(
    ("low", "high", "how"),
    [
        (LOW, HIGH, None),
        (replace(LOW, may_starve=True), HIGH, "may_starve"),
        (replace(LOW, aging=0), HIGH, "no_aging"),
        (replace(LOW, aging_cap=0), HIGH, "no_aging"),
        (LOW, replace(HIGH, priority=1_000), "default_order"),
        (LOW, replace(HIGH, priority=10_000), "default_order"),
        (LOW, replace(HIGH, priority=1_001), None),
        (replace(LOW, aging_cap=500), replace(HIGH, priority=1_000), None),
        (replace(LOW, aging=3), replace(HIGH, priority=1_000), "default_order"),
        (Rule.of(Lane("low", target="1h")), replace(HIGH, priority=10_000), "default_order"),
        (Rule.of(Lane("low", target=1, aging_cap=2)), replace(HIGH, priority=1_000), None),
        (LOW, replace(HIGH, max_running=3), "max_running"),
        (LOW, replace(HIGH, priority=810), None),
        (replace(LOW, aging_cap=4_990), HIGH, None),
    ],
)
def test_each_way_to_say_so_counts_and_nothing_else_does(
    low: Rule, high: Rule, how: str | None
) -> None:
    (found,) = starvation([low, high])
    assert found.strict_by == ("high",)
    assert found.accepted == ({"high": how} if how else {})
    assert found.unsaid_by == (() if how else ("high",))
    assert ("accepted" in found.acceptance) == bool(how)
    assert ("knowingly" in found.acceptance) == (how in {"may_starve", "no_aging"})


@pytest.mark.parametrize(
    "low",
    [
        replace(LOW, aging_cap=4_991),
        replace(LOW, priority=4_201),
        replace(LOW, reserve=1),
        replace(LOW, reserve="auto"),
        Rule.of(Lane("low", priority=10, aging_cap=5_000)),
    ],
)
def test_each_way_out_that_is_named_is_one(low: Rule) -> None:
    assert unsaid_of(low, HIGH) == {}
    assert unsaid_of(LOW, replace(HIGH, priority=809)) == {}


def test_a_lane_that_needs_the_other_to_be_late_need_say_nothing() -> None:
    (found,) = starvation([LOW, replace(LOW, lane="high", priority=800)])
    assert (found.by, found.unsaid_by, found.acceptance) == ({"high": 5.0}, (), "")


def test_one_lane_that_is_accepted_does_not_excuse_another() -> None:
    urgent = replace(HIGH, lane="urgent", priority=1_000)
    assert unsaid_of(LOW, urgent, HIGH) == {"low": ("high",), "urgent": ("high",)}


def test_a_limit_of_the_other_counts_only_where_it_leaves_a_slot() -> None:
    limited = replace(HIGH, max_running=3)
    assert unsaid_of(LOW, limited) == {}
    assert unsaid_of(LOW, limited, slots=4) == {}
    assert unsaid_of(LOW, limited, slots=3) == {"low": ("high",)}


def test_lanes_with_targets_and_the_default_lanes_need_say_nothing() -> None:
    assert unsaid_of(*DEFAULTS) == {}
    targets = [Rule.of(Lane(name, target=s)) for name, s in (("soon", 1), ("later", 86_400))]
    assert unsaid_of(*targets, *DEFAULTS) == {}


def test_a_refusal_names_the_lanes_the_numbers_and_the_ways_out() -> None:
    assert unsaid_text([HIGH, LOW], unsaid([HIGH, LOW]), say="X") == (
        "lane 'low' can wait for ever behind 'high': by waiting its jobs get to 810 points at most "
        "(priority 10 + aging_cap 800), and new ones of high have 5,000. Let it get there "
        "(aging_cap above 4,990), bring the priorities together (its own above 4,200, or the other "
        "below 810), keep a slot for it (reserve=1), or say that it is meant: X"
    )
    three = [LOW, replace(HIGH, lane="top", priority=9_000), HIGH]
    text = unsaid_text(three, unsaid(three), say="X")
    assert text.startswith("lane 'low' can wait for ever behind 'top' and 'high': ")
    assert "new ones of top have 9,000, high have 5,000. Likewise 'high' behind 'top'." in text
    assert "aging_cap above 8,990" in text


def test_every_meeting_has_words() -> None:
    for own in DEFAULTS:
        for other in DEFAULTS:
            found: Meeting = meeting(own, other)
            assert found.text.endswith(".")
