"""A chaos run as a table, and as JSON."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.chaos.books import shown
from tests.chaos.run import Report


def as_json(report: Report) -> dict[str, Any]:
    """Return a report as values of JSON."""
    account, plan = report.account, report.plan
    before, after, limit = report.memory
    return {
        "ok": report.is_well,
        "seed": plan.seed,
        "minutes": plan.minutes,
        "seconds": round(report.seconds, 1),
        "jobs": {
            "acknowledged": account.jobs,
            "unknown_to_their_producer": account.unknown,
            "children": account.children,
            "kinds": _sorted(account.kinds),
            "ends": _sorted(account.ends),
        },
        "starts": {"all": account.starts, "extra": account.extra, "bound": account.bound},
        "faults": _sorted(report.faults),
        "calls": _sorted(report.calls),
        "events": _sorted(report.events),
        "exits": {str(status): n for status, n in sorted(report.exits.items())},
        "readings": report.readings,
        "checks": report.checks,
        "memory_bytes": {"before": before, "after": after, "limit": limit},
        "problems": report.problems,
    }


def show(report: Report, console: Console) -> None:
    """Print a report."""
    account = report.account
    plan = report.plan
    _table(console, f"Done to it in {plan.minutes:g} min, seed {plan.seed}", _sorted(report.faults))
    _table(console, "What producers, waiters and operators met", _sorted(report.calls))
    _table(console, "How jobs ended", _sorted(account.ends))
    before, after, limit = report.memory
    _table(
        console,
        "The books",
        {
            "jobs whose enqueue was acknowledged": account.jobs,
            "enqueues that ended in an error": account.unknown,
            "children committed with an outcome": account.children,
            "starts": account.starts,
            "extra starts": account.extra,
            "runs that were hit (the most extra starts)": account.bound,
            "leases lost": report.events["lost_leases"],
            "handed back": report.events["handed_back"],
            "late outcomes refused": report.events["stale"],
            "readings of the counts meanwhile": report.readings,
            "checks of the namespace meanwhile": report.checks,
            "bytes in use before": before,
            "bytes in use after": after,
            "bytes in use at most": limit,
        },
    )
    if report.is_well:
        console.print("[bold green]well:[/] nothing lost, nothing doubled, nothing stuck")
        return
    console.print(f"[bold red]{len(report.problems)} things are wrong[/], seed {plan.seed}:")
    for problem in shown(report.problems):
        console.print(f"  {problem}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"logs of workers, diary and data: {report.folder}")


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _table(console: Console, title: str, rows: dict[str, int]) -> None:
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, n in rows.items():
        table.add_row(name, f"{n:,}")
    console.print(table)
