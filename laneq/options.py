"""Options of lanes, tasks, calls and workers: frozen, and checked when made.

Times are seconds or a `timedelta` where a user writes them, and are kept as
seconds; each has a property with an ``_us`` suffix, integer microseconds, which
is what keys, scripts and calls use. A bool where a number is meant, NaN and
infinity are refused everywhere. An unknown name is an error that lists the known
ones: no option is ever dropped in silence.

Every limit here keeps scores exact: an instant up to the year 2200 plus the
longest delay is below 2**53 microseconds, the last integer that a sorted set's
double can hold (fault E1).
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol, Self, TypeAlias
from urllib.parse import quote, unquote

from laneq.errors import OptionError, suggest
from laneq.model import LANE_NAME, TASK_NAME

Seconds: TypeAlias = float | timedelta
Duration: TypeAlias = float | timedelta | str
Backoff: TypeAlias = Literal["exponential", "linear", "fixed"] | Callable[[int], Seconds]
Executor: TypeAlias = Literal["async", "thread", "process"]

#: The longest delay, timeout or time to live: a little over 31 years.
MAX_SECONDS: Final = 1e9

#: The largest boost: a head start of about 115 days.
MAX_BOOST: Final = 1e7

#: Largest distance of a lane's priority from zero.
MAX_PRIORITY: Final = 1e6

#: What a job is worth that has waited as long as its lane's `target`.
TARGET_VALUE: Final = 1_000.0

#: The lane of a task that names none.
DEFAULT_LANE: Final = "normal"

_MICROSECOND: Final = timedelta(microseconds=1)
_SHORTEST: Final = 1e-6
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_INSTANT: Final = datetime(2200, 1, 1, tzinfo=UTC)
_UNITS: Final = {"us": 1e-6, "ms": 1e-3, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION: Final = re.compile(r"([0-9.eE+-]+?) ?(us|ms|s|m|h|d|)")
_FAIR_MOST: Final = 200
_MOST_WEIGHTS: Final = 1_000
_FAIR_SAFE: Final = "".join(chr(n) for n in range(0x20, 0x7F) if chr(n) != "%")
_RATE: Final = re.compile(r"([1-9][0-9]{0,8})/([0-9]+(?:\.[0-9]+)?)?(ms|s|m|h|d)")


# --- checks -----------------------------------------------------------------


def _number(option: str, value: object, *, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OptionError(option, f"must be a number, not {value!r}")
    if not low <= value <= high:  # also false for NaN
        raise OptionError(option, f"must be between {low:g} and {high:g}, not {value!r}")
    return float(value)


def _whole(option: str, value: object, *, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionError(option, f"must be a whole number, not {value!r}")
    if not low <= value <= high:
        raise OptionError(option, f"must be between {low:,} and {high:,}, not {value:,}")
    return int(value)


def _flag(option: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise OptionError(option, f"must be True or False, not {value!r}")
    return value


def _seconds(
    option: str, value: object, *, low: float = _SHORTEST, high: float = MAX_SECONDS
) -> float:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OptionError(option, f"must be seconds or a timedelta, not {value!r}")
    if not low <= value <= high:  # also false for NaN
        raise OptionError(option, f"must be between {low:g} and {high:g} seconds, not {value!r}")
    return float(value)


def _instant(option: str, value: datetime) -> datetime:
    if value.utcoffset() is None:
        raise OptionError(
            option,
            f"must have a time zone: {value!r} names another instant on every host. "
            "Use datetime.now(UTC), or .astimezone() for the local zone.",
        )
    if not _EPOCH <= value <= _LAST_INSTANT:
        raise OptionError(option, f"must be between the years 1970 and 2200, not {value}")
    return value


def _lane_name(option: str, value: object) -> str:
    if not isinstance(value, str) or not LANE_NAME.fullmatch(value):
        raise OptionError(
            option, f"must be 1 to 64 of the characters A-Z a-z 0-9 . _ -, not {value!r}"
        )
    return value


def _task_name(option: str, value: object) -> str:
    if not isinstance(value, str) or not TASK_NAME.fullmatch(value):
        raise OptionError(option, f"must be 1 to 200 characters without white space, not {value!r}")
    return value


def _one_of(option: str, value: object, known: Iterable[str]) -> str:
    names = tuple(known)
    if not isinstance(value, str) or value not in names:
        raise OptionError(option, f"cannot be {value!r}. {suggest(str(value), names)}")
    return value


def _rate(option: str, value: object) -> str:
    match = _RATE.fullmatch(value) if isinstance(value, str) else None
    if match is None or float(match[2] or 1) <= 0:
        raise OptionError(
            option, f"must be starts per period, such as '100/s' or '5/10m', not {value!r}"
        )
    return match[0]


def fair_text(key: str) -> str:
    """Return a fair key as scripts have it: percent-encoded, and 200 characters at most.

    A longer one ends in its SHA-256, so that different keys stay different.
    """
    text = quote(key, safe=_FAIR_SAFE, errors="surrogatepass")
    if len(text) <= _FAIR_MOST:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{text[: _FAIR_MOST - len(digest) - 1]}~{digest}"


def to_us(seconds: float) -> int:
    """Return `seconds` as whole microseconds, the nearest."""
    return round(seconds * 1e6)


def seconds_of(option: str, value: object, *, low: float = 0.0) -> float:
    """Return seconds or a `timedelta` as seconds.

    Raises:
        OptionError: it is neither, or not between `low` and `MAX_SECONDS`.
    """
    return _seconds(option, value, low=low)


def instant_us(at: datetime) -> int:
    """Return an aware instant as microseconds since the epoch, exactly."""
    return (at - _EPOCH) // _MICROSECOND


def seconds_from_text(option: str, text: str) -> float:
    """Read a duration as people type it: ``30``, ``1.5``, ``250ms``, ``5m``, ``30d``.

    Raises:
        OptionError: the text is no finite number with a known unit.
    """
    match = _DURATION.fullmatch(text.strip())
    try:
        value = float(match[1]) * _UNITS[match[2]] if match else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise OptionError(
            option, f"must be seconds, or a number with ms, s, m, h or d, not {text!r}"
        )
    return value


def _duration(
    option: str, value: object, *, low: float = _SHORTEST, high: float = MAX_SECONDS
) -> float:
    if isinstance(value, str):
        # A bare number as text is an int() that was forgotten.
        if not value.strip().endswith(tuple("smhd")):
            raise OptionError(option, f"as text must have a unit, such as '30s', not {value!r}")
        value = seconds_from_text(option, value)
    return _seconds(option, value, low=low, high=high)


def _refuse_unknown(given: Iterable[str], known: Iterable[str]) -> None:
    names = tuple(known)
    for name in given:
        if name not in names:
            raise OptionError(name, f"unknown option. {suggest(name, names)}")


# --- lanes ------------------------------------------------------------------


class _Unsaid(float):
    """The default of an option that another one may give: 100.0 said is not 100.0 by default."""

    __slots__ = ()


_PRIORITY: Final = _Unsaid(100.0)
_AGING_CAP: Final = _Unsaid(800.0)


@dataclass(frozen=True, slots=True)
class Lane:
    """A named queue, and how its jobs compete for slots.

    The value of a waiting job is ``priority + min(aging * wait, aging_cap)``; a
    slot takes the lane whose head has the highest value.

    `target` is another way to say a priority: a job that has waited that long is worth
    1,000 points, as much as a new one of `urgent`. It stands for
    ``priority = 1000 - aging * target``, and for an `aging_cap` that lets the job gain
    800 points more once its target has passed. Among lanes with targets the job whose
    target passes first goes first.

    Args:
        name: 1 to 64 letters, digits, dots, dashes or underscores.
        priority: base points, from -1,000,000 to 1,000,000; not together with `target`.
        aging: points per second of wait; 0 for strict priority.
        aging_cap: most points that aging adds; with a `target` at least `aging` times it.
        may_starve: say that its jobs can wait for ever, for as long as a lane above has work. An
            app is refused that has a lane which ages but, by its `aging_cap`, never gets past a
            new job of another one and does not say so; unless it has a `reserve`, or the other
            the priority of `urgent` or `critical` and this one no smaller cap than the usual.
        reserve: slots of the fleet that this lane is sure of, over all live workers that serve
            it; one slot always stays open to others. ``"auto"`` sizes them from what is
            measured: few of its jobs (1 %) wait longer than its `slo`, or at all without one.
        slo: wait objective, in seconds: workers that size themselves follow it; None for none.
        target: wait that the lane's order aims at, in seconds or as ``"30s"``; None for none.
        max_depth: jobs that may wait or be scheduled: an enqueue beyond raises `LaneFull` and
            stores nothing; None for no limit. Retries and jobs that a job enqueues with its
            outcome come in all the same.
        max_running: jobs that may run at a time in the fleet; None for no limit.
        rate: starts per period, evenly, such as ``"100/s"`` or ``"5/10m"``; None for no limit.
        fair_by: the name of the argument whose values share the lane evenly; a call can say
            another key with ``.using(fair_key=...)``. None for strict FIFO.
        fair_weights: key → its share, from 0.01 to 100, where that is not 1.
        lease: seconds after which the jobs of a dead worker run elsewhere; from 1.
        dead_max: dead letters kept; None for no limit.
        dead_age: seconds that a dead letter is kept; None for no limit.
        paused: whether the lane starts out paused.

    Times are seconds, a timedelta, or text with a unit: ``"250ms"``, ``"30s"``, ``"7d"``.

    Raises:
        OptionError: an option has a wrong type or value, or does not go with another.
    """

    name: str
    priority: float = field(default=_PRIORITY, kw_only=True)
    aging: float = field(default=2.0, kw_only=True)
    aging_cap: float = field(default=_AGING_CAP, kw_only=True)
    may_starve: bool = field(default=False, kw_only=True)
    reserve: int | Literal["auto"] = field(default=0, kw_only=True)
    slo: Duration | None = field(default=None, kw_only=True)
    target: Duration | None = field(default=None, kw_only=True)
    max_depth: int | None = field(default=None, kw_only=True)
    max_running: int | None = field(default=None, kw_only=True)
    rate: str | None = field(default=None, kw_only=True)
    fair_by: str | None = field(default=None, kw_only=True)
    fair_weights: Mapping[str, float] | None = field(default=None, kw_only=True, hash=False)
    lease: Duration = field(default=15.0, kw_only=True)
    dead_max: int | None = field(default=10_000, kw_only=True)
    dead_age: Duration | None = field(default=30 * 86400.0, kw_only=True)
    paused: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        """Check every option, keep times as seconds, and work out what `target` says."""
        unsaid = {o for o in ("priority", "aging_cap") if isinstance(getattr(self, o), _Unsaid)}
        for option, check in _LANE_CHECKS.items():
            value = getattr(self, option)
            if value is not None or option not in _LANE_OPTIONAL:
                object.__setattr__(self, option, check(option, value))
        if self.target is not None:
            for option, value in self._follow_target(unsaid).items():
                object.__setattr__(self, option, value)

    def _follow_target(self, unsaid: set[str]) -> dict[str, float]:
        """Return what `target` gives of the options that were not said; check the others."""
        target = (self.target_us or 0) / 1e6
        if self.aging <= 0:
            raise OptionError(
                "target", "needs aging above 0: it is by waiting that a job gets to its target"
            )
        gain = self.aging * target
        priority = TARGET_VALUE - gain
        if priority < -MAX_PRIORITY:
            raise OptionError(
                "target",
                f"of {target:g} s is a priority of {priority:,.0f} with aging={self.aging:g}, and "
                f"the least is {-MAX_PRIORITY:,.0f}. Give the lane a smaller aging.",
            )
        if "priority" not in unsaid and not _is_close(self.priority, priority):
            raise OptionError(
                "priority",
                f"cannot be {self.priority:g} with target={target:g}, which stands for "
                f"{priority:g} with aging={self.aging:g}. Give one of the two.",
            )
        if "aging_cap" not in unsaid and self.aging_cap < gain * (1 - 1e-9):
            raise OptionError(
                "aging_cap",
                f"must be at least aging × target = {gain:g}, not {self.aging_cap:g}: jobs would "
                "never get to their target's value. Leave it out, or raise it.",
            )
        given = {"priority": priority, "aging_cap": gain + _AGING_CAP}
        return {option: given[option] for option in unsaid}

    @property
    def lease_us(self) -> int:
        """Lease in microseconds."""
        return to_us(_seconds("lease", self.lease))

    @property
    def slo_us(self) -> int | None:
        """Wait objective in microseconds; None for none."""
        return _optional_us(self.slo)

    @property
    def target_us(self) -> int | None:
        """Wait that the lane's order aims at, in microseconds; None for none."""
        return _optional_us(self.target)

    @property
    def wait_objective(self) -> float | None:
        """Seconds that a job of this lane is to wait at most: `slo`, else `target`, else None."""
        us = self.slo_us if self.slo is not None else self.target_us
        return None if us is None else us / 1e6

    @property
    def dead_age_us(self) -> int | None:
        """Life of a dead letter in microseconds; None for no limit."""
        return _optional_us(self.dead_age)

    def to_wire(self) -> dict[str, Any]:
        """Return the lane as JSON-able values, one per option; times as ``…_us`` integers.

        Every key is always there; None is an option that is off.
        """
        wire = {name: getattr(self, name) for name in WIRE_NAMES.values()}
        if self.fair_weights:
            wire["fair_weights"] = {fair_text(k): w for k, w in self.fair_weights.items()}
        return wire

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Build a lane from `to_wire`'s form.

        A key that is missing, from an older version, takes the default; an unknown one,
        from a newer version, is ignored.

        Raises:
            OptionError: a value is wrong.
        """
        given: dict[str, Any] = {}
        for option, name in WIRE_NAMES.items():
            if name not in wire:
                continue
            value = wire[name]
            if option == "fair_weights" and isinstance(value, Mapping):
                value = {unquote(key, errors="surrogatepass"): w for key, w in value.items()}
            elif option != name and value is not None:
                value = _whole(name, value, low=0, high=to_us(MAX_SECONDS)) / 1e6
            given[option] = value
        if "name" not in given:
            raise OptionError("name", "missing: this is no stored lane")
        if given.get("target") is not None and not _follows_target(given):
            # An operator set the priority, or an older version stored both: the order is what
            # the priority says, since that is what claims go by.
            given["target"] = None
        return cls(**given)

    def changed(self, **changes: object) -> Self:
        """Return a copy with some options changed, given as values or as an operator's text.

        Text is read by the option's kind: ``reserve="3"``, ``paused="true"``, ``lease="30"``,
        ``dead_age="7d"``, ``slo="none"``. What changed is stored under `WIRE_NAMES`: a `target`
        changes the priority and the cap too, and a priority ends the target.

        Raises:
            OptionError: the option is unknown or its value is wrong.
        """
        known = [option for option in WIRE_NAMES if option != "name"]
        _refuse_unknown(changes, known)
        given: dict[str, Any] = {
            option: _lane_value(option, value) if isinstance(value, str) else value
            for option, value in changes.items()
        }
        if given.get("target") is not None or (
            self.target is not None and "aging" in given and not {"target", "priority"} & set(given)
        ):
            given.setdefault("priority", _PRIORITY)
            gain = self.aging * (self.target_us or 0) / 1e6
            if self.target is None or _is_close(self.aging_cap, gain + _AGING_CAP):
                given.setdefault("aging_cap", _AGING_CAP)
        elif "priority" in given and "target" not in given:
            given["target"] = None
        return replace(self, **given)


def _is_close(a: float, b: float) -> bool:
    # Redis's JSON keeps 14 digits.
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-6)


def _follows_target(given: Mapping[str, Any]) -> bool:
    aging = given.get("aging", 2.0)
    gain = aging * given["target"]
    return (
        aging > 0
        and ("priority" not in given or _is_close(given["priority"], TARGET_VALUE - gain))
        and given.get("aging_cap", math.inf) >= gain * (1 - 1e-9)
    )


def _reserve(option: str, value: object) -> int | Literal["auto"]:
    if value == "auto":
        return "auto"
    if isinstance(value, str):
        raise OptionError(option, f"must be a number of slots or 'auto', not {value!r}")
    return _whole(option, value, low=0, high=100_000)


def _fair_by(option: str, value: object) -> str:
    if not isinstance(value, str) or not value.isidentifier():
        raise OptionError(option, f"must be the name of an argument, not {value!r}")
    return value


def _fair_weights(option: str, value: object) -> Mapping[str, float]:
    if not isinstance(value, Mapping):
        raise OptionError(option, f"must map keys to weights, not {value!r}")
    if len(value) > _MOST_WEIGHTS:
        raise OptionError(option, f"has {len(value):,} keys, {_MOST_WEIGHTS:,} is the most")
    found: dict[str, float] = {}
    for key, weight in value.items():
        if not isinstance(key, str):
            raise OptionError(option, f"must have text for keys, not {key!r}")
        found[key] = _number(f"{option}[{key!r}]", weight, low=0.01, high=100)
    return found


def _lease(option: str, value: object) -> float:
    return _duration(option, value, low=1.0, high=86400.0)


def _count(option: str, value: object) -> int:
    return _whole(option, value, low=1, high=10**12)


_LANE_CHECKS: Final[Mapping[str, Callable[[str, object], Any]]] = {
    "name": _lane_name,
    "priority": lambda o, v: _number(o, v, low=-MAX_PRIORITY, high=MAX_PRIORITY),
    "aging": lambda o, v: _number(o, v, low=0, high=MAX_PRIORITY),
    "aging_cap": lambda o, v: _number(o, v, low=0, high=1e9),
    "may_starve": _flag,
    "reserve": _reserve,
    "slo": _duration,
    "target": _duration,
    "max_depth": _count,
    "max_running": _count,
    "rate": _rate,
    "fair_by": _fair_by,
    "fair_weights": _fair_weights,
    "lease": _lease,
    "dead_max": lambda o, v: _whole(o, v, low=0, high=10**12),
    "dead_age": _duration,
    "paused": _flag,
}

_LANE_OPTIONAL: Final = frozenset(
    {
        "slo",
        "target",
        "max_depth",
        "max_running",
        "rate",
        "fair_by",
        "fair_weights",
        "dead_max",
        "dead_age",
    }
)

_LANE_TIMES: Final = frozenset({"slo", "target", "lease", "dead_age"})

#: Option of a lane → its key in the stored form.
WIRE_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {option: f"{option}_us" if option in _LANE_TIMES else option for option in _LANE_CHECKS}
)

_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})


def _json_value(option: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise OptionError(option, f"must be a JSON object, not {text!r}: {error}") from None


def _lane_value(option: str, text: str) -> Any:  # noqa: PLR0911  one per kind of option
    text = text.strip()
    word = text.lower()
    if word in {"none", ""} and option in _LANE_OPTIONAL:
        return None
    if option == "fair_weights":
        return _json_value(option, text)
    if option in {"rate", "fair_by"} or (option == "reserve" and word == "auto"):
        return text
    if option in _LANE_TIMES:
        return seconds_from_text(option, text)
    if option in {"paused", "may_starve"}:
        if word not in _TRUE | _FALSE:
            raise OptionError(option, f"must be true or false, not {text!r}")
        return word in _TRUE
    if option in {"priority", "aging", "aging_cap"}:
        try:
            return float(text)
        except ValueError:
            raise OptionError(option, f"must be a number, not {text!r}") from None
    try:
        return int(text)
    except ValueError:
        raise OptionError(option, f"must be a whole number, not {text!r}") from None


def _as_seconds(value: Seconds) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else value


def _optional_us(value: Duration | None) -> int | None:
    return None if value is None else to_us(_seconds("time", value))


#: The lanes of an app that names none: each may wait for ever behind the first two.
DEFAULT_LANES: Final = (
    Lane("critical", priority=10_000),
    Lane("urgent", priority=1_000, may_starve=True),
    Lane("normal", priority=100, may_starve=True),
    Lane("batch", priority=10, may_starve=True),
)


# --- retries ----------------------------------------------------------------


class Random(Protocol):
    """Where jitter comes from; `random.Random` is one."""

    def random(self) -> float:
        """Return a number from 0 up to 1."""


#: Backoff → the number that stands for it in a stored record.
BACKOFF_NUMBERS: Final[Mapping[str, int]] = MappingProxyType(
    {"fixed": 0, "linear": 1, "exponential": 2}
)
_BACKOFF_NAMES: Final[Mapping[int, Any]] = {n: name for name, n in BACKOFF_NUMBERS.items()}


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a job may start, and how long it waits after a failure.

    Args:
        max_attempts: starts in all, the first one too, however the others ended.
        backoff: ``"exponential"`` (`base`, twice, four times …), ``"linear"`` (`base`,
            twice, three times …), ``"fixed"`` (`base`), or a function that gets the number
            of the attempt that failed, from 1, and returns seconds or a timedelta.
        base: seconds after the first failure.
        cap: most seconds between attempts; wins over a larger `base`.
        jitter: draw each delay evenly between 0 and the backoff ("full jitter").
        schedule: the delays themselves, in seconds; the last one repeats. In place of
            `backoff`. A schedule's and a function's delays are taken as they are: neither
            `jitter` nor `cap` applies.
        retry_on: exceptions after which the job may run again.
        never_on: exceptions after which it may not, although `retry_on` names them.

    Raises:
        OptionError: an option has a wrong type or value.
    """

    max_attempts: int = 3
    backoff: Backoff = field(default="exponential", kw_only=True)
    base: Seconds = field(default=1.0, kw_only=True)
    cap: Seconds = field(default=600.0, kw_only=True)
    jitter: bool = field(default=True, kw_only=True)
    schedule: Sequence[Seconds] | None = field(default=None, kw_only=True)
    retry_on: type[BaseException] | Sequence[type[BaseException]] = field(
        default=(Exception,), kw_only=True
    )
    never_on: type[BaseException] | Sequence[type[BaseException]] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        """Check every option; keep times as seconds and sequences as tuples."""
        _whole("max_attempts", self.max_attempts, low=1, high=1_000_000)
        if not callable(self.backoff):
            _one_of("backoff", self.backoff, BACKOFF_NUMBERS)
        elif inspect.iscoroutinefunction(self.backoff):
            raise OptionError("backoff", f"must be a plain function, not {self.backoff!r}")
        object.__setattr__(self, "base", _seconds("base", self.base, low=0))
        object.__setattr__(self, "cap", _seconds("cap", self.cap, low=0))
        _flag("jitter", self.jitter)
        if self.schedule is not None:
            object.__setattr__(self, "schedule", _schedule(self.schedule))
            if self.backoff != "exponential":
                raise OptionError("schedule", "cannot be given together with backoff")
        object.__setattr__(self, "retry_on", _exceptions("retry_on", self.retry_on))
        object.__setattr__(self, "never_on", _exceptions("never_on", self.never_on))

    @property
    def base_us(self) -> int:
        """Delay after the first failure, in microseconds."""
        return to_us(_as_seconds(self.base))

    @property
    def cap_us(self) -> int:
        """Most microseconds between attempts."""
        return to_us(_as_seconds(self.cap))

    def may_retry(self, error: BaseException | None, attempt: int) -> bool:
        """Tell whether a job may start again after attempt number `attempt`.

        Args:
            error: what the attempt raised; None where nothing was (a lost worker, a job
                that asked to be retried): then only the number counts.
            attempt: the attempt that failed, from 1.
        """
        if attempt >= self.max_attempts:
            return False
        if error is None:
            return True
        return isinstance(error, _exceptions("retry_on", self.retry_on)) and not isinstance(
            error, _exceptions("never_on", self.never_on)
        )

    def delay_s(self, attempt: int, rng: Random) -> tuple[float, str | None]:
        """Return the seconds to wait after attempt number `attempt`, and a problem if any.

        It never raises: an error in retry code must not lose a job. Where a function given
        as `backoff` raises or returns what is no delay, the delay is the exponential one and
        the second value is a sentence for the log (fault G3).
        """
        attempt = max(1, attempt)
        if isinstance(self.schedule, tuple):
            return self.schedule[min(attempt, len(self.schedule)) - 1], None
        if not callable(self.backoff):
            return self._backoff_s(self.backoff, attempt, rng), None
        try:
            delay = _seconds("backoff", self.backoff(attempt), low=0)
        except BaseException as error:  # noqa: BLE001  a user's function may raise anything
            # What is no Exception too: sys.exit() there would take the worker down, and
            # the job with it.
            problem = _sentence(error)
        else:
            return delay, None
        return self._backoff_s("exponential", attempt, rng), (
            f"backoff function failed after attempt {attempt}: {problem}; "
            "used the exponential backoff"
        )

    def _backoff_s(self, kind: str, attempt: int, rng: Random) -> float:
        base, cap = _as_seconds(self.base), _as_seconds(self.cap)
        if kind == "exponential":
            # The exponent is capped first: 2.0**1024 overflows. From the shortest
            # base, 64 doublings pass any cap.
            delay = math.ldexp(base, min(attempt - 1, 64))
        elif kind == "linear":
            delay = base * attempt
        else:
            delay = base
        delay = min(delay, cap)
        return delay * rng.random() if self.jitter else delay

    def with_record(
        self,
        *,
        max_attempts: int | None = None,
        base_us: int | None = None,
        cap_us: int | None = None,
        backoff: int | None = None,
        jitter: int | None = None,
    ) -> Self:
        """Return this with what a call's record gives in its place; None keeps what is here."""
        given: dict[str, Any] = {}
        if max_attempts is not None:
            given["max_attempts"] = max_attempts
        if base_us is not None:
            given["base"] = base_us / 1e6
        if cap_us is not None:
            given["cap"] = cap_us / 1e6
        if backoff is not None:
            # An unknown number comes from a newer version: exponential is safe.
            given["backoff"] = _BACKOFF_NAMES.get(backoff, "exponential")
            given["schedule"] = None
        if jitter is not None:
            given["jitter"] = bool(jitter)
        return replace(self, **given) if given else self


