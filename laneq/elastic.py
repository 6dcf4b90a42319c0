"""How many slots a pool is to have, so that its lanes' wait objectives are met: the rule, pure.

A pool follows the lanes that have an `slo`; a lane without one asks for nothing. All here works on
figures that somebody measured (`LaneLoad`), knows no clock and no Redis, and gives its answer with
the figures and the reason (`PoolDecision`), for the log and for operators.

**What a lane wants** (`need_of`), over the whole fleet, is the greatest of

- *rest*: slots with which at most 1 % of its jobs would wait longer than the objective even if the
  load were a quarter above the measured one: a pool at rest is loaded to 80 %. For random arrivals
  and n slots the wait W has ``P(W > slo) = C(n, a) · exp(-(n - a) · slo / run)``, with Erlang's C
  and the offered load a (Cooper 1981, Introduction to Queueing Theory, §3.4);
- *drain*, when what waits now would take longer than the objective (waiting × mean run / slots):
  what arrives now, and beside it all that waits within the objective;
- *more*, when the head is late although the two above did not see it coming, since slots are held
  by long jobs of other lanes, say, or by workers that have died: so many beside those that are
  there that what waits is drained within the objective.

Jobs of higher lanes go first, so their waiting work and their load count too; slots that
reserves keep for other lanes do not help, so they come on top; and a lane's own limits
(`max_running`, `rate`) bound what slots can do for it.

**Steps** (`Pool`). Up at once, as soon as the lane would miss its objective: a job more could be
late already. Down slowly: never below what was wanted at any time in the last 30 s, not for less
than a fifth, a third of the surplus at a time, 5 s between two steps. Between the load at which a
pool grows and that at which it shrinks there is a band, so that a steady load moves nothing.

**Shares.** What is wanted is a figure of the fleet. Every worker computes the same one from the
same figures and takes its own part of it (`share_of`): its least, and of the rest in proportion to
what it can grow. So the workers of a fleet together grow by what is missing, each once, without
talking to each other.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from laneq.sizing import erlang_c

#: A pool at rest has at most this share of the load that it could bear.
REST_LOAD: Final = 0.8

#: Share of a lane's jobs that may wait longer than its objective.
MAY_MISS: Final = 0.01

#: What waits is seen as late when it would take this share of the objective.
LATE_SHARE: Final = 0.8

#: Seconds between two looks of a worker that has work.
LOOK_S: Final = 1.0

#: A pool keeps what was wanted at any time in the last so many seconds.
HOLD_S: Final = 30.0

#: Least seconds between two steps down, and the share of the surplus that one takes.
STEP_DOWN_S: Final = 5.0
STEP_DOWN_SHARE: Final = 1 / 3

#: A surplus below this share of the slots is left alone.
BAND: Final = 0.2

#: Shortest and longest time over which arrivals are averaged, in seconds, and how many run times.
_SHORTEST_S: Final = 5.0
_LONGEST_S: Final = 600.0
_RUNS: Final = 5.0

#: Above this load, in erlangs, the square root of it is near enough: the sums would take long.
_LARGE_LOAD: Final = 2_000.0

#: What 1 % of a normal distribution is above, in standard deviations.
_Z: Final = 2.33

# A float a hair above a whole number is that number.
_FUZZ: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Fleet:
    """The slots of the live workers that serve a lane.

    Attributes:
        slots: that there are now.
        fixed: those of workers that do not change theirs.
        least, most: of the others together.
    """

    slots: int
    fixed: int = 0
    least: int = 0
    most: int = 0


@dataclass(frozen=True, slots=True)
class LaneLoad:
    """What a lane asks of the slots that serve it.

    Attributes:
        slo_s: its wait objective in seconds; None for none.
        waiting: jobs that are ready and wait.
        head_age_s: how long the first of them has waited, in seconds.
        arrivals_per_s: jobs that become ready per second, averaged over a while.
        recent_per_s: the same since the last look; None where it is not known.
        run_s: mean run time in seconds; None where nothing was measured.
        reserve: slots of the fleet that it is sure of.
        kept: slots that single workers keep for it.
        limit: slots that it may use at most, see `limit_of`; None for no limit.
        fleet: the slots that serve it.
    """

    name: str
    priority: float
    slo_s: float | None
    waiting: int
    head_age_s: float
    arrivals_per_s: float
    fleet: Fleet
    recent_per_s: float | None = None
    run_s: float | None = None
    reserve: int = 0
    kept: int = 0
    limit: float | None = None

    @property
    def busy(self) -> float:
        """Return the slots that its arrivals keep busy on average, in erlangs."""
        return self._of_limit(self.arrivals_per_s * (self.run_s or 0.0))

    @property
    def busy_of_late(self) -> float:
        """Return the slots that what arrived since the last look keeps busy."""
        rate = self.arrivals_per_s if self.recent_per_s is None else self.recent_per_s
        return self._of_limit(rate * (self.run_s or 0.0))

    def work_within(self, seconds: float) -> float:
        """Return the run time of what waits and may run in that time, in slot-seconds."""
        work_s = self.waiting * (self.run_s or 0.0)
        return work_s if self.limit is None else min(work_s, self.limit * seconds)

    def _of_limit(self, slots: float) -> float:
        return slots if self.limit is None else min(slots, self.limit)


@dataclass(frozen=True, slots=True)
class Need:
    """The slots that a lane wants over the fleet, and why.

    Attributes:
        slots: wanted.
        is_missed: whether the objective would be missed with the slots that there are.
        is_late: whether that is so since the head is late already.
        reason: in words, with the figures.
        inputs: the figures.
    """

    lane: str
    slots: int
    is_missed: bool
    is_late: bool
    reason: str
    inputs: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class PoolDecision:
    """How many slots one worker is to have from now on, and why.

    Attributes:
        value: slots.
        before: what it had.
        wanted: what the fleet is to have, for the lane that decided.
        share: this worker's part of it in proportion to its most, whatever its least and most
            are, less what workers of fixed size have: for whoever starts and stops workers.
        lane: the lane that decided; None where none has an objective.
        reason: in words, with the figures.
        inputs: the figures.
    """

    value: int
    before: int
    wanted: int
    share: float
    lane: str | None
    reason: str
    inputs: Mapping[str, float]

    @property
    def is_step(self) -> bool:
        """Return whether anything changes."""
        return self.value != self.before


@dataclass(frozen=True, slots=True)
class DesiredSlots:
    """The slots that a namespace wants over its fleet, for autoscalers outside.

    Attributes:
        value: slots.
        lane: the lane that decided; None where the sum of all loads did.
        reason: in words, with the figures.
    """

    value: int
    lane: str | None
    reason: str


def _up(number: float) -> int:
    return math.ceil(number * (1 - _FUZZ))


def slots_for_objective(load: float, run_s: float, slo_s: float, *, share: float = MAY_MISS) -> int:
    """Return the fewest slots with which at most `share` of the jobs waits longer than `slo_s`.

    For random arrivals in a queue of their own, see the top of this module.

    Args:
        load: offered load in erlangs, see `sizing.offered_load`.
        run_s: mean run time, in seconds.
        slo_s: wait objective, in seconds.
        share: of the jobs that may wait longer, above 0.

    Raises:
        OptionError: `load` is NaN.
    """
    if load <= 0:
        return 0
    if load > _LARGE_LOAD:
        return math.ceil(load + _Z * math.sqrt(load))

    def misses(slots: int) -> bool:
        chance = erlang_c(slots, load)
        return slots <= load or chance * math.exp(-(slots - load) * slo_s / run_s) > share

    low, high = math.floor(load), math.floor(load) + 1
    while misses(high):
        low, high = high, high + 2 * (high - low)
    while high - low > 1:
        middle = (low + high) // 2
        if misses(middle):
            low = middle
        else:
            high = middle
    return high


def limit_of(
    *, max_running: int | None, starts_per_s: float | None, run_s: float | None
) -> float | None:
    """Return the slots that a lane can use at most, as its own limits have it.

    Args:
        max_running: jobs that may run at a time; None for no limit.
        starts_per_s: jobs that may start per second; None for no limit.
        run_s: mean run time in seconds; None where it is not known.
    """
    by_rate = None if starts_per_s is None or run_s is None else starts_per_s * run_s
    return min((limit for limit in (max_running, by_rate) if limit is not None), default=None)


def need_of(lane: LaneLoad, others: Iterable[LaneLoad], *, heeds_age: bool = True) -> Need:
    """Return the slots that a lane with an objective wants over the fleet.

    Args:
        lane: it; `slo_s` is not None.
        others: the other lanes that the same workers serve, those that are paused left out.
        heeds_age: whether a head that is late counts.
    """
    slo_s = lane.slo_s or 0.0
    ahead, kept = [lane], 0.0
    idle: float
    for other in others:
        idle = max(other.reserve, other.kept)
        if other.priority >= lane.priority:
            # What a reserve keeps busy is in the load already.
            ahead.append(other)
            idle -= other.busy
        kept += max(idle, 0.0)
    rate = sum(each.arrivals_per_s for each in ahead)
    load = sum(each.busy for each in ahead)
    run_s = load / rate if load > 0 else lane.run_s or 0.0
    waiting = sum(each.waiting for each in ahead)
    work_s = sum(each.work_within(slo_s) for each in ahead[1:]) + lane.waiting * (lane.run_s or 0)
    slots = lane.fleet.slots
    usable = max(slots - kept, 1.0)

    hold = _up(kept) + slots_for_objective(load, run_s, slo_s)
    rest = _up(kept) + slots_for_objective(load / REST_LOAD, run_s, slo_s)
    predicted_s = work_s / usable
    inputs = {
        "slots": slots,
        "waiting": waiting,
        "head_age_s": round(lane.head_age_s, 3),
        "predicted_wait_s": round(predicted_s, 3),
        "arrivals_per_s": round(rate, 3),
        "run_s": round(run_s, 6),
        "load": round(load, 3),
        "kept_by_reserves": round(kept, 3),
        "slo_s": slo_s,
        "rest": rest,
    }
    wanted, is_late = rest, False
    is_missed = hold > slots
    reason = (
        f"lane {lane.name}: {rate:.3g}/s × {run_s:.3g} s keep {load:.3g} slots busy; "
        f"for its objective of {slo_s:g} s that needs {rest}"
    )
    if lane.waiting and predicted_s > LATE_SHARE * slo_s:
        drain = _up(kept + sum(each.busy_of_late for each in ahead) + work_s / slo_s)
        is_missed = is_missed or drain > slots
        if drain > wanted:
            wanted = drain
            reason = (
                f"lane {lane.name}: {waiting} waiting × {work_s / waiting:.3g} s / "
                f"{usable:.3g} slots is a wait of {predicted_s:.3g} s, its objective {slo_s:g} s"
            )
            inputs["drain"] = drain
    # Lanes with a long objective are looked at often enough to be seen in time.
    if heeds_age and lane.waiting and lane.head_age_s >= max(slo_s / 2, slo_s - LOOK_S):
        # Of unknown run time: twice the slots; no more than a slot for each job.
        more = _up(work_s / slo_s) if lane.run_s else slots
        late = slots + min(max(more, 1), waiting)
        is_missed = is_late = True
        if late > wanted:
            wanted = late
            reason = (
                f"lane {lane.name}: its first of {waiting} waiting has waited "
                f"{lane.head_age_s:.3g} s, its objective {slo_s:g} s"
            )
            inputs["late"] = late
    if lane.limit is not None:
        # What its own limits hold back is not helped by slots.
        useful = _up(kept + sum(each.busy for each in ahead[1:]) + lane.limit)
        wanted, is_missed = min(wanted, useful), is_missed and useful > slots
        inputs["useful"] = useful
    return Need(lane.name, wanted, is_missed, is_late, reason, MappingProxyType(inputs))


def reserves_need(lanes: Iterable[LaneLoad]) -> list[Need]:
    """Return what the fleet's reserves want: their slots, and one that stays open to others."""
    reserved = [lane for lane in lanes if lane.reserve]
    slots = sum(lane.reserve for lane in reserved) + 1
    listed = ", ".join(f"{lane.name}={lane.reserve}" for lane in reserved)
    return [
        Need(
            lane.name,
            slots,
            is_missed=lane.fleet.slots < slots,
            is_late=False,
            reason=f"the fleet's reserves ({listed}) need {slots} slots, one open to other lanes",
            inputs=MappingProxyType({"slots": lane.fleet.slots, "rest": slots}),
        )
        for lane in reserved
    ]


