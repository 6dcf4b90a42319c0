"""``laneq lanes``: look at lanes, override their settings, pause and purge them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import click

from laneq import histogram
from laneq.calls import lanes as lane_calls
from laneq.calls import stats
from laneq.calls.lanes import LanesInForce
from laneq.cli.confirm import ask_before
from laneq.cli.group import NounGroup, data_options
from laneq.cli.output import (
    Column,
    compact,
    duration,
    instant,
    milliseconds,
    number,
    print_fields,
    print_table,
    progress,
)
from laneq.cli.report import note, print_json
from laneq.cli.session import Session, opened
from laneq.cli.settings import Settings
from laneq.cli.status import Status
from laneq.errors import OptionError, UnknownLane
from laneq.model import BALANCE, EVENTS, LaneView
from laneq.options import WIRE_NAMES, Lane
from laneq.precedence import Rule, Standing, Starvation, standing, starvation, unsaid_text

#: What --window takes → seconds.
_WINDOWS: Final = {"1m": 60, "5m": 300, "1h": 3600}
_TIMES: Final = frozenset({"slo", "target", "lease", "dead_age"})


@click.group(cls=NounGroup)
@data_options
def lanes() -> None:
    """Look at and steer lanes."""


# --- list -------------------------------------------------------------------


@lanes.command("list")
@click.option(
    "--window",
    type=click.Choice(list(_WINDOWS)),
    default="1m",
    show_default=True,
    help="Measure over about this long.",
)
@data_options
@click.pass_obj
def list_(settings: Settings, window: str) -> None:
    """List all lanes, most urgent first.

    Reserve is what is in force, and in parentheses what the measured arrivals and
    run times recommend.
    """
    with opened(settings) as session:
        views = views_of(session, session.lanes.names, window_s=_WINDOWS[window])
        if not settings.wants_json:
            session.say_if_empty()
    if settings.wants_json:
        print_json([asdict(view) for view in views])
    elif views:
        _print_lanes(views)


def views_of(session: Session, names: Sequence[str], *, window_s: int) -> list[LaneView]:
    """Read what an operator sees of lanes."""
    found = []
    depths = session.call(stats.depths(session.keys, names, window_s=window_s))
    for name, depth in zip(names, depths, strict=True):
        measured = session.call(
            stats.spread(session.keys, name, now_us=depth.now_us, window_s=window_s)
        )
        found.append(stats.lane_view(session.lanes, name, depth, measured))
    return found


def _print_lanes(views: Sequence[LaneView]) -> None:
    columns = [
        Column("lane"),
        Column("prio", "right"),
        Column("depth", "right"),
        Column("running", "right"),
        Column("oldest", "right"),
        Column("wait p99", "right"),
        Column("run p99", "right"),
        Column("in/s", "right"),
        Column("out/s", "right"),
        Column("reserve", "right"),
    ]
    rows = [
        [
            view.name,
            compact(view.priority),
            number(view.depth),
            number(view.running),
            duration(view.oldest_wait_s),
            milliseconds(view.wait_ms.p99),
            milliseconds(view.run_ms.p99),
            compact(view.arrivals_per_s),
            compact(view.completions_per_s),
            _reserve(view),
        ]
        for view in views
    ]
    # What is zero nearly always has a column only when it is not.
    for title, cells in (
        ("scheduled", [number(view.scheduled) if view.scheduled else "" for view in views]),
        ("dead", [number(view.dead) if view.dead else "" for view in views]),
        ("", ["paused" if view.paused else "" for view in views]),
    ):
        if any(cells):
            columns.append(Column(title, "right"))
            for row, cell in zip(rows, cells, strict=True):
                row.append(cell)
    print_table(columns, rows)


def _reserve(view: LaneView) -> str:
    if view.reserve_recommended is None:
        return str(view.reserve)
    return f"{view.reserve} ({view.reserve_recommended})"


# --- show -------------------------------------------------------------------


@lanes.command()
@click.argument("lane")
@data_options
@click.pass_obj
def show(settings: Settings, lane: str) -> None:
    """Show one lane: settings, what was measured, and what its priority means."""
    with opened(settings) as session:
        session.known_lanes((lane,))
        (depth,) = session.call(stats.depths(session.keys, [lane]))
        spreads = {
            window_s: session.call(
                stats.spread(session.keys, lane, now_us=depth.now_us, window_s=window_s)
            )
            for window_s in stats.WINDOWS_S
        }
        in_force = session.lanes
    view = stats.lane_view(in_force, lane, depth, spreads[60])
    declared = _options(in_force.declared[lane])
    settings_now = _options(in_force.wire(lane))
    overridden = {o: v for o, v in settings_now.items() if WIRE_NAMES[o] in _over(in_force, lane)}
    dropped = depth.counts.get("dropped", 0)
    rules = in_force.rules()
    meaning = standing(lane, rules)
    starving = next((one for one in starvation(rules) if one.lane == lane), None)
    decision = _decision(in_force, lane)
    if settings.wants_json:
        print_json(
            {
                **asdict(view),
                "dead_dropped": dropped,
                "settings": settings_now,
                "declared": declared,
                "overridden": overridden,
                "windows": [_window_json(s, spread) for s, spread in spreads.items()],
                "order": {m.other: m.text for m in meaning.meetings},
                "standing": _standing_json(meaning, starving),
                "decision": decision,
            }
        )
        return
    _print_present(view, dropped)
    if decision is not None:
        _print_decision(decision)
    click.echo()
    _print_settings(declared, overridden, settings_now)
    click.echo()
    _print_spreads(spreads)
    click.echo()
    _print_counts(view)
    if meaning.meetings:
        _print_standing(meaning, starving)


def _decision(lanes_: LanesInForce, lane: str) -> dict[str, Any] | None:
    """Return the last decision on a reserve that sizes itself; None where it does not, yet."""
    made = lanes_.decisions.get(lane)
    if made is None or lanes_.lane(lane).reserve != "auto":
        return None
    keys = ("value", "before", "at", "inputs", "terms", "reason", "worker")
    return {key: made.get(key) for key in keys}


def _print_decision(decision: Mapping[str, Any]) -> None:
    click.echo(f"\nThe reserve sizes itself. {decision['value']} slots: {decision['reason']}.")
    terms = [(f"  {name}", compact(value)) for name, value in decision["terms"].items()]
    print_fields([("  decided", instant(decision["at"])), *terms])


def _over(lanes_: LanesInForce, lane: str) -> Mapping[str, Any]:
    return lanes_.overrides.get(lane, {})


def _options(wire: Mapping[str, Any]) -> dict[str, Any]:
    """Return a lane's options by name, times in seconds."""
    lane = Lane.from_wire(wire)
    return {option: getattr(lane, option) for option in WIRE_NAMES if option != "name"}


