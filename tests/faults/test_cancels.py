"""Fault H3: a cancel reaches the job, and what a cancelled run does is discarded."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from laneq import Job, JobCancelled, State
from laneq.calls.jobs import KEEP_US, cancel
from tests.faults.conftest import NewField
from tests.faults.field import FACTOR, Field, S, two_sizes, wait_until
from tests.processes import is_alive

ODD_JOBS: Final = Path(__file__).with_name("odd_jobs.py")
LEASE: Final = 2.0

#: Seconds in which a cancel reaches the job.
REACHES_S: Final = 2.0


@pytest.fixture
def odd(new_field: NewField) -> Field:
    """A field with tasks that end in odd ways, and a lease of 2 s."""
    return new_field(app=ODD_JOBS, lease=LEASE)


def _words(field: Field, job: Job[Any]) -> list[str]:
    return [entry.word for entry in field.runlog() if entry.id == job.id]


def _assert_cancelled(field: Field, jobs: Iterable[Job[Any]]) -> None:
    for job in jobs:
        with pytest.raises(JobCancelled):
            job.result(REACHES_S * FACTOR)
        view = job.info()
        assert (view.state, view.has_result, view.attempt) == (State.CANCELLED, False, 1)
        assert len(field.starts(job.id)) == 1


def test_fault_H3_a_running_coroutine_gets_its_cancellederror(odd: Field) -> None:
    odd.worker(slots=20)
    jobs = [odd.tasks.nap.enqueue(60) for _ in range(20)]
    odd.until_started(20)
    for job in jobs:
        asked_us = odd.now_us()
        assert job.cancel()
        wait_until(lambda job=job: _words(odd, job) == ["start", "raise"], REACHES_S * FACTOR)  # type: ignore[misc]
        (told,) = [e.at_us for e in odd.runlog("raise") if e.id == job.id]
        assert told - asked_us <= REACHES_S * FACTOR * 1e6
    _assert_cancelled(odd, jobs)
    assert odd.assert_conserved(job.id for job in jobs) == {State.CANCELLED: 20}


def test_fault_H3_a_child_process_is_ended(odd: Field) -> None:
    worker = odd.worker()
    jobs = [odd.tasks.process_sleeps.enqueue(60) for _ in range(3)]
    pids = [entry.pid for entry in odd.until_started(3)]
    for job in jobs:
        assert job.cancel()
    wait_until(
        lambda: not any(psutil.pid_exists(p) and is_alive(psutil.Process(p)) for p in pids),
        REACHES_S * FACTOR,
        "the end of the children",
    )
    _assert_cancelled(odd, jobs)
    assert [entry for entry in odd.runlog() if entry.word != "start"] == []
    assert odd.tasks.process_sleeps.enqueue(0).result(20) == "slept"
    assert worker.is_running


def test_fault_H3_a_thread_is_told_and_its_return_discarded(odd: Field, tmp_path: Path) -> None:
    odd.worker()
    heeds = odd.tasks.thread_heeds.enqueue()
    deaf = odd.tasks.thread_deaf.enqueue(str(tmp_path / "go"))
    odd.until_started(2)
    assert heeds.cancel()
    assert deaf.cancel()
    _assert_cancelled(odd, [heeds])
    view = deaf.info()
    assert (view.state, view.cancel_requested) == (State.RUNNING, True)
    assert odd.laneq_json("jobs", "show", deaf.id)["cancel_requested"] is True
    assert "running, cancel requested" in odd.laneq("jobs", "show", deaf.id)
    (tmp_path / "go").touch()
    _assert_cancelled(odd, [deaf])
    assert _words(odd, deaf) == ["start", "end"]


def test_fault_H3_what_has_not_started_or_waits_for_its_next_attempt_never_starts(
    odd: Field,
) -> None:
    tasks = odd.tasks
    waiting = tasks.touch.enqueue()
    scheduled = tasks.touch.using(delay=0.5).enqueue()
    assert waiting.cancel()
    assert scheduled.cancel()
    odd.worker()
    in_retry = tasks.fails_first.enqueue()
    wait_until(lambda: in_retry.state() == "scheduled")
    assert in_retry.cancel()
    # Its time would have come; and what came later has been run.
    due_us = odd.now_us() + 600_000
    wait_until(lambda: odd.now_us() > due_us)
    assert tasks.nap.enqueue(0).result(10) == "slept"
    assert odd.starts(waiting.id) == odd.starts(scheduled.id) == []
    assert len(odd.starts(in_retry.id)) == 1
    for job in (waiting, scheduled, in_retry):
        assert job.state() == "cancelled"
        assert not job.cancel(), "it has ended"


def test_fault_H3_a_cancelled_job_of_a_worker_that_dies_is_cancelled_and_not_run_again(
    odd: Field,
) -> None:
    first = odd.worker()
    job = odd.tasks.nap.enqueue(60)
    odd.until_started()
    odd.worker()
    first.stop()
    assert job.cancel()
    first.kill9()
    wait_until(lambda: job.state() == "cancelled", FACTOR * (LEASE + 2 * S))
    _assert_cancelled(odd, [job])


@two_sizes("jobs", ci=(1_000,), full=(5_000,))
def test_fault_H3_a_cancel_that_races_the_claim_wins_or_loses_but_not_both(
    odd: Field, jobs: int
) -> None:
    for _ in range(2):
        odd.worker(slots=4)
    lanes = tuple(odd.app.lanes)
    words: dict[str, str] = {}

    def race(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(jobs // 4):
            job = odd.tasks.touch.enqueue()
            # About as long as an idle worker needs to claim it; or not at all.
            until = time.monotonic() + rng.choice([0, rng.uniform(0, 0.003)])
            while time.monotonic() < until:
                pass
            ask = cancel(odd.keys, job.id, lanes=lanes, keep_us=KEEP_US)
            words[job.id] = odd.app.sync_driver.call(ask).word

    threads = [threading.Thread(target=race, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ids = list(words)
    assert len(ids) == jobs
    odd.until_settled(ids)

    places = odd.places()
    starts = {entry.id for entry in odd.starts()}
    for job_id, word in words.items():
        ((state, _),) = places[job_id]
        if word == "cancelled":
            assert state is State.CANCELLED
            assert job_id not in starts
        elif word == "requested":
            # It was claimed: it may have begun before it was told, never after it is over.
            assert state is State.CANCELLED
        else:
            assert (word, state) == ("ended", State.SUCCEEDED)
    outcomes = Counter(words.values())
    assert set(outcomes) >= {"cancelled", "ended"}, outcomes
    odd.assert_once(starts)
    odd.assert_conserved(ids)
