"""What priority, aging and cap of two lanes mean: who goes first, after how long, and for ever?

The value of a job that has waited w seconds is ``v(w) = priority + min(aging × w, cap)``
(`laneq.order`). It starts at the priority, never falls, and ends at the **limit**, priority +
cap, or the priority where aging is 0. Everything here follows from that, exactly; the tests
compare it with `order.best`.

- A job of lane A **overtakes new jobs** of B once v_A(w) > priority_B. (At an equal value the
  higher priority goes first, so a job from below must be worth more.)
- Its wait behind B has a **bound** if no job of B can be worth more than A's limit: from the
  moment at which v_A(w) passes B's limit, nothing of B goes before it. Behind lanes whose limit
  and priority are the same as A's it is first in, first out from the moment at which it is at
  its limit: only jobs of B that were ready before it are left to go first, and they are finite.
- Otherwise it has **no bound**: jobs of B that are worth more than A's limit go before it, for
  as long as there are such. That takes a B whose first job has always waited at least L, where
  v_B(L) passes A's limit. L is 0 for strict priority: B needs only to have work at all times.
  With L > 0 B must be late by L and stay so: the pool is too small for B alone.

So of two lanes that are not level one can always starve, if the other is late enough for ever:
what differs is how late. A reserve ends starvation, as a reserved slot is no other lane's to
take; so does a limit on how many jobs of B run (`starvation`).

Where L is 0 the declaration must say that it is meant, or it is refused (`Starvation.unsaid_by`).
Said it is by ``may_starve``; by a lane that does not age (``aging=0`` is how strict priority is
asked for); and by a priority of the other that is documented to be out of reach, that of `urgent`
or `critical`, unless the lane's cap was made smaller than usual. What is left is a lane that looks
as though waiting got it there, and never can.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal, Self, TypeAlias

from laneq.options import DEFAULT_LANES, Lane
from laneq.order import fleet_reserve
from laneq.wording import duration

#: What says that a lane may wait for ever behind another one.
Acceptance: TypeAlias = Literal["may_starve", "no_aging", "default_order", "max_running"]

#: Cap of a lane that names none.
_USUAL_CAP: Final = DEFAULT_LANES[0].aging_cap

#: Priorities that are documented to be out of reach of what waits below, however long.
_OUT_OF_REACH: Final = frozenset(
    lane.priority for lane in DEFAULT_LANES if lane.name in {"critical", "urgent"}
)


@dataclass(frozen=True, slots=True)
class Rule:
    """What decides of a lane's place among others.

    Attributes:
        lane: its name.
        priority, aging, aging_cap: points, points per second of wait, most points from waiting.
        reserve: slots of the fleet kept for it, or ``"auto"``, which is at least one.
        max_running: most jobs of it that run at a time in the fleet; None for no limit.
        may_starve: whether it is meant that its jobs can wait for ever.
    """

    lane: str
    priority: float
    aging: float
    aging_cap: float
    reserve: int | str = 0
    max_running: int | None = None
    may_starve: bool = False

    @classmethod
    def of(cls, lane: Lane) -> Self:
        """Return what a lane's options say of its place."""
        return cls(
            lane=lane.name,
            priority=lane.priority,
            aging=lane.aging,
            aging_cap=lane.aging_cap,
            reserve=lane.reserve,
            max_running=lane.max_running,
            may_starve=lane.may_starve,
        )

    @property
    def ages(self) -> bool:
        """Return whether its jobs gain by waiting."""
        return self.aging > 0 and self.aging_cap > 0

    @property
    def limit(self) -> float:
        """Return what a job of the lane is worth at most."""
        return self.priority + self.aging_cap if self.aging > 0 else self.priority

    @property
    def full_after_s(self) -> float:
        """Return the wait after which a job gains no more."""
        return self.aging_cap / self.aging if self.aging > 0 else 0.0

    def reaches_after_s(self, points: float) -> float:
        """Return the wait after which a job is worth `points`, which must not pass the limit."""
        return max(0.0, (points - self.priority) / self.aging) if self.aging > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Meeting:
    """How the jobs of one lane, `own`, fare beside those of another.

    Attributes:
        own, other: the lanes.
        overtakes_new_after_s: a job of `own` that has waited longer goes before a new job of
            `other`; 0 where a new one does; None for never.
        overtaken_after_s: a job of `other` that has waited longer goes before a new one of
            `own`; 0 where a new one does; None for never.
        sure_after_s: a job of `own` that has waited longer has no job of `other` before it,
            but, between lanes that end level, those that were ready before it; None where there
            is no such wait.
        starves_behind_s: where there is none: `own` waits for as long as the first job of
            `other` has waited this long at every moment; 0: as `other` has work at all.
        is_level: whether both lanes have the same priority.
        flips: seconds of wait → the lane that goes first from then on, of two jobs that became
            ready at the same moment; the first is at 0. Level lanes of one aging: empty.
    """

    own: str
    other: str
    overtakes_new_after_s: float | None
    overtaken_after_s: float | None
    sure_after_s: float | None
    starves_behind_s: float | None
    is_level: bool
    flips: tuple[tuple[float, str], ...]

    @property
    def text(self) -> str:
        """Return it in words, as ``laneq lanes show`` prints it."""
        return " ".join(part for part in (self._order(), self._changes(), self._bound()) if part)

    def _order(self) -> str:
        other = self.other
        if self.is_level:
            if self.flips:
                return f"Level with {other} at first; the jobs of {self.flips[0][1]} gain faster."
            return f"Level with {other}: the job that became ready first goes first."
        if self.overtakes_new_after_s is None:
            return f"Never overtakes {other}: starts only while no job of {other} waits."
        if self.overtakes_new_after_s > 0:
            return f"Overtakes new jobs of {other} after {duration(self.overtakes_new_after_s)}."
        if self.overtaken_after_s is None:
            return f"Is never overtaken by {other}."
        after = duration(self.overtaken_after_s)
        return f"Goes first, but is overtaken by jobs of {other} that have waited {after}."

    def _changes(self) -> str:
        if len(self.flips) <= 1:
            return ""
        steps = [f"{lane} from {duration(at)}" for at, lane in self.flips[1:]]
        first = self.flips[0][1]
        return f"Of two jobs that became ready together {first} is first, {', '.join(steps)} on."

    def _bound(self) -> str:
        if self.sure_after_s is not None:
            if self.sure_after_s == 0:
                return ""
            sooner = " that became ready after it" if self.is_level else ""
            return (
                f"Nothing of {self.other}{sooner} goes first after {duration(self.sure_after_s)}."
            )
        if not self.starves_behind_s:
            return "There is no bound to its wait."
        late = duration(self.starves_behind_s)
        return f"There is no bound: it waits for as long as {self.other} is {late} late or more."


