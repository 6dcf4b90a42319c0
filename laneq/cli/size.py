"""``laneq size``: slots to reserve for each lane, and slots that the fleet is to have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from laneq.calls import stats
from laneq.calls import workers as worker_calls
from laneq.calls.stats import Depths
from laneq.cli.group import data_options
from laneq.cli.output import Column, compact, duration, number, print_fields, print_table
from laneq.cli.report import print_json
from laneq.cli.session import Session, opened
from laneq.cli.settings import Settings
from laneq.elastic import (
    DesiredSlots,
    Fleet,
    LaneLoad,
    desired_slots,
    limit_of,
    slots_for_objective,
)
from laneq.errors import OptionError
from laneq.model import WorkerView
from laneq.options import Lane, seconds_from_text
from laneq.simulate.recorded import counts_of
from laneq.sizing import (
    dispersion_of,
    erlang_c,
    moments_of,
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
        reserve: what it is declared with; None for a lane that does not exist yet.
        reserve_slots: slots of the fleet that are kept for it now.
    """

    lane: str | None
    rate_per_s: float | None
    run_s: float | None
    measured_s: float | None = None
    dispersion: float = 1.0
    slo_s: float | None = None
    reserve: int | str | None = None
    reserve_slots: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The two answers for a load, and what they are made of; None without a load.

    Attributes:
        busy: slots busy on average.
        rule: rate × run × 1.5, at least 1.
        erlang: slots with which at most `chance` of the jobs wait at all.
        square_root: what square-root staffing makes of it, with the dispersion measured.
        for_slo: slots with which 1 % wait longer than the objective, in a pool of their own.
    """

    busy: float
    rule: int
    erlang: int
    square_root: int
    for_slo: int | None


def answer_of(load: Load, chance: float) -> Answer | None:
    """Work both answers out."""
    if not load.rate_per_s or load.run_s is None:
        return None
    busy = load.rate_per_s * load.run_s
    return Answer(
        busy=busy,
        rule=reserve_for(load.rate_per_s, load.run_s, _HEADROOM),
        erlang=servers_for_wait(load.rate_per_s, load.run_s, chance),
        square_root=square_root_staffing(busy, chance=chance, dispersion=load.dispersion).slots,
        for_slo=None
        if load.slo_s is None
        else slots_for_objective(busy, load.run_s, load.slo_s, share=chance),
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
    load = Load(None, given["rate"], run_s, slo_s=slo_s)
    chance, slots = given["chance"], given["slots"]
    answer = answer_of(load, chance)
    if answer is None:
        return
    waits = None if slots is None else erlang_c(slots, answer.busy)
    if settings.wants_json:
        print_json(
            {
                "namespace": None,
                "slots": slots,
                "desired_slots": None,
                "desired_reason": None,
                "chance": chance,
                "lanes": [_json(load, answer, chance) | {"waits": waits}],
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
    if waits is not None:
        told = "everybody waits, and the queue grows" if waits == 1 else f"{_share(waits)} wait"
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
    window_s = _WINDOWS[given["window"]]
    with opened(settings) as session:
        names = session.lanes.names
        found = session.call(stats.depths(session.keys, names))
        depths = dict(zip(names, found, strict=True))
        loads = [_measured(session, name, depths[name], window_s) for name in names]
        workers = session.call(worker_calls.list_workers(session.keys))
        if not settings.wants_json:
            session.say_if_empty()
        lanes = [
            lane_load(session, load, depths[load.lane], workers)
            for load in loads
            if load.lane is not None and not session.lanes.lane(load.lane).is_paused
        ]
    slots = sum(worker.slots for worker in workers)
    desired = desired_slots(lanes)
    answers = [(load, answer_of(load, given["chance"])) for load in loads]
    if settings.wants_json:
        print_json(
            {
                "namespace": session.keys.namespace,
                "slots": slots,
                "desired_slots": desired.value,
                "desired_reason": desired.reason,
                "chance": given["chance"],
                "lanes": [_json(load, answer, given["chance"]) for load, answer in answers],
            }
        )
    elif answers:
        _print(answers, given["chance"])
        click.echo(f"\n{_told(desired, slots)}")


def _measured(session: Session, name: str, depth: Depths, window_s: int) -> Load:
    """Return a lane's load over about the last `window_s` seconds."""
    notes: list[bytes] = session.driver.command(
        "LRANGE", session.keys.of_lane("rates", name), 0, -1
    )
    enqueued = depth.counts.get("enqueued", 0)
    since_us = depth.now_us - window_s * 1_000_000
    recent = [note for note in notes if int(note.split()[0]) >= since_us]
    counts = counts_of([*recent, b"%d %d" % (depth.now_us, enqueued)])
    seconds = sum(length for length, _ in counts)
    spread = session.call(stats.spread(session.keys, name, now_us=depth.now_us, window_s=window_s))
    moments = moments_of(spread["r"])
    lane = Lane.from_wire(session.lanes.wire(name))
    return Load(
        lane=name,
        rate_per_s=sum(n for _, n in counts) / seconds if seconds >= 1 else None,
        run_s=moments[0] if moments else None,
        measured_s=seconds if seconds >= 1 else None,
        dispersion=dispersion_of(counts),
        slo_s=None if lane.slo_us is None else lane.slo_us / 1e6,
        reserve=lane.reserve,
        reserve_slots=session.lanes.lane(name).reserve_slots,
    )


def lane_load(
    session: Session, load: Load, depth: Depths, workers: Sequence[WorkerView]
) -> LaneLoad:
    """Return what a lane asks of the fleet, for `elastic.desired_slots`."""
    name = load.lane or ""
    lane = session.lanes.lane(name)
    serving = [worker for worker in workers if name in worker.lanes]
    age_s = 0.0
    if depth.waiting and depth.head_ready_us is not None:
        age_s = max(depth.now_us - depth.head_ready_us, 0) / 1e6
    return LaneLoad(
        name,
        priority=lane.priority,
        slo_s=load.slo_s,
        waiting=depth.waiting,
        head_age_s=age_s,
        arrivals_per_s=load.rate_per_s or 0.0,
        run_s=load.run_s,
        reserve=lane.reserve_slots,
        kept=sum(worker.reserve.get(name, 0) for worker in serving),
        limit=limit_of(
            max_running=None if lane.max_running < 0 else lane.max_running,
            starts_per_s=None if lane.start_every_us <= 0 else 1e6 / lane.start_every_us,
            run_s=load.run_s,
        ),
        fleet=Fleet(sum(worker.slots for worker in serving)),
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
        "busy": None if answer is None else round(answer.busy, 6),
        "rule": None if answer is None else answer.rule,
        "erlang": None if answer is None else answer.erlang,
        "square_root": None if answer is None else answer.square_root,
        "square_root_terms": terms,
        "slots_for_slo": None if answer is None else answer.for_slo,
        "reserve": load.reserve,
        "reserve_slots": load.reserve_slots,
        "waits": None,
    }
