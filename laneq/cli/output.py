"""Print data for people: tables, fields, and how numbers and times are written.

A table is drawn by rich. On a terminal it fits the width: cells that may be cut
are. In a pipe nothing is cut, coloured or boxed, so that it can be searched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from io import StringIO
from typing import Final, Literal

import click
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from laneq.wording import duration as duration  # noqa: PLC0414  words beside words

#: Wider than any row: in a pipe nothing is wrapped.
_PIPE_WIDTH: Final = 100_000

#: What is left of a column that may be cut.
_NARROWEST: Final = 6


# --- tables -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        title: the heading.
        side: ``right`` for numbers.
        may_cut: whether a narrow terminal may cut its cells.
    """

    title: str
    side: Literal["left", "right"] = "left"
    may_cut: bool = False


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under headings."""
    console = Console(highlight=False)
    cells = [[one_line(cell) for cell in row] for row in rows]
    widths = _widths(columns, cells)
    if console.is_terminal:
        # The box keeps one character between columns.
        _fit(columns, widths, console.width - len(columns))
    table = Table(
        box=box.SIMPLE_HEAD if console.is_terminal else None,
        show_edge=False,
        padding=0 if console.is_terminal else (0, 2, 0, 0),
        pad_edge=False,
        header_style="bold",
    )
    for column, width in zip(columns, widths, strict=True):
        table.add_column(
            column.title, justify=column.side, no_wrap=True, overflow="ellipsis", width=width
        )
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    if console.is_terminal:
        console.print(table)
        return
    text = StringIO()
    Console(file=text, width=_PIPE_WIDTH, color_system=None, highlight=False).print(table)
    click.echo("\n".join(line.rstrip() for line in text.getvalue().splitlines()))


def _widths(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> list[int]:
    widths = [cell_len(column.title) for column in columns]
    for row in cells:
        widths = [max(width, cell_len(cell)) for width, cell in zip(widths, row, strict=True)]
    return widths


def _fit(columns: Sequence[Column], widths: list[int], room: int) -> None:
    """Take from the widest columns that may be cut until all fit, if they can."""
    may_cut = [n for n, column in enumerate(columns) if column.may_cut]
    while sum(widths) > room:
        widest = max(may_cut, key=lambda n: widths[n], default=None)
        if widest is None or widths[widest] <= _NARROWEST:
            return
        widths[widest] -= 1


def print_fields(fields: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one pair a line; the lines of a value stand under one another."""
    pairs = [(name, value) for name, value in fields]
    width = max((len(name) for name, _ in pairs), default=0) + 2
    for name, value in pairs:
        first, *others = [_visible(line) for line in value.split("\n")]
        click.echo(f"{name:<{width}}{first}".rstrip())
        for line in others:
            click.echo(f"{'':<{width}}{line}".rstrip())


def shortened(text: str, most: int = 1_000) -> str:
    """Return text of at most about `most` characters; says how many there were."""
    if len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text):,} characters)"


# --- words and numbers ------------------------------------------------------


def one_line(text: str) -> str:
    """Return text as one line, control characters made visible."""
    return _visible(" ".join(text.split("\n")))


def _visible(text: str) -> str:
    # What jobs were given must not steer the operator's terminal.
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def number(value: float | None, *, digits: int = 0) -> str:
    """Return a number with thousands set apart; a dash for None."""
    if value is None:
        return "-"
    return f"{value:,.{digits}f}"


def compact(value: float | None) -> str:
    """Return a rate or a weight with as many digits as say something; a dash for None."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004


def milliseconds(value: float | None) -> str:
    """Return a duration given in ms for people: ``21.3 ms``, ``2.4 s``; a dash for None."""
    if value is None:
        return "-"
    return duration(value / 1e3)


def instant(at: float | None) -> str:
    """Return an instant in the local zone, to the millisecond; a dash for None."""
    if at is None:
        return "-"
    when = datetime.fromtimestamp(at).astimezone()
    return when.isoformat(sep=" ", timespec="milliseconds")


# --- long work --------------------------------------------------------------


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr while work is done, if that is a terminal.

    The value is called with the number of items done since the last call.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.advance(task, done)
