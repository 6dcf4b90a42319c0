"""Type checkers see what the interpreter does: tasks keep their signatures, jobs their results."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = Path(__file__).with_name("sample.py")


def expected() -> set[int]:
    lines = SAMPLE.read_text("utf-8").splitlines()
    return {n for n, line in enumerate(lines, 1) if line.endswith("# expect: error")}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_the_sample_expects_errors():
    assert len(expected()) > 5


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_mypy_strict_accepts_and_refuses_what_it_should():
    done = run("mypy", "--strict", "--no-warn-unused-ignores", str(SAMPLE))
    found = re.findall(r"^(.+?):(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    of_sample = {int(line) for file, line, _ in found if file.endswith("sample.py")}
    assert of_sample == expected(), done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_pyright_strict_accepts_and_refuses_what_it_should(tmp_path):
    pytest.importorskip("pyright")
    shutil.copy(SAMPLE, tmp_path)
    settings = tmp_path / "pyrightconfig.json"
    settings.write_text(
        json.dumps(
            {
                "include": [SAMPLE.name],
                "extraPaths": [str(ROOT)],
                "typeCheckingMode": "strict",
                "pythonVersion": "3.11",
            }
        )
    )
    done = run("pyright", "--outputjson", "--project", str(settings))
    if not done.stdout.startswith("{"):
        pytest.skip(f"pyright does not run here: {(done.stdout + done.stderr)[-300:]}")
    found = json.loads(done.stdout)["generalDiagnostics"]
    problems = {
        entry["range"]["start"]["line"] + 1: entry["message"]
        for entry in found
        if entry["severity"] == "error"
    }
    assert problems.keys() == expected(), problems
