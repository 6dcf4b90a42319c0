"""The wheel has all that an install needs, and its scripts are found there."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    target = tmp_path_factory.mktemp("wheel")
    build = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", build, str(target)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [wheel] = target.glob("laneq_redis-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target / "site")
    return target / "site"


def tree(folder: Path, pattern: str) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob(pattern)
        if "__pycache__" not in path.parts
    }


def test_a_wheel_has_the_package_its_types_and_every_script(unpacked):
    assert tree(unpacked / "laneq" / "lua", "*.lua") == tree(ROOT / "lua", "*.lua") != {}
    assert tree(unpacked / "laneq", "*.py") == tree(ROOT / "laneq", "*.py") != {}
    assert (unpacked / "laneq" / "py.typed").exists()
    assert {path.name for path in unpacked.iterdir() if "dist-info" not in path.name} == {"laneq"}


def test_a_wheel_brings_the_command(unpacked):
    [entries] = unpacked.glob("*.dist-info/entry_points.txt")
    assert "laneq = laneq.cli:main" in entries.read_text("utf-8")


def test_an_install_finds_its_scripts_without_the_source_tree(unpacked, tmp_path):
    program = (
        "import laneq.scripts as scripts\n"
        "print(scripts.lua_folder())\n"
        "print(*[scripts.load(name).name for name in scripts.names()])\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(unpacked)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert found[0] == str(unpacked / "laneq" / "lua")
    assert set(found[1].split()) == {path.stem for path in (ROOT / "lua").glob("*.lua")}
