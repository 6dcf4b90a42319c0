"""A changed script is a visible line in review: tests/golden/scripts.txt has the hash of each.

After a change that is meant: ``LANEQ_GOLDEN=write scripts/test tests/contract/test_golden.py``.
"""

from __future__ import annotations

import os
from pathlib import Path

from laneq.scripts import load, names

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "scripts.txt"


def test_scripts_are_those_that_were_reviewed():
    now = "".join(f"{load(name).sha.decode()} {name}\n" for name in names())
    if os.environ.get("LANEQ_GOLDEN") == "write":
        GOLDEN.write_text(now, "utf-8")
    told = GOLDEN.read_text("utf-8").splitlines()
    changed = sorted({line.split()[1] for line in set(told) ^ set(now.splitlines())})
    assert changed == [], "scripts changed: see the top of this file"
