"""``laneq worker``: run jobs."""

from __future__ import annotations

from typing import Final, Literal

import click

from laneq.app import LaneQ
from laneq.cli.group import where_options
from laneq.cli.settings import Settings
from laneq.cli.target import load_app, named_app
from laneq.errors import ConfigError
from laneq.options import WorkerOptions, seconds_from_text
from laneq.worker import ProbeOptions, ends_when_told, run_worker, supervise

_ALL: Final = "all"
_CONCURRENCY: Final = 10


def _lanes(ctx: click.Context, param: click.Parameter, text: str | None) -> list[str] | None:  # noqa: ARG001
    if text is None:
        return None
    return [name.strip() for name in text.split(",") if name.strip()]


def _reserve(
    ctx: click.Context,  # noqa: ARG001  click's signature
    param: click.Parameter,  # noqa: ARG001
    given: tuple[str, ...],
) -> dict[str, int | Literal["all"]]:
    reserve: dict[str, int | Literal["all"]] = {}
    for text in given:
        lane, equals, slots = text.partition("=")
        if equals and not slots.isdecimal():
            raise click.BadParameter(f"{text!r} is not of the form LANE or LANE=SLOTS")
        if lane in reserve:
            raise click.BadParameter(f"lane {lane!r} is given twice")
        reserve[lane] = int(slots) if equals else _ALL
    return reserve


def _port(
    ctx: click.Context,  # noqa: ARG001  click's signature
    param: click.Parameter,  # noqa: ARG001
    text: str | None,
) -> tuple[str, int | None]:
    if text is None:
        return "", None
    host, _, port = text.rpartition(":")
    if not port.isdecimal():
        raise click.BadParameter(f"{text!r} is not of the form PORT or HOST:PORT")
    return host.strip("[]"), int(port)


def _after(ctx: click.Context, param: click.Parameter, text: str) -> float:  # noqa: ARG001
    return seconds_from_text("health-after", text)


def _grace(ctx: click.Context, param: click.Parameter, text: str) -> float:  # noqa: ARG001
    return seconds_from_text("grace", text)


@click.command()
@click.argument("app_name", required=False, metavar="[APP]")
@click.option(
    "-c",
    "--concurrency",
    type=int,
    help="Jobs run at a time; with --max, at the start.  [default: 10, or --min]",
)
@click.option(
    "--min", "min_slots", type=int, metavar="N", help="Fewest slots; with --max.  [default: -c]"
)
@click.option(
    "--max",
    "max_slots",
    type=int,
    metavar="N",
    help="Most slots: they follow the wait objectives (slo) of the lanes.",
)
@click.option("--lanes", metavar="A,B", callback=_lanes, help="Lanes served; else all.")
@click.option(
    "--reserve",
    metavar="LANE[=N]",
    multiple=True,
    callback=_reserve,
    help="Keep N slots for a lane, or all of them; again for other lanes.",
)
@click.option(
    "--processes", type=int, default=1, show_default=True, help="Processes, each with -c slots."
)
@click.option(
    "--processes-max", type=int, metavar="N", help="Most processes: they follow likewise."
)
@click.option(
    "--grace",
    metavar="SECONDS",
    default="30",
    show_default=True,
    callback=_grace,
    help="Time that running jobs get to end, once told to stop.",
)
@click.option("--burst", is_flag=True, help="End when nothing is waiting.")
@click.option(
    "--health-port",
    metavar="[HOST:]PORT",
    callback=_port,
    help="Answer HTTP: 200 while the worker works, 503 and why where it does not.",
)
@click.option("--health-file", metavar="PATH", help="Touch a file each second while it works.")
@click.option(
    "--health-after",
    metavar="SECONDS",
    default="10",
    show_default=True,
    callback=_after,
    help="Time without progress after which it does not work.",
)
@click.option("--name", help="Label in `laneq workers`; else the host's name.")
@where_options
@click.pass_obj
def worker(
    settings: Settings,
    *,
    app_name: str | None,
    concurrency: int | None,
    min_slots: int | None,
    max_slots: int | None,
    lanes: list[str] | None,
    reserve: dict[str, int | Literal["all"]],
    processes: int,
    processes_max: int | None,
    grace: float,
    burst: bool,
    name: str | None,
    health_port: tuple[str, int | None],
    health_file: str | None,
    health_after: float,
) -> int:
    """Run jobs until told to stop.

    APP is MODULE:ATTR, MODULE or path/file.py[:ATTR]; else as in `laneq --help`. INT or
    TERM: no more jobs are started, running ones get the grace to end, the rest is handed
    back. A second signal hands back at once.

    \b
    laneq worker shop.tasks:app -c 10 --reserve urgent=2
    laneq worker shop.tasks --lanes batch --processes 4
    laneq worker shop.tasks --min 2 --max 32
    """  # noqa: D301  \b is click's mark for lines to keep
    options = WorkerOptions(
        concurrency=(min_slots or _CONCURRENCY) if concurrency is None else concurrency,
        lanes=lanes,
        reserve=reserve,
        processes=processes,
        min_slots=min_slots,
        max_slots=max_slots,
        processes_max=processes_max,
        grace=grace,
        burst=burst,
        name=name,
    )
    host, port = health_port
    probe = ProbeOptions(port=port, host=host, file=health_file, after=health_after)
    with ends_when_told():
        loaded = load_app(settings, app_name)
        named = named_app(settings, app_name)
        if not loaded.tasks:
            raise ConfigError(_no_task(loaded, "" if named is None else named.name))
    if max(options.processes, options.processes_max or 0) > 1:
        return supervise(loaded, options, probe)
    return run_worker(loaded, options, probe)


def _no_task(app: LaneQ, name: str) -> str:
    return (
        f"app {name} ({app!r}) has no task: nothing could run. Put @app.task on functions, and "
        "name the module that has them, or import it from the app's."
    )