def meeting(own: Rule, other: Rule) -> Meeting:
    """Work out how two lanes fare beside each other."""
    sure_after_s, starves_behind_s = _bound(own, other)
    return Meeting(
        own=own.lane,
        other=other.lane,
        overtakes_new_after_s=_overtakes_new(own, other),
        overtaken_after_s=_overtakes_new(other, own),
        sure_after_s=sure_after_s,
        starves_behind_s=starves_behind_s,
        is_level=own.priority == other.priority,
        flips=_flips(own, other),
    )


def _overtakes_new(own: Rule, other: Rule) -> float | None:
    if own.priority >= other.priority:
        return 0.0
    return own.reaches_after_s(other.priority) if own.limit > other.priority else None


def _bound(own: Rule, other: Rule) -> tuple[float | None, float | None]:
    """Return after which wait of `own` nothing of `other` goes first, or what it starves behind."""
    if own.limit > other.limit:
        return own.reaches_after_s(other.limit), None
    if own.limit == other.limit and own.priority > other.priority:
        # At equal values the higher priority goes first: being at the limit is enough.
        return own.reaches_after_s(own.limit), None
    if own.limit == other.limit and own.priority == other.priority:
        # Both end at the same value, where the one that was ready first goes first. One that
        # gains at least as fast is never passed by one that came later.
        return (0.0 if own.aging >= other.aging else own.full_after_s), None
    return None, other.reaches_after_s(own.limit)


def _flips(own: Rule, other: Rule) -> tuple[tuple[float, str], ...]:
    if (own.priority, own.aging, own.aging_cap) == (other.priority, other.aging, other.aging_cap):
        return ()

    def lead(wait_s: float) -> float:
        return _value(own, wait_s) - _value(other, wait_s)

    # Both values are straight between these waits, and constant after the last.
    corners = sorted({0.0, own.full_after_s, other.full_after_s})
    crossings = {0.0}
    for left, right in pairwise(corners):
        at_left, at_right = lead(left), lead(right)
        if at_left * at_right < 0:
            crossings.add(left + (right - left) * at_left / (at_left - at_right))
        crossings.update(at for at, led in ((left, at_left), (right, at_right)) if led == 0)
    higher = own if own.priority >= other.priority else other
    marks = sorted(crossings)
    ends = [*marks[1:], marks[-1] + 2 * (corners[-1] + 1)]
    flips: list[tuple[float, str]] = []
    for at, end in zip(marks, ends, strict=True):
        led = lead((at + end) / 2)
        if led == 0 and own.priority == other.priority:
            continue
        first = (own if led > 0 else other if led < 0 else higher).lane
        if not flips or flips[-1][1] != first:
            flips.append((at, first))
    return tuple(flips)