def desired_slots(lanes: Iterable[LaneLoad]) -> DesiredSlots:
    """Return the slots that a namespace wants over its fleet.

    What the lanes with an objective want; but no fewer than all lanes keep busy on average, or
    one without an objective would fall behind for ever; and what reserves need.

    Args:
        lanes: all that are not paused.
    """
    lanes = tuple(lanes)
    busy = sum(lane.busy for lane in lanes)
    found = DesiredSlots(
        max(1, _up(busy)), None, f"all lanes together keep {busy:.3g} slots busy on average"
    )
    for need in (*_needs_of(lanes), *reserves_need(lanes)):
        if need.slots > found.value:
            found = DesiredSlots(need.slots, need.lane, need.reason)
    return found


def _needs_of(lanes: Sequence[LaneLoad], patient: Collection[str] = ()) -> list[Need]:
    return [
        need_of(
            lane,
            (other for other in lanes if other is not lane),
            heeds_age=lane.name not in patient,
        )
        for lane in lanes
        if lane.slo_s is not None
    ]


def share_of(wanted: int, fleet: Fleet, *, least: int, most: int, place: float = 0.5) -> int:
    """Return one worker's part of the slots that the fleet is to have.

    Its least, and what is missing beyond that of all in proportion to what each can grow.

    Args:
        wanted: slots over the fleet.
        fleet: the slots that serve the lane.
        least: fewest slots of this worker.
        most: its most.
        place: the worker's place among those that can grow, as ``(rank + 0.5) / number``: it
            decides who rounds up, so that the parts add up.
    """
    missing = wanted - fleet.fixed - fleet.least
    span = fleet.most - fleet.least
    if missing <= 0:
        return least
    if missing >= span:
        return most
    return least + math.floor(missing * (most - least) / span + 1 - place + _FUZZ)