def _window_json(window_s: int, spread: stats.Spread) -> dict[str, Any]:
    return {
        "window_s": window_s,
        "jobs": sum(spread["l"].values()),
        "wait_ms": _percentiles(spread["w"]),
        "run_ms": _percentiles(spread["r"]),
        "latency_ms": _percentiles(spread["l"]),
    }


_SHARES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def _percentiles(buckets: dict[int, int]) -> dict[str, float | None]:
    found = {name: histogram.percentile(buckets, share) for name, share in _SHARES.items()}
    return {name: None if us is None else round(us / 1e3, 3) for name, us in found.items()}


def _print_present(view: LaneView, dropped: int) -> None:
    paused = ", paused: nothing of it starts" if view.paused else ""
    print_fields(
        [
            ("lane", f"{view.name}{paused}"),
            ("waiting", number(view.depth)),
            ("oldest", duration(view.oldest_wait_s)),
            ("scheduled", number(view.scheduled)),
            ("running", number(view.running)),
            ("dead letters", _letters(view.dead, dropped)),
            ("arrivals", f"{compact(view.arrivals_per_s)} per s"),
            ("completions", f"{compact(view.completions_per_s)} per s"),
            ("reserve", f"{view.reserve}, recommended {number(view.reserve_recommended)}"),
            ("adherence", _share(view.priority_adherence)),
            ("overtaken", _overtaken(view.overtaken_share)),
        ]
    )


def _letters(kept: int, dropped: int) -> str:
    """Return how many dead letters a lane has, and that some are gone."""
    return f"{number(kept)}, and {dropped:,} older ones dropped" if dropped else number(kept)


def _overtaken(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1%} of its jobs, by one of a lower lane on a slot that they could have had"


def _share(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1%} of its starts while no higher lane had a job waiting"


