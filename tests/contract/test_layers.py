"""The layers of ARCHITECTURE.md hold, and the contracts that say so leave no module out."""

from __future__ import annotations

import pkgutil
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import grimp
import pytest

import laneq

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "pyproject.toml"


def contracts() -> dict[str, dict]:
    tool = tomllib.loads(CONFIG.read_text("utf-8"))["tool"]
    return {contract["id"]: contract for contract in tool["importlinter"]["contracts"]}


def modules_of(layer: str) -> list[str]:
    return re.findall(r"\w+", layer)


def existing() -> set[str]:
    return {module.name for module in pkgutil.iter_modules(laneq.__path__)}


def test_every_module_has_one_place_in_the_layers():
    placed = [name for layer in contracts()["layers"]["layers"] for name in modules_of(layer)]
    assert len(placed) == len(set(placed))
    assert existing() - set(placed) == set()


def test_each_module_from_calls_down_is_held_to_be_pure():
    layers = contracts()["layers"]["layers"]
    start = next(i for i, layer in enumerate(layers) if modules_of(layer) == ["calls"])
    below = {name for layer in layers[start:] for name in modules_of(layer)}
    named = {name.removeprefix("laneq.") for name in contracts()["pure"]["source_modules"]}
    assert named == below & existing()


@pytest.mark.parametrize(
    ("package", "homes"),
    [
        ("redis", {"drive"}),
        ("hiredis", {"drive", "bench"}),  # bench: the server without laneq, to compare with
        ("msgpack", {"codec", "worker"}),  # worker: its line to child processes
        ("click", {"cli"}),
        ("rich", {"cli"}),
        ("uvloop", {"worker"}),
        ("fakeredis", {"embedded", "testing"}),
    ],
)
def test_a_dependency_is_imported_in_its_own_places_only(package, homes):
    graph = grimp.build_graph("laneq", include_external_packages=True, cache_dir=None)
    importers = graph.find_modules_that_directly_import(package) if package in graph.modules else ()
    assert {name.split(".")[1] for name in importers} <= homes


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    run = "from importlinter.cli import lint_imports_command as lint; lint()"
    return subprocess.run(
        [sys.executable, "-c", run, "pyproject.toml", "--no-cache"],
        cwd=root,
        env={"PYTHONPATH": str(root), "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_no_module_imports_from_above_and_none_below_drive_does_io():
    report = lint_imports(ROOT)
    assert report.returncode == 0, report.stdout + report.stderr


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("errors.py", "import laneq.model"),
        ("keys.py", "from time import monotonic"),
        ("scripts.py", "def f():\n    import socket"),
        ("strange.py", ""),
    ],
    ids=["upward import", "clock", "I/O inside a function", "module without a place"],
)
def test_the_layer_contracts_notice(tmp_path, module, line):
    shutil.copy(CONFIG, tmp_path)
    shutil.copytree(
        ROOT / "laneq", tmp_path / "laneq", ignore=shutil.ignore_patterns("__pycache__")
    )
    with (tmp_path / "laneq" / module).open("a") as file:
        file.write(f"\n{line}\n")
    report = lint_imports(tmp_path)
    assert report.returncode == 1, report.stdout + report.stderr
    assert "BROKEN" in report.stdout
