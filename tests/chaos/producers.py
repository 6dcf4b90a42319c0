"""Those who enqueue, cancel, wait and steer while everything breaks; each in a thread of its own.

What they are told goes into the ledger. An error that laneq documents for an outage is no
fault; one that it does not is, and so is an answer that cannot be true.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from laneq import LaneQ
from laneq.calls import jobs as job_calls
from laneq.calls import lanes as lane_calls
from laneq.calls import stats
from laneq.drive import SyncDriver
from laneq.errors import (
    JobCancelled,
    JobEnded,
    JobNotFound,
    LaneqError,
    StoreError,
    WrongState,
)
from tests.chaos.ledger import Ledger, Wanted, now_ns
from tests.chaos.tasks import SCRAP

#: Jobs that may be open before producers pause.
MOST_OPEN: Final = 5_000

#: Seconds beyond its timeout that a call may take on a machine under load.
_MARGIN_S: Final = 15.0

_RESULT_S: Final = 20.0

#: Task → how often it is chosen.
_KINDS: Final = {
    "quick": 60,
    "in_thread": 8,
    "in_process": 1,
    "tells": 1,
    "snoozes": 2,
    "flaky": 6,
    "once": 8,
    "parent": 3,
    "doomed": 1,
    "quits": 1,
    "too_long": 1,
    "expires": 2,
}


class Orders:
    """Makes up calls, from a seed; used by one thread."""

    def __init__(self, app: LaneQ, ledger: Ledger, seed: int) -> None:
        self._app = app
        self._ledger = ledger
        self._rng = random.Random(seed)
        self._kinds, self._weights = list(_KINDS), list(_KINDS.values())

    def next(self) -> tuple[Wanted, Any]:
        """Return a job to be wanted, and its call."""
        rng = self._rng
        (kind,) = rng.choices(self._kinds, self._weights)
        lane = rng.choices(("urgent", "normal", "batch"), (1, 4, 3))[0]
        if kind == "quick" and rng.random() < 0.05:
            lane = SCRAP
        wanted = self._ledger.want(kind, lane)
        options: dict[str, Any] = {"lane": lane}
        if rng.random() < 0.15:
            options["delay"] = rng.uniform(0, 4)
        elif rng.random() < 0.1:
            options["boost"] = rng.uniform(0, 2)
        task: Any = self._app.tasks.get(kind) or self._app.ref(kind)
        call = task.using(**options).call(wanted.number, *self._arguments(kind))
        return wanted, call

    def _arguments(self, kind: str) -> Sequence[Any]:
        rng = self._rng
        seconds = rng.uniform(0, 0.02) if rng.random() < 0.93 else rng.uniform(0.2, 2)
        return {
            "flaky": (rng.randint(1, 3),),
            "parent": (rng.randint(1, 5),),
            "doomed": (),
            "quits": (),
            "too_long": (),
            "once": (min(seconds, 0.5),),
        }.get(kind, (seconds,))


class Crowd:
    """All of them; a context manager.

    Args:
        make_app: makes an app that connects through the network's first proxy.
        direct: carries out calls on the server itself.
        look: notes the outcomes of some jobs.
        ledger: gets what they are told.
        seed: chooses what they do.
        rate: jobs per second, on average.
    """

    def __init__(
        self,
        make_app: Callable[[], LaneQ],
        direct: SyncDriver,
        look: Callable[[Sequence[str]], None],
        *,
        ledger: Ledger,
        seed: int,
        rate: float,
    ) -> None:
        self._make_app = make_app
        self._direct = direct
        self._look = look
        self._ledger = ledger
        self._seed = seed
        self._rate = rate
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(act,), name=act.__name__, daemon=True)
            for act in (
                self._enqueue_singly,
                self._enqueue_in_bulk,
                self._enqueue_in_a_loop,
                self._cancel,
                self._wait,
                self._steer,
            )
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Have them stop, and wait until they have."""
        self._stop.set()
        for thread in self._threads:
            thread.join(_RESULT_S + 2 * _MARGIN_S)
            if thread.is_alive():
                self._ledger.complain(f"{thread.name} hangs: a call has not returned")

    def _guarded(self, act: Callable[[LaneQ], None]) -> None:
        try:
            with self._make_app() as app:
                act(app)
        except BaseException as error:  # noqa: BLE001  what laneq raises beyond its word is a fault
            self._ledger.complain(f"{act.__name__}: {type(error).__name__}: {error}")

    def _pause(self, seconds: float) -> None:
        """Keep to the rate, and wait while too much is open."""
        self._stop.wait(seconds)
        while self._ledger.open_jobs > MOST_OPEN and not self._stop.is_set():
            self._stop.wait(0.2)

    def _took_long(self, what: str, began: float, limit_s: float) -> None:
        took = time.monotonic() - began
        if took > limit_s + _MARGIN_S:
            self._ledger.complain(f"{what} took {took:.1f} s, {limit_s:g} s were the limit")

    # --- producers --------------------------------------------------------------------

    def _enqueue_singly(self, app: LaneQ) -> None:
        orders, rng = Orders(app, self._ledger, self._seed + 1), random.Random(self._seed + 1)
        while not self._stop.is_set():
            wanted, call = orders.next()
            began = time.monotonic()
            try:
                (job,) = app.enqueue_many([call])
                self._ledger.acknowledge(wanted, job)
            except StoreError as error:
                self._ledger.count(f"enqueue: {type(error).__name__}")
            self._took_long("an enqueue", began, 10)
            self._pause(rng.expovariate(self._rate * 0.3))

    def _enqueue_in_bulk(self, app: LaneQ) -> None:
        orders, rng = Orders(app, self._ledger, self._seed + 2), random.Random(self._seed + 2)
        while not self._stop.is_set():
            size = rng.randint(2, 60)
            rows = [orders.next() for _ in range(size)]
            try:
                jobs = app.enqueue_many([call for _, call in rows])
                for (wanted, _), job in zip(rows, jobs, strict=True):
                    self._ledger.acknowledge(wanted, job)
            except StoreError as error:
                self._ledger.count(f"enqueue: {type(error).__name__}", size)
            self._pause(rng.expovariate(self._rate * 0.4 / 31))

    def _enqueue_in_a_loop(self, app: LaneQ) -> None:
        orders, rng = Orders(app, self._ledger, self._seed + 3), random.Random(self._seed + 3)

        async def one() -> None:
            wanted, call = orders.next()
            try:
                (job,) = await app.aenqueue_many([call])
                self._ledger.acknowledge(wanted, job)
            except StoreError as error:
                self._ledger.count(f"aenqueue: {type(error).__name__}")

        async def all_of_them() -> None:
            while not self._stop.is_set():
                n = rng.randint(1, 20)
                await asyncio.gather(*(one() for _ in range(n)))
                await asyncio.to_thread(self._pause, rng.expovariate(self._rate * 0.3 / 10.5))
            await app.aclose()

        self._run_in_a_loop(all_of_them())

    def _run_in_a_loop(self, act: Coroutine[Any, Any, None]) -> None:
        asyncio.run(act)

    # --- others -----------------------------------------------------------------------

    def _cancel(self, app: LaneQ) -> None:
        rng = random.Random(self._seed + 4)
        while not self._stop.wait(rng.expovariate(self._rate * 0.01)):
            recent = self._ledger.recent()
            wanted = rng.choice(recent[-50:]) if recent else None
            if wanted is None or wanted.id is None:
                continue
            wanted.may_be_cancelled = True
            try:
                if app.job(wanted.id).cancel():
                    wanted.cancel_ns = wanted.cancel_ns or now_ns()
                    self._ledger.count("cancelled")
                else:
                    self._ledger.count("cancel came too late")
            except JobNotFound:
                if wanted.lane != SCRAP:
                    self._ledger.complain(f"cancel of {wanted.id} ({wanted.kind}): not found")
            except StoreError as error:
                self._ledger.count(f"cancel: {type(error).__name__}")

    def _wait(self, app: LaneQ) -> None:
        rng = random.Random(self._seed + 5)
        while not self._stop.wait(rng.expovariate(3)):
            recent = [wanted for wanted in self._ledger.recent()[-20:] if wanted.lane != SCRAP]
            if not recent:
                continue
            wanted = rng.choice(recent)
            began = time.monotonic()
            try:
                value = app.job(wanted.id or "").result(timeout=_RESULT_S)
                self._ledger.count("results waited for")
                if not isinstance(value, int):
                    self._ledger.complain(f"result of {wanted.id} ({wanted.kind}): {value!r}")
            except JobCancelled:
                if not wanted.may_be_cancelled:
                    self._ledger.complain(f"{wanted.id} ({wanted.kind}) cancelled by nobody")
            except JobEnded as error:
                self._ledger.count(f"result: {type(error).__name__}")
            except (TimeoutError, StoreError) as error:
                self._ledger.count(f"result: {type(error).__name__}")
            except LaneqError as error:
                self._ledger.complain(f"result of {wanted.id} ({wanted.kind}): {error!r}")
            self._took_long("result(timeout=20)", began, _RESULT_S)

    def _steer(self, app: LaneQ) -> None:
        """Pause, resume and purge lanes, change priorities, revive dead letters, look at lists."""
        rng = random.Random(self._seed + 6)
        acts: tuple[Callable[[LaneQ, random.Random], None], ...] = (
            self._pause_lane,
            self._change_priority,
            self._purge,
            self._revive,
            self._page,
        )
        while not self._stop.wait(rng.expovariate(1)):
            try:
                rng.choice(acts)(app, rng)
            except StoreError as error:
                self._ledger.count(f"operator: {type(error).__name__}")
        self.reset_lanes(app)

    def reset_lanes(self, app: LaneQ) -> None:
        """Take back what the operator has set."""
        for lane in app.lanes:
            while True:
                try:
                    self._direct.call(lane_calls.set_lane(app.keys, lane, None))
                    break
                except StoreError:
                    time.sleep(0.1)

    def _pause_lane(self, app: LaneQ, rng: random.Random) -> None:
        lane = rng.choice(list(app.lanes))
        self._direct.call(lane_calls.set_lane(app.keys, lane, {"paused": True}))
        self._ledger.count("lane paused")
        self._stop.wait(rng.uniform(0, 1))
        while True:
            try:
                self._direct.call(lane_calls.set_lane(app.keys, lane, {"paused": False}))
                return
            except StoreError:
                time.sleep(0.1)

    def _change_priority(self, app: LaneQ, rng: random.Random) -> None:
        lane = rng.choice(list(app.lanes))
        changes = {"priority": rng.choice((5.0, 50.0, 500.0, 5000.0))}
        self._direct.call(lane_calls.set_lane(app.keys, lane, changes))
        self._ledger.count("priority changed")

    def _purge(self, app: LaneQ, rng: random.Random) -> None:
        self._direct.call(lane_calls.purge(app.keys, SCRAP))
        self._ledger.count("lane purged")

    def _revive(self, app: LaneQ, rng: random.Random) -> None:
        lane = rng.choice(("urgent", "normal", "batch"))
        place = app.keys.of_lane("dead", lane)
        page = self._direct.call(job_calls.page(app.keys, place, offset=0, limit=100))
        by_id = {wanted.id: wanted for wanted in self._ledger.acknowledged()}
        letters = [id for id in page.ids if id in by_id]
        for job_id in rng.sample(letters, min(3, len(letters))):
            wanted = by_id[job_id]
            self._look([job_id])  # the outcome goes when the job gets a new life
            # A call that was repeated finds the job open, although it was what revived it.
            wanted.unsure_revivals += 1
            try:
                app.job(job_id).retry()
            except (WrongState, JobNotFound):
                self._ledger.count("revival came too late")
            else:
                self._ledger.count("dead letter revived")
                wanted.unsure_revivals -= 1
                wanted.revived_ns = (*wanted.revived_ns, now_ns())

    def _page(self, app: LaneQ, rng: random.Random) -> None:
        lane = rng.choice(list(app.lanes))
        for word in ("waiting", "leases", "scheduled"):
            place = app.keys.of_lane(word, lane)
            page = self._direct.call(job_calls.page(app.keys, place, offset=0, limit=20))
            self._direct.call(job_calls.look(app.keys, page.ids, lanes=list(app.lanes)))
        self._direct.call(stats.task_counts(app.keys))
        self._ledger.count("lists looked at")
