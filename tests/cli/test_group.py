"""The command itself: help, shared options, suggestions, exit statuses."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
import redis
from jsonschema import Draft202012Validator

from laneq import errors
from laneq.cli.group import COMMANDS
from laneq.cli.status import Status, status_of
from laneq.embedded import EmbeddedServer
from tests.cli.conftest import ROOT, SCHEMAS, Commands
from tests.conftest import ENGINE
from tests.stage import Stage

LATER = ["cron", "top", "metrics", "web"]


def test_help_lists_the_commands_that_exist_and_no_other(laneq: Commands):
    text = laneq.out("--help")
    for name, entry in COMMANDS.items():
        assert f"  {name} " in text
        assert entry.help in text
    for name in LATER:
        assert f"  {name} " not in text
        assert laneq(name).status == 2


@pytest.mark.parametrize("name", list(COMMANDS))
def test_a_line_of_the_help_is_the_commands_own(name: str):
    command = getattr(importlib.import_module(COMMANDS[name].module), name)
    assert isinstance(command, click.Command)
    assert (command.help or "").splitlines()[0] == COMMANDS[name].help


@pytest.mark.parametrize("name", list(COMMANDS))
def test_each_command_has_help(laneq: Commands, name: str):
    assert laneq.out(name, "--help").startswith(f"Usage: laneq {name}")


def test_the_version_is_that_of_the_distribution(laneq: Commands):
    assert laneq.out("--version").startswith("laneq, version ")


def test_nothing_to_do_is_wrong_usage_and_shows_the_help(laneq: Commands):
    answer = laneq()
    assert answer.status == 2
    assert "Commands:" in answer.out + answer.err


def test_a_mistyped_command_suggests_the_nearest(laneq: Commands):
    assert "Did you mean 'lanes'?" in laneq("lane").err
    answer = laneq("lanes", "purgee", "x")
    assert answer.status == 2
    assert "Did you mean 'purge'?" in answer.err


def test_help_imports_neither_client_nor_event_loop():
    code = (
        "import sys\n"
        "from laneq.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'redis', 'asyncio', 'msgpack', 'rich'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete(shell: str):
    done = subprocess.run(
        [sys.executable, "-m", "laneq"],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "_LANEQ_COMPLETE": f"{shell}_source"},
    )
    assert "_LANEQ_COMPLETE" in done.stdout


def test_completion_offers_commands():
    done = subprocess.run(
        [sys.executable, "-m", "laneq"],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"_LANEQ_COMPLETE": "bash_complete", "COMP_WORDS": "laneq la", "COMP_CWORD": "1"},
    )
    assert "lanes" in done.stdout


# --- shared options ---


@pytest.mark.parametrize(
    "place",
    [
        lambda options: [*options, "jobs", "show", "job", "--json"],
        lambda options: ["jobs", *options, "show", "job", "--json"],
        lambda options: ["jobs", "show", *options, "--json", "job"],
        lambda options: ["jobs", "show", "job", "--json", *options],
        lambda options: ["jobs", "--json", *options, "show", "job"],
    ],
)
def test_shared_options_stand_before_or_after_a_command(
    at_home: Path, url: str, stage: Stage, namespace: str, place
):
    stage.put("job")
    answer = Commands()(*place(["--url", url, f"--namespace={namespace}"]))
    assert answer.status == 0, answer
    assert json.loads(answer.out)["id"] == "job"


def test_a_noun_with_options_only_is_a_list(laneq: Commands, stage: Stage, url: str):
    stage.put("job")
    for options in (["--state", "waiting"], ["--url", url, "--json"], ["--limit=1"]):
        assert "job" in laneq.out("jobs", *options)


# --- exit statuses ---


def test_every_error_has_its_status():
    assert status_of(errors.RedisUnavailable("x")) is Status.STORE
    assert status_of(errors.RedisRefused("OOM", "x")) is Status.STORE
    assert status_of(errors.UnknownLane("x", ())) is Status.USAGE
    assert status_of(errors.ConfigError("x")) is Status.USAGE
    assert status_of(errors.JobNotFound("x")) is Status.BAD_NEWS
    assert status_of(errors.JobFailed("x", "E", "m", "")) is Status.BAD_NEWS
    assert status_of(errors.LaneqError("x")) is Status.BAD_NEWS


COMMANDS_OF_REDIS = [
    ["lanes"],
    ["lanes", "set", "batch", "priority=1"],
    ["jobs"],
    ["jobs", "show", "x"],
    ["dead"],
    ["workers"],
    ["health"],
    ["enqueue", "t"],
]


@pytest.mark.parametrize("command", COMMANDS_OF_REDIS)
def test_no_redis_is_status_3_and_names_host_and_port(at_home: Path, command: list[str]):
    answer = Commands()("--url", "redis://:sesame%23@127.0.0.1:1/0", *command, "--json")
    assert answer.status == 3
    assert "127.0.0.1:1" in answer.err
    assert "sesame" not in answer.err + answer.out
    assert json.loads(answer.out)["error"]["type"] == "RedisUnavailable"


@pytest.mark.fault
def test_a_redis_that_never_answers_is_status_3_within_3_seconds(processes, url: str, proxy):
    proxy.blackhole()
    began = time.monotonic()
    answer = processes.run("--url", proxy.url, "lanes")
    assert answer.status == 3, answer
    assert time.monotonic() - began < 3
    assert "cannot be reached" in answer.err


def test_a_host_without_an_address_is_status_3(at_home: Path):
    answer = Commands()("--url", "redis://no-such-host.invalid:6379/0", "lanes")
    assert answer.status == 3
    assert "no-such-host.invalid:6379" in answer.err


def test_a_server_that_wants_a_password_is_status_3_and_told(at_home: Path):
    with EmbeddedServer(engine=ENGINE) as server, redis.Redis.from_url(server.url) as client:
        client.config_set("requirepass", "sesame")
        answer = Commands()("--url", server.url, "lanes")
    assert answer.status == 3
    assert "NOAUTH" in answer.err


@pytest.mark.parametrize("url", ["127.0.0.1:6379", "http://x", "redis://h:port/0"])
def test_an_address_that_cannot_be_read_is_wrong_usage(at_home: Path, url: str):
    answer = Commands()("--url", url, "lanes")
    assert answer.status == 2
    assert "Redis address" in answer.err


def test_every_schema_is_a_schema():
    for path in SCHEMAS.glob("*.json"):
        Draft202012Validator.check_schema(json.loads(path.read_text("utf-8")))


def test_an_unexpected_error_is_a_bug_and_shows_its_traceback(
    laneq: Commands, stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    def broken(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("laneq.cli.workers.print_table", broken)
    monkeypatch.setattr("laneq.cli.workers.note", broken)
    with pytest.raises(ZeroDivisionError):
        laneq("workers")
