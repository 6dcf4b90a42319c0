"""Ask before data is lost."""

from __future__ import annotations

import sys

import click


def ask_before(question: str, *, yes: bool) -> bool:
    """Return whether to go on: --yes, or a person who answers y.

    Raises:
        click.UsageError: there is neither.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Nobody can be asked here: add --yes to do it.")
    return click.confirm(question, err=True)
