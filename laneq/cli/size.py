"""``laneq size``: slots to reserve for each lane, and slots that the fleet is to have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from laneq.calls import workers as worker_calls
from laneq.cli.group import data_options
from laneq.cli.output import Column, compact, duration, number, print_fields, print_table
from laneq.cli.report import print_json
from laneq.cli.session import opened
from laneq.cli.settings import Settings
from laneq.demand import Demand, demands, desired
from laneq.elastic import DesiredSlots, slots_for_objective
from laneq.errors import OptionError
from laneq.options import seconds_from_text
from laneq.sizing import (
    erlang_c,
    reserve_for,
    servers_for_wait,
    square_root_staffing,
)

_WINDOWS: Final = {"1m": 60, "5m": 300, "1h": 3600}
_HEADROOM: Final = 1.5


@dataclass(frozen=True, slots=True)
class Load:
    """What is known of a lane's load; None where nothing was measured.

    Attributes:
        lane: its name; None for a lane that does not exist yet.
        rate_per_s: jobs that arrive.
        run_s: mean run time.
        measured_s: over how long the rate was measured; None where it was given.
        dispersion: variance of the arrivals' counts over their mean.
        slo_s: its wait objective.
        slots: of live workers that serve it; those asked about, of a lane that does not exist.
        reserve: what it is declared with; None for a lane that does not exist yet.
        reserve_slots: slots of the fleet that are kept for it now.
        kept: slots that single workers keep for it.
    """

    lane: str | None
    rate_per_s: float | None
    run_s: float | None
    measured_s: float | None = None
    dispersion: float = 1.0
    slo_s: float | None = None
    slots: int | None = None
    reserve: int | str | None = None
    reserve_slots: int | None = None
    kept: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The two answers for a load, and what they are made of; None without a load.

    Attributes:
        busy: slots busy on average.
        rule: rate × run × 1.5, at least 1.
        erlang: slots with which at most `chance` of the jobs wait at all.
        square_root: what square-root staffing makes of it, with the dispersion measured.
        for_slo: slots with which 1 % wait longer than the objective, in a pool of their own.
        waits: share that finds the reserve full, or so many slots of a lane to come; None for none.
    """

    busy: float
    rule: int
    erlang: int
    square_root: int
    for_slo: int | None
    waits: float | None


def answer_of(load: Load, chance: float) -> Answer | None:
    """Work both answers out."""
    if not load.rate_per_s or load.run_s is None:
        return None
    busy = load.rate_per_s * load.run_s
    own = load.slots if load.lane is None else max(load.reserve_slots or 0, load.kept or 0)
    return Answer(
        busy=busy,
        rule=reserve_for(load.rate_per_s, load.run_s, _HEADROOM),
        erlang=servers_for_wait(load.rate_per_s, load.run_s, chance),
        square_root=square_root_staffing(busy, chance=chance, dispersion=load.dispersion).slots,
        for_slo=None
        if load.slo_s is None
        else slots_for_objective(busy, load.run_s, load.slo_s, share=chance),
        waits=erlang_c(own, busy) if own or (load.lane is None and own is not None) else None,
    )


@click.command()
@click.option("--rate", type=float, metavar="PER_S", help="Jobs per second, of a lane to come.")
@click.option("--run", metavar="TIME", help="Mean run time of one: 20ms, 1.5s.")
@click.option("--slots", type=click.IntRange(0, 1_000_000), metavar="N",
              help="With --rate: what so many slots come to.")  # fmt: skip
@click.option("--slo", metavar="TIME", help="With --rate: a wait that is no lateness: 50ms.")
@click.option("--chance", type=click.FloatRange(1e-6, 0.5), default=0.01, show_default=True,
              help="Share of jobs that may wait.")  # fmt: skip
@click.option("--window", type=click.Choice(list(_WINDOWS)), default="5m", show_default=True,
              help="Measure over about this long.")  # fmt: skip
@data_options
@click.pass_obj
def size(settings: Settings, /, **given: Any) -> None:
    """Say how many slots to reserve, and to have.

    Two answers side by side, with what they are made of: the rule of thumb (rate × run time ×
    1.5), and Erlang's formula, the slots with which at most 1% of the jobs wait at all where they
    arrive at random. The rule suits even arrivals and lanes that may wait a little for a shared
    slot; Erlang's answer suits lanes whose jobs are not to wait.

    \b
    laneq size                                 each lane, from what was measured
    laneq size --rate 30 --run 20ms            a lane that does not exist yet
    laneq size --rate 30 --run 20ms --slots 2  and how many jobs would wait with 2 slots
    """  # noqa: D301  \b is click's mark for lines to keep
    if given["rate"] is None and given["run"] is None:
        if given["slots"] is not None or given["slo"] is not None:
            raise click.UsageError("--slots and --slo go with --rate and --run.")
        _of_namespace(settings, given)
        return
    if given["rate"] is None or given["run"] is None:
        raise click.UsageError("--rate and --run go together: 30 a second, 20ms each.")
    _of_figures(settings, given)


# --- a lane to come ---------------------------------------------------------


