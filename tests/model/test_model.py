"""A plain model against Redis: whatever is done in whatever order, both agree, and `check` holds.

The model keeps jobs in dicts and picks by `laneq.order`, the rule in Python. Time stands still
between steps, so the model knows every instant that the scripts use. On the real server calls go
through the driver, and its scripts are flushed now and then; on fakeredis the server's own clock
steps forward and back.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest
import redis
from fakeredis.commands_mixins import server_mixin
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from laneq import LaneQ
from laneq.calls import jobs as job_calls
from laneq.calls import lanes as lane_calls
from laneq.calls import workers
from laneq.calls.jobs import NewJob
from laneq.calls.workers import Ended, Held, WorkerInfo
from laneq.codec import encode_value
from laneq.drive import SyncDriver
from laneq.errors import JobNotFound, LaneFull, LeaseLost
from laneq.options import Lane
from laneq.order import Head, best, fleet_reserve, may_start
from tests.audit import forget
from tests.conftest import drop_namespace
from tests.stage import SECOND, START_US, Stage, Worker, new

LANES = (
    Lane("high", priority=1000, lease=5),
    Lane("mid", priority=100, lease=10, dead_max=2),
    Lane("low", priority=10, aging=4, aging_cap=200, lease=5),
    Lane("same", priority=10, aging=4, aging_cap=200, lease=5),
)
NAMES = tuple(lane.name for lane in LANES)
DECLARED = {lane.name: lane for lane in LANES}
MAX_ATTEMPTS = 3
#: The result_ttl of every job.
KEEP_US = 30 * SECOND
ALIVE_US = workers.ALIVE_US

lane_names = st.sampled_from(NAMES)
worker_names = st.sampled_from(["one", "wide", "kept", "low"])
short_times = st.sampled_from([0, 1, 5, SECOND, 3 * SECOND, 7 * SECOND])
#: What an operator sets, and to what.
changes = st.one_of(
    st.fixed_dictionaries({"paused": st.booleans()}),
    st.fixed_dictionaries({"priority": st.sampled_from([-5.0, 10.0, 100.0, 100.5, 5000.0])}),
    st.fixed_dictionaries(
        {"aging": st.sampled_from([0.0, 2.0, 50.0]), "aging_cap": st.sampled_from([0.0, 800.0])}
    ),
    st.fixed_dictionaries({"lease": st.sampled_from([1, 5, 60])}),
    st.fixed_dictionaries({"dead_max": st.sampled_from([0, 1, 3, None])}),
    st.fixed_dictionaries({"max_depth": st.sampled_from([1, 4, None])}),
    st.fixed_dictionaries({"max_running": st.sampled_from([1, 3, None])}),
    st.fixed_dictionaries({"reserve": st.sampled_from([0, 1, 2, 30])}),
)


class ServerClock:
    """The clock of a fakeredis server, which a test moves."""

    def __init__(self) -> None:
        # Seconds as a float are exact to the microsecond there.
        self.us = 1_000_000_000 * SECOND

    def time(self) -> float:
        return self.us / SECOND


@dataclass
class Modelled:
    """What the model knows of a job."""

    id: str
    lane: str
    state: str
    score: int
    attempt: int = 0
    losses: int = 0
    expires: int | None = None
    boost: int = 0
    fence: int = 0
    deadline: int = 0
    is_cancelled: bool = False
    has_started: bool = False


@dataclass
class Model:
    """Lanes as plain dicts.

    Attributes:
        open: jobs that have not ended.
        letters: lane → dead letters, oldest first.
        kept: ended jobs, and until when their record is.
        lines: worker → what it said that it has: slots, free ones, lanes served.
        alive: worker → until when it counts as alive.
    """

    rules: dict[str, Lane] = field(default_factory=lambda: dict(DECLARED))
    open: dict[str, Modelled] = field(default_factory=dict)
    counts: dict[str, Counter[str]] = field(default_factory=lambda: {n: Counter() for n in NAMES})
    letters: dict[str, list[Modelled]] = field(default_factory=lambda: {n: [] for n in NAMES})
    kept: dict[str, tuple[Modelled, int]] = field(default_factory=dict)
    lines: dict[str, tuple[int, int, tuple[str, ...]]] = field(default_factory=dict)
    alive: dict[str, int] = field(default_factory=dict)
    now: int = 0
    tick: int = 0

    def waiting(self, lane: str) -> list[Modelled]:
        return sorted(self.of(lane, "waiting"), key=lambda job: job.score)

    def of(self, lane: str, state: str) -> list[Modelled]:
        return [j for j in self.open.values() if j.lane == lane and j.state == state]

    def has(self, job_id: str) -> bool:
        letters = (letter.id for of_lane in self.letters.values() for letter in of_lane)
        return job_id in self.open or job_id in self.kept or job_id in letters

    def head(self, lane: str) -> Head | None:
        found = self.waiting(lane)
        if not found:
            return None
        rule = self.rules[lane]
        return Head(lane, rule.priority, rule.aging, rule.aging_cap, found[0].score)

    @property
    def paused(self) -> set[str]:
        return {name for name, rule in self.rules.items() if rule.paused}

    # --- time and places ---

    def next_tick(self) -> int:
        self.tick += 1
        return self.tick

    def free_from(self, lane: str, state: str, at: int) -> int:
        taken = {job.score for job in self.of(lane, state)}
        while at in taken:
            at += 1
        return at

    def place(self, lane: str, at: int) -> int:
        """Return the place of a job that is ready since `at`; a later one is never before it."""
        score = self.free_from(lane, "waiting", at)
        if score > self.tick and at <= self.tick:
            self.tick = score
        return score

    def put_back(self, job: Modelled, score: int) -> None:
        job.score, job.state = self.place(job.lane, score), "waiting"

    def put_later(self, job: Modelled, due: int) -> None:
        job.score, job.state = self.free_from(job.lane, "scheduled", due), "scheduled"

    # --- ends ---

    def end(self, job: Modelled, state: str, *, keep: int = KEEP_US) -> None:
        self.counts[job.lane][state] += 1
        self.open.pop(job.id)
        if state == "dead":
            self.letters[job.lane].append(job)
            self.trim(job.lane)
        elif keep:
            self.kept[job.id] = (job, self.now + keep)

    def trim(self, lane: str) -> None:
        most = self.rules[lane].dead_max
        if most is not None:
            del self.letters[lane][: max(0, len(self.letters[lane]) - most)]

    # --- what happens in a claim before it picks ---

    def sweep(self) -> None:
        for lane in NAMES:
            for job in sorted(self.of(lane, "running"), key=lambda job: (job.deadline, job.id)):
                if job.deadline <= self.now:
                    self.lose(job)
            self.trim(lane)
        self.kept = {i: kept for i, kept in self.kept.items() if kept[1] > self.now}
        for worker, until in list(self.alive.items()):
            if until <= self.now:
                del self.alive[worker]
                self.lines.pop(worker, None)

    def lose(self, job: Modelled) -> None:
        """Take back a lease that ran out."""
        counts = self.counts[job.lane]
        counts["lost_leases"] += 1
        job.losses += 1
        if job.is_cancelled:
            self.end(job, "cancelled")
        elif job.attempt >= MAX_ATTEMPTS:
            self.end(job, "dead")
        elif job.losses == 1:
            self.put_back(job, job.score)
        else:
            counts["retried"] += 1
            self.put_later(job, self.now + SECOND)

    def promote(self) -> None:
        for lane in NAMES:
            for job in sorted(self.of(lane, "scheduled"), key=lambda job: job.score):
                if job.score <= self.now:
                    self.put_back(job, job.score - job.boost)

    # --- the fleet ---

    def reserved(self, order: tuple[str, ...]) -> dict[str, int]:
        """Return lane → slots reserved over the fleet, in the order of the lanes in force."""
        found = {name: self.rules[name].reserve for name in order if name not in self.paused}
        return {name: slots for name, slots in found.items() if isinstance(slots, int) and slots}

    def pool(
        self, worker: str, order: tuple[str, ...], *, slots: int, free: int, served: tuple[str, ...]
    ) -> tuple[int, int, dict[str, int]] | None:
        """Return slots, free slots and reserves of the pool of a worker; None where it has none."""
        mine = {name: n for name, n in self.reserved(order).items() if name in served}
        if not mine:
            return None
        others = [line for who, line in self.lines.items() if who != worker]
        of_slots = [slots + sum(s for s, _, names in others if name in names) for name in mine]
        of_free = [free + sum(f for _, f, names in others if name in names) for name in mine]
        return min(of_slots), min(of_free), mine

    def limits_changed(self, order: tuple[str, ...]) -> None:
        if not self.reserved(order):
            self.lines.clear()


class Machine(RuleBasedStateMachine):
    """Steps that producers, workers, operators and time take."""

    client: redis.Redis
    url: str
    clock: ServerClock | None = None

    def __init__(self) -> None:
        super().__init__()
        self.is_fake = self.clock is not None
        self.stage = Stage(self.client, f"model-{uuid4().hex[:10]}", is_fake=self.is_fake)
        self.driver: SyncDriver | None = None
        if self.clock is None:
            address = LaneQ(self.url, namespace=self.stage.namespace).address
            self.driver = SyncDriver(address, prefix=self.stage.keys.prefix)
            self.stage.run = self.driver.call  # type: ignore[method-assign]
            self.stage.set_clock(START_US)
        self.stage.publish(*LANES)
        self.model = Model()
        self.made = 0
        self.swept = 0
        self.workers: dict[str, Worker] = {
            "one": self.stage.worker("one", slots=1),
            "wide": self.stage.worker("wide", slots=40),
            "kept": self.stage.worker("kept", slots=6, reserve={"high": 2, "mid": 1}),
            "low": self.stage.worker("low", slots=3, serves=["low", "mid"], reserve={"low": 1}),
        }
        self.begin()
        self.start = self.model.now

    def teardown(self) -> None:
        if self.driver:
            self.driver.close()
        drop_namespace(self.client, self.stage.namespace)
        forget(self.stage.namespace)

    def begin(self) -> None:
        """Read the instant of the step that follows: scripts never see the clock go back."""
        seen = self.stage.now()
        self.model.now = max(seen, self.clock.us) if self.clock else seen
        self.model.tick = self.model.now

    # --- producers ---

    @rule(
        lane=lane_names,
        n=st.integers(1, 5),
        when=st.sampled_from(["", "", "", "boost", "later", "at"]),
        time=short_times,
        expires=st.sampled_from([None, None, 1, SECOND, 4 * SECOND]),
    )
    def enqueue(self, lane: str, n: int, when: str, time: int, expires: int | None) -> None:
        ids = [f"{9999 - self.made - i:04}" for i in range(n)]
        self.made += n
        self.put([(job_id, lane) for job_id in ids], when=when, time=time, expires=expires)

    @rule(
        which=st.lists(
            st.tuples(st.sampled_from(["r0", "r1", "r2", "r3", "r4"]), lane_names),
            min_size=1,
            max_size=8,
        ),
        when=st.sampled_from(["", "", "boost", "later"]),
        time=short_times,
    )
    def enqueue_ids_again(self, which: list[tuple[str, str]], when: str, time: int) -> None:
        """Enqueue ids that may be there already, also twice in one call."""
        self.put(which, when=when, time=time, expires=None)

    def put(
        self, which: list[tuple[str, str]], *, when: str, time: int, expires: int | None
    ) -> None:
        self.begin()
        options: dict[str, Any] = {"max_attempts": MAX_ATTEMPTS, "base_us": SECOND, "backoff": 0}
        options |= {"jitter": 0, "ttl_us": KEEP_US}
        if expires:
            options["expires_us"] = expires
        boost = time if when == "boost" else 0
        if boost:
            options["boost_us"] = boost
        said = {"later": f"+{time}", "at": f"@{self.start + time}"}.get(when, "")
        due = self.model.now + time if when == "later" else self.start + time
        jobs = [new(job_id, lane=lane, when=said, **options) for job_id, lane in which]
        if full := self.full_lane(Counter(lane for _, lane in which)):
            with pytest.raises(LaneFull) as refused:
                self.stage.enqueue(*jobs)
            assert refused.value.lane in full
            return
        expected: set[int] = set()
        for position, (job_id, lane) in enumerate(which):
            if not self.add(job_id, lane, due=due if said else None, boost=boost, expires=expires):
                expected.add(position)
        assert self.stage.enqueue(*jobs) == frozenset(expected)

    def full_lane(self, coming: Counter[str]) -> set[str]:
        full = set()
        for lane, n in coming.items():
            most = self.model.rules[lane].max_depth
            depth = len(self.model.of(lane, "waiting")) + len(self.model.of(lane, "scheduled"))
            if most is not None and depth + n > most:
                full.add(lane)
        return full

    def add(
        self, job_id: str, lane: str, *, due: int | None, boost: int = 0, expires: int | None = None
    ) -> bool:
        """Store a job unless its id is there; the value is whether it was stored."""
        model = self.model
        is_new = not model.has(job_id)
        if boost:
            # A job with a head start takes its tick before its id is looked at.
            score = model.place(lane, model.next_tick() - boost)
        if not is_new:
            model.counts[lane]["deduplicated"] += 1
            return False
        model.counts[lane]["enqueued"] += 1
        if due is not None:
            job = Modelled(job_id, lane, "scheduled", model.free_from(lane, "scheduled", due))
            enqueued = model.now
        else:
            if not boost:
                score = model.next_tick()
            job = Modelled(job_id, lane, "waiting", score, boost=boost)
            enqueued = score + boost
        job.expires = enqueued + expires if expires else None
        model.open[job_id] = job
        return True

    # --- workers ---

    def claim(
        self, name: str, free: int, outcomes: list[Ended], *, is_look: bool, fence_floor: int = 0
    ) -> None:
        worker, model = self.workers[name], self.model
        reply = self.stage.run(
            worker.call(free=free, outcomes=outcomes, is_look=is_look, fence_floor=fence_floor)
        )
        assert reply is not None
        assert reply.now_us == model.now
        if outcomes or reply.jobs:
            again = worker.call(free=free, outcomes=outcomes, is_look=is_look, is_repeat=True)
            repeated = self.stage.run(again)
            assert repeated is not None
            assert (sorted(repeated.jobs), repeated.stale) == (sorted(reply.jobs), reply.stale)
        for end in outcomes:
            worker.held.pop(end.id, None)
        if is_look or model.now >= self.swept + 250_000:
            self.swept = model.now
            model.sweep()
        model.promote()
        expected = self.pick(worker, free)
        got = [job.id for job in reply.jobs]
        assert sorted(got) == sorted(expected)
        for job in reply.jobs:
            known = model.open[job.id]
            assert (job.lane, job.attempt, job.score_us) == (known.lane, known.attempt, known.score)
            known.fence = job.fence
            worker.held[job.id] = job
        assert len({job.fence for job in reply.jobs}) == len(got)

    def pick(self, worker: Worker, free: int) -> list[str]:
        """Return what the rule says that a claim starts."""
        model, order = self.model, self.stage.lanes.names
        running = Counter(job.lane for job in worker.held.values())
        served = worker.serves if worker.serves is not None else NAMES
        pool = model.pool(worker.id, order, slots=worker.slots, free=free, served=served)
        in_fleet = Counter({lane: len(model.of(lane, "running")) for lane in NAMES})
        kept: dict[str, int] = {}
        pool_free = 0
        if pool:
            slots, pool_free, wanted = pool
            kept = fleet_reserve(wanted, slots=slots, free=pool_free, running=in_fleet)
        started: list[str] = []
        expired = True
        while expired and free > 0:
            # Those that turn out to have expired give back their slots at the end of a round.
            picked: list[tuple[Modelled, bool]] = []
            while free > 0:
                heads = [
                    head
                    for lane in order
                    if lane in served
                    and lane not in model.paused
                    and may_start(lane, free=free, running=running, reserve=worker.reserve)
                    and (
                        not pool or may_start(lane, free=pool_free, running=in_fleet, reserve=kept)
                    )
                    and self.is_below_cap(lane, in_fleet)
                    and (head := model.head(lane)) is not None
                ]
                head = best(heads, model.now)
                if head is None:
                    break
                job = model.waiting(head.lane)[0]
                job.state = "picked"
                is_inverted = any(
                    lane not in model.paused
                    and model.rules[lane].priority > model.rules[head.lane].priority
                    and model.head(lane)
                    for lane in NAMES
                )
                picked.append((job, is_inverted))
                running[job.lane] += 1
                in_fleet[job.lane] += 1
                free, pool_free = free - 1, pool_free - 1
            expired = False
            for job, is_inverted in picked:
                if not job.has_started and job.expires is not None and job.expires <= model.now:
                    expired = True
                    model.end(job, "expired")
                    running[job.lane] -= 1
                    in_fleet[job.lane] -= 1
                    free, pool_free = free + 1, pool_free + 1
                else:
                    self.start_job(job, is_inverted=is_inverted)
                    started.append(job.id)
        if model.reserved(order):
            model.lines[worker.id] = (worker.slots, free, tuple(served))
        return started

    def start_job(self, job: Modelled, *, is_inverted: bool) -> None:
        counts = self.model.counts[job.lane]
        counts["started"] += 1
        counts["inverted"] += is_inverted
        job.state, job.has_started = "running", True
        job.attempt += 1
        job.deadline = self.model.now + self.model.rules[job.lane].lease_us

    def is_below_cap(self, lane: str, in_fleet: Counter[str]) -> bool:
        most = self.model.rules[lane].max_running
        return most is None or in_fleet[lane] < most

    @rule(name=worker_names, n=st.integers(0, 40))
    def claim_only(self, name: str, n: int) -> None:
        self.begin()
        worker = self.workers[name]
        self.claim(name, min(n, worker.slots - len(worker.held)), [], is_look=True)

    @rule(name=worker_names, ahead=st.sampled_from([1, SECOND, 20 * SECOND]))
    def claim_with_a_fence_of_a_lost_second(self, name: str, ahead: int) -> None:
        """After a failover the clock of scripts starts no lower than what a worker has seen."""
        self.begin()
        self.model.now = self.model.tick = self.model.now + ahead
        worker = self.workers[name]
        free = worker.slots - len(worker.held)
        self.claim(name, free, [], is_look=False, fence_floor=self.model.now)

    @precondition(lambda self: any(worker.held for worker in self.workers.values()))
    @rule(
        at=st.integers(0, 1000),
        kinds=st.lists(
            st.sampled_from(
                ["succeeded", "succeeded", "retried", "dead", "handed_back", "snoozed", "cancelled"]
            ),
            min_size=1,
            max_size=8,
        ),
        delay=short_times,
        keep=st.sampled_from([0, KEEP_US]),
        then=st.integers(0, 3),
        child=st.sampled_from(["", "", "", "high", "low"]),
    )
    def report(
        self, at: int, kinds: list[str], delay: int, keep: int, then: int, child: str
    ) -> None:
        """Report outcomes of every kind, with jobs that the attempts enqueued."""
        self.begin()
        busy = [worker for worker in self.workers.values() if worker.held]
        worker = busy[at % len(busy)]
        held = sorted(worker.held)
        ids = (held[at % len(held) :] + held[: at % len(held)])[: len(kinds)]
        outcomes, children = [], []
        for job_id, kind in zip(ids, kinds, strict=False):
            number = delay if kind in {"retried", "snoozed"} else keep
            made = [self.child(child)] if child else []
            outcomes.append(
                worker.ended(job_id, kind, number=number, body=encode_value(1), children=made)
            )
            if self.settle(worker, job_id, kind, delay=delay, keep=keep):
                children += made
        for job in children:
            self.add(job.id, job.lane, due=None)
        left = len(worker.held) - len(ids)
        self.claim(worker.id, min(then, worker.slots - left), outcomes, is_look=False)

    def child(self, lane: str) -> NewJob:
        self.made += 1
        return new(
            f"{10_000 - self.made:04}",
            lane=lane,
            max_attempts=MAX_ATTEMPTS,
            base_us=SECOND,
            backoff=0,
            jitter=0,
            ttl_us=KEEP_US,
        )

    def settle(self, worker: Worker, job_id: str, kind: str, *, delay: int, keep: int) -> bool:
        """Take in one outcome; the value is whether what the attempt enqueued is committed."""
        held = worker.held[job_id]
        counts = self.model.counts[held.lane]
        job = self.model.open.get(job_id)
        if job is None or job.state != "running" or job.fence != held.fence:
            counts["stale"] += 1
            return False
        was_cancelled = job.is_cancelled
        if was_cancelled:
            keep = keep if kind in {"succeeded", "cancelled"} else KEEP_US
            kind = "cancelled"
        if kind == "cancelled":
            counts["stopped"] += 1
        if kind in {"retried", "dead"}:
            counts["failed_attempts"] += 1
        if kind in {"handed_back", "snoozed"}:
            counts["handed_back"] += 1
            job.attempt -= 1
        if kind == "handed_back":
            self.model.put_back(job, job.score)
        elif kind in {"retried", "snoozed"}:
            counts["retried"] += kind == "retried"
            self.model.put_later(job, self.model.now + delay)
        else:
            self.model.end(job, kind, keep=keep)
        return not was_cancelled

    @rule(name=worker_names)
    def beat(self, name: str) -> None:
        self.begin()
        worker, model = self.workers[name], self.model
        leases = [
            Held(job.lane, job.id, job.fence, model.rules[job.lane].lease_us)
            for job in worker.held.values()
        ]
        info = WorkerInfo(name, "h", 1, worker.slots, worker.reserve, NAMES, ["t"])
        call = workers.beat(
            self.stage.keys, name, info, now_us=model.now, lanes=NAMES, leases=leases
        )
        reply = self.stage.run(call)
        model.alive[name] = model.now + ALIVE_US
        lost: set[str] = set()
        cancels: set[str] = set()
        for held in worker.held.values():
            job = model.open.get(held.id)
            if job is None or job.state != "running" or job.fence != held.fence:
                lost.add(held.id)
                continue
            job.deadline = model.now + model.rules[job.lane].lease_us
            if job.is_cancelled:
                cancels.add(held.id)
        assert set(reply.lost) == lost
        assert set(reply.cancels) == cancels
        for job_id in lost:
            del worker.held[job_id]

    @rule(name=worker_names, is_told=st.booleans())
    def crash(self, name: str, is_told: bool) -> None:
        """Forget all that the worker holds: its leases will run out. It may say that it leaves."""
        self.workers[name].held.clear()
        if is_told:
            self.stage.run(workers.leave(self.stage.keys, name))
            self.model.alive.pop(name, None)
            self.model.lines.pop(name, None)

    @rule(name=worker_names, data=st.data())
    def progress(self, name: str, data: st.DataObject) -> None:
        worker = self.workers[name]
        if not worker.held:
            return
        held = worker.held[data.draw(st.sampled_from(sorted(worker.held)))]
        job = self.model.open.get(held.id)
        call = job_calls.report_progress(
            self.stage.keys, held.id, fence=held.fence, value=encode_value([1, 2, "x"])
        )
        if job is None or job.state != "running" or job.fence != held.fence:
            with pytest.raises(LeaseLost):
                self.stage.run(call)
        else:
            self.stage.run(call)

    # --- operators ---

    @precondition(lambda self: self.model.open)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.begin()
        job = self.model.open[data.draw(st.sampled_from(sorted(self.model.open)))]
        # For jobs that do not say how long they are kept: these do.
        word = self.stage.cancel(job.id, keep_us=0).word
        if job.state == "running":
            assert word == "requested"
            job.is_cancelled = True
        else:
            assert word == "cancelled"
            self.model.end(job, "cancelled", keep=KEEP_US)

    @precondition(lambda self: self.model.open or self.model.kept)
    @rule(data=st.data())
    def watch(self, data: st.DataObject) -> None:
        """Wait for the end of a job: it is told, or will be."""
        job_id = data.draw(st.sampled_from(sorted([*self.model.open, *self.model.kept, "none"])))
        call = job_calls.until_ended(self.stage.keys, job_id, timeout_s=None).call
        if job_id == "none":
            with pytest.raises(JobNotFound):
                self.stage.run(call)
        else:
            assert (self.stage.run(call) is not None) == (job_id in self.model.kept)

    @rule(data=st.data())
    def revive(self, data: st.DataObject) -> None:
        """Give ended jobs a new life, among others that have not ended or are not there."""
        self.begin()
        model = self.model
        ended = {letter.id: letter for of_lane in model.letters.values() for letter in of_lane}
        ended |= {job_id: job for job_id, (job, _) in model.kept.items()}
        some = st.lists(
            st.sampled_from(sorted([*ended, *list(model.open)[:3], "none"])),
            unique=True,
            max_size=4,
        )
        ids = data.draw(some)
        expected = []
        for job_id in ids:
            if job_id in ended:
                expected.append("revived")
                self.begin_life(ended[job_id])
            else:
                expected.append("open" if job_id in model.open else "unknown")
        assert self.stage.revive(*ids) == expected

    def begin_life(self, job: Modelled) -> None:
        model = self.model
        if job in model.letters[job.lane]:
            model.letters[job.lane].remove(job)
        model.kept.pop(job.id, None)
        score = model.place(job.lane, model.next_tick() - job.boost)
        revived = Modelled(job.id, job.lane, "waiting", score, boost=job.boost, has_started=True)
        model.open[job.id] = revived
        model.counts[job.lane]["enqueued"] += 1

    @rule(lane=lane_names, limit=st.integers(1, 4))
    def purge(self, lane: str, limit: int) -> None:
        scheduled = sorted(self.model.of(lane, "scheduled"), key=lambda job: job.score)
        doomed = (self.model.waiting(lane) + scheduled)[:limit]
        call = lane_calls.purge(self.stage.keys, lane, limit=limit)
        assert self.stage.run(call) == len(doomed)
        for job in doomed:
            del self.model.open[job.id]
            self.model.counts[lane]["purged"] += 1

    @rule(lane=lane_names, limit=st.integers(1, 2))
    def purge_letters(self, lane: str, limit: int) -> None:
        letters = self.model.letters[lane]
        call = job_calls.purge_dead(self.stage.keys, lanes=[lane], limit=limit)
        assert self.stage.run(call) == len(letters[:limit])
        del letters[:limit]

    @rule(lane=lane_names, change=changes)
    def set(self, lane: str, change: dict[str, Any]) -> None:
        """Pause, resume, and set whatever else can be set."""
        rule = self.model.rules[lane].changed(**change)
        self.model.rules[lane] = rule
        wire, names = rule.to_wire(), {"lease": "lease_us"}
        self.stage.set_lane(lane, {names.get(o, o): wire[names.get(o, o)] for o in change})
        self.model.limits_changed(self.stage.lanes.names)

    @rule(lane=lane_names)
    def reset(self, lane: str) -> None:
        self.model.rules[lane] = DECLARED[lane]
        self.stage.set_lane(lane, None)
        self.model.limits_changed(self.stage.lanes.names)

    # --- time, and the server ---

    @rule(us=st.sampled_from([1, 10, SECOND, SECOND, 4 * SECOND, 11 * SECOND, 86400 * SECOND]))
    def time_passes(self, us: int) -> None:
        if self.clock:
            self.clock.us += us
        else:
            self.stage.forward(us)

    @precondition(lambda self: self.clock)
    @rule(us=st.sampled_from([1, SECOND, 3600 * SECOND]))
    def the_servers_clock_steps_back(self, us: int) -> None:
        assert self.clock
        self.clock.us -= us

    @precondition(lambda self: self.driver)
    @rule()
    def scripts_are_flushed(self) -> None:
        self.client.script_flush()

    # --- what must hold ---

    @invariant()
    def nothing_is_broken(self) -> None:
        assert self.stage.problems() == []

    @invariant()
    def both_have_the_same_jobs_in_the_same_places(self) -> None:
        words = {"waiting": "waiting", "scheduled": "scheduled", "leases": "running"}
        for lane in NAMES:
            for word, state in words.items():
                ours = {
                    job.id: job.deadline if state == "running" else job.score
                    for job in self.model.of(lane, state)
                }
                assert self.stage.places(word, lane) == ours, f"{word} of {lane}"
            letters = sorted(job.id for job in self.model.letters[lane])
            assert sorted(self.stage.order("dead", lane)) == letters
        kept = {job_id: until for job_id, (_, until) in self.model.kept.items()}
        assert self.stage.places_of("ended") == kept

    @invariant()
    def both_count_the_same(self) -> None:
        for lane in NAMES:
            ours = {event: n for event, n in self.model.counts[lane].items() if n}
            theirs = self.stage.counts(lane)
            theirs.pop("dropped", None)
            assert theirs == ours, lane

    @invariant()
    def both_know_the_same_of_the_fleet(self) -> None:
        theirs = {}
        for name, value in self.stage.hash("fleet").items():
            if name.startswith("worker:"):
                slots, free, names = value.decode().split(" ")
                served = tuple(sorted(names.strip(",").split(",")))
                theirs[name.removeprefix("worker:")] = (int(slots), int(free), served)
        ours = {
            who: (slots, free, tuple(sorted(served)))
            for who, (slots, free, served) in self.model.lines.items()
        }
        assert theirs == ours


@pytest.fixture(params=["server", "fake"])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[Machine]:
    is_fake = request.param == "fake"

    class Here(Machine):
        client = request.getfixturevalue("fake" if is_fake else "raw")
        url = "" if is_fake else request.getfixturevalue("url")
        clock = ServerClock() if is_fake else None

    if Here.clock:
        monkeypatch.setattr(server_mixin, "time", Here.clock)
    return Here


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_scripts_and_a_plain_model_agree(machine):
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=6 if machine.clock else 30,
            stateful_step_count=40,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
