"""One worker: put its parts together, start it, stop it.

Order of the end (fault J3): jobs first, then their outcomes, then the heartbeat, then the
worker's place on the list, then the connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, Self, TypeVar

from laneq.calls import workers
from laneq.calls.call import Call
from laneq.calls.lanes import LanesInForce
from laneq.calls.workers import Held, WorkerInfo
from laneq.drive import Address, AsyncDriver, SyncDriver, backoff_s
from laneq.drive.switches import SWITCHED
from laneq.errors import StoreError, UnknownLane
from laneq.ids import new_id
from laneq.keys import Keys
from laneq.middleware import Middleware
from laneq.options import Lane, WorkerOptions
from laneq.worker.heartbeat import Heartbeat, Lost, Source
from laneq.worker.interrupt import Interrupter
from laneq.worker.letters import LetterWatch
from laneq.worker.lines import Throttle, log
from laneq.worker.loop import ClaimLoop, shortest_lease_us
from laneq.worker.meter import Meter
from laneq.worker.notify import notify
from laneq.worker.plans import RunnableTask
from laneq.worker.pool import ElasticSlots
from laneq.worker.progress import ProgressSender
from laneq.worker.runner import STUCK_AFTER_S, Reason, Run, Runner, call_hooks
from laneq.worker.server import warn_of_server
from laneq.worker.sizer import ReserveSizer
from laneq.worker.slots import Slots
from laneq.worker.starving import StarvingLanes
from laneq.worker.wellness import LIMIT_S, Signs, Wellness

T = TypeVar("T")

#: Seconds that the last calls may take when the worker stops and Redis is slow or away.
_LAST_CALLS_S: Final = 3.0

#: Seconds of an outage that single calls of a worker ride out; its loop rides out the rest.
_PATIENCE_S: Final = 0.5

_QUIET_S: Final = 5.0

#: A job that still blocks the loop so many seconds after it was to end, although it is
#: interrupted every second, will not end: the worker is hung.
HUNG_AFTER_S: Final = 10.0

#: With so many jobs that did not end when they were told to, a worker begins anew: threads and
#: what they hold are not without end.
MOST_STUCK: Final = 200

_NEVER: Final[tuple[float, Reason]] = (math.inf, "timeout")


class WorkerApp(Protocol):
    """What a worker needs of an app; `LaneQ` is one."""

    keys: Keys
    address: Address
    namespace: str
    max_payload: int

    @property
    def lanes(self) -> Mapping[str, Lane]:
        """The lanes it declares."""
        ...

    @property
    def tasks(self) -> Mapping[str, RunnableTask]:
        """Its tasks by name."""
        ...

    @property
    def middleware(self) -> Sequence[Middleware]:
        """Its hooks."""
        ...

    def publish_call(self) -> Call[int]:
        """Return the call that makes its lanes and tasks known."""
        ...


class Worker:
    """A worker in the running event loop; for programs and tests that have their own loop.

    ::

        async with Worker(app, WorkerOptions(concurrency=4)) as worker:
            job = await shop.aenqueue(1)
            await worker.until_idle()

    Args:
        app: its tasks are run.
        options: see `WorkerOptions`; `processes` is for `supervise`.
        unwell_after_s: seconds without progress after which it calls itself unwell.
        on_hung: called, in a thread, when a job blocks the loop for long after it was to end
            and cannot be interrupted; None leaves it at lines in the log.

    Attributes:
        id: random, of this start.
        slots: which slots are free.
        ready: set once it takes jobs.
        stopped: set once it has left.
        is_clean: whether no code of a job can still be running; valid once stopped.
        has_failed: whether it stopped because of an error of its own.
    """

    def __init__(
        self,
        app: WorkerApp,
        options: WorkerOptions | None = None,
        *,
        unwell_after_s: float = LIMIT_S,
        on_hung: Callable[[], None] | None = None,
        on_share: Callable[[float], None] | None = None,
    ) -> None:
        self._app = app
        self._options = options or WorkerOptions()
        self.id = new_id()
        slots = max(self._options.concurrency, self._options.least_slots)
        self.slots = Slots(slots, self._options.reserved)
        self.ready = asyncio.Event()
        self.stopped = asyncio.Event()
        self.is_clean = True
        self.has_failed = False
        self._meter = Meter()
        self._hurry = asyncio.Event()
        self._stop_asked = asyncio.Event()
        self._is_stopping = False
        self._started_at: float | None = None
        self._served: tuple[str, ...] = ()
        self._lanes: tuple[str, ...] = ()
        self._lease_us: dict[str, int] = {}
        self._blockers: set[str] = set()
        self._end_of_grace: float | None = None
        self._ended_by_news: dict[int, tuple[float, Reason]] = {}
        self._rare = Throttle(_QUIET_S)
        self._starving = StarvingLanes()
        self._is_started = False
        self._turns = 0
        self._is_turn_asked = False
        self._unwell_after_s = unwell_after_s
        self._on_hung = on_hung
        self._on_share = on_share
        self._elastic: ElasticSlots | None = None
        self._elastic_task: asyncio.Task[None] | None = None
        self._sizer: ReserveSizer
        self._sizer_task: asyncio.Task[None] | None = None
        self._interrupter: Interrupter
        self._wellness: Wellness
        self._loop_task: asyncio.Task[None]
        self._heartbeat: Heartbeat
        self._driver: AsyncDriver
        self._claims: ClaimLoop
        self._letters: LetterWatch
        self._progress: ProgressSender
        #: The jobs that run here.
        self.runner: Runner

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # --- start ------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect, make lanes and tasks known, and begin to take jobs.

        Waits, saying so, while Redis is away or loading.

        Raises:
            UnknownLane: a lane to serve or reserve for does not exist.
            ConfigError: the namespace belongs to another schema of laneq.
            RedisRefused: the server refuses for good: a wrong password, say.
        """
        app, options = self._app, self._options
        loop = asyncio.get_running_loop()
        self._driver = AsyncDriver(
            app.address,
            prefix=app.keys.prefix,
            client_name="laneq-worker",
            patience_s=_PATIENCE_S,
            on_disconnect=self._tell_disconnect,
        )
        try:
            await self._until_taken(lambda: self._driver.call(app.publish_call()))
            self.runner = Runner(
                app,
                self.slots,
                meter=self._meter,
                on_ended=self._take_end,
                on_progress=lambda run: self._progress.note(run),  # noqa: PLW0108  likewise
            )
            self._claims = ClaimLoop(
                self._driver,
                app.keys,
                self.id,
                slots=self.slots,
                runner=self.runner,
                poll_s=options.poll_us / 1e6,
                is_burst=options.burst,
                on_lanes=self._know_lanes,
                declared=app.lanes,
                publish=app.publish_call,
            )
            self._sizer = ReserveSizer(
                self._driver, app.keys, self.id, lanes=lambda: self._claims.lanes
            )
            self._letters = LetterWatch(self._driver, app.keys, lambda: self._claims.lanes)
            self._progress = ProgressSender(
                self._driver, app.keys, lambda run: self._lose([run.fence])
            )
            self._heartbeat = self._make_heartbeat(loop)
            self._interrupter = Interrupter(loop)
            if options.max_slots is not None or self._on_share is not None:
                self._elastic = ElasticSlots(
                    self._driver,
                    app.keys,
                    self.id,
                    options=options,
                    slots=self.slots,
                    on_step=self._has_stepped,
                    on_share=self._on_share,
                )
            await self._until_taken(self._claims.know_lanes)
            self._check_lanes()
            await warn_of_server(self._driver)
            now_us = await self._until_taken(
                lambda: self._driver.call(workers.register(app.keys, self.id, self._info()))
            )
            self._started_at = now_us / 1e6
            for channel, told in (
                (app.keys.control_channel(self.id), self._control),
                (app.keys.lanes_channel, self._lanes_changed),
            ):
                await self._until_taken(partial(self._driver.subscribe, channel, told))
            self._heartbeat.start(now_us)
            await call_hooks(app.middleware, "worker_started", self.id)
            self.runner.warm_up()
        except BaseException:
            await self._undo_start()
            raise
        self._wellness = Wellness(self._signs, time.monotonic, limit_s=self._unwell_after_s)
        self._loop_task = loop.create_task(self._claims.run(), name="laneq-claims")
        self._loop_task.add_done_callback(self._loop_ended)
        self._sizer.keep_time(now_us)
        self._sizer_task = loop.create_task(self._sizer.run(), name="laneq-reserves")
        self._sizer_task.add_done_callback(_tell_of_sizer)
        if self._elastic is not None:
            self._elastic.keep_time(now_us)
            self._elastic_task = loop.create_task(self._elastic.run(), name="laneq-pool")
            self._elastic_task.add_done_callback(_tell_of_pool)
        self._interrupter.install()
        self._is_started = True
        self.ready.set()

    async def _undo_start(self) -> None:
        """Leave nothing of a start that failed or was called off: no thread, no registration."""
        if self._started_at is not None:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, self._heartbeat.stop, _LAST_CALLS_S)
            await self._quietly(self._driver.call(workers.leave(self._app.keys, self.id)))
        await self._driver.aclose()

    async def _until_taken(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask again until Redis answers: any step of the start may meet an outage."""
        tries = 0
        while True:
            try:
                return await ask()
            except StoreError as error:
                if not error.is_retryable:
                    raise
                if self._rare.allows("start"):
                    log.warning("waiting for Redis: %s", error)
                await asyncio.sleep(backoff_s(tries))
                tries += 1

    def _tell_disconnect(self, error: StoreError) -> None:
        """Say so when a connection had to be given up without a word from the other side."""
        if SWITCHED in str(error):
            log.warning("%s: the worker changes over", SWITCHED)
        elif "no reply within" in str(error) and self._rare.allows("stale"):
            log.warning("connection stale, a new one is made: %s", error)

    def _make_heartbeat(self, loop: asyncio.AbstractEventLoop) -> Heartbeat:
        app = self._app
        driver = SyncDriver(
            app.address,
            prefix=app.keys.prefix,
            max_connections=1,
            client_name="laneq-heartbeat",
            patience_s=0.0,
        )
        source = Source(
            held=self._held,
            lanes=lambda: self._lanes,
            info=self._info,
            told=lambda news: self._pass_news_on(loop, news),
            blocked=self._tell_blocked,
            failed=lambda: _in_loop(loop, self._fail),
        )
        return Heartbeat(driver, app.keys, self.id, meter=self._meter, source=source, loop=loop)

    def _know_lanes(self, lanes: LanesInForce) -> None:
        wanted = self._options.lanes
        served = [name for name in lanes.names if wanted is None or name in wanted]
        self._served = tuple(served)
        self.slots.know(lanes.names, served)
        self._lease_us = {lane.name: lane.lease_us for lane in lanes.lanes}
        self._lanes = lanes.names
        self._heartbeat.set_interval(shortest_lease_us(lanes))
        self._sizer.know(lanes)
        self._starving.know(lanes)
        if self._elastic is not None:
            self._elastic.know(lanes, self._served)
            self._elastic.idle_s = self._heartbeat.interval_s

    def _has_stepped(self) -> None:
        """Claim for new slots, free what given-up ones had, and have the list show it."""
        self.runner.fit(self.slots.total)
        self._claims.look()
        self._heartbeat.nudge()

    def _check_lanes(self) -> None:
        for name in (*(self._options.lanes or ()), *self._options.reserved):
            if name not in self._lanes:
                raise UnknownLane(name, self._lanes)

    def _info(self) -> WorkerInfo:
        return WorkerInfo(
            name=self._options.name or socket.gethostname(),
            host=socket.gethostname(),
            pid=os.getpid(),
            slots=self.slots.total,
            reserve={lane: min(n, self.slots.total) for lane, n in self._options.reserved.items()},
            lanes=self._served,
            tasks=tuple(self._app.tasks),
            running=self.slots.running,
            started_at=self._started_at,
            alive_us=self._heartbeat.alive_us,
            pool=None if self._elastic is None else self._elastic.view(),
            unwell="; ".join(self.problems()) if self._is_started else "",
            stuck=len(self.runner.stuck),
        )

    def banner(self) -> str:
        """Return what an operator wants to know at the start, as lines."""
        options = self._options
        reserve = ", ".join(f"{lane}={n}" for lane, n in options.reserved.items()) or "none"
        tasks = sorted(self._app.tasks)
        label = options.name or socket.gethostname()
        return "\n".join(
            (
                f"laneq worker {label} (pid {os.getpid()}, id {self.id})",
                f"  redis      {self._app.address}, namespace {self._app.namespace}",
                f"  lanes      {', '.join(self._served)}",
                f"  slots      {self.slots.total}{self._limits()}, reserved: {reserve}",
                f"  tasks      {', '.join(tasks) or 'none: this app has no task'}",
            )
        )

    def _limits(self) -> str:
        options = self._options
        if options.max_slots is None:
            return ""
        return f" of {options.least_slots} to {options.capacity}, as wait objectives need them"

    # --- while it runs ----------------------------------------------------------------

    @property
    def claims(self) -> ClaimLoop:
        """Return the loop that claims."""
        return self._claims

    @property
    def beats(self) -> int:
        """Return how many heartbeats Redis has answered."""
        return self._heartbeat.beats

    def problems(self) -> tuple[str, ...]:
        """Return what is wrong with the worker now, nothing where it works; in any thread."""
        if not self.ready.is_set():
            return ("it has not started: it waits for Redis",)
        return self._wellness.problems()

    def facts(self) -> dict[str, Any]:
        """Return what a probe says of the worker besides; in any thread."""
        return {
            "worker": self.id,
            "slots": self.slots.total,
            "running": self.slots.running,
            "stuck": len(self.runner.stuck) if self._is_started else 0,
        }

    def _signs(self) -> Signs:
        """Return what can be seen of the worker now, and ask its loop for a sign."""
        if not self._is_turn_asked:
            self._is_turn_asked = True
            _in_loop(self._loop_task.get_loop(), self._turn)
        claims = self._claims
        return Signs(
            claims=claims.claims,
            beats=self._heartbeat.beats,
            turns=self._turns,
            must_claim=not claims.is_reported or (self.slots.free > 0 and not self._is_stopping),
            claim_every_s=self._options.poll_us / 1e6,
            beat_every_s=self._heartbeat.interval_s,
        )

    def _turn(self) -> None:
        self._turns += 1
        self._is_turn_asked = False

    async def until_idle(self) -> None:
        """Wait until all that was enqueued before, and can start now, has ended."""
        await self._claims.until_idle()

    async def until_running(self, n: int) -> None:
        """Wait until at least `n` jobs run at the same time."""
        await self._claims.until(lambda: self.slots.running >= n)

    async def until_claimed(self, n: int) -> None:
        """Wait until at least `n` jobs have been claimed since the start."""
        await self._claims.until(lambda: self._claims.claimed >= n)

    def _held(self) -> list[Held]:
        """Return all leases to renew; called by the heartbeat's thread."""
        lease_us = self._lease_us
        # Running first, then unreported: a job moves in this order, so it is in one of them.
        held = {run.fence: (run.claimed.lane, run.id) for run in self._runs()}
        held.update((ended.fence, (ended.lane, ended.id)) for ended in self._claims.unreported())
        return [
            Held(lane, id, fence, lease_us[lane])
            for fence, (lane, id) in held.items()
            if lane in lease_us
        ]

    def _runs(self) -> list[Run]:
        """Return what runs now; safe to call in any thread."""
        while True:
            try:
                return list(self.runner.running.values())
            except RuntimeError:  # the loop's thread came between
                continue

    def _take_end(self) -> None:
        """Take in that an outcome is to be reported, or a slot is free."""
        if len(self.runner.stuck) >= MOST_STUCK and not self.has_failed:
            log.critical(
                "%d jobs did not end when they were told to and run on: the worker stops. Use "
                "executor='process' for what blocks.",
                len(self.runner.stuck),
            )
            self._fail()
        ended = self.runner.ended
        if ended and ended[-1].kind == "dead":
            self._letters.note(ended[-1].lane)
        self._claims.report()

    def _pass_news_on(self, loop: asyncio.AbstractEventLoop, news: Lost) -> None:
        """Keep what a beat learned for a job that blocks the loop; called by its thread."""
        now, before = time.monotonic(), self._ended_by_news
        told: dict[int, Reason] = dict.fromkeys(news.cancels, "cancel")
        told |= dict.fromkeys(news.lost, "lost")
        self._ended_by_news = {
            fence: before.get(fence, (now, reason)) for fence, reason in told.items()
        }
        _in_loop(loop, self._take_news, news)

    def _take_news(self, news: Lost) -> None:
        self._lose(news.lost)
        for fence in news.cancels:
            self._cancel(fence)

    def _lose(self, fences: Sequence[int] | frozenset[int]) -> None:
        for fence in fences:
            run = self.runner.running.get(fence)
            if run is not None and not run.is_over and run.reason != "lost":
                log.warning(
                    "job %s of task %s: lease lost, what it returns here is discarded; "
                    "another attempt has it",
                    run.id,
                    run.plan.task,
                )
                self.runner.stop(run, "lost")

    def _lanes_changed(self, _: bytes) -> None:
        self._claims.look()

    def _control(self, message: bytes) -> None:
        words = message.split(b" ")
        if len(words) == 3 and words[0] == b"cancel" and words[2].isdigit():  # noqa: PLR2004
            self._cancel(int(words[2]))

    def _cancel(self, fence: int) -> None:
        run = self.runner.running.get(fence)
        if run is None:
            self.runner.cancel_early(fence)
        elif not run.job.is_cancelled:
            self.runner.stop(run, "cancel")

    def _tell_blocked(self, seconds: float) -> None:
        """Name the job that keeps the loop from turning; called by the heartbeat's thread.

        One that is to end is interrupted: the loop cannot cancel it.
        """
        run = self._on_the_loop()
        if run is not None:
            self._end_blocker(run)
        task = run.plan.task if run is not None else "?"
        if task in self._blockers:
            return
        self._blockers.add(task)
        if run is not None:
            log.warning(
                "task %s blocks the event loop, for %.1f s so far (job %s): no other job of this "
                "process goes on meanwhile. Make it a plain function, or use executor='process'.",
                task,
                seconds,
                run.id,
            )
        else:
            log.warning("the event loop has been blocked for %.1f s", seconds)

    def _end_blocker(self, run: Run) -> None:
        """Interrupt a job that blocks the loop if it is to end; give the worker up if it cannot."""
        limit_s = run.plan.timeout_s
        due = [self._ended_by_news.get(run.fence)]
        if limit_s is not None and run.began:
            due.append((run.began + limit_s, "timeout"))
        if self._end_of_grace is not None:
            due.append((self._end_of_grace, "drain"))
        at, reason = min((each for each in due if each is not None), default=_NEVER)
        over_s = time.monotonic() - at
        if over_s < 0:
            return
        if over_s >= HUNG_AFTER_S and self._on_hung is not None:
            log.critical(
                "job %s of task %s blocks the event loop, %.0f s after it was to end (%s), and "
                "cannot be interrupted: nothing goes on here. Use executor='process' for it.",
                run.id, run.plan.task, over_s, reason,
            )  # fmt: skip
            self._on_hung()
        self._interrupter.interrupt(run, reason)

    def _on_the_loop(self) -> Run | None:
        if not self._is_started:
            return None
        current = asyncio.current_task(self._loop_task.get_loop())
        for run in self._runs():
            if run.handle is not None and run.handle is current:
                return run
        return None

    def _loop_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.critical("the claim loop failed, the worker stops", exc_info=task.exception())
            self._fail()
        self.begin_stop()

    def _fail(self) -> None:
        self.has_failed = True
        self.begin_stop()

    # --- stop -------------------------------------------------------------------------

    def note_stop(self) -> None:
        """Have the grace begin now, also if a job blocks the loop; safe in a signal's handler."""
        self._end_of_grace = time.monotonic() + self._options.grace_us / 1e6

    def note_hurry(self) -> None:
        """Have the grace end now, also if a job blocks the loop; safe in a signal's handler."""
        self._end_of_grace = time.monotonic()

    def begin_stop(self) -> None:
        """Take no further jobs from now on; `stop` does the rest."""
        if not self._is_stopping:
            self._is_stopping = True
            if self._is_started:
                notify("STOPPING=1")
                self._claims.drain()
        self._stop_asked.set()

    def hurry(self) -> None:
        """End the grace: hand back what still runs."""
        self._hurry.set()

    async def until_asked_to_stop(self) -> None:
        """Wait until something asked the worker to stop, a burst that ended say."""
        await self._stop_asked.wait()

    async def stop(self, grace_s: float | None = None) -> None:
        """Let jobs end, hand back those that do not, and leave.

        Args:
            grace_s: seconds that running jobs get; None for the option.
        """
        if not self._is_started or self.stopped.is_set():
            self.stopped.set()
            return
        self.begin_stop()
        if self._sizer_task is not None:
            self._sizer_task.cancel()
        if self._elastic_task is not None:
            self._elastic_task.cancel()
        limit_s = self._options.grace_us / 1e6 if grace_s is None else grace_s
        began = time.monotonic()
        if self._end_of_grace is not None:
            limit_s = max(0.0, min(limit_s, self._end_of_grace - began))
        if not await self._within(limit_s, lambda: not self.slots.running, hurried=True):
            log.info("%d jobs still run at the end of the grace", self.slots.running)
            self.runner.stop_all()
            await self._within(STUCK_AFTER_S + 0.5, lambda: not self.runner.has_stoppable)
        # Outcomes that Redis could not take so far get what is left of the grace.
        left_s = max(_LAST_CALLS_S, limit_s - (time.monotonic() - began))
        await self._within(left_s, lambda: self._claims.is_reported, hurried=True)
        await call_hooks(self._app.middleware, "worker_stopping", self.id)
        await self._leave()

    async def _within(self, limit_s: float, is_so: Any, *, hurried: bool = False) -> bool:
        """Wait for a condition, at most so long; return whether it holds."""
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._claims.until(is_so))]
        if hurried:
            waits.append(asyncio.ensure_future(self._hurry.wait()))
        await asyncio.wait(
            (*waits, self._loop_task), timeout=limit_s, return_when=asyncio.FIRST_COMPLETED
        )
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        return bool(is_so())

    async def _leave(self) -> None:
        loop = asyncio.get_running_loop()
        if not self.slots.running:
            await self._end_claims()
        await loop.run_in_executor(None, self._heartbeat.stop, _LAST_CALLS_S)
        self._letters.close()
        await self._progress.aclose()
        await self._quietly(self._driver.call(workers.leave(self._app.keys, self.id)))
        # What is left are threads, and coroutines that do not end. They are handed back in
        # the last call, so that as little as can be is between it and the process's exit.
        self.is_clean = not self.runner.hand_back_all()
        await self._end_claims()
        await self._claims.aclose()
        await self._driver.aclose()
        await self.runner.aclose()
        self._interrupter.remove()
        self.stopped.set()

    async def _end_claims(self) -> None:
        self._claims.finish()
        await asyncio.wait((self._loop_task,), timeout=_LAST_CALLS_S)
        if not self._loop_task.done():
            unreported = len(self._claims.unreported())
            if unreported:
                log.error(
                    "%d outcomes could not be reported; their jobs run again when their leases end",
                    unreported,
                )
            self._loop_task.cancel()
            await asyncio.wait((self._loop_task,))

    async def _quietly(self, call: Any) -> None:
        try:
            async with asyncio.timeout(_LAST_CALLS_S):
                await call
        except (StoreError, TimeoutError) as error:
            # The list forgets a worker that does not beat.
            log.info("the worker could not sign off: %s", error)


def _tell_of_pool(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("the worker keeps the slots that it has from now on", exc_info=task.exception())


def _tell_of_sizer(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("this worker sizes no reserves from now on", exc_info=task.exception())


def _in_loop(loop: asyncio.AbstractEventLoop, function: Any, *args: Any) -> None:
    """Have a function called in the loop, unless that has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *args)