def _of_figures(settings: Settings, given: Mapping[str, Any]) -> None:
    run_s = seconds_from_text("run", given["run"])
    if not 0 < run_s <= 1e7:  # noqa: PLR2004  four months
        raise OptionError("run", f"must be above 0, not {given['run']!r}")
    if not 0 < given["rate"] <= 1e6:  # noqa: PLR2004  no Redis does more
        raise OptionError("rate", f"must be above 0 and at most 1,000,000, not {given['rate']:g}")
    slo_s = None if given["slo"] is None else seconds_from_text("slo", given["slo"])
    chance, slots = given["chance"], given["slots"]
    load = Load(None, given["rate"], run_s, slo_s=slo_s, slots=slots)
    answer = answer_of(load, chance)
    if answer is None:
        return
    if settings.wants_json:
        print_json(
            {
                "namespace": None,
                "slots": slots,
                "desired_slots": None,
                "desired_reason": None,
                "chance": chance,
                "lanes": [_json(load, answer, chance)],
            }
        )
        return
    fields = [
        (
            "load",
            f"{load.rate_per_s:g}/s × {duration(run_s)} = {answer.busy:.3g} slots busy",
        ),
        ("1.5 rule", f"{answer.rule}: {answer.busy:.3g} × 1.5, rounded up, at least 1"),
        ("Erlang C", f"{answer.erlang}: at most {_share(chance)} of random arrivals wait at all"),
        ("", _steps(answer, chance)),
    ]
    if answer.for_slo is not None:
        words = f"{answer.for_slo}: at most {_share(chance)} wait over {duration(slo_s)}"
        fields.append(("objective", f"{words}, in a pool of their own"))
    if answer.waits is not None:
        told = f"{_share(answer.waits)} wait"
        if answer.waits == 1:
            told = "everybody waits, and the queue grows"
        fields.append((f"{slots} slots", told))
    print_fields(fields)


def _steps(answer: Answer, chance: float) -> str:
    """Return the chance of a wait with a slot less, as many, and one more."""
    around = range(max(answer.erlang - 2, 1), answer.erlang + 2)
    told = [f"{slots}: {_share(erlang_c(slots, answer.busy))}" for slots in around]
    return f"chance of a wait with {', '.join(told)} ({_share(chance)} may)"


def _share(share: float) -> str:
    return f"{share * 100:.3g}%"


# --- a namespace ------------------------------------------------------------


def _of_namespace(settings: Settings, given: Mapping[str, Any]) -> None:
    chance = given["chance"]
    with opened(settings) as session:
        workers = session.call(worker_calls.list_workers(session.keys))
        found = demands(
            session.driver,
            session.keys,
            lanes=session.lanes,
            workers=workers,
            window_s=_WINDOWS[given["window"]],
        )
        if not settings.wants_json:
            session.say_if_empty()
    slots, wanted = sum(worker.slots for worker in workers), desired(found)
    loads = [_load(demand) for demand in found]
    answers = [(load, answer_of(load, chance)) for load in loads]
    if settings.wants_json:
        print_json(
            {
                "namespace": session.keys.namespace,
                "slots": slots,
                "desired_slots": wanted.value,
                "desired_reason": wanted.reason,
                "chance": chance,
                "lanes": [_json(load, answer, chance) for load, answer in answers],
            }
        )
    elif answers:
        _print(answers, chance)
        click.echo(f"\n{_told(wanted, slots)}")


def _load(demand: Demand) -> Load:
    return Load(
        lane=demand.name,
        rate_per_s=demand.rate_per_s,
        run_s=demand.run_s,
        measured_s=demand.measured_s,
        dispersion=demand.dispersion,
        slo_s=demand.load.slo_s,
        slots=demand.slots,
        reserve=demand.lane.reserve,
        reserve_slots=demand.reserve_slots,
        kept=demand.kept,
    )


def _print(answers: Sequence[tuple[Load, Answer | None]], chance: float) -> None:
    titles = ("in/s", "run", "over", "busy", "1.5 rule", "Erlang C", "√ and V", "reserve")
    rows = []
    for load, answer in answers:
        reserve = str(load.reserve)
        if load.reserve == "auto":
            reserve = f"auto, {load.reserve_slots} now"
        rows.append(
            [
                load.lane or "",
                compact(load.rate_per_s),
                duration(load.run_s),
                duration(load.measured_s),
                "-" if answer is None else f"{answer.busy:.3g}",
                number(answer.rule if answer else None),
                number(answer.erlang if answer else None),
                "-" if answer is None else f"{answer.square_root} (V {load.dispersion:.2g})",
                reserve,
            ]
        )
    print_table([Column("lane"), *(Column(title, "right") for title in titles)], rows)
    click.echo(
        f"\n1.5 rule: in/s × run × 1.5. Erlang C: at most {_share(chance)} of random arrivals "
        "wait. √ and V: the same for the\nvariance that was measured, V times that of random "
        "arrivals. docs/sizing.md says which to take when."
    )


def _told(desired: DesiredSlots, slots: int) -> str:
    return f"Slots over the fleet: {slots} now, {desired.value} wanted: {desired.reason}."


def _json(load: Load, answer: Answer | None, chance: float) -> dict[str, Any]:
    terms = None
    if answer is not None:
        staffing = square_root_staffing(answer.busy, chance=chance, dispersion=load.dispersion)
        terms = {
            "load": round(staffing.load, 6),
            "z": round(staffing.z, 6),
            "spread": round(staffing.spread, 6),
            "refinement": round(staffing.refinement, 6),
        }
    return {
        "name": load.lane,
        "rate_per_s": None if load.rate_per_s is None else round(load.rate_per_s, 6),
        "run_s": None if load.run_s is None else round(load.run_s, 6),
        "measured_s": None if load.measured_s is None else round(load.measured_s, 3),
        "dispersion": round(load.dispersion, 4),
        "slo_s": load.slo_s,
        "slots": load.slots,
        "busy": None if answer is None else round(answer.busy, 6),
        "rule": None if answer is None else answer.rule,
        "erlang": None if answer is None else answer.erlang,
        "square_root": None if answer is None else answer.square_root,
        "square_root_terms": terms,
        "slots_for_slo": None if answer is None else answer.for_slo,
        "reserve": load.reserve,
        "reserve_slots": load.reserve_slots,
        "kept": load.kept,
        "waits": None if answer is None or answer.waits is None else round(answer.waits, 6),
    }
