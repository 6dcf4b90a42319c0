"""``laneq check``: prove that the books balance and nothing is broken; mend what can be mended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import click

from laneq.check import Problem, Repair, Report, Tell, run
from laneq.cli.group import data_options
from laneq.cli.output import Column, number, print_table, progress
from laneq.cli.report import note, print_json
from laneq.cli.session import opened
from laneq.cli.settings import Settings
from laneq.cli.status import Status
from laneq.model import BALANCE


@click.command()
@click.option(
    "--repair", is_flag=True, help="Mend first what can be mended without loss; says what it did."
)
@data_options
@click.pass_obj
def check(settings: Settings, *, repair: bool) -> Status:
    """Prove that the books balance and that nothing is broken.

    Looks at every job, count and key of the namespace, in slices of a few ms, while
    producers and workers go on; after each slice it rests as long as the slice took.
    Exit status 1 with a list where something is broken.
    """
    with opened(settings) as session, _bars() as tell:
        report = run(session.driver, session.keys, is_repair=repair, tell=tell)
        if not settings.wants_json:
            session.say_if_empty()
    if settings.wants_json:
        print_json(report.to_json())
    else:
        _print(report)
    return Status.DONE if report.is_ok else Status.BAD_NEWS


@contextmanager
def _bars() -> Iterator[Tell]:
    """Show a bar for each thing that is looked at, one after the other."""
    with ExitStack() as stack:
        shown, done = "", 0
        advance: Callable[[int], None] = lambda _: None  # noqa: E731  until there is a bar

        def tell(what: str, now_done: int, total: int) -> None:
            nonlocal shown, done, advance
            # A repair is followed by another look: its bar begins anew.
            if what != shown or now_done < done:
                stack.close()
                shown, done = what, 0
                advance = stack.enter_context(progress(f"checking {what}", total))
            advance(now_done - done)
            done = now_done

        yield tell


def _print(report: Report) -> None:
    for text in report.notes:
        note(text)
    if report.repairs:
        click.echo(f"repaired {_by_kind(report.repairs)}:")
        print_table(
            [Column("kind"), Column("lane"), Column("id"), Column("done", may_cut=True)],
            [[item.kind, item.lane or "-", item.id or "-", item.did] for item in report.repairs],
        )
    if report.problems:
        click.echo(f"broken: {_by_kind(report.problems)}:")
        print_table(
            [Column("kind"), Column("lane"), Column("id"), Column("what", may_cut=True)],
            [
                [item.kind, item.lane or "-", item.id or "-", item.detail]
                for item in report.problems
            ],
        )
    if report.left_off:
        note(f"there are {report.left_off:,} more than these")
    if report.is_ok:
        parts = " + ".join(
            f"{number(report.counts.get(part, 0))} {part}"
            for part in BALANCE
            if report.counts.get(part)
        )
        whole = number(report.counts.get("enqueued", 0))
        click.echo(f"in order: {whole} enqueued = {parts or '0'}")


def _by_kind(items: list[Problem] | list[Repair]) -> str:
    kinds = Counter(item.kind for item in items)
    return ", ".join(f"{n:,} × {kind}" for kind, n in kinds.items())
