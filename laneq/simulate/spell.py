"""A scenario as people write it: on a command line, or in a TOML file.

A lane is ``NAME:KEY=VALUE,…``::

    urgent:rate=30,run=20ms                  30 a second at random, 20 ms each
    urgent:rate=30/60s:150/120s:30,run=20ms  150 a second from 60 s to 120 s
    urgent:rate=30,arrivals=bursts:10,...    ten at once, three times a second on average
    batch:backlog=2000,run=100-300ms         2,000 wait at the start, 100 to 300 ms each
    batch:backlog=endless,run=exp:200ms      always some; 200 ms on average, some far longer

beside options of lanes: priority, aging, aging_cap, target, reserve, slo, max_running, and
``limit``, the option that a lane calls rate. A worker is
``SLOTS[xCOUNT][,lanes=A+B][,reserve=LANE[=N]]``.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final, cast

from laneq.errors import OptionError, suggest
from laneq.options import DEFAULT_LANES, Lane, seconds_from_text
from laneq.simulate.loads import (
    KINDS,
    Arrivals,
    Exponential,
    Fixed,
    Kind,
    RunTime,
    Uniform,
)
from laneq.simulate.scenario import ENDLESS, Scenario, Stream, Workers

_LOAD_KEYS: Final = ("rate", "arrivals", "run", "backlog")
_LANE_KEYS: Final = (
    "priority",
    "aging",
    "aging_cap",
    "target",
    "reserve",
    "slo",
    "max_running",
    "limit",
)
_KEYS: Final = (*_LOAD_KEYS, *_LANE_KEYS)
_SPAN: Final = re.compile(r"([0-9.]+) ?(us|ms|s|m|h|d|)-([0-9.]+) ?(us|ms|s|m|h|d|)")
_NO_RUN: Final = Fixed(-1.0)
_PRIORITIES: Final = {lane.name: lane.priority for lane in DEFAULT_LANES}
_MOST_BACKLOG: Final = 10**8


# --- parts ------------------------------------------------------------------


def run_time(value: object) -> RunTime:
    """Read a run time: ``20ms``, ``100-300ms``, ``exp:200ms``, or seconds.

    Raises:
        OptionError: it is none of these.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Fixed(_positive("run", float(value)))
    text = str(value).strip()
    if span := _SPAN.fullmatch(text):
        low = seconds_from_text("run", span[1] + (span[2] or span[4]))
        high = seconds_from_text("run", span[3] + span[4])
        if not 0 <= low < high:
            raise OptionError("run", f"must go from less to more, not {text!r}")
        return Uniform(low, high)
    if text.startswith("exp:"):
        return Exponential(_positive("run", seconds_from_text("run", text.removeprefix("exp:"))))
    return Fixed(_positive("run", seconds_from_text("run", text)))


def _positive(option: str, seconds: float) -> float:
    if not 0 < seconds <= 1e7:  # noqa: PLR2004  four months
        raise OptionError(option, f"must be above 0 and at most 10,000,000 s, not {seconds:g}")
    return seconds


