"""The code on the page about the Python API runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from laneq import LaneQ
from laneq.options import TaskOptions

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"


def test_the_code_on_the_page_runs():
    text = PAGE.read_text("utf-8")
    first, *rest = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(first, str(PAGE), "exec"), names)
    app: LaneQ = names["app"]
    *inside, tests = rest
    with app.testing():
        for block in inside:
            exec(compile(block, str(PAGE), "exec"), names)
    exec(compile(tests, str(PAGE), "exec"), names)


def test_every_option_of_a_task_is_on_the_page():
    text = PAGE.read_text("utf-8")
    missing = [name for name in TaskOptions.__slots__ if f"| `{name}` |" not in text]
    assert not missing
