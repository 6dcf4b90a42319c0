"""Run an app's jobs in the process of a test, with no server: ``with app.testing() as t:``.

What is enqueued goes through the real Lua scripts, on a fakeredis of this block alone, and
through the real codec: what a test stores is what production stores. Jobs run when the
test says so, one after the other, in the order in which a worker with one slot would take
them; their outcomes are reported as a worker reports them.

What differs from a worker: every function runs in this process, whatever its executor; a
`timeout` ends coroutines only; cancelling a running job tells it, and does not end it; hooks of
jobs are called, those of a worker's start and end are not; the queue's clock can be put
forward, which ends no result; and whoever waits for a result has what is due run, since
nobody else does.

Design: `Testing._steps` is the one description of a run. It yields what has to be called or
awaited, and `run_all` and `arun_all` are its two drivers.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Self, TypeAlias, TypeVar

from laneq import codec, ids
from laneq.app import LaneQ, running_loop
from laneq.calls import jobs, lanes, workers
from laneq.calls.call import Call, Plan, Until, astep_through, step_through
from laneq.calls.workers import Claimed, Ended, Seats
from laneq.errors import ConfigError, JobFailed, UnreadablePayload, UsageError
from laneq.options import Seconds, seconds_of, to_us
from laneq.running import RunningJob, enter, running_here
from laneq.worker import outcomes
from laneq.worker.outcomes import Verdict
from laneq.worker.plans import Plan as JobPlan
from laneq.worker.plans import Plans
from laneq.worker.runner import call_hooks

T = TypeVar("T")

#: Attempts after which `run_all` takes it that jobs make jobs for ever.
MOST_ATTEMPTS: Final = 10_000

# A result that is kept at all is kept however far the clock is put forward.
_TO_THE_END_US: Final = 50 * 365 * 86_400_000_000

_Came: TypeAlias = tuple[Any, BaseException | None]


class _TimedOut(Exception):
    """A coroutine's time was over; its cause is what came out of it then."""


class _Do:
    """Step: make a call, or await what it returns, in the job's context.

    Answer: what came of it, as value and error.
    """

    __slots__ = ("context", "function", "is_async", "timeout_s")

    def __init__(
        self,
        context: contextvars.Context,
        function: Callable[[], Any],
        *,
        is_async: bool,
        timeout_s: float | None = None,
    ) -> None:
        self.context = context
        self.function = function
        self.is_async = is_async
        self.timeout_s = timeout_s

    def run(self) -> _Came:
        try:
            return self.context.run(self.function), None
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  all that a job raises is its outcome
            return None, _of_the_job(error)

    async def arun(self) -> _Came:
        try:
            async with asyncio.timeout(self.timeout_s) as limit:
                return await self.function(), None
        except TimeoutError as error:
            if not limit.expired():
                return None, _of_the_job(error)
            late = _TimedOut()
            late.__cause__ = error.__cause__
            return None, late
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return None, _of_the_job(error)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  all that a job raises is its outcome
            return None, _of_the_job(error)


def _of_the_job(error: BaseException) -> BaseException:
    # The first frame is this module's; a reader wants those of the job.
    trace = error.__traceback__
    return error.with_traceback(trace.tb_next) if trace is not None and trace.tb_next else error


_Steps: TypeAlias = Generator[_Do, _Came, T]


