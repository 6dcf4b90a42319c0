from __future__ import annotations

import pytest

from laneq import (
    Job,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
    Lane,
    LaneQ,
    OptionError,
    RemoteError,
    Retry,
    State,
    UsageError,
    WaitRefused,
    WrongState,
)
from laneq.calls.jobs import enqueue
from laneq.keys import keys_of
from laneq.running import RunningJob, enter
from tests.app.conftest import Colour
from tests.patience import wait_until

UNKNOWN = "0" * 20


def add(a, b=0):
    return a + b


@pytest.fixture
def task(new_app, colour):
    app: LaneQ = new_app()
    colour.ends.append(app)
    return app.task(add)


def watched(raw, job: Job[object], namespace: str) -> None:
    """Wait until Redis knows that somebody waits for a job."""
    wait_until(lambda: raw.zscore(keys_of(namespace).watchers, job.id))


def test_a_handle_is_made_from_an_id_and_equals_others_of_that_job(new_app):
    app = new_app()
    job = app.task(add).enqueue(1)
    assert app.job(job.id) == job
    assert len({app.job(job.id), job}) == 1
    assert app.job(job.id) != app.job(UNKNOWN)
    assert LaneQ("redis://127.0.0.1:1", namespace="other").job(job.id) != job
    assert job != job.id
    assert repr(job) == f"<Job {job.id}>"
    for nothing in ("", None, 3):
        with pytest.raises(UsageError, match="the id of a job must be a str"):
            app.job(nothing)


def test_an_id_that_was_there_already_is_told(new_app):
    app = new_app()
    task = app.task(add)
    task.enqueue(0)
    twice = task.call(1)
    new = twice.new_job()
    assert app.sync_driver.call(enqueue(app.keys, [new])) == frozenset()
    assert app.sync_driver.call(enqueue(app.keys, [new])) == {0}
    assert Job(app, new.id, deduplicated=True).deduplicated is True


def test_the_state_follows_the_life_of_a_job(colour, task, hand):
    job = colour.ask(task, "enqueue", 1)
    assert colour.ask(job, "state") is State.WAITING
    hand.take()
    assert colour.ask(job, "state") is State.RUNNING
    hand.returns(job, 1)
    assert colour.ask(job, "state") is State.SUCCEEDED
    later = colour.ask(task.using(delay=60), "enqueue", 1)
    assert colour.ask(later, "state") is State.SCHEDULED


def test_the_attempts_that_a_job_has_are_its_tasks_or_its_own(colour, app):
    task = app.task(retry=Retry(7))(add)
    assert colour.ask(colour.ask(task, "enqueue", 1), "info").max_attempts == 7
    own = task.using(retry=Retry(2))
    assert colour.ask(colour.ask(own, "enqueue", 1), "info").max_attempts == 2


def test_an_unknown_id_has_no_state_and_no_result(colour, app):
    colour.ask(app.task(add), "enqueue", 1)
    job = app.job(UNKNOWN)
    assert colour.ask(job, "state") is None
    for verb in ("info", "result", "cancel", "retry"):
        with pytest.raises(JobNotFound, match=f"job {UNKNOWN}: not found"):
            colour.ask(job, verb)


def test_a_job_in_a_lane_that_came_later_is_found(colour, new_app):
    early, late = new_app(lanes=[Lane("mail")]), new_app(lanes=[Lane("sms")])
    colour.ends += [early, late]
    first = colour.ask(early.task(name="t")(add), "enqueue", 1)
    assert colour.ask(first, "state") == "waiting"  # and the lanes are known to `early` now
    second = colour.ask(late.task(name="t")(add), "enqueue", 1)
    assert colour.ask(early.job(second.id), "state") == "waiting"
    assert colour.ask(early.job(second.id), "cancel") is True


# --- results -------------------------------------------------------------------------


def test_a_result_that_is_there_comes_at_once(colour, task, hand):
    job = colour.ask(task, "enqueue", 1)
    hand.take()
    hand.returns(job, {"n": (1, b"\xff")})
    assert colour.ask(job, "result", timeout=0) == {"n": [1, b"\xff"]}
    assert colour.ask(job, "result") == {"n": [1, b"\xff"]}


def test_a_result_is_waited_for(colour, task, hand, raw, namespace):
    job = colour.ask(task, "enqueue", 1)
    waiting = colour.start(job, "result", timeout=20)
    watched(raw, job, namespace)
    hand.take()
    hand.returns(job, 42)
    assert waiting.result(5) == 42


def test_a_result_that_is_not_kept_still_reaches_who_waits(colour, task, hand, raw, namespace):
    job = colour.ask(task.using(result_ttl=0), "enqueue", 1)
    waiting = colour.start(job, "result")
    watched(raw, job, namespace)
    hand.take()
    hand.returns(job, 42, keep_s=0)
    assert waiting.result(5) == 42
    assert colour.ask(job, "state") is None
    with pytest.raises(JobNotFound):
        colour.ask(job, "result")


