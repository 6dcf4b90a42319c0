"""Jobs in child processes: what they see, how they end, that nothing of them is left."""

from __future__ import annotations

import asyncio
import importlib
import os
from pathlib import Path
from typing import Any

import psutil
import pytest

from laneq import JobCancelled, JobFailed, LaneQ, State
from laneq.worker.child import Home, Order
from laneq.worker.children import Children
from tests.patience import await_until
from tests.worker.conftest import Crew, info

# By its own name, as a child process imports it.
tasks = importlib.import_module("tests.worker.jobs_for_children")
slow = importlib.import_module("tests.worker.slow_to_import")


@pytest.fixture
def app(url: str, namespace: str, crew: Crew) -> LaneQ:
    """The app of the tasks' module, moved to the test's namespace."""
    app: LaneQ = tasks.app
    app.override(url=url, namespace=namespace)
    crew.closing(app)
    return app


async def pids_of(path: Path) -> list[int]:
    await await_until(path.exists)
    return [int(pid) for pid in path.read_text().split()]


async def gone(pids: list[int]) -> None:
    def is_gone(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    await await_until(lambda: all(is_gone(pid) for pid in pids))


async def test_a_job_in_a_child_sees_its_arguments_and_itself(crew: Crew, app: LaneQ) -> None:
    await crew.start(app)
    job = await tasks.describe.using(lane="urgent").aenqueue(1, [2], x={"y": b"\xff"})
    seen = await job.aresult(20)
    assert seen.pop("pid") != os.getpid()
    assert seen == {
        "args": [1, [2]], "kwargs": {"x": {"y": b"\xff"}}, "id": job.id, "attempt": 1,
        "lane": "urgent", "has_deadline": True,
    }  # fmt: skip


async def test_a_function_whose_task_has_another_name_is_found_in_a_child(
    crew: Crew, app: LaneQ
) -> None:
    await crew.start(app)
    assert await (await tasks.bound_to_another_name.aenqueue(21)).aresult(20) == 42


async def test_children_are_reused_and_as_many_as_run_at_a_time(crew: Crew, app: LaneQ) -> None:
    await crew.start(app, slots=2)
    jobs = [await tasks.describe.aenqueue() for _ in range(20)]
    pids = {(await job.aresult(20))["pid"] for job in jobs}
    assert 1 <= len(pids) <= 2


async def test_a_coroutine_function_runs_in_a_child_too(crew: Crew, app: LaneQ) -> None:
    await crew.start(app)
    assert await (await tasks.coroutine.aenqueue(1)).aresult(20) == 2


async def test_a_child_that_is_killed_is_known_at_once_and_spends_its_attempts(
    crew: Crew, app: LaneQ
) -> None:
    await crew.start(app)
    job = await tasks.poison.aenqueue()
    with pytest.raises(JobFailed, match="worker lost: its process was killed by signal 9"):
        await job.aresult(12)  # the lease is 15 s
    view = await info(app, job)
    assert view.attempt == 3
    assert [entry.attempt for entry in view.history] == [1, 2, 3]
    assert await (await tasks.coroutine.aenqueue(1)).aresult(20) == 2


async def test_a_child_that_exits_says_how(crew: Crew, app: LaneQ) -> None:
    await crew.start(app)
    with pytest.raises(JobFailed, match="exited with status 7"):
        await (await tasks.exits.aenqueue()).aresult(12)


async def test_errors_travel_as_text_and_are_retried(crew: Crew, app: LaneQ) -> None:
    await crew.start(app)
    job = await tasks.fails.aenqueue()
    with pytest.raises(JobFailed, match="in a child") as caught:
        await job.aresult(20)
    assert caught.value.type == "ValueError"
    assert (await info(app, job)).attempt == 2


async def test_a_result_that_cannot_be_sent_is_a_failure(crew: Crew, app: LaneQ) -> None:
    await crew.start(app)
    with pytest.raises(JobFailed, match="cannot serialise"):
        await (await tasks.returns_lambda.aenqueue()).aresult(20)


async def test_a_job_in_a_child_steers_its_outcome(crew: Crew, app: LaneQ, tmp_path: Path) -> None:
    worker = await crew.start(app)
    assert await (await tasks.snoozes.aenqueue(str(tmp_path / "x"))).aresult(20) == "up"
    await tasks.parent.aenqueue()
    await worker.until_idle()
    assert worker.claims.claimed == 4


async def test_what_a_job_in_a_child_enqueues_itself_goes_where_its_worker_is(
    crew: Crew, app: LaneQ
) -> None:
    await crew.start(app)
    child_id = await (await tasks.enqueues.aenqueue()).aresult(20)
    assert await app.job(child_id).aresult(20) == 2


async def test_progress_of_a_child_is_seen(crew: Crew, app: LaneQ, tmp_path: Path) -> None:
    await crew.start(app)
    job = await tasks.reports.aenqueue(str(tmp_path / "go"))

    async def progress() -> Any:
        return (await info(app, job)).progress

    assert await await_until(progress, within_s=20) == {"done": 1, "total": 2, "note": "half"}
    (tmp_path / "go").touch()
    await job.aresult(20)


async def test_a_time_out_kills_the_child_and_what_it_started(
    crew: Crew, app: LaneQ, tmp_path: Path
) -> None:
    await crew.start(app)
    job = await tasks.long.using(timeout=1).aenqueue(str(tmp_path / "pids"))
    with pytest.raises(JobFailed, match="timed out after 1 s") as caught:
        await job.aresult(20)
    assert caught.value.type == "JobTimeout"
    await gone(await pids_of(tmp_path / "pids"))


async def test_the_start_of_a_child_and_its_imports_are_none_of_the_jobs_time(
    crew: Crew, url: str, namespace: str
) -> None:
    app: LaneQ = slow.app
    app.override(url=url, namespace=namespace)
    crew.closing(app)
    await crew.start(app)
    assert await (await slow.quick.aenqueue()).aresult(30) == "quick"


async def test_a_child_that_does_not_come_to_the_job_is_killed(
    crew: Crew, url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("laneq.worker.runner.BEGIN_LIMIT_S", 0.2)
    app: LaneQ = slow.app
    app.override(url=url, namespace=namespace)
    crew.closing(app)
    await crew.start(app)
    with pytest.raises(JobFailed, match="worker lost: its process was killed by signal 9"):
        await (await slow.quick.aenqueue()).aresult(30)


async def test_a_child_that_is_killed_before_it_is_started_never_is(app: LaneQ) -> None:
    told: list[object] = []
    home = Home(app.address, app.namespace)
    children = Children(asyncio.get_running_loop(), home, deliver=lambda *end: told.append(end))
    order = Order("no.such.module", "f", "f", b"f\n", "id", "normal", 1, 0, 1, None, [], 1)
    token = object()
    children.start(token, order, on_begun=lambda: told.append("begun"), on_progress=told.append)
    children.kill(token)
    await await_until(lambda: told)
    assert told == [(token, "was not started")]
    assert children.alive == 0
    await children.aclose()


async def test_fault_H3_a_cancelled_child_is_killed_at_once(
    crew: Crew, app: LaneQ, tmp_path: Path
) -> None:
    await crew.start(app)
    job = await tasks.long.aenqueue(str(tmp_path / "pids"))
    pids = await pids_of(tmp_path / "pids")
    assert await job.acancel()
    with pytest.raises(JobCancelled):
        await job.aresult(2)
    await gone(pids)


async def test_a_child_that_was_killed_is_replaced_before_there_is_a_job_for_it(
    crew: Crew, app: LaneQ, tmp_path: Path
) -> None:
    worker = await crew.start(app)
    children = worker.runner._children
    job = await tasks.long.aenqueue(str(tmp_path / "pids"))
    killed, _ = await pids_of(tmp_path / "pids")
    assert await job.acancel()
    with pytest.raises(JobCancelled):
        await job.aresult(20)
    await await_until(lambda: [child for child in children._idle if child.process is not None])
    (spare,) = children._idle
    assert spare.process is not None
    assert spare.process.pid != killed
    assert (await (await tasks.describe.aenqueue()).aresult(20))["pid"] == spare.process.pid
    assert children.alive == 1


async def test_signals_are_left_to_the_worker(crew: Crew, app: LaneQ) -> None:
    await crew.start(app)
    assert await (await tasks.signals.aenqueue()).aresult(20) == "still here"


async def test_the_end_of_the_worker_ends_its_children_and_hands_their_jobs_back(
    crew: Crew, app: LaneQ, tmp_path: Path
) -> None:
    worker = await crew.start(app)
    job = await tasks.long.aenqueue(str(tmp_path / "pids"))
    pids = await pids_of(tmp_path / "pids")
    await worker.stop(grace_s=0)
    assert worker.is_clean
    await gone(pids)
    view = await info(app, job)
    assert (view.state, view.attempt) == (State.WAITING, 0)


async def test_a_function_that_a_child_cannot_find_is_a_failure_that_says_what_to_do(
    crew: Crew, app: LaneQ
) -> None:
    local = crew.app()

    @local.task(name="children.nested", executor="process")
    def nested() -> None:
        """Do nothing."""

    await crew.start(local)
    job: Any = await nested.aenqueue()
    with pytest.raises(JobFailed, match="top level of a module"):
        await job.aresult(20)
