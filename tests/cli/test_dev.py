"""``laneq dev``: one command for a server and a worker, which loses nothing."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT, Processes
from tests.cli.test_worker import SHOP

pytestmark = pytest.mark.slow


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free: int = probe.getsockname()[1]
        return free


@pytest.fixture
def project(at_home: Path) -> Path:
    (at_home / "pyproject.toml").write_text("[project]\nname = 'x'\n", "utf-8")
    (at_home / "shop_w.py").write_text(SHOP, "utf-8")
    return at_home


@pytest.fixture
def processes(project: Path, port: int) -> Iterator[Processes]:
    """Commands whose app looks for Redis at a free port of this machine."""
    where = {"PYTHONPATH": str(ROOT), "LANEQ_URL": f"redis://127.0.0.1:{port}/0"}
    made = Processes({**os.environ, **where})
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def lines_until(process: subprocess.Popen[str], word: str) -> list[str]:
    """Return what a process prints, up to a line with this word."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if word in line:
            return seen
    raise AssertionError(f"no {word!r} in {seen}, {process.communicate()}")


def stop(process: subprocess.Popen[str], number: int = signal.SIGINT) -> str:
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    return err


def test_a_restart_loses_nothing_and_needs_no_address(
    processes: Processes, project: Path, port: int
):
    dev = processes.start("dev")
    shown = "".join(lines_until(dev, "Ctrl-C"))
    assert f"redis://127.0.0.1:{port}/0" in shown
    assert str(project / ".laneq") in shown
    assert (project / ".laneq" / ".gitignore").read_text() == "*\n"
    job_id = processes.run("--app", "shop_w", "enqueue", "add", "1").out.strip()
    stop(dev)
    assert dev.returncode == 130

    dev = processes.start("dev", "shop_w")
    lines_until(dev, "ready")
    answer = processes.run("enqueue", "add", "20", "--wait")
    assert (answer.status, answer.out) == (0, "20\n"), answer
    job = json.loads(processes.run("jobs", "show", job_id, "--json").out)
    assert (job["state"], job["result"]) == ("succeeded", 1)
    err = stop(dev)
    assert dev.returncode == 130
    assert "Traceback" not in err
    assert processes.run("lanes").status == 3


def test_a_second_one_joins_the_first(processes: Processes, project: Path):
    first = processes.start("dev")
    lines_until(first, "Ctrl-C")
    second = processes.start("dev", "shop_w:app", "-c", "3")
    lines_until(second, "ready")
    (worker,) = json.loads(processes.run("workers", "--json").out)
    assert worker["slots"] == 3
    err = stop(second, signal.SIGTERM)
    assert second.returncode == 0
    assert "joining the server" in err
    assert processes.run("lanes").status == 0, "the first one's server lives on"
    stop(first, signal.SIGTERM)
    assert first.returncode == 0


def test_a_taken_port_is_left_alone(processes: Processes, project: Path, port: int):
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        dev = processes.start("dev", "shop_w")
        shown = "".join(lines_until(dev, "ready"))
        err = stop(dev)
    assert f"port {port} is taken" in err
    (export,) = [line for line in shown.splitlines() if "export LANEQ_URL=" in line]
    assert f":{port}/" not in export
    assert "--url redis://127.0.0.1:" in shown


def test_an_app_that_cannot_be_imported_starts_nothing(processes: Processes, project: Path):
    answer = processes.run("dev", "shop_w:ap")
    assert answer.status == 2
    assert "Did you mean 'app'?" in answer.err
    assert not (project / ".laneq").exists()


@pytest.mark.fault
def test_the_worker_does_not_outlive_a_killed_dev(processes: Processes, project: Path):
    dev = processes.start("dev", "shop_w")
    lines_until(dev, "ready")
    (worker,) = json.loads(processes.run("workers", "--json").out)
    handle = os.pidfd_open(worker["pid"])
    try:
        dev.kill()
        assert select.select([handle], [], [], 20)[0], "the worker ends"
    finally:
        os.close(handle)
