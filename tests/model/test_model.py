"""A plain model against Redis: whatever is done in whatever order, both agree, and `check` holds.

The model keeps jobs in a dict and picks by `laneq.order`, the rule in Python. Time stands still
between steps, so the model knows every instant that the scripts use.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from laneq.calls import lanes as lane_calls
from laneq.calls import workers
from laneq.calls.workers import Held, WorkerInfo
from laneq.codec import encode_value
from laneq.options import Lane
from laneq.order import Head, best, may_start
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
KEEP_US = 30 * SECOND

lane_names = st.sampled_from(NAMES)
short_times = st.sampled_from([0, 1, 5, SECOND, 3 * SECOND, 7 * SECOND])


@dataclass
class Modelled:
    """What the model knows of an open job."""

    id: str
    lane: str
    state: str
    score: int
    attempt: int = 0
    losses: int = 0
    expires: int | None = None
    boost: int = 0
    holder: str = ""
    fence: int = 0
    deadline: int = 0
    is_cancelled: bool = False
    has_started: bool = False


@dataclass
class Model:
    """Lanes as plain dicts."""

    open: dict[str, Modelled] = field(default_factory=dict)
    counts: dict[str, Counter[str]] = field(default_factory=lambda: {n: Counter() for n in NAMES})
    letters: dict[str, list[str]] = field(default_factory=lambda: {n: [] for n in NAMES})
    kept: dict[str, int] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    overtaken_until: dict[str, int] = field(default_factory=dict)

    def waiting(self, lane: str) -> list[Modelled]:
        found = [j for j in self.open.values() if j.lane == lane and j.state == "waiting"]
        return sorted(found, key=lambda job: job.score)

    def head(self, lane: str) -> Head | None:
        found = self.waiting(lane)
        if not found:
            return None
        options = DECLARED[lane]
        return Head(lane, options.priority, options.aging, options.aging_cap, found[0].score)

    def free_from(self, lane: str, state: str, at: int) -> int:
        taken = {j.score for j in self.open.values() if j.lane == lane and j.state == state}
        while at in taken:
            at += 1
        return at

    def end(self, job: Modelled, state: str, *, now: int, keep: int = KEEP_US) -> None:
        self.counts[job.lane][state] += 1
        del self.open[job.id]
        if state == "dead":
            letters = self.letters[job.lane]
            letters.append(job.id)
            most = DECLARED[job.lane].dead_max
            while most is not None and len(letters) > most:
                letters.pop(0)
        elif keep:
            self.kept[job.id] = now + keep


class Machine(RuleBasedStateMachine):
    """Steps that producers, workers, operators and time take."""

    client: redis.Redis
    is_fake = False

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage(self.client, f"model-{uuid4().hex[:10]}", is_fake=self.is_fake)
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

    def teardown(self) -> None:
        drop_namespace(self.client, self.stage.namespace)

    # --- what happens in a claim before it picks ---

    def tick(self) -> None:
        """Read the clock again: ticks that the scripts took are theirs to count."""
        self.now = self.stage.now()

    def take_in_time(self, now: int, *, is_look: bool) -> None:
        if is_look or now >= self.swept + 250_000:
            self.swept = now
            for lane in NAMES:
                self.lose_leases(lane, now)
            for job_id, until in list(self.model.kept.items()):
                if until <= now:
                    del self.model.kept[job_id]
        for lane in NAMES:
            due = [j for j in self.model.open.values() if j.lane == lane and j.state == "scheduled"]
            for job in sorted(due, key=lambda job: job.score):
                if job.score <= now:
                    at = self.model.free_from(lane, "waiting", job.score - job.boost)
                    job.state, job.score = "waiting", at

    def lose_leases(self, lane: str, now: int) -> None:
        running = [j for j in self.model.open.values() if j.lane == lane and j.state == "running"]
        for job in sorted(running, key=lambda job: (job.deadline, job.id)):
            if job.deadline > now:
                continue
            self.model.counts[lane]["lost_leases"] += 1
            job.losses += 1
            if job.is_cancelled:
                self.model.end(job, "cancelled", now=now)
            elif job.attempt >= MAX_ATTEMPTS:
                self.model.end(job, "dead", now=now)
            elif job.losses == 1:
                job.score = self.model.free_from(lane, "waiting", job.score)
                job.state = "waiting"
            else:
                self.model.counts[lane]["retried"] += 1
                job.score = self.model.free_from(lane, "scheduled", now + SECOND)
                job.state = "scheduled"

    def pick(self, worker: Worker, free: int, now: int) -> list[str]:
        """Return what the rule says that a claim starts."""
        running = Counter(job.lane for job in worker.held.values())
        served = worker.serves if worker.serves is not None else NAMES
        picked: list[str] = []
        passed: set[str] = set()
        while free > 0:
            heads = [
                head
                for lane in self.stage.lanes.names
                if lane in served
                and lane not in self.model.paused
                and may_start(lane, free=free, running=running, reserve=worker.reserve)
                and (head := self.model.head(lane)) is not None
            ]
            head = best(heads, now)
            if head is None:
                break
            job = self.model.waiting(head.lane)[0]
            if not job.has_started and job.expires is not None and job.expires <= now:
                self.model.end(job, "expired", now=now)
                continue
            higher = [
                lane
                for lane in NAMES
                if lane not in self.model.paused
                and DECLARED[lane].priority > DECLARED[head.lane].priority
                and self.model.head(lane)
            ]
            counts = self.model.counts[head.lane]
            counts["started"] += 1
            counts["inverted"] += bool(higher)
            counts["overtaken"] += job.score + job.boost <= self.model.overtaken_until.get(
                head.lane, 0
            )
            passed |= {
                lane
                for lane in higher
                if lane in served
                and may_start(lane, free=free, running=running, reserve=worker.reserve)
            }
            job.state, job.holder, job.has_started = "running", worker.id, True
            job.attempt += 1
            job.deadline = now + DECLARED[job.lane].lease_us
            running[job.lane] += 1
            free -= 1
            picked.append(job.id)
        self.model.overtaken_until |= {
            lane: now for lane in passed if self.model.head(lane) is not None
        }
        return picked

    # --- producers ---

    @rule(
        lane=lane_names,
        n=st.integers(1, 5),
        when=st.sampled_from(["", "", "", "boost", "later", "at"]),
        time=short_times,
        expires=st.sampled_from([None, None, None, SECOND, 4 * SECOND]),
    )
    def enqueue(self, lane: str, n: int, when: str, time: int, expires: int | None) -> None:
        self.tick()
        options: dict[str, Any] = {"max_attempts": MAX_ATTEMPTS, "base_us": SECOND, "backoff": 0}
        options |= {"jitter": 0, "ttl_us": KEEP_US}
        if expires:
            options["expires_us"] = expires
        if when == "boost" and time:
            options["boost_us"] = time
        said = {"later": f"+{time}", "at": f"@{START_US + time}"}.get(when, "")
        ids = [f"{9999 - self.made - i:04}" for i in range(n)]
        self.made += n
        jobs = [new(job_id, lane=lane, when=said, **options) for job_id in ids]
        assert self.stage.enqueue(*jobs) == frozenset()
        tick = self.now
        for job_id in ids:
            boost = options.get("boost_us", 0)
            if said:
                due = self.now + time if when == "later" else START_US + time
                score = self.model.free_from(lane, "scheduled", due)
                state, enqueued = "scheduled", self.now
            else:
                tick += 1
                score = self.model.free_from(lane, "waiting", tick - boost) if boost else tick
                state, enqueued = "waiting", tick if not boost else score + boost
            job = Modelled(job_id, lane, state, score, boost=boost)
            job.expires = enqueued + expires if expires else None
            self.model.open[job_id] = job
            self.model.counts[lane]["enqueued"] += 1

    @precondition(lambda self: self.made)
    @rule(data=st.data(), lane=lane_names)
    def enqueue_an_id_again(self, data: st.DataObject, lane: str) -> None:
        self.tick()
        job_id = data.draw(st.sampled_from(sorted(self.model.open) or ["none"]))
        if job_id in self.model.open:
            assert self.stage.enqueue(new(job_id, lane=lane)) == frozenset({0})
            self.model.counts[lane]["deduplicated"] += 1

    # --- workers ---

    def claim(self, name: str, free: int, outcomes: list[Any], *, is_look: bool) -> None:
        worker = self.workers[name]
        reply = self.stage.run(worker.call(free=free, outcomes=outcomes, is_look=is_look))
        assert reply is not None
        if outcomes or reply.jobs:
            again = worker.call(free=free, outcomes=outcomes, is_look=is_look, is_repeat=True)
            repeated = self.stage.run(again)
            assert repeated is not None
            assert (sorted(repeated.jobs), repeated.stale) == (sorted(reply.jobs), reply.stale)
        for end in outcomes:
            worker.held.pop(end.id, None)
        now = reply.now_us
        self.take_in_time(now, is_look=is_look)
        expected = self.pick(worker, free, now)
        got = [job.id for job in reply.jobs]
        assert sorted(got) == sorted(expected)
        for job in reply.jobs:
            known = self.model.open[job.id]
            assert (job.lane, job.attempt, job.score_us) == (known.lane, known.attempt, known.score)
            known.fence = job.fence
            worker.held[job.id] = job
        assert len({job.fence for job in reply.jobs}) == len(got)

    @rule(name=st.sampled_from(["one", "wide", "kept", "low"]), n=st.integers(0, 40))
    def claim_only(self, name: str, n: int) -> None:
        self.tick()
        worker = self.workers[name]
        self.claim(name, min(n, worker.slots - len(worker.held)), [], is_look=True)

    @rule(
        name=st.sampled_from(["one", "wide", "kept", "low"]),
        data=st.data(),
        kinds=st.lists(
            st.sampled_from(
                ["succeeded", "succeeded", "retried", "dead", "handed_back", "snoozed", "cancelled"]
            ),
            min_size=1,
            max_size=4,
        ),
        delay=short_times,
        then=st.integers(0, 3),
    )
    def report(
        self, name: str, data: st.DataObject, kinds: list[str], delay: int, then: int
    ) -> None:
        self.tick()
        worker = self.workers[name]
        ids = data.draw(
            st.lists(st.sampled_from(sorted(worker.held)), unique=True, max_size=len(kinds))
            if worker.held
            else st.just([])
        )
        outcomes = []
        for job_id, kind in zip(ids, kinds, strict=False):
            number = delay if kind in {"retried", "snoozed"} else KEEP_US
            outcomes.append(worker.ended(job_id, kind, number=number, body=encode_value(1)))
            self.settle(worker, job_id, kind, delay)
        left = len(worker.held) - len(ids)
        self.claim(name, min(then, worker.slots - left), outcomes, is_look=False)

    def settle(self, worker: Worker, job_id: str, kind: str, delay: int) -> None:
        held = worker.held[job_id]
        counts = self.model.counts[held.lane]
        job = self.model.open.get(job_id)
        if job is None or job.state != "running" or job.fence != held.fence:
            counts["stale"] += 1
            return
        if job.is_cancelled:
            kind = "cancelled"
        if kind == "cancelled":
            counts["stopped"] += 1
        if kind in {"retried", "dead"}:
            counts["failed_attempts"] += 1
        if kind in {"handed_back", "snoozed"}:
            counts["handed_back"] += 1
            job.attempt -= 1
        if kind == "handed_back":
            job.score = self.model.free_from(job.lane, "waiting", job.score)
            job.state = "waiting"
        elif kind in {"retried", "snoozed"}:
            counts["retried"] += kind == "retried"
            job.score = self.model.free_from(job.lane, "scheduled", self.now + delay)
            job.state = "scheduled"
        else:
            self.model.end(job, kind, now=self.now)

    @rule(name=st.sampled_from(["one", "wide", "kept", "low"]))
    def beat(self, name: str) -> None:
        self.tick()
        worker = self.workers[name]
        leases = [
            Held(job.lane, job.id, job.fence, DECLARED[job.lane].lease_us)
            for job in worker.held.values()
        ]
        info = WorkerInfo(name, "h", 1, worker.slots, worker.reserve, NAMES, ["t"])
        call = workers.beat(
            self.stage.keys, name, info, now_us=self.now, lanes=NAMES, leases=leases
        )
        reply = self.stage.run(call)
        lost: set[str] = set()
        cancels: set[str] = set()
        for held in worker.held.values():
            job = self.model.open.get(held.id)
            if job is None or job.state != "running" or job.fence != held.fence:
                lost.add(held.id)
                continue
            job.deadline = self.now + DECLARED[job.lane].lease_us
            if job.is_cancelled:
                cancels.add(held.id)
        assert set(reply.lost) == lost
        assert set(reply.cancels) == cancels
        for job_id in lost:
            del worker.held[job_id]

    @rule(name=st.sampled_from(["one", "wide", "kept", "low"]))
    def crash(self, name: str) -> None:
        """Forget all that the worker holds: its leases will run out."""
        self.workers[name].held.clear()

    # --- operators ---

    @precondition(lambda self: self.model.open)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.tick()
        job = self.model.open[data.draw(st.sampled_from(sorted(self.model.open)))]
        word = self.stage.cancel(job.id, keep_us=KEEP_US).word
        if job.state == "running":
            assert word == "requested"
            job.is_cancelled = True
        else:
            assert word == "cancelled"
            self.model.end(job, "cancelled", now=self.now)

    @rule(lane=lane_names)
    def revive(self, lane: str) -> None:
        self.tick()
        letters = self.model.letters[lane][:2]
        assert self.stage.revive(*letters) == ["revived"] * len(letters)
        tick = self.now
        for job_id in letters:
            self.model.letters[lane].remove(job_id)
            tick += 1
            record = self.stage.hash("jobs")[job_id].partition(b"\n")[0].decode().split("\t")
            boost = next((int(word[2:]) for word in record if word.startswith("b=")), 0)
            score = self.model.free_from(lane, "waiting", tick - boost)
            job = Modelled(job_id, lane, "waiting", score, boost=boost, has_started=True)
            self.model.open[job_id] = job
            self.model.counts[lane]["enqueued"] += 1

    @rule(lane=lane_names, limit=st.integers(1, 4))
    def purge(self, lane: str, limit: int) -> None:
        self.tick()
        scheduled = [
            j for j in self.model.open.values() if j.lane == lane and j.state == "scheduled"
        ]
        doomed = self.model.waiting(lane) + sorted(scheduled, key=lambda job: job.score)
        call = lane_calls.purge(self.stage.keys, lane, limit=limit)
        assert self.stage.run(call) == len(doomed[:limit])
        for job in doomed[:limit]:
            del self.model.open[job.id]
            self.model.counts[lane]["purged"] += 1

    @rule(lane=lane_names)
    def pause_or_resume(self, lane: str) -> None:
        self.tick()
        if lane in self.model.paused:
            self.model.paused.remove(lane)
            self.stage.set_lane(lane, None)
        else:
            self.model.paused.add(lane)
            self.stage.set_lane(lane, {"paused": True})
        self.model.overtaken_until.clear()

    # --- time ---

    @rule(us=st.sampled_from([1, 10, SECOND, 4 * SECOND, 11 * SECOND, 45 * SECOND]))
    def time_passes(self, us: int) -> None:
        self.stage.forward(us)

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
                    for job in self.model.open.values()
                    if job.lane == lane and job.state == state
                }
                assert self.stage.places(word, lane) == ours, f"{word} of {lane}"
            assert sorted(self.stage.order("dead", lane)) == sorted(self.model.letters[lane])

    @invariant()
    def both_count_the_same(self) -> None:
        for lane in NAMES:
            ours = {event: n for event, n in self.model.counts[lane].items() if n}
            theirs = self.stage.counts(lane)
            theirs.pop("dropped", None)
            assert theirs == ours, lane


@pytest.fixture(params=["server", "fake"])
def machine(request: pytest.FixtureRequest) -> type[Machine]:
    is_fake = request.param == "fake"
    client = request.getfixturevalue("fake" if is_fake else "raw")

    class Here(Machine):
        pass

    Here.client, Here.is_fake = client, is_fake
    return Here


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_scripts_and_a_plain_model_agree(machine):
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=6 if machine.is_fake else 30,
            stateful_step_count=30,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
