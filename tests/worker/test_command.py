"""`laneq worker` as a process: its lines, its signals, its exit, its supervisor."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import redis

from laneq import JobFailed, LaneQ, State
from laneq.calls.lanes import set_lane
from laneq.worker.process import DOUBLED_S
from tests.audit import problems_in
from tests.patience import wait_until
from tests.processes import WorkerProcess, is_alive, start_worker

tasks = importlib.import_module("tests.worker.jobs_for_children")
pytestmark = pytest.mark.slow


@pytest.fixture
def app(url: str, namespace: str, raw: redis.Redis) -> Iterator[LaneQ]:
    """The app of the tasks' module, moved to the test's namespace."""
    app: LaneQ = tasks.app
    app.override(url=url, namespace=namespace)
    yield app
    app.close()
    assert problems_in(raw, namespace) == []


@pytest.fixture
def start(app: LaneQ, url: str, namespace: str) -> Iterator[Callable[..., WorkerProcess]]:
    """Start workers; they are killed at the end."""
    with contextlib.ExitStack() as stack:

        def start(*options: str, before: tuple[str, ...] = (), **environment: str) -> WorkerProcess:
            return stack.enter_context(
                start_worker(
                    "tests.worker.jobs_for_children:app",
                    *options,
                    environment={"LANEQ_URL": url, "LANEQ_NAMESPACE": namespace, **environment},
                    before=before,
                )
            )

        yield start


def starts(path: Path) -> list[tuple[int, int]]:
    """Return pid and attempt of each start that a job noted."""
    if not path.exists():
        return []
    return [(int(a), int(b)) for a, b in map(str.split, path.read_text().splitlines())]


Start = Callable[..., WorkerProcess]


def test_a_worker_says_what_it_is_and_that_it_is_ready(app: LaneQ, start: Start) -> None:
    worker = start("-c", "3", "--reserve", "urgent=2", "--name", "left")
    worker.until_ready()
    for word in ("left", "critical, urgent, normal, batch", "3, reserved: urgent=2", "children.add",
                 f"namespace {app.namespace}"):  # fmt: skip
        assert word in worker.text
    assert tasks.add.enqueue(1, 2).result(10) == 3


def test_the_password_of_redis_is_never_shown(
    app: LaneQ, start: Start, raw: redis.Redis, url: str
) -> None:
    raw.acl_setuser("someone", enabled=True, passwords=["+p/#%@é"], keys=["*"], channels=["*"],
                    categories=["+@all"])  # fmt: skip
    path = url.removeprefix("unix://").partition("?")[0]
    encoded = "p%2F%23%25%40%C3%A9"
    try:
        worker = start(LANEQ_URL=f"unix://someone:{encoded}@{path}?db=0")
        worker.until_ready()
    finally:
        raw.acl_deluser("someone")
    assert "someone:***@" in worker.text
    assert encoded not in worker.text
    assert "p/#%@é" not in worker.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_fault_J2_a_running_job_may_end_within_the_grace(
    app: LaneQ, start: Start, tmp_path: Path, number: int, loop: str
) -> None:
    environment = {}
    if loop == "asyncio":
        (tmp_path / "uvloop.py").write_text("raise ImportError")
        environment["PYTHONPATH"] = str(tmp_path)
    worker = start("--grace", "60", **environment)
    worker.until_ready()
    job = tasks.asleep.enqueue(str(tmp_path / "starts"), 1)
    wait_until(lambda: starts(tmp_path / "starts"))
    worker.send(number)
    worker.send(number)  # a doubled signal, as from a terminal, is one
    worker.until("no further jobs")
    later = tasks.add.enqueue(1, 2)
    assert worker.wait() == 0
    assert job.result(0) == "slept"
    assert later.state() is State.WAITING


@pytest.mark.parametrize("kind", ["asleep", "thread_asleep", "long"])
def test_fault_J2_what_does_not_end_in_the_grace_is_handed_back_and_runs_elsewhere(
    app: LaneQ, start: Start, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "starts"
    worker = start("--grace", "0.3")
    worker.until_ready()
    job = getattr(tasks, kind).enqueue(str(path), 60)
    wait_until(path.exists)
    other = start()
    other.until_ready()
    path.unlink()
    began = time.monotonic()
    worker.term()
    assert worker.wait() == 0
    assert time.monotonic() - began < 4
    wait_until(path.exists, within_s=3)
    assert job.info().attempt == 1
    children = psutil.Process(other.popen.pid).children(recursive=True)
    other.send(signal.SIGKILL)
    other.wait()
    wait_until(lambda: not any(map(is_alive, children)))
    job.cancel()


def test_a_second_signal_hands_back_at_once(app: LaneQ, start: Start, tmp_path: Path) -> None:
    worker = start("--grace", "60")
    worker.until_ready()
    job = tasks.asleep.enqueue(str(tmp_path / "starts"), 60)
    wait_until(lambda: starts(tmp_path / "starts"))
    began = time.monotonic()
    worker.term()
    worker.hurry()
    assert worker.wait() == 0
    assert DOUBLED_S < time.monotonic() - began < DOUBLED_S + 3
    assert job.state() is State.WAITING


def test_fault_J2_an_idle_worker_stops_within_a_second(app: LaneQ, start: Start) -> None:
    took_s = []
    for _ in range(3):  # a loaded machine may be slow once
        worker = start()
        worker.until_ready()
        began = time.monotonic()
        worker.term()
        assert worker.wait() == 0
        took_s.append(time.monotonic() - began)
        if took_s[-1] < 1:
            break
    assert min(took_s) < 1


@pytest.mark.skipif(
    shutil.which("unshare") is None or os.geteuid() != 0, reason="needs a PID namespace of its own"
)
def test_fault_J2_a_worker_that_is_pid_1_stops_as_any_other(
    app: LaneQ, start: Start, tmp_path: Path
) -> None:
    worker = start("--grace", "60", before=("unshare", "--pid", "--fork", "--kill-child"))
    worker.until_ready()
    assert "(pid 1," in worker.text
    job = tasks.asleep.enqueue(str(tmp_path / "starts"), 1)
    wait_until(lambda: starts(tmp_path / "starts"))
    (inner,) = psutil.Process(worker.popen.pid).children()
    inner.send_signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert job.result(0) == "slept"


def test_a_worker_that_is_killed_has_its_jobs_run_again_elsewhere(
    app: LaneQ, start: Start, tmp_path: Path, raw: redis.Redis
) -> None:
    path = tmp_path / "starts"
    app.sync_driver.call(app.publish_call())
    app.sync_driver.call(set_lane(app.keys, "normal", {"lease_us": 2_000_000}))
    worker = start()
    worker.until_ready()
    job = tasks.asleep.enqueue(str(path), 5)
    wait_until(lambda: len(starts(path)) == 1)
    other = start()
    other.until_ready()
    began = time.monotonic()
    worker.send(signal.SIGKILL)
    wait_until(lambda: len(starts(path)) == 2, within_s=10)
    assert time.monotonic() - began < 2 + 1 + 1
    assert [attempt for _, attempt in starts(path)] == [1, 2]
    assert job.result(10) == "slept"
    assert [entry.outcome for entry in job.info().history] == ["worker lost"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_signal_that_comes_when_all_is_done_does_not_spoil_the_exit(
    app: LaneQ, start: Start, number: signal.Signals, processes: str
) -> None:
    worker = start("--processes", processes, LANEQ_TEST_SIGNAL_AT_EXIT=str(int(number)))
    worker.until("is ready", times=int(processes))
    worker.send(number)
    assert worker.wait() == 0, worker.text
    assert "Traceback" not in worker.text


def test_a_burst_runs_what_is_waiting_and_exits(app: LaneQ, start: Start) -> None:
    app.sync_driver.call(app.publish_call())
    jobs = app.enqueue_many([tasks.add.call(n, 1) for n in range(50)])
    worker = start("--burst")
    assert worker.wait() == 0
    assert [job.result(0) for job in jobs] == [n + 1 for n in range(50)]


def test_a_burst_of_several_processes_ends_too(app: LaneQ, start: Start) -> None:
    app.sync_driver.call(app.publish_call())
    jobs = app.enqueue_many([tasks.add.call(n, 1) for n in range(50)])
    supervisor = start("--burst", "--processes", "2", "-c", "2")
    assert supervisor.wait(30) == 0
    assert [job.result(0) for job in jobs] == [n + 1 for n in range(50)]


def test_a_supervisor_drains_its_workers(app: LaneQ, start: Start, tmp_path: Path) -> None:
    supervisor = start("--processes", "2", "-c", "1", "--grace", "60")
    supervisor.until("is ready", times=2)
    path = tmp_path / "starts"
    jobs = [tasks.asleep.enqueue(str(path), 1) for _ in range(2)]
    wait_until(lambda: len(starts(path)) == 2)
    assert len({pid for pid, _ in starts(path)}) == 2
    os.killpg(supervisor.popen.pid, signal.SIGINT)
    assert supervisor.wait() == 0
    assert [job.result(0) for job in jobs] == ["slept", "slept"]


def test_fault_G1_a_poison_job_does_not_stop_the_pool_and_ends_as_a_dead_letter(
    app: LaneQ, start: Start
) -> None:
    app.sync_driver.call(app.publish_call())
    app.sync_driver.call(set_lane(app.keys, "normal", {"lease_us": 1_000_000}))
    supervisor = start("--processes", "2", "-c", "2")
    supervisor.until("is ready", times=2)
    poison = tasks.kills_worker.enqueue()
    good = [tasks.add.enqueue(n, 1) for n in range(50)]
    assert [job.result(30) for job in good] == [n + 1 for n in range(50)]
    with pytest.raises(JobFailed, match="worker lost"):
        poison.result(30)
    view = poison.info()
    assert view.attempt == 3
    assert [entry.outcome for entry in view.history] == ["worker lost"] * 3
    supervisor.until("it is started again")
    assert tasks.add.enqueue(1, 1).result(30) == 2


def test_the_workers_of_a_supervisor_that_is_killed_stop(app: LaneQ, start: Start) -> None:
    supervisor = start("--processes", "2")
    supervisor.until("is ready", times=2)
    workers = psutil.Process(supervisor.popen.pid).children()
    assert len(workers) == 2
    supervisor.send(signal.SIGKILL)
    supervisor.wait()
    psutil.wait_procs(workers, timeout=10)
    assert not any(map(is_alive, workers))


def test_a_supervisor_ends_when_its_workers_cannot_work_at_all(app: LaneQ, start: Start) -> None:
    supervisor = start("--processes", "2", "--lanes", "nowhere")
    assert supervisor.wait() == 2
    assert "unknown lane 'nowhere'" in supervisor.text


@pytest.mark.parametrize("processes", ["1", "2"])
def test_systemd_is_told(app: LaneQ, start: Start, tmp_path: Path, processes: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(20)
        worker = start("--processes", processes, NOTIFY_SOCKET=str(tmp_path / "notify"))
        assert sock.recv(100) == b"READY=1"
        worker.term()
        assert sock.recv(100) == b"STOPPING=1"
        assert worker.wait() == 0


def test_a_doubled_signal_to_the_group_leaves_children_to_their_worker(
    app: LaneQ, start: Start, tmp_path: Path
) -> None:
    worker = start("--grace", "60")
    worker.until_ready()
    job = tasks.long.enqueue(str(tmp_path / "pids"), 1)
    wait_until((tmp_path / "pids").exists)
    os.killpg(worker.popen.pid, signal.SIGINT)
    assert worker.wait() == 0
    assert job.result(0) == "slept"
