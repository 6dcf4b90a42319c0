"""``scripts/chaos``: see README.md of scripts."""

from __future__ import annotations

import sys

import click
from rich.console import Console

from laneq.embedded import Engine
from tests.chaos import faults, report
from tests.chaos.run import Plan, carry_out, seed_of


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--minutes", type=float, default=5.0, show_default=True, help="How long all breaks.")
@click.option("--seed", type=int, help="Break the same things in the same order again.")
@click.option("--rate", type=float, default=250.0, show_default=True, help="Jobs per second.")
@click.option("--pace", type=float, default=1.0, show_default=True, help="Seconds between faults.")
@click.option("--workers", type=click.IntRange(1, 4), default=4, show_default=True)
@click.option("--engine", type=click.Choice(["valkey", "redis"]), help="Else the first found.")
@click.option("--faults", "wants_faults", is_flag=True, help="Then run every fault test too.")
@click.option("--json", "wants_json", is_flag=True, help="One JSON document on stdout.")
def main(
    *,
    minutes: float,
    seed: int | None,
    rate: float,
    pace: float,
    workers: int,
    engine: Engine | None,
    wants_faults: bool,
    wants_json: bool,
) -> None:
    """Kill, stop, cut and restart everything while jobs flow, then see that the books balance.

    Starts a server, workers and producers of its own; touches no Redis of yours. Exits 1 if a
    job was lost, doubled or stuck, or anything else was not as promised.
    """
    console = Console(stderr=True)
    out = Console()
    plan = Plan(
        minutes=minutes,
        seed=seed_of(seed),
        rate=rate,
        pace=pace,
        workers=workers,
        engine=engine,
    )
    is_well = True
    document = {}
    if minutes > 0:
        console.print(f"chaos for {minutes:g} min, seed {plan.seed}")
        done = carry_out(plan, progress=lambda text: console.print(f"  {text}", highlight=False))
        is_well = done.is_well
        document = report.as_json(done)
        if not wants_json:
            report.show(done, out)
    if wants_faults:
        rows = faults.run(progress=lambda text: console.print(f"  {text}", highlight=False))
        is_well = is_well and all(row.has_passed for row in rows)
        document["faults"] = [row.as_json() for row in rows]
        if not wants_json:
            faults.show(rows, out)
    if wants_json:
        out.print_json(data=document)
    sys.exit(0 if is_well else 1)


if __name__ == "__main__":
    main()
