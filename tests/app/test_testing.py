from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from datetime import timedelta

import pytest

from laneq import (
    ConfigError,
    JobCancelled,
    JobFailed,
    LaneQ,
    Middleware,
    OptionError,
    Retry,
    UsageError,
    WaitRefused,
    current_job,
)

NOBODY = "redis://127.0.0.1:1/0"  # nobody listens there


def nothing() -> None: ...


@pytest.fixture
def app() -> LaneQ:
    return LaneQ(NOBODY, namespace="testing")


@pytest.fixture
def ran() -> list[object]:
    return []


def test_what_is_enqueued_runs_when_the_test_says_so(app, ran):
    task = app.task(name="t")(ran.append)
    with app.testing() as t:
        job = task.enqueue((1, b"\xff"))
        assert (job.state(), ran) == ("waiting", [])
        assert t.run_all() == 1
        assert ran == [[1, b"\xff"]]  # through the codec: a tuple comes as a list
        assert (job.state(), job.result()) == ("succeeded", None)
        assert t.run_all() == 0


def test_jobs_run_in_the_order_in_which_a_worker_with_one_slot_takes_them(app, ran):
    task = app.task(name="t")(ran.append)
    with app.testing() as t:
        for lane in ("batch", "normal", "urgent", "critical"):
            app.enqueue_many(task.using(lane=lane).call(f"{lane} {n}") for n in (1, 2))
        t.run_all()
    assert ran == [
        f"{lane} {n}" for lane in ("critical", "urgent", "normal", "batch") for n in (1, 2)
    ]


def test_what_jobs_enqueue_runs_too(app, ran):
    @app.task(name="parent")
    def parent(n):
        ran.append(n)
        if n:
            current_job().enqueue(app.tasks["parent"].call(n - 1))

    with app.testing() as t:
        parent.enqueue(3)
        assert t.run_all() == 4
    assert ran == [3, 2, 1, 0]


def test_jobs_without_an_end_are_given_up(app):
    @app.task(name="again")
    def again():
        again.enqueue()

    with app.testing() as t:
        job = again.enqueue()
        with pytest.raises(UsageError, match="made 25 attempts and more is waiting"):
            t.run_all(limit=25)
        assert job.state() == "succeeded"


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_every_executor_runs_in_this_process(app, ran, executor):
    task = app.task(name="t", executor=executor)(ran.append)
    with app.testing() as t:
        task.enqueue(1)
        t.run_all()
    assert ran == [1]


def test_a_coroutine_and_a_function_see_the_running_job(app, ran):
    @app.task(name="a", lane="urgent", timeout=5)
    async def asynchronous():
        await asyncio.sleep(0)
        ran.append(current_job())

    @app.task(name="b")
    def blocking():
        ran.append(current_job())
        current_job().progress(1, 2, "half")

    with app.testing() as t:
        first, second = asynchronous.enqueue(), blocking.enqueue()
        t.run_all()
        assert second.info().progress == {"done": 1, "total": 2, "note": "half"}
    assert [job.id for job in ran] == [first.id, second.id]
    assert (ran[0].lane, ran[0].attempt) == ("urgent", 1)
    assert ran[0].deadline - ran[0].enqueued_at >= timedelta(seconds=5)
    with pytest.raises(UsageError):
        current_job()


def test_context_of_one_job_is_not_seen_by_the_next(app, ran):
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("n", default=0)

    @app.task(name="a")
    async def asynchronous():
        ran.append(variable.get())
        variable.set(1)

    @app.task(name="b")
    def blocking():
        ran.append(variable.get())
        variable.set(2)

    with app.testing() as t:
        for task in (asynchronous, blocking) * 2:
            task.enqueue()
        t.run_all()
    assert ran == [0, 0, 0, 0]


# --- failures and time ---------------------------------------------------------------


