"""Keep the leases of a worker: a thread of its own, with a connection of its own.

A job that blocks the event loop, or computes in Python for long, therefore does not lose its
lease. Native code that never lets go of the GIL stops this thread too: then the lease runs
out, and the fence keeps the outcome from counting twice.

The thread is started before the first job and ends after the last outcome is recorded.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from laneq.calls import workers
from laneq.calls.workers import Held, WorkerInfo
from laneq.drive import SyncDriver
from laneq.errors import StoreError
from laneq.keys import Keys
from laneq.worker.lines import Throttle, log
from laneq.worker.meter import Meter

#: Seconds between beats while there are measurements to send.
_SAMPLES_S: Final = 1.0
_SHORTEST_S: Final = 0.2
_LONGEST_S: Final = 5.0

#: A worker counts as alive for four intervals after a beat, and for so many seconds at least.
_SHORTEST_ALIVE_S: Final = 2.0

#: Renewals are tried again this soon after Redis could not be reached.
_AGAIN_S: Final = 0.5

#: Seconds between looks at the loop.
_WATCH_S: Final = 1.0

#: The loop counts as blocked when it has not answered for this many seconds.
BLOCKED_S: Final = 1.0

_QUIET_S: Final = 30.0

#: The host's wall clock is told to be off from this many seconds on.
SKEW_S: Final = 5.0


class Lost(NamedTuple):
    """Leases that are gone and cancels that were asked for, as fences."""

    lost: frozenset[int]
    cancels: frozenset[int]


class Source(NamedTuple):
    """Where a heartbeat gets what it sends, and whom it tells. All are called in its thread.

    Attributes:
        held: the leases to renew.
        lanes: all lanes in force.
        info: what to register.
        told: gets what the beat learned.
        blocked: told for how many seconds the loop has not answered.
        failed: called when the thread ends because of an error of its own.
    """

    held: Callable[[], list[Held]]
    lanes: Callable[[], tuple[str, ...]]
    info: Callable[[], WorkerInfo]
    told: Callable[[Lost], None]
    blocked: Callable[[float], None]
    failed: Callable[[], None]


class Heartbeat:
    """The thread that keeps a worker's leases.

    Args:
        driver: its own; closed at the end.
        keys: the namespace.
        worker_id: the worker's incarnation.
        meter: what is measured.
        source: what it sends and whom it tells.
        loop: the worker's loop, which it watches.
    """

    def __init__(
        self,
        driver: SyncDriver,
        keys: Keys,
        worker_id: str,
        *,
        meter: Meter,
        source: Source,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._driver = driver
        self._keys = keys
        self._worker_id = worker_id
        self._meter = meter
        self._source = source
        self._loop = loop
        self._wake = threading.Event()
        self._is_stopping = False
        self._offset_us = 0
        self._asked_at = self._answered_at = 0.0
        self._rare = Throttle(_QUIET_S)
        self._is_skew_told = False
        #: Seconds between renewals; a quarter of the shortest lease.
        self.interval_s = _LONGEST_S
        #: Beats that Redis has answered.
        self.beats = 0
        self._thread = threading.Thread(target=self._main, name="laneq-heartbeat", daemon=True)

    def start(self, now_us: int) -> None:
        """Begin; `now_us` is Redis's clock now."""
        self._keep_time(now_us)
        self._asked_at = self._answered_at = time.monotonic()
        self._thread.start()

    def set_interval(self, shortest_lease_us: int) -> None:
        """Have every lease renewed four times in its life."""
        quarter_s = shortest_lease_us / 4e6
        before_s, self.interval_s = self.interval_s, min(_LONGEST_S, max(_SHORTEST_S, quarter_s))
        if self.interval_s < before_s and self._thread.is_alive():
            self._wake.set()  # the wait under way is longer than the new leases

    @property
    def alive_us(self) -> int:
        """Return how long the worker counts as alive after a beat: as long as its leases last."""
        return int(max(_SHORTEST_ALIVE_S, 4 * self.interval_s) * 1e6)

    def nudge(self) -> None:
        """Beat now."""
        self._wake.set()

    def stop(self, patience_s: float) -> None:
        """Send the last measurements and end; blocking, for `patience_s` at most."""
        self._is_stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(patience_s)

    # --- in the thread ----------------------------------------------------------------

    def _main(self) -> None:
        try:
            self._keep_beating()
        except Exception:  # noqa: BLE001  whatever it is, the worker is to know
            # A worker that renews nothing must not go on: all that it runs would run twice.
            log.critical("the heartbeat failed, the worker stops", exc_info=True)
            self._source.failed()
        finally:
            self._driver.close()

    def _keep_beating(self) -> None:
        due = time.monotonic() + self.interval_s
        while not self._is_stopping:
            step_s = _SAMPLES_S if self._meter.has_counts else self.interval_s
            self._wait_until(min(time.monotonic() + step_s, due))
            is_ok = self._beat()
            due = time.monotonic() + (self.interval_s if is_ok else self._again_s())
        # Twice: the first one retires what was counted last.
        for _ in range(2):
            if self._meter.has_counts:
                self._beat()

    def _wait_until(self, beat_at: float) -> None:
        """Wait until it is time to beat, or somebody asks for it; meanwhile, watch the loop."""
        is_nudged = False
        while not is_nudged:
            left_s = beat_at - time.monotonic()
            is_nudged = self._wake.wait(max(0.01, min(left_s, _WATCH_S)))
            self._watch_loop()
            if left_s <= _WATCH_S:
                break
        self._wake.clear()

    def _again_s(self) -> float:
        return min(self.interval_s, _AGAIN_S * random.uniform(0.5, 1.5))

    def _beat(self) -> bool:
        # A flush takes lanes away, and with them the leases and measurements of them.
        lanes = self._source.lanes()
        held = [lease for lease in self._source.held() if lease.lane in lanes]
        samples = [sample for sample in self._meter.take() if sample.lane in lanes]
        now_us = self._offset_us + int(time.monotonic() * 1e6)
        call = workers.beat(
            self._keys,
            self._worker_id,
            self._source.info(),
            now_us=now_us,
            lanes=lanes,
            leases=held,
            samples=samples,
        )
        asked_us = time.time_ns() // 1000
        try:
            reply = self._driver.call(call)
        except StoreError as error:
            # Counted twice is worse than late, but here nothing was taken in, most likely.
            self._meter.put_back(samples)
            if self._rare.allows("beat"):
                log.warning("leases cannot be renewed: %s", error)
            return False
        self.beats += 1
        self._keep_time(reply.now_us)
        self._compare_clocks(asked_us, reply.now_us, time.time_ns() // 1000)
        if reply.lost or reply.cancels:
            self._source.told(_by_fence(held, reply.lost, reply.cancels))
        return True

    def _keep_time(self, now_us: int) -> None:
        self._offset_us = now_us - int(time.monotonic() * 1e6)

    def _compare_clocks(self, asked_us: int, redis_us: int, answered_us: int) -> None:
        """Warn once of a wall clock that is off: jobs do not mind, but people who read logs do.

        Args:
            asked_us: the wall clock before the call.
            redis_us: Redis's clock, at some moment in between.
            answered_us: the wall clock after it.
        """
        ahead_us = max(asked_us - redis_us, 0) + min(answered_us - redis_us, 0)
        if self._is_skew_told or abs(ahead_us) < SKEW_S * 1e6:
            return
        self._is_skew_told = True
        log.warning(
            "the clock of this host is %.1f s %s that of Redis. Jobs keep to the clock of Redis, "
            "so nothing starts early or late; but times in this log and those that laneq shows "
            "differ. Synchronise the clocks (NTP).",
            abs(ahead_us) / 1e6,
            "ahead of" if ahead_us > 0 else "behind",
        )

    def _watch_loop(self) -> None:
        """See whether the loop still turns."""
        now = time.monotonic()
        if self._answered_at >= self._asked_at:
            self._asked_at = now
            try:
                self._loop.call_soon_threadsafe(self._answer)
            except RuntimeError:
                # The loop is closed; what is left to do here needs none.
                self._answered_at = now
        elif now - self._asked_at >= BLOCKED_S:
            self._source.blocked(now - self._asked_at)

    def _answer(self) -> None:
        self._answered_at = time.monotonic()


def _by_fence(held: list[Held], lost: frozenset[str], cancels: frozenset[str]) -> Lost:
    # A job may be held twice for a moment: its lease ran out and this worker claimed it
    # again while the first attempt still runs. Then it is the older one that is lost.
    newest: dict[str, int] = {}
    for lease in held:
        newest[lease.id] = max(newest.get(lease.id, 0), lease.fence)
    held_twice = {lease.id for lease in held if lease.fence < newest[lease.id]}
    return Lost(
        frozenset(
            lease.fence
            for lease in held
            if lease.id in lost and (lease.id not in held_twice or lease.fence < newest[lease.id])
        ),
        frozenset(lease.fence for lease in held if lease.id in cancels),
    )
