"""Run claimed jobs and turn how they end into outcomes.

A job is a `Run` from its claim to its outcome. It ends once: whoever is first (the function
returning, the time-out, the loss of its lease, the end of the worker) settles it, and what
comes later is discarded.

Stopping a run early has a reason, and the reason decides the outcome:

========= ===================== ================================================
reason    how it is stopped     outcome
========= ===================== ================================================
timeout   see below             a failed attempt, whatever the function still returns
cancel    see below             cancelled, whatever the function still returns
lost      see below             none: another attempt may be running
drain     see below             handed back, unless the function returned after all
========= ===================== ================================================

A coroutine is cancelled; one that has not ended a second later is stuck: it is settled all the
same and its slot is free. One that blocks the loop is interrupted: see `laneq.worker.interrupt`.
A thread gets `JobTimeout` raised in it at its time-out, and is stuck a second later; otherwise it
is told (`is_cancelled`, `lease_lost`) and keeps its slot until it returns. A child process is
killed.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, Literal, NamedTuple, Protocol

from laneq import codec
from laneq.calls.jobs import NewJob
from laneq.calls.workers import Claimed, ClaimReply, Ended
from laneq.drive import Address
from laneq.errors import JobControl, JobFailed, UnknownEnvelope, UnreadablePayload
from laneq.middleware import Middleware
from laneq.running import RunningJob, enter
from laneq.worker import outcomes
from laneq.worker.child import Home, Order
from laneq.worker.children import Children
from laneq.worker.lines import Throttle, log
from laneq.worker.meter import Meter
from laneq.worker.outcomes import Verdict
from laneq.worker.plans import Plan, Plans, RunnableTask
from laneq.worker.slots import Slots
from laneq.worker.threads import Threads, Work

Reason = Literal["timeout", "cancel", "lost", "drain"]

#: Seconds that a job which was told to end may take for it before it counts as stuck.
STUCK_AFTER_S: Final = 1.0

#: Seconds that a child process may take to start and to import the task. They are none of
#: the job's time: an import may take longer than the job.
BEGIN_LIMIT_S: Final = 120.0

#: How long a job waits before it is offered again, when this worker does not know its
#: task, or cannot read its payload since a newer laneq wrote it. Microseconds.
UNKNOWN_TASK_US: Final = 5_000_000
UNKNOWN_ENVELOPE_US: Final = 30_000_000

#: Seconds that one hook may take, so that one that hangs does not hold a job for ever.
HOOK_LIMIT_S: Final = 30.0

# What was not the job's own end does not commit what it enqueued.
_WITHOUT_CHILDREN: Final = frozenset({"handed_back", "cancelled"})

# Of these nothing is told of how long they took.
_UNMEASURED: Final = frozenset({"handed_back", "lost"})

_MOST_EARLY: Final = 1_000
_NO_ARGS: Final = codec.encode_call((), {})
_QUIET_S: Final = 60.0
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_monotonic = time.monotonic
_MAKING: Final = threading.Lock()


class RunnableApp(Protocol):
    """What a runner needs of an app."""

    address: Address
    namespace: str
    max_payload: int

    @property
    def tasks(self) -> Mapping[str, RunnableTask]:
        """Its tasks by name."""
        ...

    @property
    def middleware(self) -> Sequence[Middleware]:
        """Its hooks."""
        ...


class Batch(NamedTuple):
    """The claim that a run came with.

    Attributes:
        now_us: when it was made, by Redis's clock.
        at: when its reply came; monotonic seconds.
        lanes: the lanes that its jobs may enqueue in.
        on_progress: told fence and encoded progress of a job; in any thread.
    """

    now_us: int
    at: float
    lanes: tuple[str, ...]
    on_progress: Callable[[int, bytes], None]


class Run:
    """One attempt of a job in this worker.

    Attributes:
        plan: how it runs.
        claimed: what the claim said of it.
        batch: the claim that it came with.
        began: when the function was called; monotonic seconds, 0 before.
        reason: why it was told to end; None while nobody did.
        is_over: its outcome is settled.
        handle: the asyncio task that it runs in, if it does.
        timer: ends it at its time-out, or gives it up.
        future: gets the outcome for the hooks, where there are any.
        progress: what it reported last.
    """

    # Nothing here refers back to the run: a cycle would leave each job to the
    # garbage collector.
    __slots__ = (
        "_job",
        "batch",
        "began",
        "claimed",
        "future",
        "handle",
        "is_over",
        "plan",
        "progress",
        "reason",
        "timer",
    )

    def __init__(self, plan: Plan, claimed: Claimed, batch: Batch) -> None:
        self.plan = plan
        self.claimed = claimed
        self.batch = batch
        self.began = 0.0
        self.reason: Reason | None = None
        self.is_over = False
        self.handle: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.future: asyncio.Future[Any] | None = None
        self.progress: bytes | None = None
        self._job: RunningJob | None = None

    @property
    def id(self) -> str:
        """Return the job's id."""
        return self.claimed.id

    @property
    def fence(self) -> int:
        """Return the token of its claim."""
        return self.claimed.fence

    @property
    def job(self) -> RunningJob:
        """Return what the function sees of it."""
        return self._job or self.seen()

    @property
    def children(self) -> Sequence[NewJob]:
        """Return the jobs that it enqueued."""
        return () if self._job is None else self._job.children

    def seen(self) -> RunningJob:
        """Return what the function sees of it, made at the first call."""
        with _MAKING:
            if self._job is None:
                claimed, plan, batch = self.claimed, self.plan, self.batch
                self._job = RunningJob(
                    id=claimed.id,
                    task=plan.task,
                    lane=claimed.lane,
                    attempt=claimed.attempt,
                    max_attempts=plan.retry.max_attempts,
                    enqueued_us=claimed.enqueued_us,
                    fence=claimed.fence,
                    deadline_us=batch.now_us + plan.timeout_us if plan.timeout_us else None,
                    lanes=batch.lanes,
                    on_progress=partial(batch.on_progress, claimed.fence),
                )
            return self._job