def test_a_failed_job_is_tried_again_when_its_time_has_come(app, ran):
    @app.task(name="t", retry=Retry(3, base=100, jitter=False))
    def fails():
        ran.append(current_job().attempt)
        raise ValueError("no")

    with app.testing() as t:
        job = fails.enqueue()
        assert t.run_all() == 1
        assert job.state() == "scheduled"
        t.advance(99)
        assert t.run_all() == 0
        t.advance(timedelta(seconds=2))
        assert t.run_all() == 1
        assert t.run_all(advance=True) == 1
        assert (job.state(), ran) == ("dead", [1, 2, 3])
        with pytest.raises(JobFailed, match="failed with ValueError: no") as caught:
            job.result()
        traceback = caught.value.traceback
        assert traceback.splitlines()[1].strip().startswith(f'File "{__file__}"')
        history = job.info().history
        assert [entry.attempt for entry in history] == [1, 2, 3]


def test_the_clock_can_be_put_forward_to_what_is_scheduled(app, ran):
    task = app.task(name="t")(ran.append)
    with app.testing() as t:
        task.using(delay=timedelta(days=365)).enqueue("late")
        task.using(delay=3600).enqueue("soon")
        task.using(expires=60).enqueue("in time")
        early = task.enqueue("in time")
        assert t.run_all() == 2
        assert t.run_all(advance=True) == 2
        assert early.result() is None  # of a year ago
        expired = task.using(expires=60).enqueue("too late")
        t.advance(61)
        t.run_all()
        assert expired.state() == "expired"
    assert ran == ["in time", "in time", "soon", "late"]
    with pytest.raises(OptionError, match="seconds"):
        t.advance(-1)


def test_a_job_steers_its_outcome(app, ran):
    @app.task(name="t")
    async def steers(how):
        job = current_job()
        ran.append((how, job.attempt))
        if len(ran) < 3:
            getattr(job, how)(5)
        job.give_up("enough")

    with app.testing() as t:
        snoozed = steers.enqueue("snooze")
        t.run_all(advance=True)
        assert ran == [("snooze", 1)] * 3
        with pytest.raises(JobFailed, match="enough"):
            snoozed.result()
        ran.clear()
        steers.enqueue("retry")
        t.run_all(advance=True)
        assert ran == [("retry", 1), ("retry", 2), ("retry", 3)]


def test_a_coroutine_is_stopped_at_its_time_out(app):
    @app.task(name="t", timeout=0.01, retry=Retry(1))
    async def endless():
        await asyncio.Event().wait()

    @app.task(name="u", retry=Retry(1))
    async def raises():
        raise TimeoutError("of its own")

    with app.testing() as t:
        job, own = endless.enqueue(), raises.enqueue()
        t.run_all()
        with pytest.raises(JobFailed, match=r"timed out after 0\.01 s"):
            job.result()
        with pytest.raises(JobFailed, match="TimeoutError: of its own"):
            own.result()


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), GeneratorExit()])
def test_whatever_a_job_raises_is_its_failure(app, error):
    @app.task(name="a", retry=Retry(1))
    async def asynchronous():
        raise error

    @app.task(name="b", retry=Retry(1))
    def blocking():
        raise error

    with app.testing() as t:
        made = [asynchronous.enqueue(), blocking.enqueue()]
        assert t.run_all() == 2
        assert [job.state() for job in made] == ["dead", "dead"]


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_an_interrupted_test_leaves_the_job_as_if_it_had_not_begun(app, kind):
    def blocking():
        raise KeyboardInterrupt

    async def asynchronous():
        raise KeyboardInterrupt

    task = app.task(name="t")(asynchronous if kind == "async" else blocking)
    with app.testing() as t:
        job = task.enqueue()
        with pytest.raises(KeyboardInterrupt):
            t.run_all()
        view = job.info()
        assert (view.state, view.attempt) == ("waiting", 0)