def rate_steps(value: object) -> tuple[tuple[float, float], ...]:
    """Read jobs per second: ``30``, or ``30/60s:150``, 150 from 60 s on.

    Raises:
        OptionError: it is neither.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return ((0.0, float(value)),)
    first, *later = str(value).strip().split("/")
    steps = [(0.0, _number("rate", first))]
    for step in later:
        at, colon, rate = step.partition(":")
        if not colon:
            raise OptionError(
                "rate", f"must be jobs per second, or 30/60s:150 for a step, not {value!r}"
            )
        steps.append((seconds_from_text("rate", at), _number("rate", rate)))
    return tuple(steps)


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise OptionError(option, f"must be a number, not {text!r}") from None


def _kind(value: object) -> tuple[Kind, float]:
    name, colon, spread = str(value).strip().partition(":")
    if name not in KINDS or (colon and name != "bursts") or (name == "bursts" and not colon):
        raise OptionError("arrivals", f"must be even, poisson or bursts:N, not {value!r}")
    return cast("Kind", name), _number("arrivals", spread) if colon else 1.0


def _backlog(value: object) -> float:
    if value == "endless":
        return ENDLESS
    text = str(value)
    if not text.isdecimal() or int(text) > _MOST_BACKLOG:
        raise OptionError("backlog", f"must be jobs, or endless, not {value!r}")
    return int(text)


# --- lanes ------------------------------------------------------------------


def changed(stream: Stream, options: Mapping[str, object]) -> Stream:
    """Return a stream with some of its options changed, given as text or values.

    Raises:
        OptionError: one is unknown, or its value is wrong.
    """
    for key in options:
        if key not in _KEYS:
            raise OptionError(key, f"unknown in a lane. {suggest(key, _KEYS)}")
    lane_options = {
        "rate" if key == "limit" else key: value
        for key, value in options.items()
        if key in _LANE_KEYS
    }
    lane = stream.lane.changed(**lane_options) if lane_options else stream.lane
    run = run_time(options["run"]) if "run" in options else stream.run
    backlog = _backlog(options["backlog"]) if "backlog" in options else stream.backlog
    arrivals = stream.arrivals
    if "rate" in options:
        steps = rate_steps(options["rate"])
        arrivals = replace(arrivals, steps=steps) if arrivals else Arrivals(steps)
    if "arrivals" in options:
        if arrivals is None:
            raise OptionError("arrivals", f"of lane {lane.name!r} need a rate: rate=30")
        kind, spread = _kind(options["arrivals"])
        arrivals = Arrivals(arrivals.steps, kind, spread)
    return Stream(lane, run, arrivals, backlog)


def stream_of(name: str, options: Mapping[str, object]) -> Stream:
    """Make a lane with its load of what was written.

    Raises:
        OptionError: an option is unknown, wrong or missing.
    """
    lane = Lane(name)
    if "priority" not in options and "target" not in options:
        lane = lane.changed(priority=_PRIORITIES.get(name, lane.priority))
    stream = changed(Stream(lane, _NO_RUN), options)
    if stream.run is _NO_RUN:
        raise OptionError("run", f"of lane {name!r} is missing: how long its jobs run, run=200ms")
    if stream.arrivals is None and not stream.backlog:
        raise OptionError("rate", f"of lane {name!r} is missing: rate=30, or backlog=2000")
    return stream


def lane_options(text: str) -> tuple[str, dict[str, object]]:
    """Split ``NAME:KEY=VALUE,…``.

    Raises:
        OptionError: it is not of that form.
    """
    name, _, rest = text.partition(":")
    options: dict[str, object] = {}
    for part in rest.split(",") if rest else ():
        key, equals, value = part.partition("=")
        if not equals:
            raise OptionError("lane", f"{part!r} in {text!r} is not of the form KEY=VALUE")
        options[key.strip().replace("-", "_")] = value.strip()
    return name.strip(), options


# --- workers ----------------------------------------------------------------


def workers_of(text: str) -> Workers:
    """Read ``SLOTS[xCOUNT][,lanes=A+B][,reserve=LANE[=N]]``.

    Raises:
        OptionError: it is not of that form.
    """
    size, *parts = text.split(",")
    slots, times, count = size.partition("x")
    if not slots.isdecimal() or (times and not count.isdecimal()):
        raise OptionError("worker", f"must begin with its slots, as 4 or 4x10, not {text!r}")
    lanes: tuple[str, ...] | None = None
    reserve: dict[str, int] = {}
    for part in parts:
        key, _, value = part.partition("=")
        if key == "lanes" and value:
            lanes = tuple(value.split("+"))
        elif key == "reserve" and value:
            lane, _, kept = value.partition("=")
            if kept and not kept.isdecimal():
                raise OptionError("reserve", f"must be slots, not {kept!r}")
            reserve[lane] = int(kept) if kept else int(slots)
        else:
            raise OptionError("worker", f"has lanes=A+B and reserve=LANE=N, not {part!r}")
    return Workers(int(slots), int(count or 1), lanes, reserve)


# --- whole scenarios --------------------------------------------------------


def read_scenario(
    lanes: Iterable[str],
    *,
    slots: int = 10,
    workers: Iterable[str] = (),
    reserve: Iterable[str] = (),
    **rest: Any,
) -> Scenario:
    """Make a scenario of texts.

    Args:
        lanes: each ``NAME:KEY=VALUE,…``.
        slots: of the one worker, where `workers` has none.
        workers: each ``SLOTS[xCOUNT][,lanes=A+B][,reserve=LANE[=N]]``.
        reserve: each ``LANE=N``, over the fleet; N may be ``auto``.
        rest: other fields of `Scenario`.

    Raises:
        OptionError: something is wrong; says what, and what is right.
    """
    streams = tuple(stream_of(*lane_options(text)) for text in lanes)
    shapes = tuple(map(workers_of, workers)) or (Workers(slots),)
    return with_reserves(Scenario(streams, shapes, **rest), reserve)


def with_reserves(scenario: Scenario, reserve: Iterable[str]) -> Scenario:
    """Return a scenario with reserves of the fleet, each ``LANE=N`` or ``LANE=auto``."""
    for text in reserve:
        lane, equals, kept = text.partition("=")
        if not equals:
            raise OptionError("reserve", f"must be LANE=SLOTS, not {text!r}")
        scenario = scenario.with_lane(lane, reserve=kept)
    return scenario


def read_toml(text: str) -> Scenario:
    """Make a scenario of a TOML document.

    Its tables are those of the command line: ``[lanes.NAME]`` with the keys of a lane,
    ``[[workers]]`` with ``slots``, ``count``, ``lanes`` and ``reserve``; at the top ``slots``,
    ``seconds``, ``warm_up``, ``drain`` and ``overhead``.

    Raises:
        OptionError: it is no TOML, or something in it is wrong.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise OptionError("scenario", f"is no TOML: {error}") from None
    known = ("lanes", "workers", "slots", "seconds", "warm_up", "drain", "overhead")
    for key in document:
        if key not in known:
            raise OptionError(key, f"unknown in a scenario. {suggest(key, known)}")
    streams = tuple(
        stream_of(name, _table("lanes", options))
        for name, options in _table("lanes", document.get("lanes", {})).items()
    )
    shapes = tuple(_toml_workers(_table("workers", one)) for one in document.get("workers", ()))
    rest: dict[str, Any] = {
        key: seconds_of(key, document[key])
        for key in ("seconds", "warm_up", "drain")
        if key in document
    }
    if "overhead" in document:
        rest["overhead"] = overhead_of(document["overhead"])
    slots = document.get("slots", 10)
    if not isinstance(slots, int):
        raise OptionError("slots", f"must be a whole number, not {slots!r}")
    return Scenario(streams, shapes or (Workers(slots),), **rest)