class Rate:
    """Arrivals per second, from a running total that is read now and then: averaged, and latest.

    Attributes:
        average: with exponential weights; begins at 0.
        latest: since the last note; None before there are two.
    """

    __slots__ = ("_at", "_total", "average", "latest")

    def __init__(self) -> None:
        self._at = 0.0
        self._total: int | None = None
        self.average = 0.0
        self.latest: float | None = None

    def note(self, now_s: float, total: int, *, over_s: float) -> None:
        """Take in the total at an instant; the average is over about `over_s` seconds."""
        elapsed = now_s - self._at
        if self._total is not None and elapsed > 0:
            # Work that was purged came once all the same, but is not worth a slot.
            self.latest = max(total - self._total, 0) / elapsed
            weight = -math.expm1(-elapsed / over_s)
            self.average += weight * (self.latest - self.average)
        self._at, self._total = now_s, total


def averaging_s(slo_s: float | None, run_s: float | None) -> float:
    """Return over how many seconds arrivals are to be averaged.

    As long as the objective, since a burst that fits into it needs no slots; and several run
    times, or single arrivals of long jobs would swing it.
    """
    return min(_LONGEST_S, max(_SHORTEST_S, slo_s or 0.0, _RUNS * (run_s or 0.0)))


@dataclass(slots=True)
class _Wanted:
    """What was wanted for one lane of late: instant and slots, only what may still be the peak."""

    past: deque[tuple[float, int]] = field(default_factory=deque)

    def note(self, now_s: float, slots: int) -> int:
        """Take in what is wanted now; return the most in the last `HOLD_S` seconds."""
        past = self.past
        while past and past[-1][1] <= slots:
            past.pop()
        past.append((now_s, slots))
        while past[0][0] < now_s - HOLD_S:
            past.popleft()
        return past[0][1]


