"""How many slots a lane needs: by a rule of thumb, for random arrivals, and by what is seen.

Three answers. The rule of thumb covers the average load with headroom (`reserve_for`). Erlang's
formula covers arrivals at random, which bunch: it gives the slots that keep the chance of any
wait under a bound (`servers_for_wait`). And a reserve that sizes itself follows what is measured
(`decide_reserve`).

**Why to reserve at all.** Idle slots look like waste, and are what keeps short jobs from waiting
for long ones that cannot be preempted. DARC, the policy of Perséphone, reserves cores for short
requests by their measured share of the load and shows that a scheduler which leaves them idle has
a lower tail latency at a higher load than one that never does (Demoulin, Fried, Pedisich, Kogias,
Loo, Phan, Zhang: "When Idling is Ideal: Optimizing Tail-Latency for Heavy-Tailed Datacenter
Workloads with Perséphone", SOSP 2021, pp. 621-637). As there, the longer jobs' slots may be taken
by the shorter ones and not the other way round, and demand is measured and followed.

**How large.** The load a = rate × run is the mean of the slots in use; arrivals at random make it
vary, and the reserve covers load and variation:

- *square-root staffing*: a + z·√(V·a). With Poisson arrivals the slots in use have variance a;
  with others about V·a, V being the index of dispersion of their counts (variance over mean; 1 for
  Poisson, 0 for even ones). z follows from the share of jobs that may wait, by the limit in which
  that share is neither 0 nor 1: share = 1 / (1 + z·Φ(z)/φ(z)) (Halfin, Whitt 1981, "Heavy-traffic
  limits for queues with many exponential servers", Operations Research 29(3), 567-588).
- *what it lacks in small pools*: the square root is the first term of an expansion of Erlang's C,
  and the next one matters at the sizes of a reserve (Janssen, van Leeuwaarden, Zwart 2011,
  "Refining square-root safety staffing by expanding Erlang C", Operations Research 59(6),
  1512-1522). Here Erlang's C itself is solved, which is cheap at these sizes, and the difference
  is added.
- *what others free in time*: where jobs may wait a little (`within_s`), those that find the
  reserve full are served by slots that jobs of other lanes leave within that time. How much this
  spares depends on how run times vary; it is found by playing a few thousand jobs through the
  rule of reserves (`late_share`).
- *what is seen*: where more jobs were late than may be, all the same, the reserve is one larger.

The reserve goes up at once and down at most once a minute, to the most that was wanted during
that minute: so it follows a rise within seconds and does not flap. What is measured has chance in
it, which the larger of many looks would take for load: the rate is therefore taken one standard
deviation lower, and the arrivals as random ones (V = 1) until their counts say otherwise.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import count, pairwise
from types import MappingProxyType
from typing import Any, Final, Self

from laneq.errors import OptionError
from laneq.histogram import value_of
from laneq.wording import duration

# Products such as 100/s × 0.07 s come out a hair above the whole number they are.
_FUZZ: Final = 1e-9

#: The largest load, in busy slots, that is worked out.
MAX_LOAD: Final = 1e6


def _checked(option: str, number: float, low: float, high: float) -> float:
    if not low <= number <= high:  # also false for NaN
        raise OptionError(option, f"must be between {low:g} and {high:g}, not {number!r}")
    return number


def offered_load(rate_per_s: float, run_s: float) -> float:
    """Return the slots that are busy on average, in erlangs: rate × mean run time.

    It is Little's law (Little 1961, "A proof for the queuing formula L = λW").

    Raises:
        OptionError: a number is negative, NaN, or the product is over `MAX_LOAD`.
    """
    load = _checked("rate_per_s", rate_per_s, 0, 1e12) * _checked("run_s", run_s, 0, 1e12)
    return _checked("rate_per_s × run_s", load, 0, MAX_LOAD)


def reserve_for(rate_per_s: float, run_s: float, headroom: float = 1.5) -> int:
    """Return the slots to reserve for a load: ``max(1, ceil(rate × run × headroom))``.

    The rule is from "Worker Pools with Priority Lanes".

    Args:
        rate_per_s: jobs that arrive per second.
        run_s: mean run time of one, in seconds.
        headroom: factor over the average load.

    Raises:
        OptionError: a number is negative, NaN or far too large.
    """
    wanted = offered_load(rate_per_s, run_s) * _checked("headroom", headroom, 0, 1000)
    return max(1, math.ceil(wanted * (1 - _FUZZ)))


def _blocking(load: float) -> Iterator[tuple[int, float]]:
    # Erlang B for 1, 2, 3 … servers, by its recursion (Cooper 1981, Introduction to Queueing
    # Theory): B(n) = a B(n-1) / (n + a B(n-1)). All terms are positive, so it neither overflows
    # nor cancels, as the formula with powers and factorials does from some 170 servers.
    blocked = 1.0
    for servers in count(1):
        blocked = load * blocked / (servers + load * blocked)
        yield servers, blocked


def _waiting(servers: int, load: float, blocked: float) -> float:
    # Erlang C from B: C = n B / (n - a (1 - B)); at or over capacity everybody waits.
    if load >= servers:
        return 1.0
    return servers * blocked / (servers - load * (1 - blocked))


def erlang_c(servers: int, load: float) -> float:
    """Return the chance that a job which arrives at random has to wait for a slot.

    For Poisson arrivals, and run times that vary like an exponential distribution, in a queue of
    their own (Erlang 1917, "Solution of some problems in the theory of probabilities of
    significance in automatic telephone exchanges"). Run times that vary less wait less.

    Args:
        servers: slots.
        load: offered load in erlangs, see `offered_load`.

    Raises:
        OptionError: a number is negative, NaN or far too large.
    """
    _checked("servers", servers, 0, 10 * MAX_LOAD)
    _checked("load", load, 0, MAX_LOAD)
    if load >= servers:
        return 1.0
    # Once it has come down to zero it stays there, however many more servers there are.
    blocked = next(b for n, b in _blocking(load) if n >= servers or b == 0)
    return _waiting(servers, load, blocked)


def servers_for_wait(rate_per_s: float, run_s: float, chance: float = 0.01) -> int:
    """Return the fewest slots with which at most the share `chance` of jobs waits at all.

    Args:
        rate_per_s: jobs that arrive per second, at random.
        run_s: mean run time of one, in seconds.
        chance: the share that may wait, above 0 and below 1.

    Raises:
        OptionError: a number is negative, NaN or far too large.
    """
    return _servers(offered_load(rate_per_s, run_s), chance)


def _servers(load: float, chance: float) -> int:
    _checked("chance", chance, 1e-12, 1 - 1e-12)
    return next(n for n, blocked in _blocking(load) if _waiting(n, load, blocked) <= chance)


# --- square-root staffing ---------------------------------------------------

#: Largest index of dispersion that is worked with.
_MAX_DISPERSION: Final = 1e6

#: Standard deviations that a dispersion is off before it is one, not chance.
_SURE_Z: Final = 4.0

#: Median of a squared standard normal: what the median of squared differences is divided by.
_MEDIAN_SQUARE: Final = 0.4549

#: Above this load the square root is near enough, and Erlang's sums would take long.
_LARGE_LOAD: Final = 2_000.0


def safety_factor(chance: float) -> float:
    """Return z: how many standard deviations of load keep the share that waits at `chance`.

    It is the limit for large pools (Halfin, Whitt 1981), and solves
    ``chance = 1 / (1 + z·Φ(z)/φ(z))``.

    Raises:
        OptionError: `chance` is not between 0 and 1.
    """
    _checked("chance", chance, 1e-12, 1 - 1e-12)

    def share(z: float) -> float:
        below = (1 + math.erf(z / math.sqrt(2))) / 2
        density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        return 1 / (1 + z * below / density)

    low, high = 0.0, 8.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if share(middle) > chance else (low, middle)
    return high


@dataclass(frozen=True, slots=True)
class Staffing:
    """Slots by square-root staffing, term by term.

    Attributes:
        load: a, the slots in use on average.
        spread: z·√(V·a), what their variation adds.
        refinement: what Erlang's C adds to that at this size.
        z: standard deviations that are covered.
    """

    load: float
    spread: float
    refinement: float
    z: float

    @property
    def slots(self) -> int:
        """Return the whole slots."""
        # The refined square root is Erlang's whole number, but for rounding.
        return math.ceil((self.load + self.spread + self.refinement) * (1 - _FUZZ))


def square_root_staffing(load: float, *, chance: float = 0.01, dispersion: float = 1.0) -> Staffing:
    """Return the slots with which at most about the share `chance` of jobs waits.

    Args:
        load: a, in erlangs, see `offered_load`.
        chance: the share that may wait.
        dispersion: V, see `dispersion_of`.

    Raises:
        OptionError: a number is out of its range.
    """
    _checked("load", load, 0, MAX_LOAD)
    _checked("dispersion", dispersion, 0, _MAX_DISPERSION)
    z = safety_factor(chance)
    refinement = 0.0
    if load <= _LARGE_LOAD:
        refinement = _servers(load, chance) - load - z * math.sqrt(load)
    return Staffing(load, z * math.sqrt(dispersion * load), refinement, z)


def dispersion_of(counts: Sequence[tuple[float, float]]) -> float:
    """Estimate V, the index of dispersion: variance over mean of the arrivals in a time.

    It is Pearson's statistic over its degrees of freedom, or 1, random arrivals, where that is
    within what chance does to random arrivals (four standard deviations).

    Args:
        counts: seconds of an interval and jobs that arrived in it.
    """
    seconds = sum(length for length, _ in counts)
    rate = sum(n for _, n in counts) / seconds if seconds > 0 else 0.0
    freedom = len(counts) - 1
    if rate <= 0 or freedom < 1:
        return 1.0
    found = sum((n - rate * s) ** 2 / (rate * s) for s, n in counts if s > 0) / freedom
    # The variance of Pearson's statistic, for counts as small as they are.
    chance = math.sqrt((2 + sum(1 / (rate * s) for s, _ in counts if s > 0) / freedom) / freedom)
    return min(found, _MAX_DISPERSION) if abs(found - 1) > _SURE_Z * chance else 1.0


def local_dispersion(counts: Sequence[tuple[float, float]]) -> float:
    """Estimate the index of dispersion from one interval to the next.

    It is the median of squared differences, so that a rate that changes now and then, which
    `dispersion_of` takes for dispersion, does not move it.

    Args:
        counts: seconds of an interval and jobs that arrived in it, in order.
    """
    seconds = sum(length for length, _ in counts)
    rate = sum(n for _, n in counts) / seconds if seconds > 0 else 0.0
    jumps = sorted((m / b - n / a) ** 2 / (1 / a + 1 / b) for (a, n), (b, m) in pairwise(counts))
    if rate <= 0 or not jumps:
        return 1.0
    return min(jumps[len(jumps) // 2] / (_MEDIAN_SQUARE * rate), _MAX_DISPERSION)


def moments_of(buckets: Mapping[int, int]) -> tuple[float, float] | None:
    """Return mean, in seconds, and squared variation of a histogram; None where it is empty.

    The squared variation is variance over squared mean: 0 for jobs that run equally long, 1 for
    an exponential distribution.
    """
    total = sum(buckets.values())
    if total <= 0:
        return None
    mean = sum(value_of(bucket) * n for bucket, n in buckets.items()) / total
    square = sum(value_of(bucket) ** 2 * n for bucket, n in buckets.items()) / total
    return mean / 1e6, max(0.0, square / mean**2 - 1)


# --- what slots of other lanes free in time ---------------------------------


@dataclass(frozen=True, slots=True)
class Runs:
    """Run times of a lane's jobs.

    Attributes:
        mean_s: the mean in seconds.
        variation: squared: variance over squared mean; 1 for exponential ones.
    """

    mean_s: float
    variation: float = 1.0

    def draw(self, rng: random.Random) -> Callable[[], float]:
        """Return what draws run times: of a gamma distribution, which has both figures."""
        mean, variation = self.mean_s, self.variation
        if variation < 1e-3 or mean <= 0:  # noqa: PLR2004  all equal
            return lambda: mean
        shape, scale = 1 / variation, mean * variation
        return lambda: rng.gammavariate(shape, scale)


#: Jobs of other lanes that are played at most, and jobs of the lane at least.
_MOST_EVENTS: Final = 100_000
_FEWEST_JOBS: Final = 100


def _others_per_job(rate_per_s: float, slots: int, others: Runs) -> float:
    """Return how many jobs of other lanes run from one job of the lane to the next."""
    return max(1, slots) / max(others.mean_s, 1e-6) / rate_per_s


def late_share(
    reserve: int,
    *,
    rate_per_s: float,
    run: Runs,
    within_s: float,
    slots: int,
    others: Runs,
    dispersion: float = 1.0,
    jobs: int = 4_000,
) -> float:
    """Return the share of a lane's jobs that waits longer than `within_s`, with this reserve.

    It plays jobs through the rule of reserves (`laneq.order`): the lane goes first on every slot,
    the others always have work and take each slot that the reserve does not need. The same jobs
    are played for every reserve, so that answers can be compared; it takes about 10 ms. Where
    the lane's jobs are rare, fewer are played: the others' are what takes long then.

    Args:
        reserve: slots kept for the lane.
        rate_per_s: its jobs that arrive per second.
        run: how long they run.
        within_s: wait that is no lateness, in seconds.
        slots: all slots, reserved and shared.
        others: how long the other lanes' jobs run.
        dispersion: of the arrivals, see `dispersion_of`.
        jobs: how many are played.
    """
    rng = random.Random(20_211_026)
    meanwhile = _others_per_job(rate_per_s, slots - reserve, others)
    jobs = min(jobs, max(_FEWEST_JOBS, int(_MOST_EVENTS / meanwhile)))
    shape, scale = 1 / max(dispersion, 0.01), max(dispersion, 0.01) / rate_per_s
    run_s, other_s = run.draw(random.Random(1)), others.draw(random.Random(2))
    shared = max(0, slots - reserve)
    # True for ends of own jobs. The others' began at some time before.
    ends = [(other_s() * rng.random(), False) for _ in range(shared)]
    heapify(ends)
    idle, running, late = slots - shared, 0, 0
    waiting: deque[float] = deque()
    at = 0.0

    def play_until(limit: float) -> None:
        nonlocal idle, running, late
        while ends and ends[0][0] <= limit:
            end, is_own = heappop(ends)
            running -= is_own
            if waiting:
                late += end - waiting.popleft() > within_s
                running += 1
                heappush(ends, (end + run_s(), True))
            elif idle + 1 > reserve - running:
                heappush(ends, (end + other_s(), False))
            else:
                idle += 1

    for _ in range(jobs):
        at += rng.gammavariate(shape, scale)
        play_until(at)
        if idle:
            idle -= 1
            running += 1
            heappush(ends, (at + run_s(), True))
        else:
            waiting.append(at)
            if len(waiting) > jobs // 10:
                return 1.0  # it grows without end
    if not slots:
        return 1.0
    while waiting and ends:
        play_until(ends[0][0])
    return late / jobs


# --- a reserve that sizes itself --------------------------------------------

#: Seconds over which arrivals are averaged, and for which a reserve is not lowered.
MINUTE_S: Final = 60.0

#: Seconds less than a minute that the looks of a minute may span.
_SLACK_S: Final = 3.0

#: Longest time over which a change of the rate is looked for, in seconds.
_RECENT_S: Final = 16.0

#: Shortest interval between two looks that are kept, in seconds.
_SHORTEST_S: Final = 0.2

#: Intervals that must be known before a change of the rate can be told.
_KNOWN: Final = 4

#: Standard deviations that a count is off before it is a change of the rate, not chance.
_CHANGE_Z: Final = 4.0

#: Seconds after a change of the reserve in which what waited before it is still started.
_SETTLE_S: Final = 2.0

#: Seconds without undue lateness after which a correction for lateness is taken back.
_CALM_S: Final = 300.0

#: Relative change of a figure after which `late_share` is played again.
_STEP: Final = 1.05


@dataclass(frozen=True, slots=True)
class ReserveAim:
    """What a reserve is to hold.

    Attributes:
        share: of the lane's jobs that may wait longer than `within_s`.
        within_s: wait that is no lateness, in seconds: the lane's `slo`, or 0.
    """

    share: float = 0.01
    within_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what cannot be held."""
        _checked("share", self.share, 1e-6, 0.5)
        _checked("within_s", self.within_s, 0, 1e9)


@dataclass(frozen=True, slots=True)
class ReserveLook:
    """What was measured of a lane at one moment.

    Attributes:
        at: seconds, by Redis's clock.
        arrived: jobs that ever arrived in it; only differences count.
        slots: of all live workers that serve it.
        run: how long its jobs run; None before anything was measured.
        others: how long the jobs of other lanes on the same slots run; None where there are none.
        starts: its jobs started since `ReserveState.observed_from`, as far as they are known.
        late: those of them that had waited longer than the aim allows.
    """

    at: float
    arrived: int
    slots: int
    run: Runs | None = None
    others: Runs | None = None
    starts: int = 0
    late: int = 0


@dataclass(frozen=True, slots=True)
class ReserveState:
    """What `decide_reserve` remembers from one look to the next.

    Attributes:
        value: the reserve in force.
        lowered_at: when it was last lowered, or began.
        observed_from: from when on lateness is counted: a little after the last change of the
            reserve, when what waited before it has been started; it may lie ahead.
        trim: slots added since jobs were late all the same.
        looks: (seconds, jobs arrived) of the last minute, since the rate last changed.
        wanted: (seconds, slots) of the last minute: each more than all that came after.
        model: the figures that `late_share` was last asked for, and its answer.
    """

    value: int = 0
    lowered_at: float = 0.0
    observed_from: float = 0.0
    trim: int = 0
    looks: tuple[tuple[float, int], ...] = ()
    wanted: tuple[tuple[float, int], ...] = ()
    model: tuple[tuple[float, ...], int] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Read what `to_json` returned; what is missing or new is left at its default.

        Raises:
            OptionError: it is no state.
        """
        try:
            model = stored.get("model")
            return cls(
                value=int(stored.get("value", 0)),
                lowered_at=float(stored.get("lowered_at", 0.0)),
                observed_from=float(stored.get("observed_from", 0.0)),
                trim=int(stored.get("trim", 0)),
                looks=tuple((float(at), int(n)) for at, n in stored.get("looks", ())),
                wanted=tuple((float(at), int(n)) for at, n in stored.get("wanted", ())),
                model=(tuple(map(float, model[0])), int(model[1])) if model else None,
            )
        except (TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
            raise OptionError("state", f"is no state of a reserve: {error}") from error


@dataclass(frozen=True, slots=True)
class ReserveDecision:
    """How many slots a lane is to be sure of from now on, and why.

    Attributes:
        value: slots.
        before: what it was.
        at: when it was decided, in seconds, by Redis's clock.
        inputs: what was measured: ``rate_per_s`` over ``measured_s`` seconds, ``sure_per_s``
            (one standard deviation less), ``run_s``, ``dispersion``, ``slots``, ``other_run_s``,
            ``starts``, ``late``; and the aim: ``share``, ``within_s``.
        terms: ``load``, ``z``, ``spread``, ``refinement``, ``freed`` (what the shared slots
            spare, below 0), ``trim``, and ``wanted``, their sum within its bounds.
        reason: in words.
    """

    value: int
    before: int
    at: float
    inputs: Mapping[str, float | None]
    terms: Mapping[str, float]
    reason: str

    @property
    def is_change(self) -> bool:
        """Return whether anything changes."""
        return self.value != self.before

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        return {
            "value": self.value,
            "before": self.before,
            "at": self.at,
            "inputs": dict(self.inputs),
            "terms": dict(self.terms),
            "reason": self.reason,
        }


def decide_reserve(
    state: ReserveState, look: ReserveLook, aim: ReserveAim | None = None
) -> tuple[ReserveState, ReserveDecision]:
    """Decide a lane's reserve after a look; the top of this module says how.

    Look about once a second. The first value is 1, as nothing is known; a rise of the load is
    followed at the second or third look that sees it.

    Args:
        state: what the last decision returned; ``ReserveState()`` at first.
        look: what was measured.
        aim: what is to be held; at most 1 % of the jobs wait at all unless given.

    Returns:
        The state for the next look, and the decision.
    """
    aim = aim or ReserveAim()
    looks = _note_look(state.looks, look)
    seconds = looks[-1][0] - looks[0][0]
    rate = (looks[-1][1] - looks[0][1]) / seconds if seconds > 0 else 0.0
    intervals = _intervals(looks)
    # Before a change of the rate can be told, one would pass for arrivals that bunch.
    dispersion = dispersion_of(intervals) if len(intervals) >= 2 * _KNOWN else 1.0
    sure = max(0.0, rate - math.sqrt(dispersion * rate / seconds)) if seconds > 0 else 0.0
    run_s = look.run.mean_s if look.run else 0.0
    staffing = square_root_staffing(
        min(sure * run_s, MAX_LOAD), chance=aim.share, dispersion=dispersion
    )
    most = max(look.slots - 1, 0)
    model, freed = None, 0
    if aim.within_s > 0 and staffing.load > 0 and look.run and look.others and most:
        # What was measured over twice the time is known better, and may be another number.
        span_s = 2.0 ** math.floor(math.log2(max(seconds, 1)) + _FUZZ)
        if seconds > MINUTE_S - _SLACK_S:
            span_s = MINUTE_S
        aimed = (aim.within_s, aim.share, float(look.slots), span_s)
        figures = (sure, run_s, look.others.mean_s, dispersion, *aimed)
        model = state.model
        if model is None or not _is_near(model[0], figures, chance=(rate - sure) / rate):
            model = figures, _fewest(look, aim, rate=sure, dispersion=dispersion, staffing=staffing)
        freed = model[1] - staffing.slots
    bare = staffing.slots + freed if staffing.load > 0 else 1
    trim, observed_from = state.trim, state.observed_from
    undue = aim.share * look.starts + 3 * math.sqrt(aim.share * look.starts) + 2
    is_late = look.at >= observed_from and look.late > undue
    if is_late and max(bare + trim, 1) <= state.value < most:
        trim, observed_from = trim + 1, look.at + _SETTLE_S
    elif trim and look.at - observed_from >= _CALM_S:
        trim, observed_from = trim - 1, look.at
    bare += trim
    target = min(max(bare, 1), most)
    value, lowered_at, wanted = _hold(state, target, look.at, most=most)
    if value != state.value:
        observed_from = look.at + _SETTLE_S
    decision = ReserveDecision(
        value=value,
        before=state.value,
        at=look.at,
        inputs=MappingProxyType(
            {
                "rate_per_s": round(rate, 3),
                "sure_per_s": round(sure, 3),
                "run_s": round(run_s, 6) if look.run else None,
                "dispersion": round(dispersion, 3),
                "measured_s": round(seconds, 3),
                "slots": look.slots,
                "other_run_s": round(look.others.mean_s, 6) if look.others else None,
                "starts": look.starts,
                "late": look.late,
                "share": aim.share,
                "within_s": aim.within_s,
            }
        ),
        terms=MappingProxyType(
            {
                "load": round(staffing.load, 4),
                "z": round(staffing.z, 4),
                "spread": round(staffing.spread, 4),
                "refinement": round(staffing.refinement, 4),
                "freed": freed,
                "trim": trim,
                "wanted": target,
            }
        ),
        reason="",
    )
    reason = _reason(decision, is_bounded=bare > most, peak=wanted[0][1])
    state = ReserveState(value, lowered_at, observed_from, trim, looks, wanted, model)
    return state, replace(decision, reason=reason)


def _note_look(
    looks: tuple[tuple[float, int], ...], look: ReserveLook
) -> tuple[tuple[float, int], ...]:
    """Add a look; drop what is older than a minute, or from before the rate changed."""
    if looks and (look.at <= looks[-1][0] or look.arrived < looks[-1][1]):
        # The clock stood still, or the counts began anew: so does what is known.
        return ((look.at, look.arrived),)
    noted = [one for one in looks if one[0] >= look.at - MINUTE_S]
    if len(noted) > 1 and noted[-1][0] - noted[-2][0] < _SHORTEST_S:
        noted.pop()  # looks that follow one another fast are one
    noted.append((look.at, look.arrived))
    split = _change_in(noted)
    return tuple(noted[split:])


def _intervals(looks: Sequence[tuple[float, int]]) -> list[tuple[float, float]]:
    return [(b - a, m - n) for (a, n), (b, m) in pairwise(looks)]


def _change_in(looks: Sequence[tuple[float, int]]) -> int:
    """Return the look at which the rate last changed; 0 where chance explains all.

    The last 1, 2, 4 … intervals are weighed against all that was before them. What chance does is
    told by the median difference from one interval to the next, which a change does not move.
    """
    steps = _intervals(looks)
    rate = (looks[-1][1] - looks[0][1]) / max(looks[-1][0] - looks[0][0], 1e-9)
    if len(steps) <= _KNOWN or rate <= 0:
        return 0
    dispersion = max(1.0, local_dispersion(steps))
    found, furthest = 0, _CHANGE_Z
    width = 1
    while len(steps) - width >= _KNOWN:
        split = len(looks) - 1 - width
        before_s, after_s = looks[split][0] - looks[0][0], looks[-1][0] - looks[split][0]
        if after_s > _RECENT_S:
            break
        before, after = looks[split][1] - looks[0][1], looks[-1][1] - looks[split][1]
        off = abs(after / after_s - before / before_s)
        pooled = max(rate, before / before_s)
        far = off / math.sqrt(dispersion * pooled * (1 / after_s + 1 / before_s))
        if far > furthest and off * after_s > _CHANGE_Z:
            found, furthest = split, far
        width *= 2
    return found or _start_in(looks)


def _start_in(looks: Sequence[tuple[float, int]]) -> int:
    """Return the look at which a load began, a few looks after the first; 0 where none did.

    As `_change_in`, where too little was before the change to be weighed by itself: a lane that
    was idle at first, and the interval in which its load began.
    """
    found = 0
    for split in range(1, _KNOWN):
        after = _intervals(looks[split:])
        if len(after) < _KNOWN:
            break
        after_s = looks[-1][0] - looks[split][0]
        rate = (looks[-1][1] - looks[split][1]) / after_s
        if rate <= 0:
            break
        noise = max(1.0, local_dispersion(after))
        # The last interval before alone: those before it may have had less, but no other story.
        length, n = looks[split][0] - looks[split - 1][0], looks[split][1] - looks[split - 1][1]
        far = abs(n / length - rate) / math.sqrt(noise * rate * (1 / length + 1 / after_s))
        if far > _CHANGE_Z and abs(n - rate * length) > _CHANGE_Z:
            found = split
    return found


def _is_near(known: Sequence[float], figures: Sequence[float], *, chance: float) -> bool:
    """Tell whether figures are about as they were; the rate, the first, within its chance too."""
    if len(known) != len(figures):
        return False
    steps = [max(_STEP, 1 + 3 * chance)] + [_STEP] * (len(figures) - 1)
    return all(
        max(a, b) <= step * min(a, b) for a, b, step in zip(known, figures, steps, strict=True)
    )


def _fewest(
    look: ReserveLook, aim: ReserveAim, *, rate: float, dispersion: float, staffing: Staffing
) -> int:
    """Return the fewest slots with which few enough jobs are late."""
    low, high = 0, max(1, min(staffing.slots, look.slots - 1))
    if _others_per_job(rate, look.slots, look.others or Runs(0)) * _FEWEST_JOBS > 5 * _MOST_EVENTS:
        return high  # too rare to be played: nothing is spared
    while high - low > 1:
        middle = (low + high) // 2
        late = late_share(
            middle,
            rate_per_s=rate,
            run=look.run or Runs(0),
            within_s=aim.within_s,
            slots=look.slots,
            others=look.others or Runs(0),
            dispersion=dispersion,
        )
        low, high = (low, middle) if late <= aim.share else (middle, high)
    return high


def _hold(
    state: ReserveState, target: int, at: float, *, most: int
) -> tuple[int, float, tuple[tuple[float, int], ...]]:
    """Go up at once and down once a minute; return the value, when it was lowered, what is held."""
    kept = [(then, n) for then, n in state.wanted if then > at - MINUTE_S and n > target]
    wanted = (*kept, (at, target))
    peak = min(wanted[0][1], most)
    if target >= state.value or state.value > most:
        return (target if target >= state.value else most), state.lowered_at or at, wanted
    if peak < state.value and at - state.lowered_at >= MINUTE_S:
        return peak, at, wanted
    return state.value, state.lowered_at, wanted


def _reason(decision: ReserveDecision, *, is_bounded: bool, peak: int) -> str:
    inputs, terms = decision.inputs, decision.terms
    if inputs["run_s"] is None or not terms["load"]:
        what = "nothing was measured yet" if inputs["run_s"] is None else "no jobs arrive"
        parts = [f"{what}: 1"]
    else:
        within = inputs["within_s"] or 0.0
        may = f"{inputs['share']:.3g} of the jobs may wait"
        parts = [
            f"{inputs['sure_per_s']:.3g}/s ({inputs['rate_per_s']:.3g} measured, less one "
            f"deviation) × {duration(inputs['run_s'])} keep "
            f"{terms['load']:.3g} slots busy; dispersion {inputs['dispersion']:.2g} and {may}"
            + (f" over {duration(within)}" if within else "")
            + f": + {terms['spread'] + terms['refinement']:.3g}"
        ]
        if terms["freed"]:
            sign = "fewer" if terms["freed"] < 0 else "more"
            parts.append(
                f"slots that other jobs leave within {duration(within)}: "
                f"{abs(terms['freed']):g} {sign}"
            )
    if terms["trim"]:
        parts.append(f"jobs were late all the same: {terms['trim']:g} more")
    if is_bounded:
        parts.append(f"one of {inputs['slots']:g} slots stays open to others")
    if decision.value > terms["wanted"]:
        parts.append(
            f"{terms['wanted']:g} wanted now, up to {peak} within the last minute: held at "
            f"{decision.value}"
        )
    return "; ".join(parts)
