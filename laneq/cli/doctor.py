"""``laneq doctor``: what is wrong, by which figures, and what mends it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import click

from laneq.cli.group import data_options
from laneq.cli.output import duration, one_line, print_fields
from laneq.cli.report import note, print_json
from laneq.cli.session import opened
from laneq.cli.settings import Settings
from laneq.cli.status import Status
from laneq.doctor import SEVERITIES, Finding, diagnose
from laneq.facts import read_facts

_WINDOWS: Final = {"1m": 60, "5m": 300, "1h": 3600}

#: Figures that are bytes.
_BYTES: Final = frozenset({"maxmemory", "used_memory", "machine_memory"})


@click.command()
@click.option(
    "--window",
    type=click.Choice(list(_WINDOWS)),
    default="5m",
    show_default=True,
    help="Judge what was measured over about this long.",
)
@data_options
@click.pass_obj
def doctor(settings: Settings, window: str) -> Status:
    """Say what is wrong, by which figures, and what mends it.

    The worst first. Looks at lanes, workers, reserves, limits, dead letters and the server, and
    changes nothing.
    Severity error: jobs are not run, or may be lost; warning: they are late, or soon will be;
    info: good to know. Exit status 1 where there is an error.
    """
    with opened(settings) as session:
        if not settings.wants_json:
            session.say_if_empty()
        facts = read_facts(session.driver, session.keys, window_s=_WINDOWS[window])
    findings = diagnose(facts)
    if settings.wants_json:
        print_json([asdict(finding) for finding in findings])
    else:
        print_findings(findings)
    if not facts.workers and not settings.wants_json:
        note("without a live worker nothing is measured: there may be more")
    is_bad = any(finding.severity == "error" for finding in findings)
    return Status.BAD_NEWS if is_bad else Status.DONE


def print_findings(findings: Sequence[Finding]) -> None:
    """Print what `diagnose` found."""
    if not findings:
        click.echo("nothing found")
        return
    numbers = Counter(finding.severity for finding in findings)
    click.echo(", ".join(f"{numbers[s]} {_named(s, numbers[s])}" for s in SEVERITIES if numbers[s]))
    for finding in findings:
        where = f", lane {finding.lane}" if finding.lane else ""
        click.echo(f"\n{finding.severity}: {finding.finding}{where}")
        print_fields(
            [
                ("  seen", evidence_text(finding.evidence)),
                ("  why", one_line(finding.reason)),
                ("  do", one_line(finding.advice)),
            ]
        )


def _named(severity: str, n: int) -> str:
    return severity if n == 1 or severity == "info" else f"{severity}s"


def evidence_text(evidence: Mapping[str, Any]) -> str:
    """Return figures for people: ``waiting 12, oldest wait 3m20s``."""
    told = (f"{_title(name)} {_value(name, value)}" for name, value in evidence.items())
    return one_line(", ".join(told))


def _title(name: str) -> str:
    return name.removesuffix("_per_s").removesuffix("_s").replace("_", " ")


def _value(name: str, value: Any) -> str:
    match value:
        case None | "" | []:
            return "-"
        case bool():
            return "yes" if value else "no"
        case Mapping():
            return ", ".join(f"{_value(name, item)} ({key})" for key, item in value.items())
        case list():
            return " and ".join(map(str, value))
        case str():
            return value
        case _:
            return _number(name, value)


def _number(name: str, value: float) -> str:
    if name in _BYTES:
        return f"{value / 2**20:,.1f} MiB" if value else "none"
    if name.endswith("_per_s"):
        return f"{value:.3g}/s"
    if name.endswith("_s"):
        return duration(value)
    return f"{value:,}"
