"""docs/reliability.md names the tests that there are.

After a test of a fault was added or renamed:
``LANEQ_RELIABILITY=write scripts/test tests/contract/test_reliability.py``.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reliability.md"

#: Faults that laneq is held not to have. None may lose its last test.
KINDS = {"A": 3, "B": 3, "C": 4, "D": 5, "E": 4, "G": 4, "J": 3, "K": 6}
REQUIRED = {f"{kind}{n}" for kind, most in KINDS.items() for n in range(1, most + 1)}
REQUIRED |= {"H3", "I2", "I3", "I4", "I5"}


def functions() -> dict[str, list[str]]:
    """Return test file → the names of its tests, in their order."""
    found = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        names = re.findall(r"^(?:async )?def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
        found[path.relative_to(ROOT).as_posix()] = names
    return found


def claims() -> dict[str, str]:
    """Return fault → its tests as the page tells them: by file, each as its claim."""
    told: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path, names in functions().items():
        for name in names:
            if found := re.fullmatch(r"test_fault_([A-Z]\d+)_(\w+)", name):
                told[found[1]][path].append(found[2].replace("_", " "))
    return {
        fault: "<br>".join(f"`{path}`: {'; '.join(texts)}" for path, texts in files.items())
        for fault, files in told.items()
    }


def parts() -> tuple[str, list[list[str]], str]:
    """Return the page before its table of faults, the rows of that, and what follows."""
    before, table, after = re.split(
        r"(?<=<!-- faults -->\n)|(?=<!-- /faults -->)", PAGE.read_text()
    )
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return before, rows, after


def test_each_fault_is_told_with_the_tests_that_provoke_it():
    before, (head, line, *rows), after = parts()
    tests = claims()
    wanted = [[fault, symptom, tests.get(fault, "")] for fault, symptom, _ in rows]
    if os.environ.get("LANEQ_RELIABILITY") == "write":
        text = "".join(f"| {' | '.join(row)} |\n" for row in (head, line, *wanted))
        PAGE.write_text(before + text + after, "utf-8")
        _, (_, _, *rows), _ = parts()
    assert rows == wanted, "tests of faults changed: see the top of this file"


def test_no_fault_is_left_out_and_none_is_without_a_test():
    _, (_, _, *rows), _ = parts()
    told = [fault for fault, *_ in rows]
    tested = set(claims())
    assert told == sorted(told, key=lambda fault: (fault[0], int(fault[1:])))
    assert set(told) == tested
    assert tested >= REQUIRED


def test_each_test_that_the_page_names_is_there():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE.read_text("utf-8"))
    there = functions()
    assert len(named) > 20
    assert [f"{path}::{name}" for path, name in named if name not in there.get(path, [])] == []


def test_each_race_has_its_tests_on_the_page():
    page = PAGE.read_text("utf-8")
    races = ("tests/faults/test_races.py", "tests/faults/test_races_of_processes.py",
             "tests/worker/test_races.py")  # fmt: skip
    there = functions()
    left_out = [name for path in races for name in there[path] if f"{path}::{name}" not in page]
    assert left_out == []


def test_the_times_of_recovery_are_those_of_the_benchmarks():
    # Of `laneq bench recovery`: lease, median, range, promise.
    shown = re.findall(
        r"^ +(\d+) +([\d.]+) +(\([\d.–]+\)) +(\d+)$",
        (ROOT / "docs" / "benchmarks.md").read_text("utf-8"),
        re.MULTILINE,
    )
    page = PAGE.read_text("utf-8")
    assert {lease for lease, *_ in shown} == {"15", "2"}
    for lease, median, ends, promise in shown:
        assert re.search(
            rf"\| laneq,[^|]*`lease={lease}`\)? \| {median} {re.escape(ends)} \|", page
        )
        assert int(promise) == int(lease) + 1
        assert f"{promise} s" in page