def _value(rule: Rule, wait_s: float) -> float:
    return rule.priority + min(rule.aging * wait_s, rule.aging_cap)


@dataclass(frozen=True, slots=True)
class Standing:
    """What a lane's priority, aging and cap mean against every other lane.

    Attributes:
        lane: the lane.
        meetings: how it fares beside each other lane.
        full_after_s: wait after which its jobs gain no more.
        sure_after_s: a job that has waited longer, and is the first of its lane, starts on the
            next slot that it may use; None where there is no such wait.
        starved_by: the lanes for which there is none.
    """

    lane: str
    meetings: tuple[Meeting, ...]
    full_after_s: float
    sure_after_s: float | None
    starved_by: tuple[str, ...]

    @property
    def text(self) -> str:
        """Return in words how long a job of the lane waits at worst."""
        if not self.meetings:
            return "It is the only lane: jobs start in the order in which they became ready."
        if self.sure_after_s is None:
            return (
                f"The wait has no bound: {_and(self.starved_by)} can keep its jobs waiting for "
                "ever."
            )
        if self.sure_after_s == 0:
            return "The first of its jobs starts on the next slot that it may use."
        after = duration(self.sure_after_s)
        return f"After {after} the first of its jobs starts on the next slot that it may use."


def standing(lane: str, rules: Iterable[Rule]) -> Standing:
    """Work out what the rules of all lanes mean for one of them.

    Raises:
        KeyError: no rule is of this lane.
    """
    by_name = {rule.lane: rule for rule in rules}
    own = by_name[lane]
    meetings = tuple(meeting(own, other) for other in by_name.values() if other is not own)
    starved_by = tuple(m.other for m in meetings if m.sure_after_s is None)
    bounds = [m.sure_after_s for m in meetings if m.sure_after_s is not None]
    return Standing(
        lane=lane,
        meetings=meetings,
        full_after_s=own.full_after_s,
        sure_after_s=None if starved_by else max(bounds, default=0.0),
        starved_by=starved_by,
    )


@dataclass(frozen=True, slots=True)
class Starvation:
    """A lane whose jobs can wait for ever, and behind whom.

    Attributes:
        lane: the lane.
        by: lane → how late, in seconds, its first job must be at every moment for that;
            0: it needs only to have work.
        accepted: lane that needs only to have work → what says that this is meant:
            ``may_starve``; ``no_aging``: the lane does not age; ``default_order``: the other has
            the priority of `urgent` or `critical`, and the lane's cap is the usual one or more;
            ``max_running``: the other has a limit, and how many slots there are is not known.
    """

    lane: str
    by: Mapping[str, float]
    accepted: Mapping[str, Acceptance] = field(default_factory=dict)

    @property
    def strict_by(self) -> tuple[str, ...]:
        """Return the lanes that need only to have work, late or not."""
        return tuple(lane for lane, late_s in self.by.items() if late_s == 0)

    @property
    def unsaid_by(self) -> tuple[str, ...]:
        """Return those of `strict_by` of which nothing says that it is meant."""
        return tuple(lane for lane in self.strict_by if lane not in self.accepted)

    @property
    def text(self) -> str:
        """Return it in words, with what ends it."""
        behind = [
            f"{lane} has jobs waiting" if late_s == 0 else f"{lane} is {duration(late_s)} late"
            for lane, late_s in self.by.items()
        ]
        return (
            f"No job of {self.lane} starts while {' or '.join(behind)}. A reserve of one slot "
            f"ends that: laneq lanes set {self.lane} reserve=1."
        )

    @property
    def acceptance(self) -> str:
        """Return in words whether it is meant; empty where no lane needs only to have work."""
        if self.unsaid_by:
            return f"nothing says that it may wait for ever behind {_and(self.unsaid_by)}"
        ways = set(self.accepted.values())
        said = [words for how, words in _ACCEPTED.items() if how in ways]
        if not said:
            return ""
        knowingly = " knowingly" if ways <= {"may_starve", "no_aging"} else ""
        return f"accepted{knowingly}: {_and(said)}"


_ACCEPTED: Final[Mapping[Acceptance, str]] = {
    "may_starve": "may_starve is set",
    "no_aging": "the lane does not age",
    "default_order": "the priorities of urgent and critical are documented to be out of reach",
    "max_running": "max_running of the other leaves the slots beyond it",
}


