"""``laneq plan``: simulate a pool before paying for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from laneq.bench.lanes import PUBLISHED
from laneq.calls import workers as worker_calls
from laneq.cli.group import data_options
from laneq.cli.output import Column, compact, milliseconds, number, print_table, progress
from laneq.cli.report import print_json
from laneq.cli.session import opened
from laneq.cli.settings import Settings
from laneq.cli.status import Status
from laneq.demand import demands
from laneq.errors import OptionError
from laneq.simulate import recorded, spell
from laneq.simulate.outcome import MAY_MISS, LaneOutcome, Outcome, Range, simulate
from laneq.simulate.published import Case
from laneq.simulate.published import cases as published_cases
from laneq.simulate.scenario import Scenario, Workers
from laneq.simulate.search import Found, Variation, cheapest, variation_of, vary

_BAR_WIDTH: Final = 40
_LARGEST_POOL: Final = 256
_HOUR_S: Final = 3600
_SECOND_MS: Final = 1_000


@click.command()
@click.option("--lane", "lanes", multiple=True, metavar="NAME:KEY=VALUE,...",
              help="A lane and its load; again for each lane.")  # fmt: skip
@click.option("--file", "file", type=click.Path(path_type=Path),
              help="A scenario as TOML, in place of --lane.")  # fmt: skip
@click.option("--live", is_flag=True,
              help="Lanes, load, run times and workers that the namespace measured.")  # fmt: skip
@click.option("--slots", metavar="N", help="Slots of the pool [10]; N-M with --slo.")
@click.option("--worker", "workers", multiple=True, metavar="SLOTS[xN][,lanes=A+B][,reserve=L=N]",
              help="Workers, where they are not one.")  # fmt: skip
@click.option("--reserve", "reserve", multiple=True, metavar="LANE=N",
              help="Slots of the pool kept for a lane; N may be auto.")  # fmt: skip
@click.option("--vary", "varied", multiple=True, metavar="WHAT=VALUES",
              help="urgent.reserve=0-4, batch.max_running=2,4,8, slots=8-16.")  # fmt: skip
@click.option("--slo", "slo", multiple=True, metavar="LANE=WAIT",
              help="Find the cheapest arrangement in which 1% wait longer, at most.")  # fmt: skip
@click.option("--seconds", metavar="TIME", help="Length of a run that is measured [60].")
@click.option("--warm-up", "warm_up", metavar="TIME", help="Time before that is not [5].")
@click.option("--overhead", metavar="TIME", help="Mean time of a slot beside each job [0].")
@click.option("--seeds", type=click.IntRange(1, 1_000), default=10, show_default=True,
              help="Runs, each with other chances.")  # fmt: skip
@click.option("--published", is_flag=True, help="The published scenario, beside its figures.")
@data_options
@click.pass_obj
def plan(settings: Settings, /, **given: Any) -> Status:
    """Simulate a pool before paying for it.

    By the rules that claims go by: who goes first, what reserves and limits allow. A lane's
    load is rate=30 (a second, at random; arrivals=even or bursts:10 for others; 30/60s:150 for a
    step) or backlog=2000 (or endless), and run=20ms, 100-300ms or exp:200ms. Waits are from ready
    to start, figures medians over the seeds.

    \b
    laneq plan --lane urgent:rate=30,run=20ms --lane batch:backlog=endless,run=100-300ms
    laneq plan ... --reserve urgent=2                the same with two slots kept
    laneq plan ... --vary urgent.reserve=0-4         what each reserved slot costs and gives
    laneq plan ... --slo urgent=50ms --slots 4-32    the cheapest pool that holds it
    laneq plan --live --vary urgent.rate=100,200     what the namespace does, and more of it
    laneq plan --published --seeds 30
    """  # noqa: D301  \b is click's mark for lines to keep
    seeds = range(1, given["seeds"] + 1)
    if given["published"]:
        _published(settings, seeds)
        return Status.DONE
    if given["slo"] and given["varied"]:
        raise click.UsageError("--slo searches by itself: give it without --vary.")
    scenario = _scenario(settings, given)
    if given["slo"]:
        return _cheapest(settings, scenario, given, seeds)
    variations = [variation_of(text) for text in given["varied"]]
    arrangements = list(vary(scenario, variations)) if variations else [({}, scenario)]
    rows: list[tuple[dict[str, str], Outcome]] = []
    with progress("simulating", len(arrangements) * len(seeds)) as advance:
        for named, one in arrangements:
            rows.append((named, simulate(one, seeds, progress=lambda: advance(1))))
    if settings.wants_json:
        print_json(_document(scenario, seeds, rows, found=None))
    elif variations:
        _print_varied(variations, rows)
    else:
        _print_outcome(rows[0][1])
    return Status.DONE


# --- what is simulated ------------------------------------------------------


def _scenario(settings: Settings, given: dict[str, Any]) -> Scenario:
    if sum((bool(given["lanes"]), bool(given["file"]), given["live"])) != 1:
        raise click.UsageError(
            "say what is to be simulated in one of three ways: --lane for each lane, --file, or "
            "--live for what the namespace measured (--published has the published scenario)."
        )
    changes: dict[str, Any] = {
        option: spell.seconds_of(option, given[option])
        for option in ("seconds", "warm_up")
        if given[option] is not None
    }
    pool = _pool(given)
    if given["live"]:
        scenario = _live(settings, pool, changes)
    elif given["file"]:
        scenario = spell.read_toml(_text_of(given["file"]))
    else:
        scenario = spell.read_scenario(given["lanes"])
    if pool:
        changes["workers"] = pool
    if given["overhead"] is not None:
        changes["overhead"] = spell.overhead_of(given["overhead"])
    return spell.with_reserves(replace(scenario, **changes), given["reserve"])


def _pool(given: dict[str, Any]) -> tuple[Workers, ...]:
    """Return the workers that the command line names; none where it names none."""
    if given["workers"] and given["slots"]:
        raise click.UsageError("--slots is a pool of one worker, --worker says more: give one.")
    slots = given["slots"]
    if slots and "-" in slots:
        if not given["slo"]:
            raise click.UsageError(f"--slots {slots}: a range is for --slo, or --vary slots=.")
        return ()
    return (Workers(_whole(slots)),) if slots else tuple(map(spell.workers_of, given["workers"]))


def _text_of(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError("file", f"{str(file)!r} cannot be read: {error}") from None


def _whole(text: str) -> int:
    if not text.strip().isdecimal():
        raise OptionError("slots", f"must be a whole number, or N-M with --slo, not {text!r}")
    return int(text)


def _live(settings: Settings, pool: tuple[Workers, ...], times: dict[str, Any]) -> Scenario:
    with opened(settings) as session:
        workers = session.call(worker_calls.list_workers(session.keys))
        found = demands(
            session.driver, session.keys, lanes=session.lanes, workers=workers, window_s=_HOUR_S
        )
        session.say_if_empty()
    return recorded.scenario_of(found, workers, pool=pool, **times)


# --- the cheapest arrangement -----------------------------------------------


def _cheapest(
    settings: Settings, scenario: Scenario, given: dict[str, Any], seeds: Sequence[int]
) -> Status:
    slo = spell.objectives(given["slo"])
    fixed = bool(given["workers"]) or (given["slots"] and "-" not in given["slots"])
    slots = None if fixed else _range(given["slots"] or f"1-{_LARGEST_POOL}")
    with _told() as told:
        found = cheapest(scenario, slo, seeds, slots=slots, told=told)
    if settings.wants_json:
        print_json(_document(scenario, seeds, [({}, found.outcome)], found=found))
    else:
        _print_outcome(found.outcome)
        click.echo()
        click.echo(_verdict(found, slo))
    return Status.DONE if found.holds else Status.BAD_NEWS


def _range(text: str) -> tuple[int, int]:
    fewest, _, most = text.partition("-")
    return _whole(fewest), _whole(most)


@contextmanager
def _told() -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is being simulated."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("simulating") as status:
        yield lambda words: status.update(f"simulating {words}")


def _verdict(found: Found, slo: dict[str, float]) -> str:
    outcome = found.outcome
    wanted = ", ".join(f"{lane} {milliseconds(seconds * 1e3)}" for lane, seconds in slo.items())
    reserve = _reserve(outcome.scenario)
    pool = f"{outcome.scenario.slots} slots" + (f" with {reserve} reserved" if reserve else "")
    tried = f"{len(found.tried)} arrangements simulated, {outcome.seeds} runs each"
    if found.holds:
        return f"Cheapest that holds {wanted}: {pool}. {tried}."
    reasons = [_why_not(lane) for lane in outcome.lanes if not lane.holds]
    return f"None holds {wanted}. The last tried, {pool}: {'; '.join(reasons)}. {tried}."


def _why_not(lane: LaneOutcome) -> str:
    if not lane.keeps_up:
        return f"{lane.name} falls behind ({number(lane.left.median)} left waiting)"
    return f"{lane.late or 0:.1%} of {lane.name} wait longer ({MAY_MISS:.0%} may)"


# --- shown ------------------------------------------------------------------


def _reserve(scenario: Scenario) -> str:
    return ", ".join(f"{lane}={kept}" for lane, kept in scenario.reserve.items())


def _print_outcome(outcome: Outcome) -> None:
    scenario = outcome.scenario
    titles = ("arrived", "done/s", "p50", "p99", "max", "busy", "left")
    columns = [Column("lane"), *(Column(title, "right") for title in titles)]
    with_slo = any(lane.slo_s is not None for lane in outcome.lanes)
    with_auto = any(lane.reserve is not None for lane in outcome.lanes)
    if with_slo:
        columns += [Column("late", "right"), Column("slo", "right")]
    if with_auto:
        columns.append(Column("auto", "right"))
    rows = []
    for lane in outcome.lanes:
        row = [
            lane.name,
            number(lane.arrived.median),
            compact(lane.done_per_s.median),
            milliseconds(lane.wait_p50_ms.median),
            _span(lane.wait_p99_ms),
            milliseconds(lane.wait_max_ms.median),
            compact(lane.busy.median),
            number(lane.left.median) + ("" if lane.keeps_up else " (grows)"),
        ]
        if with_slo:
            row += ["-" if lane.late is None else f"{lane.late:.2%}", milliseconds(_ms(lane.slo_s))]
        if with_auto:
            row.append(_span_of_slots(lane.reserve))
        rows.append(row)
    print_table(columns, rows)
    click.echo()
    _print_bars(
        [
            (f"{lane.name} wait {title}", figure.median, milliseconds(figure.median))
            for lane in outcome.lanes
            for title, figure in (
                ("p50", lane.wait_p50_ms), ("p90", lane.wait_p90_ms), ("p99", lane.wait_p99_ms)
            )
            if figure.median is not None
        ]
    )  # fmt: skip
    _print_bars(
        [
            (f"{lane.name} done/s", lane.done_per_s.median, compact(lane.done_per_s.median))
            for lane in outcome.lanes
        ]
    )
    reserve = _reserve(scenario)
    click.echo(
        f"\n{scenario.slots} slots"
        + (f", reserve {reserve}" if reserve else "")
        + f", {compact(outcome.busy.median)} busy; medians of {outcome.seeds} runs of "
        f"{compact(scenario.seconds)} s.\nWaits from ready to start (p99: least–greatest)"
        + ("; late: share that waited over its slo" if with_slo else "")
        + ("; auto: reserve on average" if with_auto else "")
        + "."
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _span(figure: Range) -> str:
    if figure.median is None or figure.low == figure.high:
        return milliseconds(figure.median)
    # The ends in the unit of the middle.
    unit = 1e3 if figure.median >= _SECOND_MS else 1.0
    low, high = (figure.low or 0.0) / unit, (figure.high or 0.0) / unit
    return f"{milliseconds(figure.median)} ({low:.3g}–{high:.3g})"


def _span_of_slots(figure: Range | None) -> str:
    return "-" if figure is None else compact(figure.median)


def _print_varied(
    variations: Sequence[Variation], rows: Sequence[tuple[dict[str, str], Outcome]]
) -> None:
    names = [lane.name for lane in rows[0][1].lanes]
    columns = [Column(variation.what, "right") for variation in variations]
    columns += [Column("slots", "right"), Column("busy", "right")]
    for name in names:
        columns += [
            Column(f"{name} p50", "right"), Column("p99", "right"), Column("done/s", "right")
        ]  # fmt: skip
    columns.append(Column(""))
    cells = []
    for named, outcome in rows:
        row = [*named.values(), str(outcome.scenario.slots), compact(outcome.busy.median)]
        for lane in outcome.lanes:
            row += [
                milliseconds(lane.wait_p50_ms.median),
                milliseconds(lane.wait_p99_ms.median),
                compact(lane.done_per_s.median),
            ]
        missed = [lane.name for lane in outcome.lanes if not lane.holds]
        row.append(f"misses {', '.join(missed)}" if missed else "")
        cells.append(row)
    print_table(columns, cells)
    for name in names:
        lanes = [(named, outcome.lane(name)) for named, outcome in rows]
        for title, figures, shown in (
            ("wait p99", [lane.wait_p99_ms.median for _, lane in lanes], milliseconds),
            ("done/s", [lane.done_per_s.median for _, lane in lanes], compact),
        ):
            if len(set(figures)) > 1:
                click.echo(f"\n{name}: {title}")
                labels = [" ".join(f"{k}={v}" for k, v in named.items()) for named, _ in lanes]
                _print_bars(
                    [(label, at, shown(at)) for label, at in zip(labels, figures, strict=True)]
                )
    outcome = rows[0][1]
    click.echo(
        f"\nMedians of {outcome.seeds} runs of {compact(outcome.scenario.seconds)} s; waits from "
        "ready to start."
    )


def _print_bars(bars: Sequence[tuple[str, float | None, str]]) -> None:
    """Draw figures one under another, the largest as wide as the chart."""
    if not bars:
        return
    console = Console(highlight=False)
    block = "█" if console.is_terminal else "#"
    largest = max((value or 0.0) for _, value, _ in bars)
    width = max(len(label) for label, _, _ in bars)
    for label, value, shown in bars:
        length = round(_BAR_WIDTH * (value or 0.0) / largest) if largest else 0
        click.echo(f"{label:<{width}}  {block * length:<{_BAR_WIDTH}}  {shown}".rstrip())


# --- as JSON ----------------------------------------------------------------


def _document(
    scenario: Scenario,
    seeds: Sequence[int],
    rows: Sequence[tuple[dict[str, str], Outcome]],
    *,
    found: Found | None,
) -> dict[str, Any]:
    return {
        "seconds": scenario.seconds,
        "warm_up": scenario.warm_up,
        "seeds": len(seeds),
        "rows": [{"set": named, **_outcome_json(outcome)} for named, outcome in rows],
        "tried": None
        if found is None
        else [
            {"slots": slots, "reserve": dict(reserve), "holds": holds}
            for slots, reserve, holds in found.tried
        ],
    }


def _outcome_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "slots": outcome.scenario.slots,
        "reserve": outcome.scenario.reserve,
        "holds": outcome.holds,
        "busy": _range_json(outcome.busy),
        "lanes": [
            {
                "name": lane.name,
                "arrived": _range_json(lane.arrived),
                "done_per_s": _range_json(lane.done_per_s),
                "wait_ms": {
                    "p50": _range_json(lane.wait_p50_ms),
                    "p90": _range_json(lane.wait_p90_ms),
                    "p99": _range_json(lane.wait_p99_ms),
                    "max": _range_json(lane.wait_max_ms),
                },
                "latency_ms": {
                    "p50": _range_json(lane.latency_p50_ms),
                    "p99": _range_json(lane.latency_p99_ms),
                },
                "busy": _range_json(lane.busy),
                "left": _range_json(lane.left),
                "slo_s": lane.slo_s,
                "late": None if lane.late is None else round(lane.late, 6),
                "holds": lane.holds,
                "auto_reserve": None if lane.reserve is None else _range_json(lane.reserve),
            }
            for lane in outcome.lanes
        ],
    }


def _range_json(figure: Range) -> dict[str, float | None]:
    def cut(value: float | None) -> float | None:
        return None if value is None else round(value, 3)

    return {"low": cut(figure.low), "median": cut(figure.median), "high": cut(figure.high)}


# --- the published scenario -------------------------------------------------


def _published(settings: Settings, seeds: Sequence[int]) -> None:
    rows = sum(map(len, PUBLISHED.values()))
    with progress("simulating", rows * len(seeds)) as advance:
        found = list(published_cases(seeds, progress=lambda: advance(1)))
    if settings.wants_json:
        print_json({"seeds": len(seeds), "rows": [_case_json(case) for case in found]})
        return
    titles = ("per s", "done", "published", "p50 ms", "published", "p99 ms", "published",
              "batch/s", "published")  # fmt: skip
    print_table(
        [Column("arrangement"), *(Column(title, "right") for title in titles)],
        [
            [
                case.arrangement,
                str(case.rate),
                number(case.urgent.ended.median if case.urgent else 0),
                number(case.done),
                _figures(case.urgent.latency_p50_ms if case.urgent else None),
                _published_figure(case.p50_ms),
                _figures(case.urgent.latency_p99_ms if case.urgent else None),
                _published_figure(case.p99_ms),
                _figures(case.outcome.lane("batch").done_per_s),
                _published_figure(case.batch_per_s),
            ]
            for case in found
        ],
    )
    click.echo(
        f"\nMedians of {len(seeds)} runs (least–greatest). 10 slots, urgent jobs of 20 ms arriving "
        "evenly, 2,000 batch jobs\nof 100 to 300 ms; latency from submission to completion. "
        "docs/sizing.md says what was inferred of the published run."
    )


def _figures(figure: Range | None) -> str:
    if figure is None or figure.median is None:
        return "-"
    return f"{figure.median:,.1f} ({figure.low:,.1f}–{figure.high:,.1f})"


def _published_figure(value: float | None) -> str:
    return number(value, digits=1)


def _case_json(case: Case) -> dict[str, Any]:
    nothing = Range(None, None, None)
    return {
        "arrangement": case.arrangement,
        "urgent_per_s": case.rate,
        "urgent_done": _range_json(case.urgent.ended if case.urgent else Range(0, 0, 0)),
        "p50_ms": _range_json(case.urgent.latency_p50_ms if case.urgent else nothing),
        "p99_ms": _range_json(case.urgent.latency_p99_ms if case.urgent else nothing),
        "batch_per_s": _range_json(case.outcome.lane("batch").done_per_s),
        "published": {
            "urgent_done": case.done,
            "p50_ms": case.p50_ms,
            "p99_ms": case.p99_ms,
            "batch_per_s": case.batch_per_s,
        },
    }