class Runner:
    """The jobs that run in one worker.

    Args:
        app: its tasks, hooks and limits.
        slots: the worker's.
        meter: the worker's.
        on_ended: called in the loop after an outcome was added to `ended`, or a slot was freed.
        on_progress: told a run that has progress to send; called in any thread.

    Attributes:
        running: fence → run, of all that are not over.
        ended: outcomes to report, oldest first.
        stuck: coroutines and threads that were abandoned and have not ended yet.
        lanes: lanes that jobs may enqueue in.
    """

    def __init__(
        self,
        app: RunnableApp,
        slots: Slots,
        *,
        meter: Meter,
        on_ended: Callable[[], None],
        on_progress: Callable[[Run], None],
    ) -> None:
        self._app = app
        self._plans = Plans(app.tasks)
        self._slots = slots
        self._meter = meter
        self._on_ended = on_ended
        self._on_progress = on_progress
        self._loop = asyncio.get_running_loop()
        self._threads = Threads(self._loop, self._thread_ended)
        home = Home(app.address, app.namespace)
        self._children = Children(self._loop, home, deliver=self._child_ended)
        self._early_cancels: set[int] = set()
        self._hooked: set[asyncio.Task[None]] = set()
        self._rare = Throttle(_QUIET_S)
        self.running: dict[int, Run] = {}
        self.ended: list[Ended] = []
        self.stuck: set[Run] = set()
        self.lanes: tuple[str, ...] = ()

    def warm_up(self) -> None:
        """Start what the first job would otherwise wait for."""
        if any(task.options.executor == "process" for task in self._app.tasks.values()):
            self._children.warm_up()

    def fit(self, slots: int) -> None:
        """End idle threads and child processes that so many slots have no use for."""
        self._threads.fit(slots)
        self._children.fit(slots)

    # --- the beginning ----------------------------------------------------------------

    def take(self, reply: ClaimReply) -> None:
        """Give the jobs of a claim their slots; `start` is to follow."""
        slots = self._slots
        seats = slots.seats
        slots.free -= len(reply.jobs)
        for claimed in reply.jobs:
            seats[claimed.lane].running += 1

    def start(self, reply: ClaimReply) -> None:
        """Start all jobs of a claim, which have their slots."""
        batch = Batch(reply.now_us, _monotonic(), self.lanes, self._note_progress)
        by_head = self._plans.by_head
        running = self.running
        has_hooks = bool(self._app.middleware)
        for claimed in reply.jobs:
            record, fence = claimed.record, claimed.fence
            head, _, payload = record.partition(b"\n")
            plan = by_head.get(head) or self._plan(claimed)
            if plan is None:
                self._slots.give_back(claimed.lane)
                continue
            run = running[fence] = Run(plan, claimed, batch)
            if has_hooks:
                self._begin_with_hooks(run, record, payload)
            else:
                self._launch(run, record, payload)
            if self._early_cancels and fence in self._early_cancels:
                self._early_cancels.discard(fence)
                self.stop(run, "cancel")
        if self.ended:
            self._on_ended()

    def _begin_with_hooks(self, run: Run, record: bytes, payload: bytes) -> None:
        run.future = self._loop.create_future()
        task = self._loop.create_task(self._with_hooks(run, run.future, record, payload))
        self._hooked.add(task)
        task.add_done_callback(self._hooked.discard)

    def _note_progress(self, fence: int, value: bytes) -> None:
        """Keep progress that a job reported, and have it sent; called in any thread."""
        run = self.running.get(fence)
        if run is not None:
            run.progress = value
            self._on_progress(run)

    def refuse(self, reply: ClaimReply) -> None:
        """Hand all jobs of a claim back: the worker is stopping."""
        for claimed in reply.jobs:
            self.ended.append(Ended(claimed.lane, claimed.id, claimed.fence, "handed_back"))

    def _plan(self, claimed: Claimed) -> Plan | None:
        try:
            plan = self._plans.make(claimed.record)
        except UnreadablePayload as error:
            body = codec.encode_error(codec.describe_exception(error))
            self.ended.append(Ended(claimed.lane, claimed.id, claimed.fence, "dead", 0, body))
            log.error("job %s cannot run: %s", claimed.id, error)
            return None
        if isinstance(plan, Plan):
            return plan
        self.ended.append(
            Ended(claimed.lane, claimed.id, claimed.fence, "snoozed", UNKNOWN_TASK_US)
        )
        if self._rare.allows(f"unknown {plan}"):
            log.warning(
                "task %s is not known here; its jobs are left to other workers (job %s). "
                "Deploy its code, or cancel its jobs.",
                plan,
                claimed.id,
            )
        return None

    def _leave_to_newer(self, run: Run, why: str) -> None:
        if self._rare.allows(f"envelope {run.plan.task}"):
            log.warning("job %s is left to a newer worker: %s", run.id, why)
        self._finish(run, "snoozed", UNKNOWN_ENVELOPE_US, b"")

    def _launch(self, run: Run, record: bytes, payload: bytes) -> None:
        """Have the function called."""
        plan = run.plan
        if plan.executor == "process":
            self._send_to_child(run, record)
            return
        if plan.timeout_s is not None:
            run.timer = self._loop.call_later(plan.timeout_s, self.stop, run, "timeout")
        try:
            args, kwargs = ((), {}) if payload == _NO_ARGS else codec.decode_call(payload)
        except UnknownEnvelope as error:
            self._leave_to_newer(run, str(error))
        except UnreadablePayload as error:
            self._raised(run, error)
        else:
            if plan.executor == "async":
                run.handle = self._loop.create_task(self._run(run, plan.function, args, kwargs))
            else:
                context = contextvars.copy_context()
                context.run(enter, run)
                self._threads.start(Work(run, context, plan.function, args, kwargs))

    async def _run(
        self,
        run: Run,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Run a coroutine function: the hot path."""
        enter(run)
        run.began = _monotonic()
        try:
            value = await function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001  all that a job raises is its outcome
            self._raised(run, error)
        else:
            self._returned(run, value)

    def _send_to_child(self, run: Run, record: bytes) -> None:
        job = run.job
        function = inspect.unwrap(self._app.tasks[job.task].function)
        order = Order(
            module=function.__module__,
            qualname=getattr(function, "__qualname__", ""),
            task=job.task,
            record=record,
            id=job.id,
            lane=job.lane,
            attempt=job.attempt,
            enqueued_us=_us(job.enqueued_at),
            fence=job.fence,
            deadline_us=None if job.deadline is None else _us(job.deadline),
            lanes=list(self.lanes),
            max_payload=self._app.max_payload,
        )
        run.timer = self._loop.call_later(BEGIN_LIMIT_S, self._did_not_begin, run)
        self._children.start(
            run,
            order,
            on_begun=partial(self._begun_in_child, run),
            on_progress=partial(self._note_progress, run.fence),
        )

    def _begun_in_child(self, run: Run) -> None:
        """Take in that a child calls the function now: its time begins."""
        if run.is_over:
            return
        run.began = _monotonic()
        if run.timer is not None:
            run.timer.cancel()
            run.timer = None
        if run.plan.timeout_s is not None:
            run.timer = self._loop.call_later(run.plan.timeout_s, self.stop, run, "timeout")

    def _did_not_begin(self, run: Run) -> None:
        """Kill a child that has not come to call the function; its death is told like any."""
        if not run.is_over:
            log.warning(
                "job %s of task %s: its child process has not imported the task within %g s, "
                "and is killed",
                run.id, run.plan.task, BEGIN_LIMIT_S,
            )  # fmt: skip
            self._children.kill(run)

    # --- the end ----------------------------------------------------------------------

    def _returned(self, run: Run, value: Any) -> None:
        if run.is_over:
            self.stuck.discard(run)
            return
        if run.reason is not None and run.reason != "drain":
            self._stopped(run, None)
            return
        plan = run.plan
        if value is None and run.future is None:
            self._finish(run, "succeeded", plan.keep_us, outcomes.NOTHING)
            return
        self._settle(
            run,
            outcomes.returned(value, keep_us=plan.keep_us, max_payload=self._app.max_payload),
        )

    def _raised(self, run: Run, error: BaseException) -> None:
        if run.is_over:
            self.stuck.discard(run)
            return
        # The first frame is the worker's; a reader wants those of the job.
        trace = error.__traceback__
        if trace is not None and trace.tb_next is not None:
            # Not its own method, which may be another.
            error = BaseException.with_traceback(error, trace.tb_next)
        if run.reason is not None and not (run.reason == "drain" and isinstance(error, JobControl)):
            self._stopped(run, error)
            return
        verdict = outcomes.raised(error, retry=run.plan.retry, attempt=run.claimed.attempt)
        self._settle(run, verdict, error)

    def _stopped(self, run: Run, error: BaseException | None) -> None:
        """Settle a run by the reason for which it was told to end."""
        plan = run.plan
        match run.reason:
            case "timeout":
                limit_s = plan.timeout_s or 0.0
                attempt = run.claimed.attempt
                verdict = outcomes.timed_out(limit_s, error, retry=plan.retry, attempt=attempt)
                self._settle(run, verdict)
            case "cancel":
                self._settle(run, Verdict("cancelled", plan.keep_us, b""))
            case "lost":
                self._settle(run, Verdict("lost", 0, b""))
            case _:
                self._settle(run, Verdict("handed_back", 0, b""))

    def _thread_ended(self, run: Run, value: Any, error: BaseException | None) -> None:
        if error is None:
            self._returned(run, value)
        else:
            self._raised(run, error)

    def _child_ended(self, run: Run, end: Verdict | str) -> None:
        if run.is_over:
            return
        if run.reason is not None and (run.reason != "drain" or isinstance(end, str)):
            self._stopped(run, None)
        elif isinstance(end, str):
            verdict = outcomes.lost_process(end, retry=run.plan.retry, attempt=run.claimed.attempt)
            self._settle(run, verdict)
        elif end.kind == "unknown_envelope":
            self._leave_to_newer(run, end.error.message if end.error else "")
        else:
            run.job.children.extend(NewJob(*row) for row in end.children)
            self._settle(run, end)

    def _settle(self, run: Run, verdict: Verdict, error: BaseException | None = None) -> None:
        """Decide how a run ended, once; hooks, where there are any, come before the report."""
        run.is_over = True
        if verdict.problem:
            log.error("job %s of task %s: %s", run.id, run.plan.task, verdict.problem)
        self._tell_failure(run, verdict)
        if run.future is None:
            self._finish(run, verdict.kind, verdict.number, verdict.body)
        elif not run.future.done():
            run.future.set_result((verdict, error))

    def _tell_failure(self, run: Run, verdict: Verdict) -> None:
        job, told = run.job, verdict.error
        if told is None:
            return
        if verdict.kind == "dead":
            log.warning(
                "job %s of task %s is dead after attempt %d of %d: %s: %.500s",
                job.id, job.task, job.attempt, job.max_attempts, told.type, told.message,
            )  # fmt: skip
        else:
            log.info(
                "job %s of task %s failed in attempt %d of %d, again in %.3g s: %s: %.500s",
                job.id, job.task, job.attempt, job.max_attempts, verdict.number / 1e6,
                told.type, told.message,
            )  # fmt: skip

    def _finish(self, run: Run, kind: str, number: int, body: bytes) -> None:
        """Free the slot and have the outcome reported, once."""
        if self.running.pop(run.claimed.fence, None) is None:
            return
        run.is_over = True
        claimed = run.claimed
        lane = claimed.lane
        slots = self._slots
        slots.free += 1
        slots.seats[lane].running -= 1
        if run.timer is not None:
            run.timer.cancel()
        if kind != "lost":
            ended = Ended(lane, claimed.id, claimed.fence, kind, number, body)
            if run.children and kind not in _WITHOUT_CHILDREN:
                ended.children = run.children
            self.ended.append(ended)
        at = _monotonic()
        # First on its way, then measured: Redis works meanwhile.
        self._on_ended()
        if run.began and kind not in _UNMEASURED:
            batch = run.batch
            wait_us = batch.now_us - claimed.score_us - run.plan.boost_us
            self._meter.note(lane, wait_us, (at - run.began) * 1e6, wait_us + (at - batch.at) * 1e6)

    # --- stopping ---------------------------------------------------------------------

    def stop(self, run: Run, reason: Reason) -> None:
        """Tell a run to end early, for a reason."""
        if run.is_over:
            return
        if reason == "lost":
            run.job.lease_lost = True
        elif reason == "cancel":
            run.job.is_cancelled = True
        if run.reason in {None, "drain"} or reason == "lost":
            run.reason = reason
        match run.plan.executor:
            case "process":
                self._children.kill(run)
                if not run.began:
                    self._stopped(run, None)
            case "thread":
                if reason == "timeout":
                    self._threads.interrupt(run)
                    run.timer = self._loop.call_later(STUCK_AFTER_S, self._is_stuck, run)
            case _:
                self._stop_coroutine(run)

    def _stop_coroutine(self, run: Run) -> None:
        if not run.began:
            # The coroutine is not entered yet, so it cannot tell that it was cancelled.
            self._stopped(run, None)
            if run.handle is not None:
                run.handle.cancel()
        elif run.handle is not None:
            run.handle.cancel()
            if run.timer is not None:
                run.timer.cancel()
            run.timer = self._loop.call_later(STUCK_AFTER_S, self._is_stuck, run)

    def _is_stuck(self, run: Run) -> None:
        """Give up on a job that did not end when it was told to."""
        if run.is_over:
            return
        self.stuck.add(run)
        log.warning(
            "job %s of task %s did not end when it was told to (%s); it goes on without a slot, "
            "and what it returns is discarded",
            run.id, run.plan.task, run.reason,
        )  # fmt: skip
        self._stopped(run, None)

    def cancel_early(self, fence: int) -> None:
        """Cancel a job as soon as it starts, if its claim's reply is still on its way."""
        if len(self._early_cancels) >= _MOST_EARLY:
            self._early_cancels.clear()
        self._early_cancels.add(fence)

    @property
    def has_stoppable(self) -> bool:
        """Return whether a run is left that can be made to end."""
        return any(run.plan.executor != "thread" for run in self.running.values())

    def stop_all(self) -> None:
        """Tell all runs to end, since the worker does."""
        self._children.keeps_spare = False
        for run in list(self.running.values()):
            self.stop(run, "drain")

    def hand_back_all(self) -> bool:
        """Settle all runs that are left; return whether code of theirs may still be running."""
        for run in list(self.running.values()):
            if not run.is_over:
                run.reason = run.reason or "drain"
                self.stuck.add(run)
                self._stopped(run, None)
            if run.future is not None and run.future.done():
                verdict: Verdict = run.future.result()[0]
                self._finish(run, verdict.kind, verdict.number, verdict.body)
        return bool(self.stuck)

    async def aclose(self) -> None:
        """End threads and child processes."""
        self._threads.close()
        await self._children.aclose()

    # --- hooks ------------------------------------------------------------------------

    async def _with_hooks(
        self, run: Run, future: asyncio.Future[Any], record: bytes, payload: bytes
    ) -> None:
        job = run.job
        enter(job)
        await self._call_hooks("before_job", job)
        if run.reason is not None and not run.is_over:
            self._stopped(run, None)
        if not run.is_over:
            self._launch(run, record, payload)
        verdict, error = await future
        if verdict.error is not None:
            told = verdict.error
            error = error or JobFailed(job.id, told.type, told.message, told.traceback)
            await self._call_hooks("on_failure", job, error)
            if verdict.kind == "dead":
                await self._call_hooks("on_dead", job, error)
            else:
                await self._call_hooks("on_retry", job, error, verdict.number / 1e6)
        outcome = "handed_back" if verdict.kind == "lost" else verdict.kind
        await self._call_hooks("after_job", job, outcome, backwards=True)
        self._finish(run, verdict.kind, verdict.number, verdict.body)

    async def _call_hooks(self, name: str, *args: Any, backwards: bool = False) -> None:
        await call_hooks(self._app.middleware, name, *args, backwards=backwards)


#: The code that awaits a job's coroutine: what it calls in another file is the job's own.
BODY: Final = Runner._run.__code__  # noqa: SLF001


async def call_hooks(
    hooks: Sequence[Middleware], name: str, *args: Any, backwards: bool = False
) -> None:
    """Call one hook of each middleware; what goes wrong in one is logged and left at that.

    Args:
        hooks: the app's middleware.
        name: the method.
        args: its arguments.
        backwards: last one first.
    """
    for hook in reversed(hooks) if backwards else hooks:
        try:
            found = getattr(hook, name)(*args)
            if inspect.isawaitable(found):
                async with asyncio.timeout(HOOK_LIMIT_S):
                    await found
        except BaseException as error:
            # A hook may raise anything, also what would end a job or the program: it ends
            # neither. But whoever cancels the caller, and who sits at the keyboard, are heeded.
            if isinstance(error, KeyboardInterrupt) or (
                isinstance(error, asyncio.CancelledError) and _is_cancelled()
            ):
                raise
            log.exception("hook %s of %s failed", name, type(hook).__name__)


def _is_cancelled() -> bool:
    """Return whether somebody cancels the task that runs here."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _us(instant: datetime) -> int:
    return (instant - _EPOCH) // timedelta(microseconds=1)
