"""What a running job sees; without Redis, as the module does no I/O."""

from __future__ import annotations

import contextvars
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from laneq import (
    LaneQ,
    LeaseLost,
    NoRunningJob,
    OptionError,
    PayloadTooLarge,
    UnknownLane,
    UsageError,
    current_job,
)
from laneq.codec import decode_value
from laneq.errors import GiveUpRequested, JobControl, RetryRequested, SnoozeRequested
from laneq.running import MAX_CHILDREN, MAX_CHILDREN_BYTES, RunningJob, enter, running

AT = datetime(2030, 1, 1, tzinfo=UTC)
AT_US = 1_893_456_000_000_000


def made(**given: Any) -> RunningJob:
    return RunningJob(
        id="j",
        task="shop.pay",
        lane="urgent",
        attempt=2,
        max_attempts=3,
        enqueued_us=AT_US,
        fence=77,
        **given,
    )


@pytest.fixture
def app() -> LaneQ:
    return LaneQ("redis://127.0.0.1:1/0", namespace="running")


def test_outside_of_a_job_there_is_none():
    with pytest.raises(NoRunningJob, match="no job is running here"):
        current_job()


def test_a_job_is_seen_in_its_context_and_its_threads_with_a_copy_of_it():
    job = made()
    with running(job):
        assert current_job() is job
        seen: list[RunningJob] = []
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(lambda: seen.append(current_job()),))
        thread.start()
        thread.join()
        assert seen == [job]
    with pytest.raises(NoRunningJob):
        current_job()


def test_entering_lasts_as_long_as_the_context():
    job = made()
    context = contextvars.copy_context()
    context.run(enter, job)
    assert context.run(current_job) is job
    with pytest.raises(NoRunningJob):
        current_job()


def test_a_job_knows_its_attempt_and_its_times():
    job = made(deadline_us=AT_US + 5_000_000)
    assert (job.id, job.task, job.lane) == ("j", "shop.pay", "urgent")
    assert (job.attempt, job.max_attempts, job.fence) == (2, 3, 77)
    assert (job.enqueued_at, job.deadline) == (AT, AT + timedelta(seconds=5))
    assert made().deadline is None
    assert (job.is_cancelled, job.lease_lost) == (False, False)
    assert repr(job) == "<RunningJob j shop.pay attempt 2 in urgent>"


@pytest.mark.parametrize(
    ("steer", "error", "carries"),
    [
        (lambda job: job.retry(), RetryRequested, None),
        (lambda job: job.retry(delay=timedelta(minutes=1)), RetryRequested, 60.0),
        (lambda job: job.snooze(5), SnoozeRequested, 5.0),
    ],
)
def test_a_job_steers_its_outcome_past_except_exception(steer, error, carries):
    def body() -> None:
        try:
            steer(made())
        except Exception:  # noqa: BLE001  as a job may have it
            pytest.fail("swallowed")

    with pytest.raises(error) as caught:
        body()
    assert caught.value.delay_s == carries
    assert isinstance(caught.value, JobControl)
    assert not isinstance(caught.value, Exception)


def test_giving_up_carries_the_reason():
    with pytest.raises(GiveUpRequested) as caught:
        made().give_up("no such customer")
    assert caught.value.reason == "no such customer"


@pytest.mark.parametrize("delay", [-1, float("nan"), True, "1"])
def test_a_delay_that_is_none_is_refused(delay):
    with pytest.raises(OptionError, match="delay"):
        made().retry(delay)
    with pytest.raises(OptionError, match="seconds"):
        made().snooze(delay)


def test_progress_is_handed_on_encoded():
    told: list[bytes] = []
    job = made(on_progress=told.append)
    job.progress(1)
    job.progress(2.5, 10, "half")
    assert [decode_value(value) for value in told] == [
        {"done": 1, "total": None, "note": None},
        {"done": 2.5, "total": 10, "note": "half"},
    ]
    made().progress(1)  # where nobody listens, it goes nowhere


@pytest.mark.parametrize(
    ("args", "option"),
    [(("1",), "done"), ((True,), "done"), ((float("nan"),), "done"), ((1, "2"), "total")],
)
def test_progress_that_is_no_number_is_refused(args, option):
    with pytest.raises(OptionError, match=option):
        made().progress(*args)
    with pytest.raises(OptionError, match="note"):
        made().progress(1, 2, "x" * 1001)


# --- children ----------------------------------------------------------------------


def test_what_a_job_enqueues_is_kept_for_its_outcome(app):
    task = app.task(name="t", lane="batch")(lambda n: n)
    job = made(lanes=app.lanes)
    first, second = job.enqueue(task.call(1)), job.enqueue(task.using(delay=3).call(2))
    assert [child.id for child in job.children] == [first.id, second.id]
    assert [(child.lane, child.when) for child in job.children] == [
        ("batch", ""),
        ("batch", "+3000000"),
    ]


def test_a_child_in_a_lane_that_is_unknown_is_refused(app):
    job = made(lanes=("urgent", "batch"))
    with pytest.raises(UnknownLane, match=r"'normal'\. Known: batch, urgent"):
        job.enqueue(app.task(name="t")(lambda: None).call())
    assert job.children == []


def test_a_job_that_lost_its_lease_enqueues_nothing(app):
    job = made()
    job.lease_lost = True
    with pytest.raises(LeaseLost):
        job.enqueue(app.task(name="t")(lambda: None).call())


def test_what_is_no_call_is_refused_with_a_hint():
    with pytest.raises(UsageError, match=r"takes task.call\(...\), not 'a.txt'.*task.enqueue"):
        made().enqueue("a.txt")  # type: ignore[arg-type]


def test_what_a_job_may_enqueue_with_its_outcome_has_a_limit(app):
    task = app.task(name="t")(lambda payload: None)
    job = made()
    for n in range(MAX_CHILDREN):
        job.enqueue(task.call(n))
    with pytest.raises(UsageError, match=r"more than 1,000 jobs.*enqueue_many"):
        job.enqueue(task.call(0))
    assert len(job.children) == MAX_CHILDREN
    large = task.call(bytes(app.max_payload - 10))
    job = made()
    for _ in range(MAX_CHILDREN_BYTES // app.max_payload):
        job.enqueue(large)
    with pytest.raises(UsageError, match="bytes of them"):
        job.enqueue(large)
    with pytest.raises(PayloadTooLarge):
        task.call(bytes(app.max_payload))
