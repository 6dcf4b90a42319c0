"""docs/doctor.md shows what the commands print of the ten made-up situations, and nothing else.

``LANEQ_GOLDEN=write`` writes the page's transcript and its table of findings anew.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from laneq.cli.doctor import print_findings
from laneq.cli.jobs import print_why
from laneq.doctor import FINDINGS, diagnose
from laneq.why import explain
from tests.doctor.situations import situations

PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"


def printed(show: Callable[[], None]) -> str:
    """Return what is printed by a command that shows this."""
    result = CliRunner().invoke(click.Command("show", callback=show), catch_exceptions=False)
    return str(result.stdout).rstrip()


def transcript() -> str:
    parts = []
    for n, one in enumerate(situations(), 1):
        lanes, workers = one.facts.lanes, one.facts.workers
        found = explain(one.job, one.place, lanes=lanes, workers=workers)
        findings = diagnose(one.facts)
        doctor = printed(partial(print_findings, findings))
        why = printed(partial(print_why, found))
        parts.append(
            f"### {n}. {one.title}\n\n{one.story}\n\n```console\n$ laneq doctor\n{doctor}\n"
            f"$ laneq jobs why {one.job.id}\n{why}\n```\n"
        )
    return "\n".join(parts)


def table() -> str:
    rows = [f"| `{finding}` | {situation} |" for finding, situation in FINDINGS.items()]
    return "\n".join(["| finding | seen where |", "| --- | --- |", *rows]) + "\n"


@pytest.mark.parametrize(("mark", "made"), [("situations", transcript), ("findings", table)])
def test_the_page_shows_what_is_printed(mark: str, made: Callable[[], str]):
    page = PAGE.read_text("utf-8")
    part = re.compile(rf"(<!-- {mark} -->\n\n)(.*?)(\n<!-- end of {mark} -->)", re.DOTALL)
    found = part.search(page)
    assert found, f"the page has no place for {mark}"
    if os.environ.get("LANEQ_GOLDEN") == "write":
        PAGE.write_text(page[: found.start(2)] + made() + page[found.end(2) :], "utf-8")
        return
    assert found[2] == made()


def test_there_are_ten_situations():
    assert len(situations()) == 10