def _table(name: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise OptionError(name, f"must be a table, not {value!r}")
    return value


def _toml_workers(table: Mapping[str, object]) -> Workers:
    known = [field.name for field in fields(Workers)]
    for key in table:
        if key not in known:
            raise OptionError(key, f"unknown in workers. {suggest(key, known)}")
    slots, count = table.get("slots"), table.get("count", 1)
    lanes, reserve = table.get("lanes"), _table("reserve", table.get("reserve", {}))
    if not isinstance(slots, int) or not isinstance(count, int):
        raise OptionError("workers", "need slots, and count, as whole numbers")
    if lanes is not None and not isinstance(lanes, list):
        raise OptionError("lanes", f"of workers must be a list of names, not {lanes!r}")
    kept: dict[str, int] = {}
    for lane, number in reserve.items():
        if not isinstance(number, int):
            raise OptionError("reserve", f"must be slots, not {number!r}")
        kept[lane] = number
    return Workers(slots, count, tuple(map(str, lanes)) if lanes is not None else None, kept)


def seconds_of(option: str, value: object) -> float:
    """Read seconds, or text with a unit: ``10m``.

    Raises:
        OptionError: it is neither.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return seconds_from_text(option, str(value))


def overhead_of(value: object) -> RunTime | None:
    """Read the mean time that a slot spends on each job beside its run; 0 is None."""
    seconds = seconds_of("overhead", value)
    if not 0 <= seconds <= 60:  # noqa: PLR2004  it is a round trip, not a job
        raise OptionError("overhead", f"must be 0 to 60 s, not {value!r}")
    return Exponential(seconds) if seconds else None


def objectives(texts: Sequence[str]) -> dict[str, float]:
    """Read wait objectives, each ``LANE=50ms``; return lane → seconds.

    Raises:
        OptionError: one is not of that form.
    """
    found = {}
    for text in texts:
        lane, equals, wait = text.partition("=")
        if not equals:
            raise OptionError("slo", f"must be LANE=WAIT, as urgent=50ms, not {text!r}")
        found[lane] = _positive("slo", seconds_from_text("slo", wait))
    return found