def test_a_result_that_cannot_be_kept_is_a_failure(new_app):
    app = new_app(max_payload=1000)
    values = {"object": object(), "large": b"x" * 2000}
    task = app.task(name="t", retry=Retry(1))(values.__getitem__)
    with app.testing() as t:
        made = {name: task.enqueue(name) for name in values}
        t.run_all()
        with pytest.raises(JobFailed, match="NotSerializable"):
            made["object"].result()
        with pytest.raises(JobFailed, match="2,003 bytes, over the limit of 1,000"):
            made["large"].result()


def test_a_cancelled_job_does_not_run(app, ran):
    task = app.task(name="t")(ran.append)
    with app.testing() as t:
        job = task.enqueue(1)
        job.cancel()
        t.run_all()
        with pytest.raises(JobCancelled):
            job.result()
    assert ran == []


def test_jobs_of_tasks_that_are_not_here_are_left_waiting(app, ran):
    with app.testing() as t:
        others = [app.enqueue("other.task", n) for n in range(3)]
        app.task(name="t")(ran.append).using(delay=5).enqueue(1)
        assert t.run_all(advance=True) == 1
        assert [job.info().attempt for job in others] == [0, 0, 0]
        assert {job.state() for job in others} == {"waiting"}


# --- waiting -------------------------------------------------------------------------


def test_who_waits_for_a_result_has_what_is_due_run(app):
    task = app.task(name="t")(lambda n: n + 1)
    with app.testing():
        assert task.enqueue(1).result(timeout=10) == 2
        late = task.using(delay=60).enqueue(1)
        for timeout in (None, 10):
            with pytest.raises(TimeoutError, match="has not ended") as caught:
                late.result(timeout)
            assert "run_all(advance=True)" in str(caught.value.__cause__)


def test_a_job_may_neither_wait_nor_run_others(app, ran):
    other = app.task(name="other")(nothing)
    with app.testing() as t:

        @app.task(name="t", retry=Retry(1))
        def waits():
            with pytest.raises(WaitRefused):
                other.enqueue().result()
            with pytest.raises(UsageError, match="cannot run other jobs"):
                t.run_all()
            ran.append("both refused")

        waits.enqueue()
        t.run_all()
    assert ran == ["both refused"]


def test_a_function_may_use_a_thread_that_enqueues(app, ran):
    leaf = app.task(name="leaf")(ran.append)

    @app.task(name="t")
    def spreads():
        thread = threading.Thread(target=leaf.enqueue, args=(1,))
        thread.start()
        thread.join(10)
        assert not thread.is_alive()

    with app.testing() as t:
        spreads.enqueue()
        assert t.run_all() == 2
    assert ran == [1]


# --- inside of a loop -------------------------------------------------------------------


async def test_a_loop_runs_jobs_on_itself_and_functions_beside_it(app, ran):
    @app.task(name="a")
    async def asynchronous():
        ran.append(asyncio.get_running_loop())

    @app.task(name="b")
    def blocking():
        ran.append(asyncio.run(asyncio.sleep(0, "a loop of its own")))

    async with app.testing() as t:
        first, second = await asynchronous.aenqueue(), await blocking.aenqueue()
        assert await t.arun_all() == 2
        assert (await first.astate(), await second.astate()) == ("succeeded", "succeeded")
    assert ran == [asyncio.get_running_loop(), "a loop of its own"]


async def test_in_a_loop_the_blocking_way_works_too(app, ran):
    @app.task(name="a")
    async def asynchronous():
        ran.append(asyncio.get_running_loop())

    @app.task(name="b")
    def blocking():
        return asyncio.run(asyncio.sleep(0, "a loop of its own"))

    with app.testing() as t:
        asynchronous.enqueue()
        job = blocking.enqueue()
        assert t.run_all() == 2
        assert job.result() == "a loop of its own"
        assert await blocking.enqueue().aresult() == "a loop of its own"
    assert ran != [asyncio.get_running_loop()]


