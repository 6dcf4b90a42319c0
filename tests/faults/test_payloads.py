"""Kind I: what jobs carry, raise and return, and what is shown of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from laneq import JobFailed, PayloadTooLarge, State
from laneq.calls import stats
from laneq.calls.lanes import set_lane
from tests.conftest import keys_in
from tests.faults.conftest import NewField
from tests.faults.field import FACTOR, Field, two_sizes, wait_until

ODD_JOBS: Final = Path(__file__).with_name("odd_jobs.py")


@pytest.fixture
def odd(new_field: NewField) -> Field:
    """A field with tasks that end in odd ways."""
    return new_field(app=ODD_JOBS)


# --- I3: what is raised and returned --------------------------------------------------


@pytest.mark.parametrize("how", ["does", "thread_does", "process_does"])
def test_fault_I3_whatever_a_job_raises_or_returns_is_its_failure_alone(
    odd: Field, how: str
) -> None:
    worker = odd.worker(slots=1)
    pid = worker.pid
    for name in odd.tasks.DOES:
        job = getattr(odd.tasks, how).enqueue(name)
        odd.until_settled([job.id], 10)
        with pytest.raises(JobFailed) as caught:
            job.result(0)
        asked_us = odd.now_us()
        assert odd.tasks.fine.enqueue().result(10) == "fine", name
        assert odd.now_us() - asked_us <= FACTOR * 1e6, name
        assert caught.value.type, name
        text = f"{caught.value.message}{caught.value.traceback}"
        assert 0 < len(text.encode()) <= 65_536, name
        assert job.info().attempt == 1
        assert len(odd.starts(job.id)) == 1, name
    assert worker.pid == pid
    assert worker.is_running
    assert worker.count("CRITICAL") == 0, worker.text


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_fault_I3_what_ends_an_event_loop_does_not_end_the_worker(
    odd: Field, tmp_path: Path, loop: str
) -> None:
    environment = {}
    if loop == "asyncio":
        (tmp_path / "uvloop.py").write_text("raise ImportError")
        environment["PYTHONPATH"] = f"{tmp_path}:{odd.environment['PYTHONPATH']}"
    worker = odd.worker(slots=2, environment=environment)
    pid = worker.pid
    beside = odd.tasks.nap.enqueue(2)
    for how in odd.tasks.LOOPS:
        job = odd.tasks.ends_the_loop.enqueue(how)
        odd.until_settled([job.id], 20)
        assert odd.tasks.fine.enqueue().result(10) == "fine", how
        assert len(odd.starts(job.id)) == 1, how
        if how == "callback":
            assert job.result(0) == "went on"
        else:
            with pytest.raises(JobFailed) as caught:
                job.result(0)
            assert caught.value.type == "SystemExit", how
    assert beside.result(10) == "slept"
    assert worker.pid == pid
    assert worker.is_running


# --- I2: what scripts do to payloads --------------------------------------------------


def test_fault_I2_a_payload_is_the_same_bytes_through_all_of_a_jobs_life(
    odd: Field, tmp_path: Path
) -> None:
    fixed = tmp_path / "fixed"
    values = odd.tasks.DELICATE
    task = odd.tasks.echoes
    call = task.using(delay=0.5, boost=7.25).call(str(fixed), *values, é=values)
    seen: dict[str, bytes] = {}

    def note(stage: str) -> None:
        record = odd.raw.hget(odd.keys.jobs, job.id)
        seen[stage] = record.partition(b"\n")[2]

    odd.laneq("lanes", "pause", "normal")
    worker = odd.worker()
    (job,) = odd.app.enqueue_many([call])
    assert job.state() == "scheduled"
    note("scheduled")
    wait_until(lambda: odd.raw.zcard(odd.keys.of_lane("waiting", "normal")) == 1)
    note("waiting")
    odd.laneq("lanes", "set", "normal", "priority=-77.5", "aging=0.125")
    note("waiting, in a lane of another priority")
    # Not by the command line, which on a loaded machine takes longer than the backoff.
    odd.app.sync_driver.call(set_lane(odd.keys, "normal", {"paused": False}))
    wait_until(lambda: job.state() == "scheduled" and len(odd.starts()) == 1)
    note("in retry")
    wait_until(lambda: job.state() == "dead")
    note("dead")
    assert job.info().error is not None
    assert job.info().args == (str(fixed), *values)
    assert job.info().kwargs == {"é": values}
    odd.laneq("lanes", "pause", "normal")
    odd.laneq("dead", "retry", job.id)
    assert job.state() == "waiting"
    note("requeued")
    worker.stop()
    odd.laneq("lanes", "resume", "normal")
    worker.kill9()
    fixed.touch()
    odd.worker()
    assert job.result(20) == values
    assert list(map(type, job.result(0))) == list(map(type, values))
    note("done")
    assert len(odd.starts(job.id)) == 3
    assert seen == dict.fromkeys(seen, call.payload), "the bytes have changed on the way"
    assert odd.app.job(job.id).info().args == (str(fixed), *values)


def test_fault_I2_a_payload_is_the_same_bytes_after_a_lost_worker(
    odd: Field, tmp_path: Path
) -> None:
    values = odd.tasks.DELICATE
    first = odd.worker(slots=1)
    held = odd.tasks.nap.enqueue(60)
    odd.until_started()
    job = odd.tasks.echoes.enqueue(str(tmp_path), *values, é=values)
    before = odd.raw.hget(odd.keys.jobs, job.id)
    assert held.cancel()
    wait_until(lambda: odd.starts(job.id))
    assert job.result(10) == values
    after = odd.raw.hget(odd.keys.jobs, job.id)
    assert after == before
    assert first.is_running


# --- I5: sizes ------------------------------------------------------------------------

MIB: Final = 1_048_576


def test_fault_I5_a_payload_may_have_its_limit_and_not_a_byte_more(odd: Field) -> None:
    empty = len(odd.tasks.takes.call(b"").payload)
    overhead = len(odd.tasks.takes.call(bytes(70_000)).payload) - 70_000
    assert overhead > empty
    odd.worker()
    exact = odd.tasks.takes.enqueue(bytes(MIB - overhead))
    assert exact.result(20) == MIB - overhead
    before = {key: odd.raw.dump(key) for key in _settled_keys(odd)}
    calls: list[Callable[[], Any]] = [
        lambda: odd.tasks.takes.enqueue(bytes(MIB - overhead + 1)),
        lambda: odd.tasks.takes.call(bytes(MIB - overhead + 1)),
        lambda: odd.app.enqueue("takes", bytes(MIB - overhead + 1)),
        lambda: odd.app.ref("unknown.here").enqueue(bytes(MIB - overhead + 1)),
    ]
    for call in calls:
        with pytest.raises(PayloadTooLarge, match="1,048,577 bytes, over the limit of 1,048,576"):
            call()
    assert {key: odd.raw.dump(key) for key in _settled_keys(odd)} == before


def _settled_keys(field: Field) -> list[bytes]:
    """Return the keys that only jobs change: no beats, no counts of time."""
    words = (b"jobs", b"runs", b"outcomes", b"waiting", b"scheduled", b"leases", b"dead", b"counts")
    start = len(field.keys.prefix)
    return [
        key for key in keys_in(field.raw, field.namespace) if key[start:].split(b":")[0] in words
    ]


@pytest.mark.parametrize("how", ["returns_large", "process_returns_large"])
def test_fault_I5_a_result_over_the_limit_is_told_and_its_job_not_run_again(
    odd: Field, how: str
) -> None:
    worker = odd.worker()
    task = getattr(odd.tasks, how)
    overhead = len(task.enqueue(70_000).result(20)) - 70_000 + 5  # of bytes in msgpack
    assert len(task.enqueue(MIB - overhead).result(20)) == MIB - overhead
    job = task.enqueue(MIB - overhead + 1)
    with pytest.raises(JobFailed, match="result too large: it is 1,048,577 bytes") as caught:
        job.result(20)
    assert caught.value.type == "PayloadTooLarge"
    assert "over the limit of 1,048,576" in caught.value.message
    view = job.info()
    assert (view.state, view.attempt, view.max_attempts) == (State.DEAD, 1, 5)
    assert len(odd.starts(job.id)) == 1
    assert worker.is_running


@two_sizes("jobs, keep_s", ci=(600, 3.0), full=(10_000, 60.0))
def test_fault_I5_memory_is_given_back_when_results_run_out(
    new_field: NewField, jobs: int, keep_s: float
) -> None:
    field = new_field(app=ODD_JOBS)
    field.worker(slots=8)
    task = field.tasks.takes.using(result_ttl=keep_s)
    body = os.urandom(200_000)
    assert field.tasks.takes.using(result_ttl=0).enqueue(body).result(20) == len(body)

    def used() -> int:
        return int(field.raw.info("memory")["used_memory"])

    before, most = used(), 0
    for _ in range(jobs // 20):
        field.app.enqueue_many([task.call(body)] * 20)
        most = max(most, used())
    wait_until(lambda: _counts(field).get("succeeded") == jobs + 1, 300)
    assert most - before > 20 * len(body), "payloads are kept at first"
    wait_until(lambda: field.raw.hlen(field.keys.jobs) == 0, FACTOR * (keep_s + 10))
    wait_until(lambda: used() <= before * 1.05 + 1_000_000, 20, "the memory's return")


def _counts(field: Field) -> dict[str, int]:
    (depth,) = field.app.sync_driver.call(stats.depths(field.keys, ["normal"]))
    return depth.counts


def test_fault_I5_lists_and_logs_show_little_of_a_payload(odd: Field) -> None:
    worker = odd.worker(slots=1)
    text = "payload" * 30_000
    dead = odd.tasks.dies_of.enqueue(text)
    odd.until_settled([dead.id])
    kept = odd.tasks.returns_text.enqueue(text)
    assert kept.result(20) == text
    running = odd.tasks.nap.enqueue(60)
    odd.until_started()
    odd.tasks.dies_of.enqueue(text)
    odd.tasks.dies_of.using(delay=3600).enqueue(text)
    for words in (["jobs"], ["dead"], ["jobs", "--json"], ["dead", "--json"]):
        shown = odd.laneq(*words)
        for line in shown.split("\n"):
            assert line.count("payload") <= 1_024 // len("payload") + 1, words
        assert len(shown) < 20_000, words
    assert worker.text.count("payload") <= 1_024 // len("payload") + 1
    assert running.cancel()
