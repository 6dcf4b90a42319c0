"""Kind G: poison jobs, attempts that end in every way, retry rules that misbehave."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil
import pytest

from laneq import JobFailed, JobView, LaneQ, State
from laneq.drive import backoff_s
from laneq.options import Retry, WorkerOptions
from laneq.worker import Worker
from tests.faults.conftest import NewField
from tests.faults.field import FACTOR, Field
from tests.patience import await_until
from tests.proxy import Proxy

ODD_JOBS: Final = Path(__file__).with_name("odd_jobs.py")
LEASE: Final = 2.0


@pytest.fixture
def odd(new_field: NewField) -> Field:
    """A field with tasks that end in odd ways, and a lease of 2 s."""
    return new_field(app=ODD_JOBS, lease=LEASE)


# --- G1: poison -----------------------------------------------------------------------


@contextlib.contextmanager
def _memory_limit(field: Field, limit: int) -> Iterator[list[int]]:
    """Kill whichever process of a worker holds more bytes, as the kernel does."""
    killed: list[int] = []
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.02):
            for worker in field.workers:
                with contextlib.suppress(psutil.NoSuchProcess):
                    for process in psutil.Process(worker.pid).children(recursive=True):
                        if process.memory_info().rss > limit:
                            process.kill()
                            killed.append(process.pid)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield killed
    finally:
        is_over.set()
        thread.join()


@pytest.mark.parametrize("how", ["poison", "hog", "process_hog"])
def test_fault_G1_a_job_that_kills_its_worker_is_started_as_often_as_it_may_and_then_dead(
    odd: Field, how: str
) -> None:
    supervisor = odd.worker(slots=2, processes=2)
    with _memory_limit(odd, 250_000_000) as killed:
        job = getattr(odd.tasks, how).enqueue()
        good = odd.app.enqueue_many([odd.tasks.errand.call()] * 200)
        with pytest.raises(JobFailed, match="worker lost") as caught:
            job.result(60)
        good_ids = [each.id for each in good]
        odd.until_settled(good_ids)
    assert caught.value.type == "WorkerLost"
    assert len(odd.starts(job.id)) == 3
    view = job.info()
    assert (view.state, view.attempt) == (State.DEAD, 3)
    assert odd.states(good_ids) == {State.SUCCEEDED: 200}
    # The good ones did not wait for the end of the bad one; but for those that ran beside it when
    # it killed their worker, one each time, which wait for a lease and a backoff of their own.
    first_ends: dict[str, int] = {}
    for entry in odd.runlog("end"):
        first_ends.setdefault(entry.id, entry.at_us)
    assert first_ends.keys() >= set(good_ids)
    last_start_us = odd.starts(job.id)[-1].at_us
    late = [each for each in good_ids if first_ends[each] > last_start_us + 1_000_000]
    assert len(late) <= 3
    lost = [entry for entry in view.history if entry.error and entry.error.type == "WorkerLost"]
    if how == "process_hog":
        # The child alone is killed, which its worker knows at once.
        assert [entry.outcome for entry in lost] == ["failed"] * 3
        assert len(killed) == 3
        assert supervisor.count("is ready") == 2
        assert supervisor.count("started again") == 0
        odd.assert_once(good_ids)
    else:
        assert [entry.outcome for entry in lost] == ["worker lost"] * 3
        assert [entry.attempt for entry in view.history] == [1, 2, 3]
        supervisor.until("it is started again", times=3)
        # Beside it ran one job at most, each time.
        starts = [entry.id for entry in odd.starts()]
        assert len(starts) <= 3 + 200 + 3
    odd.assert_conserved([job.id, *good_ids])


# --- G2: one counter, one rule --------------------------------------------------------


STEPS: Final = ["crash", "raise", "timeout", "crash", "ok"]
#: Outcome and type of error of each step, in the loop and in a child process.
TOLD: Final = {
    "scripted": {"crash": ("worker lost", "WorkerLost")},
    "process_scripted": {"crash": ("failed", "WorkerLost")},
}
COMMON: Final = {"raise": ("failed", "ValueError"), "timeout": ("failed", "JobTimeout")}


def _told(view: JobView) -> list[tuple[str, str]]:
    return [(entry.outcome, entry.error.type if entry.error else "") for entry in view.history]


@pytest.mark.parametrize("how", ["scripted", "process_scripted"])
def test_fault_G2_every_way_to_fail_spends_one_attempt(odd: Field, how: str) -> None:
    # One slot each, so that a crash takes nobody else with it.
    odd.worker(slots=1, processes=3)
    task = getattr(odd.tasks, how)
    five = task.enqueue(STEPS)
    three = task.using(retry=_at_most(3)).enqueue(STEPS)
    one = task.using(retry=_at_most(1)).enqueue(STEPS)
    odd.until_settled([five.id, three.id, one.id], 60)

    assert five.result(0) == "ok"
    told = TOLD[how] | COMMON
    assert [entry.attempt for entry in odd.starts(five.id)] == [1, 2, 3, 4, 5]
    assert _told(five.info()) == [told[step] for step in STEPS[:4]]
    with pytest.raises(JobFailed) as caught:
        three.result(0)
    assert caught.value.type == "JobTimeout"
    assert [entry.attempt for entry in odd.starts(three.id)] == [1, 2, 3]
    with pytest.raises(JobFailed) as caught:
        one.result(0)
    assert caught.value.type == "WorkerLost"
    assert len(odd.starts(one.id)) == 1
    for job, attempts in ((five, 5), (three, 3), (one, 1)):
        view = job.info()
        shown = odd.laneq_json("jobs", "show", job.id)
        assert (view.attempt, view.max_attempts) == (attempts, attempts)
        assert (shown["attempt"], shown["max_attempts"]) == (attempts, attempts)
        assert shown["state"] == view.state.value
        assert [(e["attempt"], e["outcome"]) for e in shown["history"]] == [
            (entry.attempt, entry.outcome) for entry in view.history
        ]
    # The task waits a second after a failure; after a crash too, but for the first loss of a
    # lease, which costs a job nothing but the time until it is noticed.
    at = [entry.at_us / 1e6 for entry in odd.starts(five.id)]
    gaps = [round(after - before, 3) for before, after in itertools.pairwise(at)]
    noticed_s = LEASE if how == "scripted" else 0.0
    least = [noticed_s if how == "scripted" else 1.0, 1.0, 2.0, noticed_s + 1.0]
    for gap, low in zip(gaps, least, strict=True):
        assert low - 0.1 <= gap, gaps
    odd.assert_conserved([five.id, three.id, one.id])


def _at_most(attempts: int) -> Retry:
    return Retry(attempts, backoff="fixed", base=1.0, jitter=False)


# --- G3: delays -----------------------------------------------------------------------


@pytest.mark.parametrize("base_s", [0.001, 3600.0])
@pytest.mark.parametrize("factor", [2, 5, 100])
def test_fault_G3_no_number_of_attempts_makes_a_delay_that_cannot_be(
    base_s: float, factor: int
) -> None:
    class Half:
        def random(self) -> float:
            return 0.5

    cap_s = 600.0
    if factor == 2:
        retry = Retry(5_000, base=base_s, cap=cap_s)
    else:
        retry = Retry(5_000, base=base_s, cap=cap_s, backoff=lambda n: base_s * factor ** (n - 1))
    for attempt in range(1, 5_001):
        delay_s, problem = retry.delay_s(attempt, Half())
        if factor == 2:
            assert 0 <= delay_s <= cap_s / 2
            assert problem is None
        else:
            # A function's delay is taken as it is, while it is one.
            assert 0 <= delay_s <= (1e9 if problem is None else cap_s / 2)


def test_fault_G3_a_job_may_fail_two_hundred_times(odd: Field) -> None:
    odd.worker()
    job = odd.tasks.stubborn.enqueue()
    with pytest.raises(JobFailed, match="no"):
        job.result(60)
    assert [entry.attempt for entry in odd.starts(job.id)] == list(range(1, 201))
    view = job.info()
    assert (view.state, view.attempt, view.max_attempts) == (State.DEAD, 200, 200)


@pytest.mark.parametrize("executor", ["async", "thread"])
def test_fault_G3_a_backoff_function_that_misbehaves_gives_the_default_delay_and_one_line(
    odd: Field, executor: str
) -> None:
    worker = odd.worker()
    prefix = "" if executor == "async" else "thread_"
    names = [f"{prefix}backoff_{name}" for name in odd.tasks.BACKOFFS]
    jobs = {name: odd.app.tasks[name].enqueue() for name in names}
    odd.until_settled([job.id for job in jobs.values()])
    for name, job in jobs.items():
        first, second = (entry.at_us for entry in odd.starts(job.id))
        assert second - first <= (0.01 + FACTOR) * 1e6
        assert job.state() == "dead"
        told = f"job {job.id} of task {name}: backoff function failed after attempt 1"
        assert worker.count(told) == 1, worker.text
    assert worker.count("ERROR") == len(jobs)
    assert worker.is_running
    worker.term()
    assert worker.wait() == 0


def test_fault_G3_a_backoff_function_that_misbehaves_in_a_child_process(odd: Field) -> None:
    worker = odd.worker()
    job = odd.tasks.process_backoff.enqueue()
    odd.until_settled([job.id])
    assert len(odd.starts(job.id)) == 2
    assert worker.count("backoff function failed after attempt 1: KeyboardInterrupt") == 1


async def test_fault_G3_a_worker_goes_on_after_three_thousand_failed_connections(
    url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def at_once(tries: int) -> float:
        pauses.append(backoff_s(tries))
        return 0.0

    with Proxy(url) as proxy:
        async with LaneQ(proxy.url, namespace=namespace) as app:

            @app.task(name="fine")
            async def fine() -> str:
                return "fine"

            async with Worker(app, WorkerOptions(concurrency=1)) as worker:
                assert await (await fine.aenqueue()).aresult(10) == "fine"
                monkeypatch.setattr("laneq.worker.loop.backoff_s", at_once)
                proxy.refuse()
                proxy.cut()
                await await_until(lambda: len(pauses) >= 3_000, within_s=60)
                proxy.restore()
                assert await (await fine.aenqueue()).aresult(30) == "fine"
                assert not worker.stopped.is_set()
    assert all(0 < pause <= 2.0 for pause in pauses)
