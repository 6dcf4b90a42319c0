"""``laneq worker``, and what waits for it, as processes."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from laneq.cli import worker as worker_module
from laneq.options import WorkerOptions
from laneq.worker import ProbeOptions
from tests.cli.conftest import Commands, Processes
from tests.cli.test_target import forget_modules  # noqa: F401  a fixture

SHOP = """
import time
from laneq import Lane, LaneQ, Retry

app = LaneQ(lanes=[Lane("urgent", priority=1000), Lane("normal"), Lane("batch", priority=10)])

@app.task(name="add")
async def add(a: int, b: int = 0) -> int:
    return a + b

@app.task(name="fail", retry=Retry(1))
def fail(text: str) -> None:
    raise ValueError(text)
"""


@pytest.fixture
def shop(at_home: Path) -> Path:
    """A project with an app in the working folder."""
    (at_home / "shop_w.py").write_text(SHOP, "utf-8")
    return at_home


@pytest.fixture
def probes() -> list[ProbeOptions]:
    """What the command has the worker show of its health."""
    return []


@pytest.fixture
def options(
    laneq: Commands, shop: Path, probes: list[ProbeOptions], monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, WorkerOptions]]:
    """The options that the command hands to the worker, which is not started."""
    seen: list[tuple[str, WorkerOptions]] = []

    def stand_in(name: str):
        def run(app: object, given: WorkerOptions, probe: ProbeOptions) -> int:
            seen.append((name, given))
            probes.append(probe)
            return 0

        return run

    for name in ("run_worker", "supervise"):
        monkeypatch.setattr(worker_module, name, stand_in(name))
    return seen


# --- options ---


def test_an_app_with_a_lane_that_can_wait_for_ever_unsaid_is_wrong_usage_with_the_ways_out(
    laneq: Commands, at_home: Path
):
    lanes = 'Lane("mail", priority=5000), Lane("reports", priority=10)'
    (at_home / "shop_s.py").write_text(f"from laneq import *\napp = LaneQ(lanes=[{lanes}])\n")
    answer = laneq("worker", "shop_s:app")
    assert answer.status == 2
    assert "lane 'reports' can wait for ever behind 'mail'" in answer.err
    assert "Lane('reports', …, may_starve=True)" in answer.err


def test_options_reach_the_worker(laneq: Commands, options):
    words = "-c 12 --lanes urgent,batch --reserve urgent=2 --reserve batch=1 --grace 1m --burst"
    assert laneq("worker", "shop_w:app", *words.split(), "--name", "w1").status == 0
    ((how, given),) = options
    assert how == "run_worker"
    assert given == WorkerOptions(
        concurrency=12,
        lanes=["urgent", "batch"],
        reserve={"urgent": 2, "batch": 1},
        grace=60,
        burst=True,
        name="w1",
    )


def test_a_reserve_without_a_number_is_all_slots(laneq: Commands, options):
    laneq.out("worker", "shop_w", "--reserve", "urgent", "-c", "4")
    assert options[0][1].reserved == {"urgent": 4}


def test_several_processes_are_supervised(laneq: Commands, options):
    laneq.out("worker", "--app", "shop_w", "--processes", "3")
    ((how, given),) = options
    assert (how, given.processes) == ("supervise", 3)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("--min 2 --max 32", WorkerOptions(concurrency=2, min_slots=2, max_slots=32)),
        ("--min 2 --max 32 -c 8", WorkerOptions(concurrency=8, min_slots=2, max_slots=32)),
        ("--max 32", WorkerOptions(concurrency=10, max_slots=32)),
    ],
)
def test_a_worker_that_sizes_itself_starts_with_its_least(
    laneq: Commands, options, words: str, wanted: WorkerOptions
):
    laneq.out("worker", "shop_w", *words.split())
    assert options == [("run_worker", wanted)]


def test_processes_that_may_become_more_are_supervised(laneq: Commands, options):
    laneq.out("worker", "shop_w", "-c", "4", "--processes-max", "3")
    assert options == [("supervise", WorkerOptions(concurrency=4, processes_max=3))]


@pytest.mark.parametrize("processes", ["1", "3"])
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("", ProbeOptions()),
        ("--health-port 8080", ProbeOptions(port=8080)),
        ("--health-port 127.0.0.1:0", ProbeOptions(port=0, host="127.0.0.1")),
        ("--health-port [::1]:80 --health-after 1m", ProbeOptions(port=80, host="::1", after=60)),
        ("--health-file /tmp/well", ProbeOptions(file="/tmp/well")),
    ],
)
def test_what_is_to_be_shown_of_its_health_reaches_the_worker(
    laneq: Commands, options, probes, processes: str, words: str, wanted: ProbeOptions
):
    laneq.out("worker", "shop_w", "--processes", processes, *words.split())
    assert probes == [wanted]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--health-port http", "PORT or HOST:PORT"),
        ("--health-port 65536", "health-port"),
        ("--health-after soon", "health-after"),
        ("-c 0", "concurrency"),
        ("--reserve urgent=x", "LANE=SLOTS"),
        ("--reserve urgent=-1", "LANE=SLOTS"),
        ("--reserve urgent=1 --reserve urgent=2", "given twice"),
        ("--reserve urgent=11", "reserve urgent"),
        ("--reserve urgent=6 --reserve batch=6", "needs 12 slots"),
        ("--lanes batch --reserve urgent=1", "not served"),
        ("--grace soon", "grace"),
        ("--processes 0", "processes"),
        ("--lanes ,", "lanes"),
        ("--min 1", "min_slots: needs max_slots"),
        ("--max 4 -c 5", "max_slots: must be at least"),
        ("--max 4 --min 5", "max_slots: must be at least"),
        ("--processes 3 --processes-max 2", "processes_max"),
    ],
)
def test_wrong_options_are_wrong_usage(laneq: Commands, options, words: str, told: str):
    answer = laneq("worker", "shop_w", *words.split())
    assert answer.status == 2
    assert told in answer.err
    assert options == []


# --- processes ---


def ready(processes: Processes, *options: str):
    """Start a worker and wait until it takes jobs."""
    worker = processes.start("worker", "shop_w:app", *options)
    assert worker.stdout is not None
    for line in worker.stdout:
        if "ready" in line:
            return worker
    raise AssertionError(worker.communicate())


def test_a_result_is_waited_for(processes: Processes, shop: Path):
    worker = ready(processes)
    answer = processes.run("enqueue", "add", "2", "--kwargs", '{"b": -5}', "--wait")
    assert (answer.status, answer.out, answer.err) == (0, "-3\n", "")
    answer = processes.run("enqueue", "add", "--wait", "--count", "3", "--json", "4")
    document = json.loads(answer.out)
    assert [row["result"] for row in document["results"]] == [4, 4, 4]
    assert [row["id"] for row in document["results"]] == document["ids"]

    answer = processes.run("enqueue", "fail", "too bad", "--wait")
    assert (answer.status, answer.out) == (1, "")
    assert "failed with ValueError: too bad" in answer.err
    answer = processes.run("enqueue", "fail", "too bad", "--wait", "--json")
    assert answer.status == 1
    (row,) = json.loads(answer.out)["results"]
    assert (row["state"], row["error"]["message"]) == ("dead", "too bad")

    rows = json.loads(processes.run("workers", "--json").out)
    assert [(row["pid"], row["slots"]) for row in rows] == [(worker.pid, 10)]
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(10) == 0
    assert processes.run("workers", "--json").out == "[]\n"


def test_a_burst_ends_when_nothing_waits(processes: Processes, shop: Path):
    for n in range(3):
        assert processes.run("--app", "shop_w", "enqueue", "add", str(n)).status == 0
    assert processes.run("worker", "shop_w", "--burst").status == 0
    rows = json.loads(processes.run("jobs", "--json").out)
    assert [row["state"] for row in rows] == ["succeeded"] * 3


def test_an_interrupted_wait_is_status_130_and_leaves_the_job(processes: Processes, shop: Path):
    waiting = processes.start("--app", "shop_w", "enqueue", "add", "1", "--wait")
    assert waiting.stderr is not None
    assert "no worker is live" in waiting.stderr.readline()
    waiting.send_signal(signal.SIGINT)
    _, err = waiting.communicate(timeout=10)
    assert waiting.returncode == 130
    assert "Traceback" not in err
    (row,) = json.loads(processes.run("jobs", "--json").out)
    assert row["state"] == "waiting"
    assert row["id"] in err
