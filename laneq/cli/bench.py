"""``laneq bench``: measure laneq on this machine, each figure beside the limit of this Redis.

Without ``--url`` on the command line a private server is started for the run: what
environment or project say of an address is that of the user's queue, which a
benchmark is to leave in peace. The namespace is likewise made up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar, cast

import click
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from laneq.bench import backlog as backlog_bench
from laneq.bench import claim as claim_bench
from laneq.bench import enqueue as enqueue_bench
from laneq.bench import lanes as lanes_bench
from laneq.bench import latency as latency_bench
from laneq.bench import memory as memory_bench
from laneq.bench import recovery as recovery_bench
from laneq.bench import throughput as throughput_bench
from laneq.bench.figures import Progress
from laneq.bench.rig import Rig
from laneq.cli.group import data_options
from laneq.cli.output import Column, compact, number, print_table
from laneq.cli.report import note, print_json
from laneq.cli.settings import Settings
from laneq.embedded import Engine
from laneq.errors import OptionError
from laneq.options import Lane

F = TypeVar("F", bound=Callable[..., Any])
Row = dict[str, Any]
T = TypeVar("T")


@click.group()
def bench() -> None:
    """Measure laneq on this machine.

    Each benchmark starts a private server unless --url is given here, works in a
    namespace of its own and deletes it afterwards. Its figures stand beside the limit
    of the same Redis, measured in the same run. Machines are noisy: figures are medians
    of several runs, and the least and greatest stand beside them.
    """


# --- options ----------------------------------------------------------------


class _ListOf(click.ParamType[Any]):
    """Values with commas between them."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        """Read the values, each once."""
        if isinstance(value, tuple):
            return value
        try:
            found = tuple(dict.fromkeys(self._read(part.strip()) for part in value.split(",")))
        except ValueError:
            self.fail(f"{value!r} is not {self.name} with commas between them", param, ctx)
        return found


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _rate(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e5:  # noqa: PLR2004  more than a producer can submit one by one
        raise ValueError(text)
    return int(value) if value == int(value) else value


def _switch(text: str) -> bool:
    if text not in {"on", "off"}:
        raise ValueError(text)
    return text == "on"


def _where(text: str) -> str:
    if text not in claim_bench.WAITING:
        raise ValueError(text)
    return text


_NUMBERS: Final = _ListOf("whole numbers", _positive)
_RATES: Final = _ListOf("rates", _rate)
_SWITCHES: Final = _ListOf("on or off", _switch)
_NAMES: Final = _ListOf("names", str)
_WAITING: Final = _ListOf("all or one", _where)
_RESERVES: Final = _ListOf("numbers of slots", int)


class _Wait(click.ParamType[Any]):
    """A time with its unit, as seconds."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read it as a lane's options are read."""
        if isinstance(value, float):
            return value
        try:
            slo_us = Lane("urgent", slo=value).slo_us
        except OptionError as error:
            self.fail(str(error), param, ctx)
        return (slo_us or 0) / 1e6


_ENGINE: Final = click.option(
    "--engine",
    type=click.Choice(["redis", "valkey"]),
    help="Which private server; the first found unless given.",
)


def _runs(default: int) -> Callable[[F], F]:
    return click.option(
        "--runs",
        type=click.IntRange(1, 100),
        default=default,
        show_default=True,
        help="How often each is measured; medians are shown.",
    )


def _jobs(default: int, what: str, *, least: int = 10) -> Callable[[F], F]:
    return click.option(
        "--jobs",
        "count",
        type=click.IntRange(least, 100_000_000),
        default=default,
        show_default=True,
        help=what,
    )


def bench_options(command: F) -> F:
    """Let a benchmark take where to run, and --json."""
    return data_options(_ENGINE(command))


# --- where and how it is shown ----------------------------------------------


@contextmanager
def _rig(settings: Settings, engine: str | None) -> Iterator[Rig]:
    if engine is not None and "url" in settings.given:
        raise click.UsageError("--engine picks a private server, --url names another one.")
    with Rig(
        settings.given.get("url"),
        engine=cast("Engine | None", engine),
        namespace=settings.given.get("namespace"),
    ) as rig:
        yield rig


