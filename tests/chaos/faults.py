"""Every test of the list of faults, long ones too: how each ended, and how long it took."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console

_ROOT: Final = Path(__file__).parents[2]

#: Statuses of pytest after which its report tells of each test: all passed, or some failed.
_TOLD: Final = (0, 1)

_NAME: Final = re.compile(r"test_fault_([a-lA-L]\d+)_?(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Row:
    """One test of one fault.

    Attributes:
        fault: its id in the list of faults.
        test: the test, with its file.
        outcome: ``passed``, ``failed`` or ``skipped``.
        seconds: how long it took.
        reason: why it did not pass.
    """

    fault: str
    test: str
    outcome: str
    seconds: float
    reason: str

    @property
    def has_passed(self) -> bool:
        """Whether it did not fail; one that was skipped has a reason."""
        return self.outcome != "failed"

    def as_json(self) -> dict[str, Any]:
        """Return it as values of JSON."""
        return asdict(self)


def run(*, progress: Callable[[str], None], arguments: Iterable[str] = ()) -> list[Row]:
    """Run all tests of faults and return what became of each.

    Raises:
        RuntimeError: pytest itself came to no end, so that nothing is known of the tests.
    """
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "junit.xml"
        progress("every fault test, the long ones too")
        command = [
            *(sys.executable, "-m", "pytest", "-q", "--long", "-k", "test_fault_"),
            *("-p", "no:randomly", f"--junitxml={found}", *arguments),
        ]
        done = subprocess.run(command, cwd=_ROOT, stdout=sys.stderr, check=False)
        if done.returncode not in _TOLD:
            raise RuntimeError(f"pytest ended with status {done.returncode}: its words are above")
        return sorted(read(found.read_text()), key=_order)


def read(xml: str) -> list[Row]:
    """Read pytest's own report."""
    rows = []
    for case in ET.fromstring(xml).iter("testcase"):
        match = _NAME.match(case.get("name", ""))
        if not match:
            continue
        outcome, reason = "passed", ""
        for child in case:
            if child.tag in {"failure", "error", "skipped"}:
                outcome = "skipped" if child.tag == "skipped" else "failed"
                reason = (child.get("message") or "").partition("\n")[0][:200]
        rows.append(
            Row(
                fault=match[1].upper(),
                test=f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}",
                outcome=outcome,
                seconds=round(float(case.get("time", "0")), 1),
                reason=reason,
            )
        )
    return rows


def _order(row: Row) -> tuple[str, int, str]:
    return row.fault[0], int(row.fault[1:]), row.test


def show(rows: list[Row], console: Console) -> None:
    """Print the list of faults, a line for each test and one for why it did not pass."""
    for row in rows:
        line = f"{row.fault:<3} {row.seconds:7.1f} s  {row.outcome:<7}  {row.test}"
        for text in [line, f"{'':>14}{row.reason}"] if row.reason else [line]:
            # As it is: a name may hold brackets, and is not to be broken where a file is read.
            console.print(text, markup=False, highlight=False, soft_wrap=True)
    outcomes = Counter(row.outcome for row in rows)
    told = ", ".join(f"{n} {outcome}" for outcome, n in sorted(outcomes.items()))
    seconds = sum(row.seconds for row in rows)
    console.print(f"{len(rows)} tests in {seconds:,.0f} s: {told}", highlight=False)
