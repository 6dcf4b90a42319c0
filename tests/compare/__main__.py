"""``scripts/compare``: see README.md of scripts."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import click

from laneq.cli.output import Column, number, print_table
from tests.compare.pairs import LEAST_PAIRS, Pairs
from tests.compare.sides import CannotCompare, Figure, Side, measurements, of_revision

ROOT: Final = Path(__file__).parents[2]
BENCHMARKS: Final = ("throughput", "latency", "enqueue")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("base")
@click.argument("this", required=False)
@click.option("--rounds", type=click.IntRange(1, 1000), default=12, show_default=True)
@click.option("--only", default=",".join(BENCHMARKS), show_default=True, metavar="NAME,...")
@click.option(
    "--worse",
    type=click.FloatRange(0, 100, max_open=True),
    default=3.0,
    show_default=True,
    metavar="PERCENT",
    help="By how much it may be worse.",
)
@click.option("--engine", type=click.Choice(["redis", "valkey"]), help="Else the first found.")
@click.option(
    "--scale",
    type=click.FloatRange(0, 100, min_open=True),
    default=1.0,
    show_default=True,
    help="Jobs of a run, as a share of the usual number.",
)
@click.option("--json", "wants_json", is_flag=True, help="One JSON document on stdout.")
def main(
    *,
    base: str,
    this: str | None,
    rounds: int,
    only: str,
    worse: float,
    engine: str | None,
    scale: float,
    wants_json: bool,
) -> None:
    """Compare the speed of THIS revision, or of this checkout as it is, with that of BASE.

    Each benchmark runs on both, one right after the other, in rounds of alternating order.
    Ratios say how many times as good THIS is, of rates and of times alike: below 1 is worse.
    """
    wanted = only.split(",")
    if unknown := set(wanted) - set(BENCHMARKS):
        raise click.BadParameter(
            f"{min(unknown)!r} is none of {', '.join(BENCHMARKS)}", param_hint="--only"
        )
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="laneq-compare-") as folder:
        try:
            old = of_revision(ROOT, base, Path(folder, "base"))
            new = Side("checkout", ROOT)
            if this is not None:
                new = of_revision(ROOT, this, Path(folder, "this"))
            found = measure(
                old, new, only=wanted, rounds=rounds, engine=engine, scale=scale, progress=_say
            )
        except CannotCompare as error:
            raise click.ClickException(str(error)) from error
    if wants_json:
        rows = [_as_json(title, pairs, worse / 100) for title, pairs in found.items()]
        click.echo(json.dumps({"base": old.name, "this": new.name, "figures": rows}, indent=2))
        return
    _show(found, old.name, new.name, worse)
    click.echo(
        f"\nRounds: {rounds}; load {before:.1f} before, {os.getloadavg()[0]:.1f} after. Ratios of "
        "medians: above 1 is better. Open: the interval lies on both sides, more rounds tell."
    )
    if rounds < LEAST_PAIRS:
        click.echo(f"An interval takes {LEAST_PAIRS} rounds or more.")


def measure(
    base: Side,
    this: Side,
    *,
    only: Sequence[str],
    rounds: int,
    engine: str | None,
    scale: float,
    progress: Callable[[str], None],
) -> dict[str, Pairs]:
    """Return each figure's pairs, by its title."""
    base.check()
    this.check()
    plan = list(measurements(only))
    values: dict[tuple[str, Side], list[float]] = {}
    figures: dict[str, Figure] = {}
    for i in range(rounds):
        for measurement in plan:
            progress(f"round {i + 1} of {rounds}: {' '.join(measurement.command)}")
            for side in (base, this) if i % 2 == 0 else (this, base):
                seen = measurement.run(side, engine=engine, scale=scale)
                for figure, value in zip(measurement.figures, seen, strict=True):
                    figures[figure.title] = figure
                    values.setdefault((figure.title, side), []).append(value)
    return {
        title: Pairs(values[title, base], values[title, this], figure.is_rate)
        for title, figure in figures.items()
    }


def _say(text: str) -> None:
    click.echo(f"  {text}", err=True)


def _as_json(title: str, pairs: Pairs, tolerance: float) -> dict[str, Any]:
    ratios = pairs.ratios
    return {
        "figure": title,
        "base": list(pairs.base),
        "this": list(pairs.this),
        "ratio": pairs.ratio,
        "interval_90": pairs.interval(),
        "pairs": [ratios[0], ratios[-1]],
        "holds": pairs.holds(tolerance),
    }


def _show(found: dict[str, Pairs], base: str, this: str, worse: float) -> None:
    def both(ends: Sequence[float] | None) -> str:
        return "-" if ends is None else f"{ends[0]:.3f}–{ends[-1]:.3f}"

    def middle(values: Sequence[float]) -> str:
        value = median(values)
        return number(value, digits=0 if value >= 100 else 2)

    print_table(
        [
            Column(""), Column(base, "right"), Column(this, "right"), Column("ratio", "right"),
            Column("90 % interval", "right"), Column("single pairs", "right"),
            Column(f"not worse by {worse:g} %", "right"),
        ],
        (
            (
                title,
                middle(pairs.base),
                middle(pairs.this),
                f"{pairs.ratio:.3f}",
                both(pairs.interval()),
                both(pairs.ratios),
                pairs.holds(worse / 100),
            )
            for title, pairs in found.items()
        ),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
