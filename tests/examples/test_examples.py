"""Every example runs, and prints what its docstring says."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def promised(example: Path) -> str:
    """Return the block after ``Prints::`` in an example's docstring."""
    docstring = ast.get_docstring(ast.parse(example.read_text("utf-8"))) or ""
    _, _, block = docstring.partition("Prints::\n")
    return textwrap.dedent(block).strip()


def test_there_are_examples():
    assert len(EXAMPLES) > 5


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_it_promises(example):
    done = subprocess.run(
        [sys.executable, "-W", "error", example],
        env={"PYTHONPATH": str(ROOT), "LANEQ_URL": "redis://127.0.0.1:1/0"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == promised(example)