def test_a_cancelled_job_is_remembered_as_long_as_its_result_would_be(
    colour, task, hand, raw, namespace
):
    kept = colour.ask(task.using(result_ttl=1000), "enqueue", 1)
    gone = colour.ask(task.using(result_ttl=0), "enqueue", 2)
    assert [colour.ask(job, "cancel") for job in (kept, gone)] == [True, True]
    keys = keys_of(namespace)
    (left,) = raw.zrange(keys.ended, 0, -1, withscores=True)
    assert left[0] == kept.id.encode()
    assert 990 < left[1] / 1e6 - raw.time()[0] < 1010
    assert colour.ask(gone, "state") is None


def test_a_failed_job_raises_the_remote_error_with_its_traceback(colour, task, hand):
    job = colour.ask(task, "enqueue", 1)
    hand.take()
    hand.raises(job, RemoteError("ShopError", "no such order", "Traceback ...\nShopError"))
    with pytest.raises(JobFailed, match="failed with ShopError: no such order") as caught:
        colour.ask(job, "result")
    assert (caught.value.type, caught.value.message) == ("ShopError", "no such order")
    assert caught.value.traceback.startswith("Traceback")
    assert caught.value.job_id == job.id


def test_a_job_without_a_result_says_why(colour, task, hand):
    cancelled = colour.ask(task, "enqueue", 1)
    colour.ask(cancelled, "cancel")
    with pytest.raises(JobCancelled):
        colour.ask(cancelled, "result")
    late = colour.ask(task.using(expires=0.000_001), "enqueue", 1)
    assert hand.take() == []
    with pytest.raises(JobExpired):
        colour.ask(late, "result")


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_nobody_waits_longer_than_the_timeout(colour, task, timeout):
    job = colour.ask(task, "enqueue", 1)
    with pytest.raises(TimeoutError, match=f"job {job.id} has not ended"):
        colour.ask(job, "result", timeout=timeout)


@pytest.mark.parametrize("timeout", [-1, "1", True, float("nan")])
def test_a_timeout_that_is_none_is_refused(colour, task, timeout):
    job = colour.ask(task, "enqueue", 1)
    with pytest.raises(OptionError, match="timeout"):
        colour.ask(job, "result", timeout=timeout)


def test_a_job_may_not_wait_for_a_job_but_may_look(colour: Colour, task, hand):
    inner = colour.ask(task, "enqueue", 1)

    class Asks:
        """What a job does, in its own context."""

        def __init__(self) -> None:
            self.job = RunningJob(
                id="outer",
                task="t",
                lane="normal",
                attempt=1,
                max_attempts=3,
                enqueued_us=0,
                fence=1,
            )

        def result(self, timeout):
            enter(self.job)
            return inner.result(timeout)

        async def aresult(self, timeout):
            enter(self.job)
            return await inner.aresult(timeout)

    for timeout in (None, 60):
        with pytest.raises(WaitRefused, match=rf"job outer cannot wait for job {inner.id}.*snooze"):
            colour.start(Asks(), "result", timeout).result(5)
    with pytest.raises(TimeoutError):
        colour.start(Asks(), "result", 0).result(5)
    hand.take()
    hand.returns(inner, 7)
    assert colour.start(Asks(), "result", None).result(5) == 7


# --- steering ------------------------------------------------------------------------


def test_a_job_that_waits_is_cancelled_for_good(colour, app):
    task = app.task(add)
    job = colour.ask(task.using(delay=60), "enqueue", 1)
    assert colour.ask(job, "cancel") is True
    assert colour.ask(job, "state") is State.CANCELLED
    assert colour.ask(job, "cancel") is False


def test_a_job_that_runs_is_told_to_end(colour, task, hand):
    job = colour.ask(task, "enqueue", 1)
    hand.take()
    assert colour.ask(job, "cancel") is True
    assert colour.ask(job, "info").cancel_requested is True
    hand.returns(job, 1)  # too late
    assert colour.ask(job, "state") is State.CANCELLED


def test_a_job_that_ended_gets_a_new_life(colour, task, hand):
    job = colour.ask(task, "enqueue", 1)
    hand.take()
    hand.raises(job, RemoteError("ValueError", "no"))
    assert colour.ask(job, "retry") is None
    assert colour.ask(job, "state") is State.WAITING
    assert hand.take() == [job.id]
    hand.returns(job, 3)
    assert colour.ask(job, "result") == 3


def test_a_job_that_has_not_ended_cannot_be_given_a_new_life(colour, app):
    job = colour.ask(app.task(add), "enqueue", 1)
    with pytest.raises(WrongState, match=rf"job {job.id} is waiting: cannot retry it"):
        colour.ask(job, "retry")


def test_a_job_whose_arguments_are_gone_cannot_be_given_a_new_life(colour, task, hand, raw):
    job = colour.ask(task, "enqueue", 1)
    hand.take()
    hand.raises(job, RemoteError("ValueError", "no"))
    raw.hdel(hand.stage.keys.jobs, job.id)
    with pytest.raises(WrongState, match="without its arguments"):
        colour.ask(job, "retry")
    hand.stage.client.delete(*hand.stage.client.keys(hand.stage.keys.prefix + b"*"))
