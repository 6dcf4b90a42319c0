"""The liveness probe: its port, its file, what it tells systemd, and how it ends."""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laneq.errors import ConfigError, OptionError
from laneq.worker import ProbeOptions
from laneq.worker.probe import Probe, Touched
from tests.patience import wait_until


class Patient:
    """Somebody who is well, until the test says what is wrong."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.probes: list[Probe] = []

    def probe(self, **options: Any) -> Probe:
        probe = Probe(ProbeOptions(**options), lambda: self.problems, lambda: {"worker": "w"})
        probe.start()
        self.probes.append(probe)
        return probe


@pytest.fixture
def patient() -> Iterator[Patient]:
    made = Patient()
    yield made
    for probe in made.probes:
        probe.stop()


def ask(port: int | None, method: str = "GET", host: str = "127.0.0.1") -> tuple[int, bytes]:
    assert port is not None
    connection = http.client.HTTPConnection(host, port, timeout=10)
    try:
        connection.request(method, "/healthz")
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_the_port_answers_200_while_well_and_503_with_the_reasons_else(patient: Patient) -> None:
    port = patient.probe(port=0).port
    status, body = ask(port)
    assert (status, json.loads(body)) == (200, {"ok": True, "reasons": [], "worker": "w"})
    patient.problems = ["it stands", "it is deaf"]
    status, body = ask(port)
    assert (status, json.loads(body)) == (
        503, {"ok": False, "reasons": ["it stands", "it is deaf"], "worker": "w"},
    )  # fmt: skip
    assert ask(port, "HEAD") == (503, b"")


def test_a_client_that_sends_nothing_or_goes_away_does_not_silence_it(patient: Patient) -> None:
    port = patient.probe(port=0).port
    with socket.create_connection(("127.0.0.1", port or 0)) as dumb:
        gone = socket.create_connection(("127.0.0.1", port or 0))
        gone.close()
        assert ask(port)[0] == 200
        assert dumb.recv(1) == b""  # it was hung up on


def test_a_host_can_be_named(patient: Patient) -> None:
    assert ask(patient.probe(port=0, host="127.0.0.1").port)[0] == 200


def test_a_port_that_is_taken_is_a_clear_error(patient: Patient) -> None:
    port = patient.probe(port=0).port
    with pytest.raises(ConfigError, match=rf"health port {port} of all addresses.*in use"):
        Probe(ProbeOptions(port=port), list, dict)


def test_the_file_is_touched_while_well_and_only_then(patient: Patient, tmp_path: Path) -> None:
    path = tmp_path / "well"
    path.write_text("of an earlier worker")
    patient.problems = ["it has not started"]
    patient.probe(file=str(path), after=0.5)
    assert not path.exists()
    patient.problems = []
    wait_until(path.exists)
    os.utime(path, (1, 1))
    wait_until(lambda: path.stat().st_mtime > 1)
    patient.problems = ["it stands"]
    looks = Looks(patient)
    looks.until(2)  # one may have been under way
    os.utime(path, (1, 1))
    looks.until(4)
    assert path.stat().st_mtime == 1


class Looks:
    """Counts how often the probe looks from now on."""

    def __init__(self, patient: Patient) -> None:
        self.n = 0
        self._news = threading.Condition()
        problems = patient.problems

        class Counted(list[str]):
            def __bool__(_) -> bool:  # noqa: N805  the outer self is wanted
                with self._news:
                    self.n += 1
                    self._news.notify_all()
                return True

        patient.problems = Counted(problems)

    def until(self, n: int) -> None:
        with self._news:
            assert self._news.wait_for(lambda: self.n >= n, 10)


def test_the_file_goes_with_the_worker(patient: Patient, tmp_path: Path) -> None:
    path = tmp_path / "well"
    probe = patient.probe(file=str(path), after=0.5)
    wait_until(path.exists)
    patient.probes.remove(probe)
    probe.stop()
    assert not path.exists()


def test_a_file_in_a_folder_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no folder .*none; make it first"):
        Probe(ProbeOptions(file=str(tmp_path / "none" / "well")), list, dict)


def test_systemd_is_told_again_and_again_while_well(
    patient: Patient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        assert not ProbeOptions().is_wanted
        monkeypatch.setenv("WATCHDOG_USEC", "30000000")
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
        assert ProbeOptions().is_wanted
        patient.probe(after=0.5)
        assert [sock.recv(100) for _ in range(2)] == [b"WATCHDOG=1"] * 2
        monkeypatch.setenv("WATCHDOG_PID", "1")
        assert not ProbeOptions().is_wanted


def test_several_workers_are_well_when_each_touches_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    files = {"worker 1": tmp_path / "1", "worker 2": tmp_path / "2"}
    touched = Touched(files)
    files["worker 1"].touch()
    assert touched.problems() == ("worker 2 is not ready",)
    files["worker 2"].touch()
    assert touched.problems() == ()
    now = 6.0
    os.utime(files["worker 1"], (1, 1))  # changed, if to the past: the wall clock was put back
    assert touched.problems() == ("worker 2 is unwell",)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"port": 65_536}, "health-port: must be from 0 to 65535"),
        ({"file": ""}, "health-file: must be the path of a file"),
        ({"after": 0.1}, "health-after: must be 0.5 s to a day"),
    ],
)
def test_options_out_of_their_range_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        ProbeOptions(**options)