def starvation(
    rules: Sequence[Rule],
    *,
    reserved: Mapping[str, int] | None = None,
    slots: int | None = None,
) -> list[Starvation]:
    """Return the lanes that can starve for ever by how lanes are configured.

    A lane that can is one without a bound to its wait, that has no reserve, and that the limits
    of the others leave no slot to.

    Args:
        rules: all lanes.
        reserved: lane → slots that live workers keep for it, beside the fleet's reserves.
        slots: slots of all live workers; None where that is not known: then reserves are taken
            to be met, and limits do not count.
    """
    fleet = _fleet_reserves(rules, slots)
    kept = {rule.lane: max((reserved or {}).get(rule.lane, 0), fleet[rule.lane]) for rule in rules}
    limits = [(one, one.limit) for one in rules]
    found = []
    for rule, limit in limits:
        if kept[rule.lane]:
            continue
        others = [one for one in rules if one is not rule]
        by, accepted = {}, {}
        for other in [one for one, theirs in limits if theirs >= limit and one is not rule]:
            starves_behind_s = _bound(rule, other)[1]
            if starves_behind_s is None:
                continue
            by[other.lane] = starves_behind_s
            how = None if starves_behind_s else _acceptance(rule, other, is_sized=slots is not None)
            if how is not None:
                accepted[other.lane] = how
        if by and (slots is None or slots <= _taken(by, others, kept)):
            found.append(Starvation(rule.lane, by, accepted))
    return found


def _acceptance(own: Rule, other: Rule, *, is_sized: bool) -> Acceptance | None:
    """Return what says that `own` may wait for ever while `other` has work; None for nothing."""
    if own.may_starve:
        return "may_starve"
    if not own.ages:
        return "no_aging"
    if other.priority in _OUT_OF_REACH and own.aging_cap >= _USUAL_CAP:
        return "default_order"
    if other.max_running is not None and not is_sized:
        return "max_running"
    return None


def _fleet_reserves(rules: Sequence[Rule], slots: int | None) -> dict[str, int]:
    """Return lane → slots that the fleet keeps for it: those declared, cut to what there are."""
    wanted = {
        rule.lane: rule.reserve if isinstance(rule.reserve, int) else 1
        for rule in sorted(rules, key=lambda rule: -rule.priority)
    }
    if slots is None:
        return wanted
    return fleet_reserve(wanted, slots=slots, free=slots, running={})


def _taken(by: Mapping[str, float], others: Sequence[Rule], kept: Mapping[str, int]) -> float:
    """Return the slots that the other lanes can keep a lane from for ever."""
    return sum(
        kept[rule.lane]
        if rule.lane not in by
        else math.inf
        if rule.max_running is None
        else max(rule.max_running, kept[rule.lane])
        for rule in others
    )


def unsaid(rules: Sequence[Rule]) -> list[Starvation]:
    """Return the lanes that can starve while another has work, and do not say so."""
    highest = max((rule.priority for rule in rules), default=0.0)
    # Nearly always there is no such lane: then this is O(lanes).
    if not any(rule.ages and not rule.may_starve and rule.limit <= highest for rule in rules):
        return []
    return [one for one in starvation(rules) if one.unsaid_by]


def unsaid_text(rules: Iterable[Rule], starving: Sequence[Starvation], *, say: str) -> str:
    """Return why lanes that starve and do not say so are refused, with the ways out.

    Args:
        rules: all lanes.
        starving: the lanes, each with an `unsaid_by`; the numbers are those of the first.
        say: how to say that it is meant.
    """
    by_name = {rule.lane: rule for rule in rules}
    first, *more = starving
    own = by_name[first.lane]
    others = sorted((by_name[lane] for lane in first.unsaid_by), key=lambda one: -one.priority)
    highest = others[0]
    lanes = "the other" if len(others) == 1 else "the others"
    likewise = "; ".join(f"{one.lane!r} behind {_and(map(repr, one.unsaid_by))}" for one in more)
    return (
        f"lane {own.lane!r} can wait for ever behind {_and(repr(one.lane) for one in others)}: by "
        f"waiting its jobs get to {_points(own.limit)} points at most (priority "
        f"{_points(own.priority)} + aging_cap {_points(own.aging_cap)}), and new ones of "
        + ", ".join(f"{one.lane} have {_points(one.priority)}" for one in others)
        + f".{f' Likewise {likewise}.' if likewise else ''} Let it get there (aging_cap above "
        f"{_points(highest.priority - own.priority)}), bring the priorities together (its own "
        f"above {_points(highest.priority - own.aging_cap)}, or {lanes} below "
        f"{_points(own.limit)}), keep a slot for it (reserve=1), or say that it is meant: {say}"
    )


def _points(value: float) -> str:
    return f"{value:,.12g}"


def _and(names: Iterable[str]) -> str:
    """Return names as in a sentence."""
    *head, last = names
    return f"{', '.join(head)} and {last}" if head else last