async def test_jobs_share_a_loop_with_others_who_wait(app):
    task = app.task(name="t")(asyncio.sleep)
    with app.testing():
        made = [await task.aenqueue(0, n) for n in range(5)]
        assert await asyncio.gather(*(job.aresult() for job in made)) == list(range(5))


async def test_a_cancelled_run_leaves_the_job_as_if_it_had_not_begun(app):
    begun = asyncio.Event()

    @app.task(name="t")
    async def endless():
        begun.set()
        await asyncio.Event().wait()

    with app.testing() as t:
        job = await endless.aenqueue()
        running = asyncio.create_task(t.arun_all())
        await begun.wait()
        assert await job.astate() == "running"
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await job.astate() == "waiting"


def test_coroutines_share_one_loop_from_run_to_run(app, ran):
    @app.task(name="t")
    async def asynchronous():
        ran.append(asyncio.get_running_loop())

    with app.testing() as t:
        for _ in range(2):
            asynchronous.enqueue()
            t.run_all()
    assert ran[0] is ran[1]
    assert ran[0].is_closed()


# --- the block ---------------------------------------------------------------------------


def test_a_block_begins_empty_and_the_app_is_as_before_after_it(new_app):
    app = new_app()
    task = app.task(name="t")(nothing)
    outside = task.enqueue()
    for _ in range(2):
        with app.testing() as t:
            assert outside.state() is None
            inside = task.enqueue()
            assert t.run_all() == 1
    assert outside.state() == "waiting"
    assert inside.state() is None


def test_a_block_inside_another_is_refused(app):
    with app.testing() as t:
        with pytest.raises(UsageError, match=r"in app.testing\(\) already"), app.testing():
            pass
        app.task(name="t")(nothing).enqueue()
        assert t.run_all() == 1  # the first is unharmed


def test_a_block_ends_also_when_the_test_fails(app):
    with pytest.raises(ZeroDivisionError), app.testing():
        raise ZeroDivisionError
    with app.testing():
        pass


def test_a_task_of_main_may_run_in_a_test(app):
    def f(): ...

    f.__module__ = "__main__"
    with app.testing() as t:
        app.task(f).enqueue()
        assert t.run_all() == 1


def test_without_the_extra_the_error_names_it(app, monkeypatch):
    monkeypatch.setitem(sys.modules, "fakeredis", None)
    with pytest.raises(ConfigError, match=r"pip install 'laneq-redis\[testing\]'"):
        app.testing()


# --- hooks -----------------------------------------------------------------------------


class Notes(Middleware):
    def __init__(self, notes: list[object]) -> None:
        self.notes = notes

    def before_job(self, job):
        self.notes.append(("before", current_job() is job))

    async def after_job(self, job, outcome):
        await asyncio.sleep(0)
        self.notes.append(("after", outcome))

    def on_failure(self, job, error):
        self.notes.append(("failure", str(error)))

    async def on_retry(self, job, error, delay_s):
        self.notes.append(("retry", delay_s))

    def on_dead(self, job, error):
        self.notes.append(("dead", type(error)))
        raise RuntimeError("a hook that fails changes nothing")


def test_hooks_of_jobs_are_called(app, ran, caplog):
    app.middleware.append(Notes(ran))

    @app.task(name="t", retry=Retry(2, base=7, jitter=False))
    def fails(really):
        if really:
            raise ValueError("no")

    with app.testing() as t:
        fails.enqueue(False)
        t.run_all()
        assert ran == [("before", True), ("after", "succeeded")]
        ran.clear()
        job = fails.enqueue(True)
        t.run_all(advance=True)
        assert job.state() == "dead"
    assert ran == [
        *(("before", True), ("failure", "no"), ("retry", 7.0), ("after", "retried")),
        *(("before", True), ("failure", "no"), ("dead", ValueError), ("after", "dead")),
    ]
    assert "hook on_dead of Notes failed" in caplog.text
