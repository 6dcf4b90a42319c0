"""The package's public names: said in three places, one meaning."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import laneq


def declared_for_checkers() -> dict[str, str]:
    """Return name → module, from the imports that type checkers see."""
    tree = ast.parse(Path(laneq.__file__).read_text("utf-8"))
    return {
        alias.name: node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("laneq.")
        for alias in node.names
    }


def test_type_checkers_and_the_interpreter_see_the_same_names():
    assert declared_for_checkers() == laneq._HOME_OF
    assert sorted(laneq.__all__) == sorted(laneq._HOME_OF)
    assert set(laneq.__all__) <= set(dir(laneq))


def test_every_public_name_can_be_had():
    for name in laneq.__all__:
        assert getattr(laneq, name) is not None
    assert laneq.LaneQ is laneq.LaneQ


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(laneq, "Queue")


def test_importing_the_package_imports_no_client_and_no_event_loop():
    code = "import laneq, sys; print(sorted({'redis', 'asyncio', 'msgpack'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=30
    )
    assert done.stdout.strip() == "[]"
