"""The command line, run in this process against the real server, in a namespace of the test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
from click.testing import CliRunner
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from laneq.cli import main
from tests.stage import Stage

ROOT = Path(__file__).parents[2]
SCHEMAS = ROOT / "docs" / "schemas"


class Answer(NamedTuple):
    """What a command did."""

    status: int
    out: str
    err: str


def _registry() -> Registry[Any]:
    files = {path.name: json.loads(path.read_text("utf-8")) for path in SCHEMAS.glob("*.json")}
    return Registry().with_resources(
        (name, Resource.from_contents(schema)) for name, schema in files.items()
    )


REGISTRY = _registry()


@dataclass
class Commands:
    """Runs ``laneq`` in this process, stdin and stdout no terminal."""

    environment: dict[str, str | None] = field(default_factory=dict)

    def __call__(self, *args: str, stdin: str = "") -> Answer:
        result = CliRunner().invoke(
            main, list(args), input=stdin, env=self.environment, catch_exceptions=False
        )
        return Answer(result.exit_code, result.stdout, result.stderr)

    def out(self, *args: str) -> str:
        """Run a command that must be done, and return what it printed."""
        answer = self(*args)
        assert answer.status == 0, answer
        return answer.out

    def json(self, *args: str, schema: str, status: int = 0) -> Any:
        """Run a command with --json; its one document must fit the schema."""
        answer = self(*args, "--json")
        assert answer.status == status, answer
        document = json.loads(answer.out)
        Draft202012Validator(
            REGISTRY.contents(f"{schema}.json"),
            registry=REGISTRY,
        ).validate(document)
        return document


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, and no setting from outside; import paths as they were after."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("LANEQ_URL", "LANEQ_NAMESPACE", "LANEQ_APP"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def laneq(at_home: Path, url: str, namespace: str) -> Commands:
    """The command line, which looks at a namespace of this test."""
    return Commands({"LANEQ_URL": url, "LANEQ_NAMESPACE": namespace})


@pytest.fixture
def stage(raw: redis.Redis, namespace: str) -> Iterator[Stage]:
    """The test's namespace, with the default lanes; invariants hold afterwards."""
    made = Stage(raw, namespace, is_fake=False)
    made.publish()
    yield made
    assert made.problems() == []


@dataclass
class Processes:
    """Runs ``laneq`` as users do: as processes, which end with the test."""

    environment: dict[str, str]
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *args: str, **options: Any) -> subprocess.Popen[str]:
        """Start a command with pipes for its output."""
        process = subprocess.Popen(
            [sys.executable, "-m", "laneq", *args],
            **{
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                "env": self.environment,
                "text": True,
                **options,
            },
        )
        self.started.append(process)
        return process

    def run(self, *args: str, timeout_s: float = 30) -> Answer:
        """Run a command to its end."""
        process = self.start(*args)
        out, err = process.communicate(timeout=timeout_s)
        return Answer(process.returncode, out, err)


@pytest.fixture
def processes(laneq: Commands) -> Iterator[Processes]:
    """The command line as processes, with the settings of `laneq`."""
    given = {name: value for name, value in laneq.environment.items() if value is not None}
    made = Processes({**os.environ, "PYTHONPATH": str(ROOT), **given})
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.communicate()
