"""The operator's guides name commands, options and files that exist."""

from __future__ import annotations

import re
import shlex

import click
import pytest

from laneq.cli import main
from tests.cli.conftest import ROOT

GUIDES = ("operations.md", "sizing.md", "doctor.md")
GUIDE = "\n".join((ROOT / "docs" / name).read_text("utf-8") for name in GUIDES)


def commands() -> list[str]:
    """Return the command lines of the guide, without their comments."""
    typed = re.findall(r"^\$ (laneq .*)$", GUIDE, re.MULTILINE)
    inline = re.findall(r"`(laneq [^`]*)`", GUIDE)
    return [line.partition("#")[0].strip() for line in (*typed, *inline)]


def parse(command: click.Command, words: list[str], parent: click.Context | None) -> None:
    """Parse a command line down to its last command, and run nothing."""
    ctx = command.make_context(command.name or "laneq", words, parent=parent)
    if isinstance(command, click.Group):
        rest = [*ctx._protected_args, *ctx.args]
        if rest:
            _, found, left = command.resolve_command(ctx, rest)
            assert found is not None
            parse(found, left, ctx)


@pytest.mark.parametrize("line", sorted(set(commands())))
def test_each_command_of_the_guide_is_one(line: str):
    words = shlex.split(line)[1:]
    if words[-1] == "--help":
        words.pop()
    parse(main, [word for word in words if word != "…"], None)


def test_each_file_of_the_guide_exists():
    for target in re.findall(r"\]\(([^)#]+)\)", GUIDE):
        assert (ROOT / "docs" / target).exists(), target
