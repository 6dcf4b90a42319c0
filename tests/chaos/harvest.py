"""Outcomes, gathered while they are there: records of ended jobs run out.

Each look reads the whole hash of outcomes; records live for several looks, so that each is
seen. A job with two outcomes that no revival explains was ended twice.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Self

import redis

from laneq import LaneQ, check, codec
from laneq.calls import stats
from laneq.calls.jobs import read_outcome
from laneq.drive import SyncDriver
from laneq.errors import StoreError
from laneq.model import BALANCE, State
from tests.chaos.ledger import Ledger

_DEPTHS_S: Final = 0.5


class Seen(NamedTuple):
    """One outcome of a job."""

    state: str
    attempt: int
    fence: int
    ended_us: int
    lane: str
    result: Any
    error: str


class Harvest:
    """Reads outcomes and counts until told to stop; a context manager with a thread.

    Args:
        app: names the namespace.
        url: the server itself: no proxy between.
        every_s: seconds between two looks at all outcomes.
        ledger: told of counts that do not add up, and of how many jobs are open.

    Attributes:
        outcomes: job → its outcomes, all that were ever seen.
        readings: of all counts at one instant, each of which added up or is complained of.
        checks: passes of laneq's own check, likewise.
        numbers: job → what its producer called it, for jobs that did not succeed.
    """

    def __init__(self, app: LaneQ, url: str, *, every_s: float, ledger: Ledger) -> None:
        self.outcomes: defaultdict[str, set[Seen]] = defaultdict(set)
        self.numbers: dict[str, str] = {}
        self.looks = 0
        self.readings = self.checks = 0
        self._keys = app.keys
        self._names = tuple(app.lanes)
        self._every_s = every_s
        self._ledger = ledger
        self._client = redis.Redis.from_url(url, socket_timeout=5, socket_connect_timeout=2)
        self._driver = SyncDriver(
            type(app.address).parse(url), prefix=app.keys.prefix, patience_s=0.5
        )
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=act, name=f"chaos-{act.__name__}", daemon=True)
            for act in (self._run, self._check)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._client.close()
        self._driver.close()

    def call(self, ask: Callable[[SyncDriver], Any]) -> Any:
        """Ask the server itself, past outages."""
        while True:
            try:
                return ask(self._driver)
            except StoreError:
                time.sleep(0.1)

    def depths(self) -> list[stats.Depths]:
        """Read the counts of all lanes."""
        found: list[stats.Depths] = self.call(
            lambda driver: driver.call(stats.depths(self._keys, self._names))
        )
        return found

    def look(self) -> None:
        """Read all outcomes that there are."""
        for job_id, text in self._client.hscan_iter(self._keys.outcomes, count=500):
            self._note(job_id.decode(), text)
        self.looks += 1

    def look_at(self, ids: Sequence[str]) -> None:
        """Read the outcomes of some jobs, past outages."""
        while True:
            try:
                texts: Any = self._client.hmget(self._keys.outcomes, list(ids))
                break
            except (redis.RedisError, OSError):
                time.sleep(0.1)
        for job_id, text in zip(ids, texts, strict=True):
            if text is not None:
                self._note(job_id, text)

    def _note(self, job_id: str, text: bytes) -> None:
        found = read_outcome(text)
        error = found.error()
        has_result = found.state is State.SUCCEEDED
        seen = Seen(
            state=found.state.value,
            attempt=found.attempt,
            fence=found.fence,
            ended_us=found.ended_us,
            lane=found.lane,
            result=found.value(job_id) if has_result else None,
            error=error.type if error else "",
        )
        outcomes = self.outcomes[job_id]
        if not has_result and job_id not in self.numbers:
            # Its body may never have run, and so has told nobody what its producer called it.
            record: Any = self._client.hget(self._keys.jobs, job_id)
            if record is not None:
                (number, *_), _ = codec.decode_call(codec.decode_record(record).payload)
                self.numbers[job_id] = number
        outcomes.add(seen)

    def _run(self) -> None:
        due = time.monotonic() + self._every_s
        while not self._stop.wait(_DEPTHS_S):
            try:
                self._weigh(self._driver.call(stats.depths(self._keys, self._names)))
                if time.monotonic() >= due:
                    self.look()
                    due = time.monotonic() + self._every_s
            except (redis.RedisError, StoreError, OSError):
                self._ledger.count("looks that an outage prevented")

    def _check(self) -> None:
        """Run laneq's own check while all goes on: it tells nothing that was not so."""
        while not self._stop.wait(self._every_s):
            try:
                found = check.run(self._driver, self._keys)
            except StoreError:
                self._ledger.count("checks that an outage prevented")
                continue
            self.checks += 1
            for problem in found.problems:
                self._ledger.complain(f"check, in the middle: {problem}")

    def _weigh(self, depths: list[stats.Depths]) -> None:
        """See that the counts of each lane add up at this instant."""
        self.readings += 1
        self._ledger.open_jobs = sum(d.waiting + d.scheduled + d.running for d in depths)
        for name, depth in zip(self._names, depths, strict=True):
            present = {"waiting": depth.waiting, "scheduled": depth.scheduled}
            counted = Counter(depth.counts) + Counter(present) + Counter(running=depth.running)
            parts = sum(counted[part] for part in BALANCE)
            if parts != counted["enqueued"]:
                self._ledger.complain(
                    f"lane {name}: {counted['enqueued']} enqueued, but {parts} accounted for, "
                    f"in {dict(counted)}"
                )