class Pool:
    """Decides the slots of one worker, look by look; the rule is at the top of this module.

    Args:
        least: fewest slots; what its own reserves need is in it.
        most: most slots.
    """

    __slots__ = ("_late_until", "_least", "_most", "_stepped_at", "_wanted")

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most
        self._wanted: dict[str, _Wanted] = {}
        self._late_until: dict[str, float] = {}
        self._stepped_at = -math.inf

    def decide(
        self, now_s: float, slots: int, lanes: Sequence[LaneLoad], *, place: float = 0.5
    ) -> PoolDecision:
        """Return how many slots to have.

        Args:
            now_s: the instant of the look, in seconds; only differences count.
            slots: what the worker has.
            lanes: those that it can serve, paused ones left out.
            place: its place in the fleet, see `share_of`.
        """
        by_name = {lane.name: lane for lane in lanes}
        # A late head counts again when the last step has had its time.
        patient = [name for name, until in self._late_until.items() if now_s < until]
        needs = _needs_of(lanes, patient)
        if not needs:
            why = "no lane that this worker may take has an slo"
            return PoolDecision(slots, slots, slots, slots, None, why, MappingProxyType({}))
        needs += reserves_need(lanes)

        def share(need: Need, wanted: int) -> int:
            fleet = by_name[need.lane].fleet
            return share_of(wanted, fleet, least=self._least, most=self._most, place=place)

        peaks = self._peaks(now_s, needs)
        held = max(needs, key=lambda need: share(need, peaks[need.lane]))
        peak = peaks[held.lane]
        target = share(held, peak)
        part = max(self._part(by_name[name].fleet, wanted) for name, wanted in peaks.items())
        missed = [need for need in needs if need.is_missed]
        if missed and target > slots:
            cause = max(missed, key=lambda need: share(need, need.slots))
            value = share(cause, cause.slots)
            if value > slots:
                self._stepped_at = now_s
                self._be_patient(now_s, [by_name[need.lane] for need in missed if need.is_late])
                return PoolDecision(
                    value, slots, cause.slots, part, cause.lane, cause.reason, cause.inputs
                )
        is_surplus = all(
            fleet.slots - wanted >= max(1.0, band * fleet.slots)
            for fleet, band, wanted in (
                # What reserves need does not waver.
                (lane.fleet, 0.0 if lane.slo_s is None else BAND, peaks[lane.name])
                for lane in lanes
                if lane.name in peaks
            )
        )
        is_time = now_s - self._stepped_at >= STEP_DOWN_S * (1 - _FUZZ)
        if slots > target and is_surplus and is_time:
            self._stepped_at = now_s
            value = slots - math.ceil((slots - target) * STEP_DOWN_SHARE)
            reason = (
                f"lane {held.lane}: the fleet has {by_name[held.lane].fleet.slots} slots and "
                f"wanted {peak} at most in the last {HOLD_S:g} s"
            )
            return PoolDecision(value, slots, peak, part, held.lane, reason, held.inputs)
        return PoolDecision(slots, slots, peak, part, held.lane, held.reason, held.inputs)

    def _part(self, fleet: Fleet, wanted: int) -> float:
        """Return this worker's part of what is wanted, in proportion to its most."""
        return max(wanted - fleet.fixed, 0) * self._most / max(fleet.most, self._most)

    def _peaks(self, now_s: float, needs: Iterable[Need]) -> dict[str, int]:
        """Return the most that was wanted of late for each lane that wants something now."""
        now: dict[str, int] = {}
        for need in needs:
            now[need.lane] = max(now.get(need.lane, 0), need.slots)
        self._wanted = {name: self._wanted.get(name) or _Wanted() for name in now}
        return {name: self._wanted[name].note(now_s, slots) for name, slots in now.items()}

    def _be_patient(self, now_s: float, lanes: Iterable[LaneLoad]) -> None:
        for lane in lanes:
            pause_s = max(lane.slo_s or 0.0, lane.run_s or 0.0, LOOK_S)
            self._late_until[lane.name] = now_s + pause_s