class Testing:
    """A block in which an app needs no server, as ``app.testing()`` returns it.

    A context manager in both colours. Not for nesting, nor for several threads that each
    want a queue of their own.

    Args:
        app: the app; it is as before when the block ends.

    Raises:
        ConfigError: the `testing` extra is not installed.
    """

    __test__ = False  # pytest takes classes of this name for tests

    def __init__(self, app: LaneQ) -> None:
        try:
            import fakeredis  # noqa: PLC0415  an optional extra
        except ImportError as error:
            raise ConfigError(
                "app.testing() needs fakeredis: pip install 'laneq-redis[testing]'"
            ) from error
        self._app = app
        self._new_client: Callable[[], Any] = lambda: fakeredis.FakeRedis(
            server=fakeredis.FakeServer()
        )
        self._client: Any = None
        self._lock = threading.RLock()  # of the client
        self._one_run = threading.Lock()
        self._turn = asyncio.Lock()
        self._worker_id = ids.worker_id()
        self._claims: workers.ClaimCalls | None = None
        self._now_us = 0
        self._seq = 0
        self._calls = 0
        self._plans = Plans(app.tasks)
        self._running: RunningJob | None = None
        self._loop: asyncio.Runner | None = None

    def __enter__(self) -> Self:
        self._app.use_stand_in(self)
        self._client = self._new_client()
        return self

    def __exit__(self, *_: object) -> None:
        self._app.use_stand_in(None)
        self._client.close()
        if self._loop is not None:
            _outside_of_loops(self._loop.close)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()

    # --- what a test asks for ---------------------------------------------------------

    def run_all(self, *, advance: bool = False, limit: int = MOST_ATTEMPTS) -> int:
        """Run what is waiting, and what that enqueues, until nothing is.

        Coroutine functions run on one event loop of this block.

        Args:
            advance: whether to run what is scheduled too (delays, retries): the queue's clock is
                put forward to each job's time in turn.
            limit: attempts after which this is given up as endless.

        Returns:
            The number of attempts that were made.

        Raises:
            UsageError: the limit is reached, or a job calls this.
        """
        self._refuse_inside()
        steps = self._steps(advance=advance, limit=limit)
        return _outside_of_loops(functools.partial(self._drive, steps))

    async def arun_all(self, *, advance: bool = False, limit: int = MOST_ATTEMPTS) -> int:
        """Run what is waiting, on the running event loop; the asynchronous twin of `run_all`.

        Functions that are not asynchronous run in a thread.
        """
        self._refuse_inside()
        async with self._turn:
            return await self._adrive(self._steps(advance=advance, limit=limit))

    def advance(self, seconds: Seconds) -> None:
        """Put the queue's clock forward, so that what is scheduled becomes due.

        The clock never goes back: until real time has caught up, it stands still.

        Raises:
            OptionError: it is no number of seconds from 0.
        """
        us = to_us(seconds_of("seconds", seconds))
        with self._lock:
            self._claim(free=0, clock_us=self._claim(free=0).now_us + us)

    # --- calls, as a driver carries them out --------------------------------------------

    def call(self, call: Call[T]) -> T:
        """Carry out one script call and return its value."""
        with self._lock:
            keys, argv = call.keys, call.argv
            if call.once:
                self._calls += 1
                session = self._app.keys.prefix + b"session:testing"
                keys, argv = (session, session, *keys), (self._calls, 0, *argv)
            reply = self._client.execute_command("EVAL", call.script.plain, len(keys), *keys, *argv)
            if call.script.name == "cancel" and reply[0] == b"requested":
                self._tell_cancel(str(argv[0]))
            return call.read(reply)

    def _tell_cancel(self, job_id: str) -> None:
        # A worker hears of it on its channel.
        if self._running is not None and self._running.id == job_id:
            self._running.is_cancelled = True

    def run(self, plan: Plan[T], /) -> T:
        """Carry out a plan; a wait runs what is due."""
        return step_through(
            plan, lambda step: self._wait(step) if isinstance(step, Until) else self.call(step)
        )

    async def arun(self, plan: Plan[T], /) -> T:
        """Carry out a plan in a coroutine; the asynchronous twin of `run`."""

        async def act(step: Call[Any] | Until[Any]) -> Any:
            return await self._await(step) if isinstance(step, Until) else self.call(step)

        return await astep_through(plan, act)

    def _wait(self, until: Until[T]) -> T:
        value = self.call(until.call)
        if value is None:
            self.run_all()
            value = self.call(until.call)
        return _come(value)

    async def _await(self, until: Until[T]) -> T:
        value = self.call(until.call)
        if value is None:
            await self.arun_all()
            value = self.call(until.call)
        return _come(value)

    # --- drivers of a run -----------------------------------------------------------------

    def _refuse_inside(self) -> None:
        job = running_here()
        if job is not None:
            raise UsageError(
                f"job {job.id} cannot run other jobs: they would run inside it, as no worker "
                "does. Call run_all() in the test."
            )

    def _drive(self, steps: _Steps[int]) -> int:
        with self._one_run:
            if self._loop is None:
                self._loop = asyncio.Runner()
            loop = self._loop

            def act(step: _Do) -> _Came:
                return loop.run(step.arun(), context=step.context) if step.is_async else step.run()

            return step_through(steps, act)

    async def _adrive(self, steps: _Steps[int]) -> int:
        loop = asyncio.get_running_loop()

        async def act(step: _Do) -> _Came:
            if step.is_async:
                return await loop.create_task(step.arun(), context=step.context)
            return await asyncio.to_thread(step.run)

        return await astep_through(steps, act)

    # --- a run ------------------------------------------------------------------------------

    def _steps(self, *, advance: bool, limit: int) -> _Steps[int]:
        self.call(self._app.publish_call())
        attempts = 0
        ended: list[Ended] = []
        held: list[Ended] = []  # jobs of tasks that this app has not: for other apps' workers
        try:
            while True:
                reply = self._claim(free=1, ended=ended)
                ended = []
                if reply.jobs:
                    (claimed,) = reply.jobs
                    # Should the test be interrupted, the job is as if it had not begun.
                    ended = [_ended(claimed, "handed_back")]
                    if attempts == limit:
                        raise UsageError(
                            f"run_all made {limit:,} attempts and more is waiting: do jobs "
                            "enqueue each other for ever? If not, raise the limit."
                        )
                    outcome = yield from self._attempt(claimed)
                    if outcome is None:
                        held, ended = held + ended, []
                    else:
                        ended = [outcome]
                        attempts += 1
                elif not reply.is_more:
                    if not advance:
                        return attempts
                    held = self._report(held)
                    if not self._advance_to_next():
                        return attempts
        finally:
            self._report(ended + held)

    def _attempt(self, claimed: Claimed) -> _Steps[Ended | None]:
        try:
            plan = self._plans.make(claimed.record)
        except UnreadablePayload as unreadable:
            body = codec.encode_error(codec.describe_exception(unreadable))
            return _ended(claimed, "dead", body=body)
        if isinstance(plan, str):
            return None
        job = self._running = self._job(claimed, plan)
        context = contextvars.copy_context()
        context.run(enter, job)
        hooks = functools.partial(call_hooks, self._app.middleware)
        if self._app.middleware:
            yield _Do(context, functools.partial(hooks, "before_job", job), is_async=True)
        verdict, error = yield from self._outcome(claimed, plan, context)
        if self._app.middleware:
            if verdict.error is not None:
                told = verdict.error
                error = error or JobFailed(job.id, told.type, told.message, told.traceback)
                yield _Do(
                    context, functools.partial(hooks, "on_failure", job, error), is_async=True
                )
                last = (
                    functools.partial(hooks, "on_dead", job, error)
                    if verdict.kind == "dead"
                    else functools.partial(hooks, "on_retry", job, error, verdict.number / 1e6)
                )
                yield _Do(context, last, is_async=True)
            after = functools.partial(hooks, "after_job", job, verdict.kind, backwards=True)
            yield _Do(context, after, is_async=True)
        number = verdict.number
        if verdict.kind == "succeeded" and number:
            number = max(number, _TO_THE_END_US)
        ended = _ended(claimed, verdict.kind, number=number, body=verdict.body)
        ended.children = job.children
        return ended

    def _job(self, claimed: Claimed, plan: JobPlan) -> RunningJob:
        def report(value: bytes) -> None:
            call = jobs.report_progress(
                self._app.keys, claimed.id, fence=claimed.fence, value=value
            )
            self.call(call)

        return RunningJob(
            id=claimed.id,
            task=plan.task,
            lane=claimed.lane,
            attempt=claimed.attempt,
            max_attempts=plan.retry.max_attempts,
            enqueued_us=claimed.enqueued_us,
            fence=claimed.fence,
            deadline_us=self._now_us + plan.timeout_us if plan.timeout_us else None,
            lanes=self._claims_in_force().lanes.names,
            on_progress=report,
        )

    def _outcome(
        self, claimed: Claimed, plan: JobPlan, context: contextvars.Context
    ) -> _Steps[tuple[Verdict, BaseException | None]]:
        retry, attempt = plan.retry, claimed.attempt
        try:
            args, kwargs = codec.decode_call(claimed.record.partition(b"\n")[2])
        except UnreadablePayload as problem:
            return outcomes.raised(problem, retry=retry, attempt=attempt), problem
        function = functools.partial(self._app.tasks[plan.task].function, *args, **kwargs)
        value, error = yield _Do(
            context, function, is_async=plan.is_coroutine, timeout_s=plan.timeout_s
        )
        if isinstance(error, _TimedOut):
            return outcomes.timed_out(
                plan.timeout_s or 0.0, error.__cause__, retry=retry, attempt=attempt
            ), None
        if error is None:
            return outcomes.returned(
                value, keep_us=plan.keep_us, max_payload=self._app.max_payload
            ), None
        return outcomes.raised(error, retry=retry, attempt=attempt), error

    # --- the worker's calls -------------------------------------------------------------------

    def _claims_in_force(self) -> workers.ClaimCalls:
        if self._claims is None:
            in_force = self.call(lanes.read_lanes(self._app.keys))
            self._claims = workers.ClaimCalls(self._app.keys, self._worker_id, in_force)
        return self._claims

    def _claim(
        self, *, free: int, ended: Sequence[Ended] = (), clock_us: int = 0
    ) -> workers.ClaimReply:
        with self._lock:
            while True:
                claims = self._claims_in_force()
                self._seq += 1
                call = claims.claim(
                    seq=self._seq,
                    slots=1,
                    free=free,
                    seats={name: Seats(is_served=True) for name in claims.lanes.names},
                    outcomes=ended,
                    fence_floor=clock_us,  # the clock is never behind the greatest fence
                )
                reply = self.call(call)
                if reply is not None:
                    self._now_us = reply.now_us
                    return reply
                self._claims = None  # the lanes have changed

    def _report(self, ended: list[Ended]) -> list[Ended]:
        """Report outcomes without taking a job; return the empty list of what is left."""
        for first in range(0, len(ended), workers.CLAIM_MAX):
            self._claim(free=0, ended=ended[first : first + workers.CLAIM_MAX])
        return []

    def _advance_to_next(self) -> bool:
        """Put the clock forward to the next scheduled job; false where there is none."""
        keys, names = self._app.keys, self._claims_in_force().lanes.names
        due: list[float] = []
        for name in names:
            place = keys.of_lane("scheduled", name)
            first = self.call(jobs.page(keys, place, offset=0, limit=1)).ids
            views = self.call(jobs.look(keys, first, lanes=names)) if first else []
            due += [view.ready_at for view in views if view is not None and view.ready_at]
        if not due:
            return False
        # Seconds of our days are exact to a quarter of a microsecond as a float.
        self._claim(free=0, clock_us=to_us(min(due)) + 1)
        return True


def _ended(claimed: Claimed, kind: str, *, number: int = 0, body: bytes = b"") -> Ended:
    return Ended(claimed.lane, claimed.id, claimed.fence, kind, number, body)


def _come(value: T | None) -> T:
    if value is None:
        raise TimeoutError(
            "in app.testing() a job that waits for a time of its own ends only after "
            "t.run_all(advance=True), or t.advance(seconds) and t.run_all()"
        )
    return value


def _outside_of_loops(function: Callable[[], T]) -> T:
    """Call a function where no event loop runs: here, else in a thread of its own."""
    if running_loop() is None:
        return function()
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1, thread_name_prefix="laneq-testing") as thread:
        return thread.submit(context.run, function).result()