@contextmanager
def _progress(title: str) -> Iterator[Progress]:
    """Show what goes on in one line of stderr, if that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(title) as status:
        yield lambda text: status.update(f"{title}: {text}")


def _ends(row: Row, name: str, *, digits: int = 0) -> str:
    """Return a figure and its range; the figure alone where there was one run."""
    ends = row["ranges"][name]
    text = number(row[name], digits=digits)
    if ends[0] == ends[1]:
        return text
    return f"{text}  ({number(ends[0], digits=digits)}–{number(ends[1], digits=digits)})"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _left(title: str) -> Column:
    return Column(title)


def _right(title: str) -> Column:
    return Column(title, "right")


# --- lanes ------------------------------------------------------------------

_HEADINGS: Final = (
    "arrangement", "urgent/s", "done", "p50 ms", "p99 ms", "batch/s",
    "published p50", "p99", "batch/s",
)  # fmt: skip


@bench.command()
@click.option(
    "--arrivals",
    type=click.Choice(["even", "poisson"]),
    default="even",
    show_default=True,
    help="How urgent jobs arrive: evenly, or at random.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 3600),
    default=8.0,
    show_default=True,
    help="Length of a run.",
)
@click.option(
    "--warm-up",
    type=click.FloatRange(0, 60),
    default=1.0,
    show_default=True,
    help="Seconds at batch jobs before urgent ones come; 0 as in the simulation.",
)
@click.option(
    "--only",
    type=_NAMES,
    default=tuple(lanes_bench.ARRANGEMENTS),
    show_default=",".join(lanes_bench.ARRANGEMENTS),
    metavar="NAME,...",
    help="Arrangements to measure. auto: a reserve over the fleet that sizes itself. fixed: one of "
    "each of --reserve.",
)
@click.option(
    "--rates",
    type=_RATES,
    default=(30, 150),
    show_default="30,150",
    metavar="RATE,...",
    help="Urgent jobs per second.",
)
@click.option(
    "--batch",
    type=click.IntRange(0, 1_000_000),
    show_default="2,000, or as many as a long run needs",
    help="Batch jobs queued at the start.",
)
@click.option(
    "--slo",
    "slo_s",
    type=_Wait(),
    default="50ms",
    show_default=True,
    metavar="TIME",
    help="Of auto and fixed: wait that at most 1 % of the urgent jobs may exceed.",
)
@click.option(
    "--settle",
    "settle_s",
    type=click.FloatRange(0, 600),
    default=20.0,
    show_default=True,
    help="Seconds that auto sizes itself, urgent jobs coming, before it is measured.",
)
@click.option(
    "--reserve",
    "reserves",
    type=_RESERVES,
    show_default="1,2,3 and so on up to the first that holds --slo",
    metavar="N,...",
    help="Slots of fixed.",
)
@click.option(
    "--step",
    "has_step",
    is_flag=True,
    help="One run that goes from the first of --rates to the second half-way: how soon auto has "
    "followed.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Of all that is random.")
@click.option(
    "--workers",
    type=click.Choice(["split", "one", "ten"]),
    default="split",
    show_default=True,
    help="Processes for the ten slots: 2 and 8 where the arrangement has two kinds of slots, one "
    "(not for dedicated), or ten of one slot.",
)
@click.option("--demo", is_flag=True, help="Explain what is seen; all in two minutes.")
@_runs(1)
@bench_options
@click.pass_obj
def lanes(settings: Settings, /, *, engine: str | None, demo: bool, **wanted: Any) -> None:
    """Measure the published scenario with real workers.

    Ten slots, 2,000 batch jobs of 100 to 300 ms queued at the start, and urgent jobs of
    20 ms that arrive all the time. In four arrangements: one lane for all (fifo), the
    urgent lane first (strict), 2 slots for urgent jobs alone and 8 for batch alone
    (dedicated), 2 slots reserved for urgent jobs and 8 for any (reserved). Latency is
    from before the enqueue call to the end of the job.

    Two more on request: ten shared slots with a reserve over the fleet that sizes itself
    (--only auto) or is fixed (--only fixed), both to hold --slo.
    """
    if wanted["has_step"] and not _is_given("only"):
        wanted["only"] = ("auto",)
    plan = lanes_bench.Plan(**wanted)
    if demo:
        note(_DEMO_BEFORE)
    with _rig(settings, engine) as rig:
        rows, notes = _measure_lanes(rig, plan)
        server = rig.server_name
    if settings.wants_json:
        print_json(rows)
        return
    _print_lanes(rows)
    click.echo()
    for line in _lane_caption(plan, server):
        click.echo(line)
    for line in notes:
        note(line)
    if demo:
        click.echo()
        click.echo(_DEMO_AFTER)


def _is_given(option: str) -> bool:
    source = click.get_current_context().get_parameter_source(option)
    return source is not click.core.ParameterSource.DEFAULT


def _print_lanes(rows: Sequence[Row]) -> None:
    """Print a table of the published arrangements, and one of reserves over the fleet."""
    sized = [row for row in rows if "slo_ms" in row]
    others = [row for row in rows if "slo_ms" not in row]
    if others:
        print_table(
            [_left(_HEADINGS[0]), *map(_right, _HEADINGS[1:])],
            [_lane_cells(row) for row in others],
        )
    if others and sized:
        click.echo()
    if sized:
        slo = compact(sized[0]["slo_ms"])
        headings = (
            "urgent/s", "done", "p50 ms", "p99 ms", "wait p99 ms", f"waits over {slo} ms",
            "batch/s", "reserve in force",
        )  # fmt: skip
        print_table(
            [_left("arrangement"), *map(_right, headings)], [_sized_cells(row) for row in sized]
        )
    for row in sized:
        if "step" in row:
            _print_step(row)
        elif row["arrangement"] == "auto":
            _print_verdict(rows, row)


def _sized_cells(row: Row) -> list[str]:
    rate = compact(row["urgent_per_s"])
    if "step" in row:
        rate = f"{compact(row['step']['from_per_s'])} → {rate}"
    figures = [
        _ends(row, name, digits=1) if row["runs"] > 1 else number(row[name], digits=1)
        for name in ("p50_ms", "p99_ms", "wait_p99_ms")
    ]
    batch = _ends(row, "batch_per_s", digits=1) if row["runs"] > 1 else None
    least, most = row["ranges"]["reserve_min"][0], row["ranges"]["reserve_max"][1]
    return [
        row["arrangement"],
        rate,
        f"{number(row['urgent_done'])} of {number(row['urgent_sent'])}",
        *figures,
        "-" if row["late_share"] is None else f"{row['late_share']:.2%}",
        batch or number(row["batch_per_s"], digits=1),
        number(least) if least == most else f"{number(least)}–{number(most)}",
    ]


def _print_verdict(rows: Sequence[Row], row: Row) -> None:
    """Say how auto compares with the smallest fixed reserve that holds the same."""
    rate = f"At {compact(row['urgent_per_s'])}/s"
    aim = f"at most 1 % of the waits over {compact(row['slo_ms'])} ms"
    does = "held" if row["holds"] else "did not hold"
    line = f"\n{rate} auto {does} {aim}"
    if any(one["arrangement"].startswith("fixed ") for one in rows):
        best = lanes_bench.smallest_fixed(rows, row)
        if best is None:
            line += "; no fixed reserve that was measured did"
        else:
            slots = best["arrangement"].removeprefix("fixed ")
            line += f"; the smallest fixed reserve that did: {slots}"
            if best["batch_per_s"]:
                share = row["batch_per_s"] / best["batch_per_s"]
                line += (
                    f", with {number(best['batch_per_s'], digits=1)} batch jobs a second, of which "
                    f"auto did {share:.1%}"
                )
    click.echo(f"{line}.")


def _print_step(row: Row) -> None:
    step = row["step"]
    followed = step["followed_s"]
    when = "never" if followed is None else f"{followed:g} s after the step"
    click.echo(
        f"\n{row['arrangement']}: {step['reserve_before']} slots before the step from "
        f"{compact(step['from_per_s'])} to {compact(step['to_per_s'])}/s, "
        f"{step['reserve_after']} at the end, reached {when}. Second by second:\n"
    )
    print_table(
        [
            _right("second"), _right("done"), _right(f"waited over {compact(row['slo_ms'])} ms"),
            _right("longest wait ms"), _right("reserve"),
        ],
        (
            (
                f"{one['second']:+d}",
                number(one["done"]),
                number(one["late"]),
                number(one["longest_wait_ms"], digits=1),
                number(one["reserve"]),
            )
            for one in step["seconds"]
        ),
    )  # fmt: skip


def _measure_lanes(rig: Rig, plan: lanes_bench.Plan) -> tuple[list[Row], list[str]]:
    """Measure, with a table on stderr that fills while it goes on, if that is a terminal."""
    rows: list[Row] = []
    notes: list[str] = []
    console = Console(stderr=True)
    with Live(console=console, transient=True, auto_refresh=False) as live:
        for state in lanes_bench.measure(rig, plan):
            if state.is_final:
                rows.append(state.row)
                notes += state.notes
            if console.is_terminal:
                live.update(_live_table(rows, plan, state), refresh=True)
    return rows, notes


def _live_table(rows: Sequence[Row], plan: lanes_bench.Plan, state: lanes_bench.State) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for i, title in enumerate(_HEADINGS):
        table.add_column(title, justify="right" if i else "left", no_wrap=True)
    for row in rows:
        table.add_row(*_lane_cells(row))
    if not state.is_final:
        table.add_row(*_lane_cells(state.row), style="cyan")
    for case in state.ahead:
        table.add_row(case.arrangement.name, compact(case.rate), *["·"] * 4, style="dim")
    over = (state.run - 1 + state.share) / plan.runs
    table.caption = f"run {state.run} of {plan.runs}, {over:.0%}" if not state.is_final else ""
    return table


def _lane_cells(row: Row) -> list[str]:
    told = row["published"]
    digits = {"p50_ms": 1, "p99_ms": 1, "batch_per_s": 1}
    has_ranges = row.get("runs", 1) > 1
    return [
        row["arrangement"],
        compact(row["urgent_per_s"]),
        f"{number(row['urgent_done'])} of {number(row['urgent_sent'])}",
        *(
            _ends(row, name, digits=places) if has_ranges else number(row[name], digits=places)
            for name, places in digits.items()
        ),
        *(["-"] * 3 if told is None else [compact(told[name]) for name in digits]),
    ]


def _lane_caption(plan: lanes_bench.Plan, server: str) -> Iterator[str]:
    workers = _LAYOUTS[plan.workers]
    yield (
        f"{server}; {workers}; {plan.arrivals} arrivals; runs of {plan.seconds:g} s, after "
        f"{plan.warm_up:g} s of batch jobs."
    )
    if set(plan.only) & set(lanes_bench.SIZED):
        yield (
            f"Waits are from before the enqueue call to the first line of the job; auto is "
            f"measured after {plan.settle_s:g} s of urgent jobs by which it sized itself."
        )
    if set(plan.only) <= set(lanes_bench.SIZED):
        return
    yield (
        "Published: simulated in one process, even arrivals, runs of 8 s, urgent and batch jobs "
        "from the same moment (at 150/s dedicated did 832 of 1,200)."
    )
    if plan.seconds != 8:  # noqa: PLR2004  the published length
        yield (
            "Figures of an arrangement whose queue grows (fifo; dedicated at 150/s) depend on the "
            "length of the run: compare them at --seconds 8."
        )


_LAYOUTS: Final = {
    "split": "ten slots in one worker process, in two of 2 and 8 where it is not fifo or strict",
    "one": "ten slots in one worker process, in two of 2 and 8 for dedicated",
    "ten": "ten worker processes of one slot each",
}

_DEMO_BEFORE: Final = """\
2,000 batch jobs of 100 to 300 ms are in the queue; urgent jobs of 20 ms arrive at 30, then at
150 a second. Ten slots work on them, arranged in four ways, 8 s each: about 80 s in all. An
urgent job cannot take less than its own 20 ms."""

_DEMO_AFTER: Final = """\
What to see: in one lane (fifo) no urgent job ends, 2,000 others are before it. Urgent first
(strict) waits for a batch job to end, for none is interrupted. Slots of their own (dedicated)
hold until 150/s is more than two can do; then the queue grows. Two reserved and eight shared
slots hold at both rates: laneq worker APP -c 2 --reserve urgent, and laneq worker APP -c 8."""


# --- throughput -------------------------------------------------------------


@bench.command()
@click.option(
    "--slots", type=_NUMBERS, default=(1, 10, 100), show_default="1,10,100", metavar="N,..."
)
@click.option(
    "--results",
    type=_SWITCHES,
    default=(False, True),
    show_default="off,on",
    metavar="off,on",
    help="Whether results are kept.",
)
@_jobs(20_000, "No-op jobs of a run, enqueued before.")
@_runs(3)
@bench_options
@click.pass_obj
def throughput(
    settings: Settings, /, *, engine: str | None, count: int, runs: int, **wanted: Any
) -> None:
    """Measure the no-op jobs per second of one worker process.

    The limit is a bare loop over one connection, which takes and ends as many jobs in a
    call as the worker did. Metrics, leases and heartbeats are on.
    """
    with _rig(settings, engine) as rig, _progress("throughput") as progress:
        rows = list(
            throughput_bench.measure(rig, count=count, runs=runs, progress=progress, **wanted)
        )
        server = rig.server_name
    if settings.wants_json:
        print_json(rows)
        return
    columns = [
        _right("slots"), _left("results"), _right("jobs/s"), _right("limit"), _right("share"),
        _right("Redis µs/job"), _right("worker µs/job"), _right("commands/job"),
        _right("calls/job"),
    ]  # fmt: skip
    print_table(
        columns,
        (
            (
                str(row["slots"]),
                "on" if row["results"] else "off",
                _ends(row, "jobs_per_s"),
                _ends(row, "limit_jobs_per_s"),
                _percent(row["share_of_limit"]),
                number(row["redis_us_per_job"], digits=1),
                number(row["worker_us_per_job"], digits=1),
                number(row["commands_per_job"], digits=1),
                number(row["calls_per_job"], digits=3),
            )
            for row in rows
        ),
    )
    click.echo(f"\n{server}; {count:,} no-op jobs a run, medians of {runs} (least–greatest).")


# --- latency ----------------------------------------------------------------


@bench.command()
@click.option("--slots", type=click.IntRange(1, 10_000), default=10, show_default=True)
@_jobs(250, "Jobs of a run, one each 20 ms.")
@_runs(3)
@bench_options
@click.pass_obj
def latency(
    settings: Settings, /, *, engine: str | None, slots: int, count: int, runs: int
) -> None:
    """Measure how soon an idle worker starts a job.

    From before the enqueue call to the first line of the job. Beside it a hand-over by
    LPUSH and BLPOP between two bare processes, and a bare PING, at the same pace.
    """
    with _rig(settings, engine) as rig, _progress("latency") as progress:
        row = latency_bench.measure(rig, slots=slots, count=count, runs=runs, progress=progress)
        server = rig.server_name
    if settings.wants_json:
        print_json([row])
        return
    print_table(
        [_left(""), _right("p50 ms"), _right("p99 ms")],
        (
            (
                title,
                _ends(row, f"{prefix}p50_ms", digits=2),
                _ends(row, f"{prefix}p99_ms", digits=2),
            )
            for title, prefix in (
                ("laneq: enqueue to first line", ""),
                ("bare hand-over: LPUSH, BLPOP", "handover_"),
                ("bare PING", "ping_"),
            )
        ),
    )
    click.echo(f"\n{server}; {count:,} jobs a run, medians of {runs} (least–greatest).")


# --- enqueue ----------------------------------------------------------------


@bench.command()
@_jobs(50_000, "Jobs of a bulk run; single calls do a tenth of it.", least=100)
@_runs(3)
@bench_options
@click.pass_obj
def enqueue(settings: Settings, /, *, engine: str | None, count: int, runs: int) -> None:
    """Measure the jobs per second that one producer enqueues.

    The limit is a bare loop over one connection that stores as much in each call.
    """
    with _rig(settings, engine) as rig, _progress("enqueue") as progress:
        rows = list(enqueue_bench.measure(rig, count=count, runs=runs, progress=progress))
        server = rig.server_name
    if settings.wants_json:
        print_json(rows)
        return
    print_table(
        [_left("way"), _right("jobs/s"), _right("limit"), _right("share")],
        (
            (
                row["way"],
                _ends(row, "jobs_per_s"),
                _ends(row, "limit_jobs_per_s"),
                _percent(row["share_of_limit"]),
            )
            for row in rows
        ),
    )
    click.echo(f"\n{server}; medians of {runs} (least–greatest). ×50: fifty coroutines at once.")


# --- claim ------------------------------------------------------------------


@bench.command()
@click.option(
    "--slots",
    type=_NUMBERS,
    default=(1, 10),
    show_default="1,10",
    metavar="N,...",
    help="Jobs that a claim ends and brings.",
)
@click.option(
    "--waiting",
    type=_WAITING,
    default=claim_bench.WAITING,
    show_default=",".join(claim_bench.WAITING),
    metavar="all,one",
    help="Where work waits: in all lanes, or in one of them.",
)
@click.option(
    "--claims",
    type=click.IntRange(10, 1_000_000),
    default=500,
    show_default=True,
    help="Claims of a run.",
)
@_runs(5)
@bench_options
@click.pass_obj
def claim(
    settings: Settings, /, *, engine: str | None, claims: int, runs: int, **wanted: Any
) -> None:
    """Measure what one claim costs Redis as lanes and limits are added.

    Two plain lanes, 20 plain lanes, and 20 with max_running, rate, max_depth, fair_by
    with weights and two reserves of the fleet, in turns. Claims as a worker makes them
    under load: each ends the jobs of the one before and brings as many. The ratio is to
    two plain lanes with as many slots: of the time until the reply is read, and of what
    Redis says that its script took.
    """
    with _rig(settings, engine) as rig, _progress("claim") as progress:
        rows = claim_bench.measure(rig, claims=claims, runs=runs, progress=progress, **wanted)
        server = rig.server_name
    if settings.wants_json:
        print_json(rows)
        return
    columns = [
        _left("work in"), _right("slots"), _left("lanes"), _right("claim µs"), _right("ratio"),
        _right("Redis µs"), _right("ratio"), _right("asked, at most"), _right("commands"),
    ]  # fmt: skip
    print_table(
        columns,
        (
            (
                row["waiting"],
                str(row["slots"]),
                f"{row['lanes']} with limits" if row["limits"] else f"{row['lanes']} plain",
                _ends(row, "claim_us"),
                _ends(row, "ratio", digits=2),
                _ends(row, "redis_us"),
                _ends(row, "redis_ratio", digits=2),
                number(row["asked_ratio"], digits=1),
                number(row["commands"], digits=1),
            )
            for row in rows
        ),
    )
    click.echo(f"\n{server}; {claims:,} claims a run, medians of {runs} (least–greatest).")


# --- memory, backlog, recovery ----------------------------------------------


@bench.command()
@_jobs(100_000, "Jobs.", least=1_000)
@bench_options
@click.pass_obj
def memory(settings: Settings, /, *, engine: str | None, count: int) -> None:
    """Measure the bytes of Redis per waiting, running and finished job.

    The limit is a sorted set of ids and a hash of the same records. On a Redis that
    others use meanwhile the figures are wrong.
    """
    with _rig(settings, engine) as rig, _progress("memory") as progress:
        rows = memory_bench.measure(rig, count=count, progress=progress)
        server = rig.server_name
    if settings.wants_json:
        print_json(rows)
        return
    print_table(
        [_left("job"), _right("bytes"), _right("limit")],
        (
            (row["state"], number(row["bytes_per_job"]), number(row["limit_bytes_per_job"]))
            for row in rows
        ),
    )
    click.echo(f'\n{server}; {count:,} jobs with the arguments (12345, "user@example.com").')


@bench.command()
@click.option(
    "--depths",
    type=_NUMBERS,
    default=(1_000, 100_000, 1_000_000),
    show_default="1000,100000,1000000",
    metavar="N,...",
    help="How many jobs wait.",
)
@_jobs(10_000, "Jobs claimed in a run.")
@_runs(3)
@bench_options
@click.pass_obj
def backlog(
    settings: Settings, /, *, engine: str | None, depths: Sequence[int], count: int, runs: int
) -> None:
    """Measure whether claims get slower as the backlog grows.

    Claims as a worker makes them, ten jobs in a call, each call ending the ten before.
    """
    with _rig(settings, engine) as rig, _progress("backlog") as progress:
        rows = list(
            backlog_bench.measure(rig, depths=depths, count=count, runs=runs, progress=progress)
        )
        server = rig.server_name
    if settings.wants_json:
        print_json(rows)
        return
    print_table(
        [_right("waiting"), _right("claims/s"), _right("limit"), _right("share")],
        (
            (
                number(row["waiting"]),
                _ends(row, "claims_per_s"),
                _ends(row, "limit_jobs_per_s"),
                _percent(row["share_of_limit"]),
            )
            for row in rows
        ),
    )
    click.echo(f"\n{server}; medians of {runs} (least–greatest).")


@bench.command()
@click.option(
    "--leases",
    type=_ListOf("seconds", float),
    default=(15.0, 2.0),
    show_default="15,2",
    metavar="S,...",
    help="Leases to measure, in seconds.",
)
@bench_options
@click.pass_obj
def recovery(settings: Settings, /, *, engine: str | None, leases: Sequence[float]) -> None:
    """Measure the seconds from kill -9 of a worker to the next start of its job."""
    with _rig(settings, engine) as rig, _progress("recovery") as progress:
        rows = list(recovery_bench.measure(rig, leases=leases, progress=progress))
        server = rig.server_name
    if settings.wants_json:
        print_json(rows)
        return
    print_table(
        [_right("lease s"), _right("seconds"), _right("promised, at most")],
        (
            (compact(row["lease_s"]), _ends(row, "seconds", digits=1), compact(row["promised_s"]))
            for row in rows
        ),
    )
    click.echo(f"\n{server}; three workers killed at different moments, median (least–greatest).")
