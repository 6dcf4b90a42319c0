"""A worker that lives but does not work says so, to its probe and to `laneq health`."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.faults.conftest import NewField
from tests.faults.field import FACTOR, Field, L, wait_until
from tests.processes import WorkerProcess

#: A limit short enough for a test, and long enough for a machine that others use too.
AFTER_S = 3.0

pytestmark = pytest.mark.timeout(180)


def start(field: Field, *options: str, **more: Any) -> tuple[WorkerProcess, int]:
    """Start a worker with a probe, and return it and the probe's port."""
    worker = field.worker(
        "--health-port", "127.0.0.1:0", "--health-after", str(AFTER_S), *options, **more
    )
    worker.until("health: http on port")
    found = re.search(r"health: http on port (\d+)", worker.text)
    assert found is not None
    return worker, int(found[1])


def ask(port: int) -> tuple[int, list[str]]:
    """Ask a probe as a kubelet does."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/")
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())["reasons"]
    finally:
        connection.close()


def until_status(port: int, status: int) -> list[str]:
    """Wait until the probe answers with this status, and return its reasons."""
    found: list[str] = []

    def is_so() -> bool:
        seen, found[:] = ask(port)
        return seen == status

    wait_until(is_so, what=f"status {status}")
    return found


def kinds(field: Field) -> set[str]:
    """Return why `laneq health` finds the namespace unwell; nothing where it is well."""
    return {reason["kind"] for reason in field.laneq_json("health", status=None)["reasons"]}


def test_a_blocked_loop_is_unwell_although_heartbeats_go_on(field: Field, tmp_path: Path) -> None:
    path = tmp_path / "well"
    _, port = start(field, "--health-file", str(path))
    until_status(port, 200)
    assert kinds(field) == set()
    field.tasks.block.enqueue(4 * AFTER_S)
    reasons = until_status(port, 503)
    assert any("its event loop has not turned for" in reason for reason in reasons)
    untouched_since = path.stat().st_mtime_ns
    wait_until(lambda: "stuck_worker" in kinds(field), what="a heartbeat that says so")
    assert path.stat().st_mtime_ns == untouched_since
    until_status(port, 200)
    wait_until(lambda: path.stat().st_mtime_ns != untouched_since, what="a touch")
    wait_until(lambda: not kinds(field), what="health")


def test_a_server_that_is_silent_makes_its_workers_unwell_until_it_answers(field: Field) -> None:
    worker, port = start(field)
    until_status(port, 200)
    field.pause_server()
    try:
        reasons = until_status(port, 503)
        wait_until(lambda: len(ask(port)[1]) == 2, what="both reasons")
        reasons = ask(port)[1]
        worker.until("unwell: ")
    finally:
        field.resume_server()
    assert any("no claim of it has been answered" in reason for reason in reasons)
    assert any("no heartbeat of it has been answered" in reason for reason in reasons)
    until_status(port, 200)
    worker.until("well again")
    assert worker.is_running
    assert worker.count("unwell: ") == worker.count("well again") == 1


def test_a_worker_whose_slots_are_all_busy_for_long_is_well(field: Field) -> None:
    _, port = start(field, slots=1)
    job = field.tasks.nap.enqueue(2.5 * AFTER_S)
    field.until_started()
    seen = set()

    def is_over() -> bool:
        seen.add(ask(port)[0])
        return job.state() == "succeeded"

    wait_until(is_over, what="the job's end")
    assert seen == {200}


def test_a_worker_is_unwell_until_redis_is_there(new_field: NewField) -> None:
    field = new_field(keeps_data=True)
    field.stop_server()
    worker, port = start(field, is_ready=False)
    assert ask(port) == (503, ["it has not started: it waits for Redis"])
    field.start_server()
    worker.until_ready()
    until_status(port, 200)


def test_a_worker_that_stands_still_is_soon_no_live_worker(field: Field) -> None:
    worker, port = start(field)
    until_status(port, 200)
    worker.stop()
    wait_until(lambda: psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED)
    with socket.create_connection(("127.0.0.1", port), 1) as probe:
        probe.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(TimeoutError):
            probe.recv(1)
    wait_until(lambda: kinds(field) == {"no_worker"}, FACTOR * (L + 1), "the end of its life")
    worker.cont()
    until_status(port, 200)
    wait_until(lambda: not kinds(field), what="health")


def test_a_supervisor_is_well_when_each_of_its_workers_is(field: Field) -> None:
    supervisor, port = start(field, processes=2)
    until_status(port, 200)
    victim = psutil.Process(supervisor.popen.pid).children()[0]
    victim.send_signal(signal.SIGKILL)
    supervisor.until("it is started again")
    supervisor.until("is ready", times=3)
    until_status(port, 200)
    victim = psutil.Process(supervisor.popen.pid).children()[0]
    victim.suspend()
    assert until_status(port, 503)[0] in {"worker 1 is unwell", "worker 2 is unwell"}
    victim.resume()
    until_status(port, 200)
    supervisor.term()
    assert supervisor.wait() == 0


def test_a_port_that_is_taken_ends_the_worker_with_status_2(field: Field) -> None:
    _, port = start(field)
    second = field.worker("--health-port", str(port), is_ready=False)
    assert second.wait() == 2
    assert f"health port {port} of all addresses cannot be opened" in second.text
