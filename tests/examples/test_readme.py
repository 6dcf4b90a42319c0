"""What the README's first screen says is so, typed as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def block(opening: str) -> str:
    """Return the code block that begins with these words."""
    (found,) = re.findall(
        rf"^```\w+\n({re.escape(opening)}.*?)^```", README, re.MULTILINE | re.DOTALL
    )
    text: str = found
    return text


@pytest.mark.slow
def test_the_twenty_lines_run_piece_by_piece(tmp_path: Path, url: str):
    (tmp_path / "app.py").write_text(block("# app.py"), "utf-8")
    (tmp_path / "produce.py").write_text(block("# produce.py"), "utf-8")
    typed = re.findall(r"^\$ (.*?)(?:  +#.*)?$", block("$ export LANEQ_URL"), re.MULTILINE)
    script = "\n".join(["set -e", *typed, "kill $(jobs -p)", "wait"])
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, line in (("laneq", "-m laneq"), ("python", "")):
        path = commands / name
        path.write_text(f'#!/bin/sh\nexec {sys.executable} {line} "$@"\n', "utf-8")
        path.chmod(0o755)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("LANEQ_")
    }
    done = subprocess.run(
        ["bash", "-c", script.replace("redis://localhost:6379/0", url)],
        cwd=tmp_path,
        env={
            **environment,
            "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "order 17 charged on attempt 1" in done.stdout
    assert re.search(r"^urgent +1,000 ", done.stdout, re.MULTILINE), done.stdout + done.stderr
