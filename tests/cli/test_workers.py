"""``laneq workers``: who is alive."""

from __future__ import annotations

from laneq.calls import workers as calls
from laneq.calls.workers import WorkerInfo
from laneq.model import PoolView
from tests.cli.conftest import Commands
from tests.stage import START_US, Stage


def register(stage: Stage, worker_id: str, name: str, pid: int) -> None:
    info = WorkerInfo(
        name=name,
        host="host-1",
        pid=pid,
        slots=10,
        reserve={"urgent": 2},
        lanes=("urgent", "batch"),
        tasks=("t",),
        running=3,
        started_at=1.5,
    )
    stage.run(calls.register(stage.keys, worker_id, info))


def test_two_workers_of_one_name_are_two(laneq: Commands, stage: Stage):
    register(stage, "id-b", "w1", 12)
    register(stage, "id-a", "w1", 11)
    rows = laneq.json("workers", schema="workers")
    assert [row["id"] for row in rows] == ["id-a", "id-b"]
    assert rows[0] == {
        "id": "id-a",
        "name": "w1",
        "host": "host-1",
        "pid": 11,
        "slots": 10,
        "reserve": {"urgent": 2},
        "running": 3,
        "lanes": ["urgent", "batch"],
        "tasks": ["t"],
        "started_at": 1.5,
        "last_heartbeat_at": rows[0]["last_heartbeat_at"],
        "unwell": "",
        "stuck": 0,
        "pool": None,
    }
    lines = laneq.out("workers").splitlines()
    assert len(lines) == 3
    assert lines[1].split()[:6] == ["w1", "host-1", "11", "3", "10", "urgent=2"]


def test_a_worker_that_lives_but_does_not_work_says_why(laneq: Commands, stage: Stage):
    info = WorkerInfo("w", "h", 7, 1, {}, ["normal"], ["t"], unwell="its event loop stands")
    stage.run(calls.register(stage.keys, "id", info))
    assert laneq.json("workers", schema="workers")[0]["unwell"] == "its event loop stands"
    answer = laneq("workers")
    assert "ago, unwell" in answer.out
    assert "worker w (pid 7) does not work: its event loop stands" in answer.err


def test_jobs_that_run_on_beside_the_slots_are_told(laneq: Commands, stage: Stage):
    info = WorkerInfo("w", "h", 7, 1, {}, ["normal"], ["t"], stuck=3)
    stage.run(calls.register(stage.keys, "w", info))
    assert laneq.json("workers", schema="workers")[0]["stuck"] == 3
    assert "worker w (pid 7): 3 jobs did not end" in laneq("workers").err


def test_a_worker_that_sizes_itself_says_how_it_did_so_last_and_why(laneq: Commands, stage: Stage):
    why = "lane urgent: 180 waiting × 0.1 s / 2 slots is a wait of 9 s, its objective 0.5 s"
    pool = PoolView(2, 32, ("urgent",), 56, 2, START_US / 1e6, why)
    info = WorkerInfo("w", "h", 7, 32, {}, ["urgent"], ["t"], pool=pool)
    stage.run(calls.register(stage.keys, "id", info))
    assert laneq.json("workers", schema="workers")[0]["pool"] == {
        "min": 2,
        "max": 32,
        "lanes": ["urgent"],
        "wanted": 56,
        "slots_before": 2,
        "changed_at": START_US / 1e6,
        "reason": why,
    }
    out = laneq.out("workers")
    assert "32 of 2-32" in out
    assert "w (pid 7): 2 slots until " in out
    assert f" ago: {why}; the fleet is to have 56 slots" in out


def test_a_worker_that_has_not_sized_itself_yet_says_so(laneq: Commands, stage: Stage):
    pool = PoolView(2, 32, ("urgent",), None, None, None, "no lane that it may take has an slo")
    info = WorkerInfo("w", "h", 7, 2, {}, ["urgent"], ["t"], pool=pool)
    stage.run(calls.register(stage.keys, "id", info))
    assert "w (pid 7): no lane that it may take has an slo" in laneq.out("workers")


def test_no_live_worker_is_no_error(laneq: Commands, stage: Stage):
    answer = laneq("workers")
    assert (answer.status, answer.out) == (0, "")
    assert "no live worker" in answer.err
    assert laneq.json("workers", schema="workers") == []