def _sentence(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:500]
    except BaseException:  # noqa: BLE001  a __str__ may raise anything
        return f"{type(error).__name__} (its text cannot be shown)"


def _schedule(value: object) -> tuple[float, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise OptionError("schedule", f"must be a list of seconds, not {value!r}")
    delays = tuple(_seconds("schedule", delay, low=0) for delay in value)
    if not delays:
        raise OptionError("schedule", "must have at least one delay")
    return delays


def _exceptions(option: str, value: object) -> tuple[type[BaseException], ...]:
    given: tuple[object, ...] = tuple(value) if isinstance(value, tuple | list) else (value,)
    found = []
    for one in given:
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise OptionError(option, f"must be exception classes, not {one!r}")
        found.append(one)
    return tuple(found)


_DEFAULT_RETRY: Final = Retry()


# --- tasks and calls --------------------------------------------------------

#: Executor → the number that stands for it in a stored record.
EXECUTOR_NUMBERS: Final[Mapping[str, int]] = MappingProxyType(
    {"async": 0, "thread": 1, "process": 2}
)
_DEFAULT_RESULT_TTL: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """Options of a task; each can be overridden for a call with ``.using(...)``.

    Args:
        name: the task's name in Redis; None for module and function.
        lane: where its jobs wait; None for the lane ``normal``.
        boost: head start inside the lane, in seconds, up to 10,000,000.
        timeout: most seconds that an attempt may run; None for no limit.
        retry: how often and when to try again.
        expires: seconds from the enqueue, or an aware datetime, by which the job must
            have started; None for never.
        result_ttl: seconds that the result is kept, or that the job was cancelled or expired;
            0 keeps none.
        executor: ``"async"``, ``"thread"`` or ``"process"``; None for the kind of function.
        max_running: jobs of the task that may run at a time in the fleet; None for no limit. It is
            the task's, not one call's. Those over it step aside for others in their lane.
        fair_key: whom the job counts for, in a lane that is shared fairly; None for the value
            of the lane's `fair_by` argument.

    Raises:
        OptionError: an option has a wrong type or value.
    """

    name: str | None = None
    lane: str | None = None
    boost: Seconds = 0.0
    timeout: Seconds | None = None
    retry: Retry = _DEFAULT_RETRY
    expires: Seconds | datetime | None = None
    result_ttl: Seconds = _DEFAULT_RESULT_TTL
    executor: Executor | None = None
    max_running: int | None = None
    fair_key: str | None = None

    def __post_init__(self) -> None:
        """Check every option and keep times as seconds."""
        if self.name is not None:
            _task_name("name", self.name)
        if self.lane is not None:
            _lane_name("lane", self.lane)
        object.__setattr__(self, "boost", _seconds("boost", self.boost, low=0, high=MAX_BOOST))
        if self.timeout is not None:
            object.__setattr__(self, "timeout", _seconds("timeout", self.timeout))
        if not isinstance(self.retry, Retry):
            raise OptionError("retry", f"must be a Retry(...), not {self.retry!r}")
        if isinstance(self.expires, datetime):
            _instant("expires", self.expires)
        elif self.expires is not None:
            object.__setattr__(self, "expires", _seconds("expires", self.expires))
        object.__setattr__(self, "result_ttl", _seconds("result_ttl", self.result_ttl, low=0))
        if self.executor is not None:
            _one_of("executor", self.executor, EXECUTOR_NUMBERS)
        if self.max_running is not None:
            _whole("max_running", self.max_running, low=1, high=10**9)
        if self.fair_key is not None and not isinstance(self.fair_key, str):
            raise OptionError("fair_key", f"must be text, not {self.fair_key!r}")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Build options from names and values; the entry for what a user wrote.

        Raises:
            OptionError: a name is unknown (the known ones are listed), or a value is wrong.
        """
        _refuse_unknown(given, (option.name for option in fields(cls)))
        return cls(**given)

    @property
    def boost_us(self) -> int:
        """Head start in microseconds."""
        return to_us(_as_seconds(self.boost))

    @property
    def timeout_us(self) -> int | None:
        """Most microseconds that an attempt may run; None for no limit."""
        return _optional_us(self.timeout)

    @property
    def expires_us(self) -> int | None:
        """Microseconds from the enqueue to the expiry; None where it is an instant or never."""
        return None if isinstance(self.expires, datetime) else _optional_us(self.expires)

    @property
    def expires_at_us(self) -> int | None:
        """Instant of the expiry, microseconds since the epoch; None where it is relative."""
        return instant_us(self.expires) if isinstance(self.expires, datetime) else None

    @property
    def result_ttl_us(self) -> int:
        """Microseconds that a result is kept; 0 keeps none."""
        return to_us(_as_seconds(self.result_ttl))

    def using(self, **changes: Any) -> CallOptions:
        """Return the options of one call: these, with `changes` in their place.

        What only code can say (`Retry` with a function, a schedule or other exceptions)
        is refused here, since a call travels as data: give it to the task.

        Raises:
            OptionError: a name is unknown (the known ones are listed), a value is wrong, or
                both `delay` and `at` are given.
        """
        _refuse_unknown(changes, (option.name for option in fields(CallOptions)))
        merged: dict[str, Any] = {o.name: getattr(self, o.name) for o in fields(self)}
        if "delay" in changes and "at" not in changes:
            merged["at"] = None
        if "at" in changes and "delay" not in changes:
            merged["delay"] = 0.0
        call = CallOptions(**(merged | changes))
        if call.max_running != self.max_running:
            raise OptionError(
                "max_running",
                "is of all jobs of a task, not of one call. Give it to the task: "
                "@app.task(max_running=...), or to its lane.",
            )
        if "retry" in changes:
            _refuse_code(call.retry, self.retry)
        return call


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions(TaskOptions):
    """Options of one call: those of its task, and when it is to start.

    Args:
        delay: seconds from the enqueue until the job is ready.
        at: the instant at which it is ready, with a time zone; one that is past means now.
    """

    delay: Seconds = 0.0
    at: datetime | None = None

    def __post_init__(self) -> None:
        """Check every option and keep times as seconds."""
        # Not super(): a slotted dataclass is another class than the one the
        # compiler saw, and the zero-argument form fails on it.
        TaskOptions.__post_init__(self)
        object.__setattr__(self, "delay", _seconds("delay", self.delay, low=0))
        if self.at is not None:
            if not isinstance(self.at, datetime):
                raise OptionError("at", f"must be an aware datetime, not {self.at!r}")
            _instant("at", self.at)
            if self.delay:
                raise OptionError("at", "cannot be given together with delay")

    @property
    def delay_us(self) -> int:
        """Microseconds from the enqueue until the job is ready."""
        return to_us(_as_seconds(self.delay))

    @property
    def at_us(self) -> int | None:
        """Instant at which the job is ready, microseconds since the epoch; None for `delay_us`."""
        return None if self.at is None else instant_us(self.at)


def _refuse_code(wanted: Retry, declared: Retry) -> None:
    default = _DEFAULT_RETRY
    for option in ("backoff", "schedule", "retry_on", "never_on"):
        value = getattr(wanted, option)
        travels = value == getattr(default, option) or (option == "backoff" and not callable(value))
        if not travels and value != getattr(declared, option):
            raise OptionError(
                "retry",
                f"{option}={value!r} cannot be sent with a call. Give it to the task: "
                "@app.task(retry=Retry(...)).",
            )


# --- apps -------------------------------------------------------------------

_NAMESPACE: Final = re.compile(r"[^\s{}\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,100}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AppOptions:
    """Options of an app, but for its address.

    Args:
        namespace: name of the queue system, 1 to 100 characters without white space and
            braces.
        lanes: the lanes it declares; None for `DEFAULT_LANES`.
        max_payload: most bytes of encoded arguments, and of an encoded result.
        connect_timeout: seconds that making a connection may take.
        read_timeout: seconds that an answer of Redis may take.

    Raises:
        OptionError: an option has a wrong type or value.
    """

    namespace: str = "default"
    lanes: Iterable[Lane] | None = None
    max_payload: int = 1024 * 1024
    connect_timeout: Seconds = 2.0
    read_timeout: Seconds = 5.0

    def __post_init__(self) -> None:
        """Check every option and keep times as seconds."""
        namespace: object = self.namespace
        if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace):
            raise OptionError(
                "namespace",
                f"must be 1 to 100 characters without white space and braces, not {namespace!r}",
            )
        if self.lanes is not None:
            object.__setattr__(self, "lanes", _declared(self.lanes))
        _whole("max_payload", self.max_payload, low=1, high=256 * 1024 * 1024)
        for option in ("connect_timeout", "read_timeout"):
            value = _seconds(option, getattr(self, option), low=0.001, high=3600.0)
            object.__setattr__(self, option, value)


def _declared(value: Any) -> tuple[Lane, ...]:
    if isinstance(value, str | Lane) or not isinstance(value, Iterable):
        raise OptionError("lanes", f"must be a list of Lane(...), not {value!r}")
    lanes: dict[str, Lane] = {}
    for lane in value:
        if not isinstance(lane, Lane):
            raise OptionError("lanes", f"must be a list of Lane(...), not {lane!r} in it")
        if lane.name in lanes:
            raise OptionError("lanes", f"lane {lane.name!r} is declared twice")
        lanes[lane.name] = lane
    if not lanes:
        raise OptionError("lanes", "must have at least one lane; leave it out for the default ones")
    return tuple(lanes.values())


# --- workers ----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Options of a worker. Slots and reserves are per process.

    With `max_slots` the worker sizes itself: its slots follow the wait objectives (`Lane.slo`) of
    the lanes that it serves, see `laneq.elastic`. With `processes_max` so do its processes.

    Args:
        concurrency: slots: jobs that run at a time in one process; where the worker sizes
            itself, those that it starts with.
        lanes: the lanes served; None for all.
        reserve: lane → slots kept for it, or ``"all"``; kept as numbers.
        grace: seconds that running jobs get to end after a stop signal.
        burst: whether to end when nothing is waiting.
        name: label shown to operators; None for the host's name.
        processes: worker processes; where `processes_max` is given, the fewest.
        min_slots: fewest slots of a worker that sizes itself; None for `concurrency`. Where its
            reserves need more, it has those.
        max_slots: most slots of a worker that sizes itself; None for one that does not.
        processes_max: most worker processes; None for `processes`.
        poll: seconds after which an idle worker looks although nothing woke it.

    Raises:
        OptionError: an option has a wrong type or value, the reserves need more slots than
            there are, a lane with a reserve is not served, or limits are the wrong way round.
    """

    concurrency: int = 10
    lanes: Sequence[str] | None = None
    reserve: Mapping[str, int | Literal["all"]] = field(default_factory=dict)
    grace: Seconds = 30.0
    burst: bool = False
    name: str | None = None
    processes: int = 1
    min_slots: int | None = None
    max_slots: int | None = None
    processes_max: int | None = None
    poll: Seconds = 1.0

    def __post_init__(self) -> None:
        """Check every option; keep times as seconds and reserves as numbers."""
        _whole("concurrency", self.concurrency, low=1, high=10_000)
        _whole("processes", self.processes, low=1, high=1_000)
        if self.processes_max is not None:
            _whole("processes_max", self.processes_max, low=self.processes, high=1_000)
        self._check_limits()
        _flag("burst", self.burst)
        object.__setattr__(self, "grace", _seconds("grace", self.grace, low=0, high=7 * 86400.0))
        object.__setattr__(self, "poll", _seconds("poll", self.poll, low=0.01, high=60.0))
        if self.name is not None:
            _task_name("name", self.name)
        if self.lanes is not None:
            object.__setattr__(self, "lanes", _lanes(self.lanes))
        object.__setattr__(self, "reserve", self._slots_by_lane())

    def _check_limits(self) -> None:
        if self.min_slots is not None:
            _whole("min_slots", self.min_slots, low=1, high=10_000)
            if self.max_slots is None:
                raise OptionError("min_slots", "needs max_slots: up to how many may it grow?")
        if self.max_slots is None:
            return
        _whole("max_slots", self.max_slots, low=1, high=10_000)
        if self.min_slots is not None and self.min_slots > self.max_slots:
            raise OptionError(
                "max_slots", f"must be at least min_slots, {self.min_slots}, not {self.max_slots}"
            )
        least = self.concurrency if self.min_slots is None else self.min_slots
        if self.min_slots is None and self.concurrency > self.max_slots:
            raise OptionError(
                "max_slots",
                f"must be at least the {self.concurrency} slots that the worker starts with, not "
                f"{self.max_slots}. Give min_slots, or a lower concurrency, as well.",
            )
        if not least <= self.concurrency <= self.max_slots:
            raise OptionError(
                "concurrency",
                f"is {self.concurrency}, but the worker may have {least} to {self.max_slots} "
                "slots. Start it with a number between the two.",
            )

    def _slots_by_lane(self) -> dict[str, int]:
        most = self.capacity
        if not isinstance(self.reserve, Mapping):
            raise OptionError("reserve", f"must map lanes to slots, not {self.reserve!r}")
        found = {}
        for lane, slots in self.reserve.items():
            _lane_name("reserve", lane)
            if self.lanes is not None and lane not in self.lanes:
                raise OptionError(
                    "reserve",
                    f"lane {lane!r} is not served by this worker: it would keep slots idle for "
                    f"ever. Served: {', '.join(self.lanes)}.",
                )
            if slots == "all":
                found[lane] = most
            else:
                found[lane] = _whole(f"reserve {lane}", slots, low=0, high=most)
        total = sum(found.values())
        if total > most:
            listed = ", ".join(f"{lane}={slots}" for lane, slots in found.items())
            limit = "concurrency" if self.max_slots is None else "max_slots"
            raise OptionError(
                "reserve",
                f"{listed} needs {total} slots, but {limit} is {most}. "
                f"Raise {limit} or reserve fewer.",
            )
        return found

    @property
    def capacity(self) -> int:
        """Most slots of one process."""
        return self.concurrency if self.max_slots is None else self.max_slots

    @property
    def least_slots(self) -> int:
        """Fewest slots of one process: what its reserves need is never given up.

        Where all slots that it may have are reserved, the reserves shrink with it.
        """
        least = self.concurrency if self.min_slots is None else self.min_slots
        reserved = sum(self.reserved.values())
        return max(least, reserved) if reserved < self.capacity else least

    @property
    def reserved(self) -> dict[str, int]:
        """Lane → slots of one process kept for it; lanes with none are left out."""
        return {lane: int(slots) for lane, slots in self.reserve.items() if slots}

    @property
    def grace_us(self) -> int:
        """Grace in microseconds."""
        return to_us(_as_seconds(self.grace))

    @property
    def poll_us(self) -> int:
        """Longest wait between looks, in microseconds."""
        return to_us(_as_seconds(self.poll))


def _lanes(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise OptionError("lanes", f"must be a list of lane names, not {value!r}")
    names = tuple(dict.fromkeys(_lane_name("lanes", name) for name in value))
    if not names:
        raise OptionError("lanes", "must name at least one lane")
    return names