def _shown(option: str, value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if option in _TIMES:
        return duration(value)
    return compact(value) if isinstance(value, float) else str(value)


def _print_settings(
    declared: Mapping[str, Any], overridden: Mapping[str, Any], now: Mapping[str, Any]
) -> None:
    rows = [
        [
            option,
            _shown(option, declared[option]),
            _shown(option, overridden[option]) if option in overridden else "",
            _shown(option, now[option]),
        ]
        for option in now
    ]
    print_table(
        [
            Column("setting"),
            Column("declared", "right"),
            Column("overridden", "right"),
            Column("in force", "right"),
        ],
        rows,
    )


def _print_spreads(spreads: Mapping[int, stats.Spread]) -> None:
    rows = []
    for window_s, spread in spreads.items():
        for title, field in (("wait", "w"), ("run", "r"), ("latency", "l")):
            found = _percentiles(spread[field])
            rows.append(
                [
                    f"{window_s // 60} min",
                    title,
                    number(sum(spread[field].values())),
                    *(milliseconds(found[name]) for name in _SHARES),
                ]
            )
    right = [Column(title, "right") for title in ("jobs", *_SHARES)]
    print_table([Column("last"), Column("measured"), *right], rows)


def _print_counts(view: LaneView) -> None:
    shown = [e for e in (*EVENTS, *BALANCE) if view.counts.get(e)]
    words = [f"{event} {view.counts[event]:,}" for event in dict.fromkeys(shown)]
    click.echo("counts: " + (", ".join(words) if words else "nothing yet"))


# --- what a priority means --------------------------------------------------


def _print_standing(meaning: Standing, starving: Starvation | None) -> None:
    click.echo(f"\nOrder. {meaning.text}")
    if starving is None and meaning.starved_by:
        click.echo("Its reserve ends that: a slot of the fleet is kept for it.")
    elif starving is not None and starving.acceptance:
        click.echo(f"{starving.acceptance[0].upper()}{starving.acceptance[1:]}.")
    print_fields([(f"  {m.other}", m.text) for m in meaning.meetings])


def _standing_json(meaning: Standing, starving: Starvation | None) -> dict[str, Any]:
    return {
        "text": meaning.text,
        "full_after_s": meaning.full_after_s,
        "sure_after_s": meaning.sure_after_s,
        "starved_by": list(meaning.starved_by),
        "accepted": dict(starving.accepted) if starving else {},
        "unsaid": list(starving.unsaid_by) if starving else [],
        "against": [
            {
                "lane": m.other,
                "overtakes_new_after_s": m.overtakes_new_after_s,
                "overtaken_after_s": m.overtaken_after_s,
                "sure_after_s": m.sure_after_s,
                "starves_behind_s": m.starves_behind_s,
                "text": m.text,
            }
            for m in meaning.meetings
        ],
    }


# --- steer ------------------------------------------------------------------


@lanes.command("set")
@click.argument("lane")
@click.argument("changes", metavar="KEY=VALUE...", nargs=-1, required=True)
@data_options
@click.pass_obj
def set_(settings: Settings, lane: str, changes: tuple[str, ...]) -> None:
    """Override settings of a lane, live, until they are reset.

    Times are seconds, or take a unit (250ms, 5m, 7d). "none" switches off what can be off.

    Refused is what would let a lane wait for ever although it ages, unless may_starve=true is
    set for it: in the same call, or before where another lane is set.

    \b
    laneq lanes set batch priority=50 aging=0
    laneq lanes set urgent reserve=3 slo=250ms
    laneq lanes set reports priority=-2000 may_starve=true
    """  # noqa: D301  \b is click's mark for lines to keep
    wanted: dict[str, object] = {}
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals:
            raise click.UsageError(f"{change!r} is not of the form KEY=VALUE")
        wanted[key.strip().replace("-", "_")] = value
    _change(settings, lane, wanted)


@lanes.command()
@click.argument("lane")
@data_options
@click.pass_obj
def pause(settings: Settings, lane: str) -> None:
    """Start nothing of a lane from now on; what runs goes on."""
    _change(settings, lane, {"paused": True})


@lanes.command()
@click.argument("lane")
@data_options
@click.pass_obj
def resume(settings: Settings, lane: str) -> None:
    """Start jobs of a paused lane again."""
    _change(settings, lane, {"paused": False})


@lanes.command()
@click.argument("lane")
@data_options
@click.pass_obj
def reset(settings: Settings, lane: str) -> None:
    """Take back all that operators set: what the app declares is in force again."""
    _change(settings, lane, None)


def _change(settings: Settings, name: str, changes: Mapping[str, object] | None) -> None:
    with opened(settings) as session:
        session.known_lanes((name,))
        before = Lane.from_wire(session.lanes.wire(name))
        if changes is None:
            after, stored = Lane.from_wire(session.lanes.declared[name]), None
        else:
            after = before.changed(**changes)
            wire = after.to_wire()
            touched = _touched(before, after, changes)
            stored = {WIRE_NAMES[option]: wire[WIRE_NAMES[option]] for option in touched}
        was = session.lanes.rules()
        rules = [Rule.of(after) if rule.lane == name else rule for rule in was]
        if changes is not None:
            _refuse_starving(name, was, rules, changes)
        try:
            version = session.call(lane_calls.set_lane(session.keys, name, stored))
        except UnknownLane as error:
            raise UnknownLane(name, session.lanes.names) from error
    _tell_of_starving(was, rules)
    touched = _touched(before, after, changes or {})
    pairs = {option: (getattr(before, option), getattr(after, option)) for option in touched}
    if settings.wants_json:
        shown = {option: {"old": old, "new": new} for option, (old, new) in pairs.items()}
        print_json({"lane": name, "version": version, "changes": shown})
        return
    if not pairs:
        click.echo(f"{name}: nothing was overridden")
    for option, (old, new) in pairs.items():
        click.echo(f"{name}: {option} {_shown(option, old)} → {_shown(option, new)}")


def _refuse_starving(
    name: str, was: Sequence[Rule], rules: Sequence[Rule], changes: Mapping[str, object]
) -> None:
    """Refuse a change that lets a lane wait for ever, where nothing says that it is meant.

    A lane that waits behind the same one already is no reason to refuse another change.

    Raises:
        OptionError: it does.
    """
    strict = {one.lane: one.strict_by for one in starvation(was)}
    found = []
    for one in starvation(rules):
        new = [lane for lane in one.unsaid_by if lane not in strict.get(one.lane, ())]
        if new:
            found.append(Starvation(one.lane, dict.fromkeys(new, 0.0)))
    if not found:
        return
    found.sort(key=lambda one: one.lane != name)
    lane = found[0].lane
    if lane == name:
        words = " ".join(f"{key}={value}" for key, value in changes.items() if key != "may_starve")
        say = f"laneq lanes set {name} {words} may_starve=true"
    else:
        say = f"laneq lanes set {lane} may_starve=true, and then this"
    raise OptionError("may_starve", unsaid_text(rules, found, say=say))


def _tell_of_starving(was: Sequence[Rule], rules: Sequence[Rule]) -> None:
    """Say which lanes a change lets wait for ever, although it was accepted."""
    before = {one.lane: one for one in starvation(was)}
    for one in starvation(rules):
        past = before.get(one.lane)
        new = set(one.strict_by) - set(past.strict_by if past else ())
        if new or set(one.unsaid_by) - set(past.unsaid_by if past else ()):
            behind = " or ".join(one.strict_by)
            note(f"no job of {one.lane} starts while {behind} has jobs waiting; {one.acceptance}")


def _touched(before: Lane, after: Lane, changes: Mapping[str, object]) -> list[str]:
    """Return the options that were named or differ: a target changes the priority too."""
    differ = (o for o in WIRE_NAMES if getattr(before, o) != getattr(after, o))
    return list(dict.fromkeys([*changes, *differ]))


@lanes.command()
@click.argument("lane")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@data_options
@click.pass_obj
def purge(settings: Settings, *, lane: str, yes: bool) -> Status:
    """Drop all waiting and scheduled jobs of a lane; what runs goes on."""
    with opened(settings) as session:
        session.known_lanes((lane,))
        (depth,) = session.call(stats.depths(session.keys, [lane]))
        total = depth.waiting + depth.scheduled
        question = (
            f"Drop the {depth.waiting:,} waiting and {depth.scheduled:,} scheduled jobs of lane "
            f"{lane!r} in namespace {session.keys.namespace!r}?"
        )
        if total and not ask_before(question, yes=yes):
            note("nothing was purged")
            return Status.BAD_NEWS
        purged = 0
        # Not beyond what was there, or busy producers would keep this going for ever.
        with progress(f"purging {lane}", total) as advance:
            while purged < total:
                dropped = session.call(
                    lane_calls.purge(session.keys, lane, limit=min(500, total - purged))
                )
                if not dropped:
                    break
                purged += dropped
                advance(dropped)
    if settings.wants_json:
        print_json({"lane": lane, "purged": purged})
    else:
        click.echo(f"purged {purged:,} jobs of lane {lane}")
    return Status.DONE
