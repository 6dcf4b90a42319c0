"""Races that must not happen, each provoked for many rounds against the real scripts.

A script is one step, so two calls that race come in one of two orders. `race` has each order in
some rounds, and leaves it to threads in the others; each round says what may be the case after
either. In the end of each test every invariant holds.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis

from laneq.calls import jobs, lanes, workers
from laneq.calls.workers import Held, WorkerInfo
from laneq.options import Lane
from tests.lua.test_races import stage_of, together
from tests.patience import wait_until
from tests.stage import SECOND, START_US, Stage, Worker, new

#: Rounds of a race.
ROUNDS = 120

LEASE_US = 15 * SECOND
KEPT_US = 10**12
INFO = WorkerInfo("n", "h", 1, 4, {}, ["normal"], ["t"])


class Arena:
    """One namespace as several clients see it, each over a connection of its own.

    Attributes:
        stage: to set up and to look.
    """

    def __init__(self, url: str, namespace: str) -> None:
        self._url, self._namespace = url, namespace
        self._clients: list[redis.Redis] = []
        self.stage = self.another()

    def another(self) -> Stage:
        """Return the namespace over another connection."""
        stage = stage_of(self._url, self._namespace)
        self._clients.append(stage.client)
        return stage

    def worker(self, name: str, **options: Any) -> Worker:
        """Return a worker over a connection of its own."""
        return self.another().worker(name, **options)

    def close(self) -> None:
        for client in self._clients:
            client.close()


@pytest.fixture
def arena(url: str, namespace: str, raw: redis.Redis) -> Iterator[Arena]:
    """A namespace with the default lanes and a clock that stands still; in order afterwards."""
    raw.hset(f"{{laneq:{namespace}}}:state", "clock", START_US)
    made = Arena(url, namespace)
    yield made
    assert made.stage.problems() == []
    made.close()


def race(n: int, *bodies: Callable[[], Any]) -> list[Any]:
    """Return what the bodies return, run in one order, in the other, or all at once.

    Args:
        n: the number of the round; it decides.
        bodies: what races.
    """
    answers: list[Any] = [None] * len(bodies)

    def keep(at: int) -> None:
        answers[at] = bodies[at]()

    places = range(len(bodies))
    if n % 4 >= 2:
        together(*(partial(keep, at) for at in places))
    else:
        for at in places if n % 4 == 0 else reversed(places):
            keep(at)
    return answers


def beat(worker: Worker, *ids: str) -> workers.BeatReply:
    """Renew leases that a worker was given."""
    held = [Held(worker.held[i].lane, i, worker.held[i].fence, LEASE_US) for i in ids]
    stage = worker.stage
    call = workers.beat(
        stage.keys, worker.id, INFO, now_us=START_US, lanes=stage.lanes.names, leases=held
    )
    return stage.run(call)


# --- claims -----------------------------------------------------------------------------


def test_two_claimers_of_one_job_one_of_whom_gets_it(arena: Arena) -> None:
    rivals = [arena.worker(f"w{n}") for n in range(3)]
    winners = Counter[str]()
    for n in range(ROUNDS):
        arena.stage.put(f"j{n}")
        race(n, *(w.claim for w in rivals))
        assert sorted([*w.held] for w in rivals) == [[], [], [f"j{n}"]]
        (winner,) = (w for w in rivals if w.held)
        winners[winner.id] += 1
        winner.finish(f"j{n}")
    assert arena.stage.counts()["started"] == ROUNDS
    assert len(winners) > 1, "the same worker won each round: that was no race"


def test_a_claim_whose_reply_is_lost_is_given_again_whatever_came_between(arena: Arena) -> None:
    rng = random.Random(3)
    worker = arena.worker("w", slots=3)
    rival = arena.worker("r", slots=2)
    reaper = arena.worker("reaper", slots=9)
    kept = lost = 0
    for n in range(ROUNDS):
        ids = arena.stage.put(*(f"j{n}-{i}" for i in range(4)))
        ends = [worker.ended(i, number=KEPT_US) for i in worker.held]
        call = worker.call(free=3, outcomes=ends)
        first = worker.stage.run(call)  # applied, and its reply is lost
        assert first is not None
        given = {job.id: job.fence for job in first.jobs}
        assert len(given) == 3
        between = rng.choice(["nothing", "rival", "lease"])
        if between == "rival":
            rival.take()
        elif between == "lease":
            arena.stage.forward(LEASE_US)
            reaper.claim(is_look=True)
            for job_id in list(reaper.held):
                reaper.finish(job_id, number=KEPT_US)
        again = worker.stage.run(worker.call(free=3, outcomes=ends, is_repeat=True))
        assert again is not None
        assert again.stale == []
        repeated = {job.id: job.fence for job in again.jobs}
        assert repeated == ({} if between == "lease" else given)
        kept += len(repeated)
        lost += between == "lease"
        worker.held = {job.id: job for job in again.jobs}
        for each in (worker, rival):
            for job_id in list(each.held):
                each.finish(job_id, number=KEPT_US)
        reaper.claim()
        for job_id in list(reaper.held):
            reaper.finish(job_id, number=KEPT_US)
        assert {arena.stage.state(i) for i in ids} == {"succeeded"}
    assert kept
    assert lost
    assert arena.stage.counts()["succeeded"] == 4 * ROUNDS


@pytest.mark.parametrize("late_us", [-1, 0])
def test_a_renewal_and_a_reaper_at_the_deadline_do_not_both_get_the_job(
    arena: Arena, late_us: int
) -> None:
    holder, heir = arena.worker("holder"), arena.worker("heir")
    outcomes = Counter[str]()
    for n in range(ROUNDS):
        arena.stage.put(f"j{n}")
        (job,) = holder.claim().jobs
        deadline = arena.stage.places("leases")[f"j{n}"]
        arena.stage.set_clock(deadline + late_us)
        news, _ = race(n, partial(beat, holder, job.id), partial(heir.claim, is_look=True))
        was_lost = news.lost == {job.id}
        heir_got = job.id in heir.held
        if heir_got:
            # It may have been told already; if not, it will be by the next beat.
            assert was_lost or beat(holder, job.id).lost == {job.id}
            assert holder.finish(job.id).stale == [job.id]
            heir.finish(job.id)
        else:
            assert not was_lost
            assert holder.finish(job.id).stale == []
        outcomes["reaped" if heir_got else "renewed"] += 1
        holder.held.clear()
    assert set(outcomes) == ({"renewed"} if late_us < 0 else {"renewed", "reaped"})
    counts = arena.stage.counts()
    assert counts["succeeded"] == ROUNDS
    assert counts["started"] == ROUNDS + counts.get("lost_leases", 0)
    if late_us < 0:
        assert "lost_leases" not in counts


def test_two_reapers_bring_back_each_lease_once(arena: Arena) -> None:
    victim = arena.worker("victim", slots=30)
    reapers = [arena.worker(f"r{n}", slots=30) for n in range(2)]
    for n in range(ROUNDS // 4):
        ids = arena.stage.put(*(f"j{n}-{i:02}" for i in range(30)))
        victim.claim()
        victim.held.clear()
        arena.stage.forward(LEASE_US)
        race(n, *(partial(reaper.claim, is_look=True, free=15) for reaper in reapers))
        for reaper in reapers:
            reaper.claim(free=30 - len(reaper.held))
        got = Counter(job_id for reaper in reapers for job_id in reaper.held)
        assert got == Counter(ids)
        assert {job.attempt for reaper in reapers for job in reaper.held.values()} == {2}
        for reaper in reapers:
            for job_id in list(reaper.held):
                reaper.finish(job_id)
    counts = arena.stage.counts()
    assert counts["lost_leases"] == 30 * (ROUNDS // 4) == counts["succeeded"]


# --- outcomes ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["succeeded", "retried", "dead", "handed_back", "snoozed"])
def test_an_outcome_and_a_cancel_agree_on_one_end(arena: Arena, kind: str) -> None:
    worker, operator = arena.worker("w"), arena.another()
    words = Counter[str]()
    for n in range(ROUNDS):
        arena.stage.put(f"j{n}")
        worker.claim()
        body = b"!no" if kind in {"retried", "dead"} else b""
        end = worker.ended(f"j{n}", kind, number=KEPT_US, body=body)
        _, said = race(
            n,
            partial(worker.claim, free=0, outcomes=[end]),
            partial(operator.cancel, f"j{n}", keep_us=KEPT_US),
        )
        words[said.word] += 1
        state = arena.stage.state(f"j{n}")
        if said.word == "ended":
            assert state == kind
        else:
            assert state == "cancelled"
    assert set(words) <= {"ended", "requested", "cancelled"}
    # After a cancel was confirmed nothing starts.
    assert arena.worker("late", slots=9).take(is_look=True) == []


@pytest.mark.parametrize("kind", ["retried", "handed_back"])
def test_an_outcome_that_brings_a_job_back_and_a_purge_of_its_lane_lose_no_count(
    arena: Arena, kind: str
) -> None:
    worker, operator = arena.worker("w", slots=2), arena.another()
    purged = 0
    for n in range(ROUNDS):
        arena.stage.put(f"a{n}", f"b{n}")
        worker.claim(free=1)
        end = worker.ended(f"a{n}", kind, number=SECOND, body=b"!no")
        _, dropped = race(
            n,
            partial(worker.claim, free=0, outcomes=[end]),
            partial(operator.run, lanes.purge(operator.keys, "normal")),
        )
        purged += dropped
        assert arena.stage.state(f"b{n}") is None
        left = arena.stage.state(f"a{n}")
        assert left in {None, "scheduled" if kind == "retried" else "waiting"}
        assert dropped == (2 if left is None else 1)
        purged += arena.stage.run(lanes.purge(arena.stage.keys, "normal"))
        assert arena.stage.problems() == []
    assert arena.stage.counts()["purged"] == purged == 2 * ROUNDS


def test_a_death_and_a_purge_of_dead_letters_lose_no_count(arena: Arena) -> None:
    worker, operator = arena.worker("w"), arena.another()
    for n in range(ROUNDS):
        arena.stage.put(f"j{n}")
        worker.claim()
        end = worker.ended(f"j{n}", "dead", body=b"!no")
        race(
            n,
            partial(worker.claim, free=0, outcomes=[end]),
            partial(operator.run, jobs.purge_dead(operator.keys, lanes=operator.lanes.names)),
        )
        assert arena.stage.state(f"j{n}") in {None, "dead"}
    assert arena.stage.counts()["dead"] == ROUNDS


def test_two_retries_of_one_dead_letter_revive_it_once(arena: Arena) -> None:
    worker = arena.worker("w")
    operators = [arena.another() for _ in range(2)]
    for n in range(ROUNDS):
        arena.stage.put(f"j{n}")
        worker.claim()
        worker.finish(f"j{n}", "dead", body=b"!no")
        answers = race(n, *(partial(operator.revive, f"j{n}") for operator in operators))
        words = [word for answer in answers for word in answer]
        assert words.count("revived") == 1, words
        assert worker.take() == [f"j{n}"]
        worker.finish(f"j{n}")


# --- delayed jobs -----------------------------------------------------------------------


def test_a_delayed_job_is_promoted_once_and_not_early_and_not_lost_to_a_cancel(
    arena: Arena,
) -> None:
    claimers = [arena.worker(f"w{n}", slots=2) for n in range(2)]
    operator = arena.another()
    cancelled = 0
    for n in range(ROUNDS):
        ids = arena.stage.put(f"a{n}", f"b{n}", when=f"+{SECOND}")
        arena.stage.put(f"c{n}", when=f"+{SECOND - 9}")  # has the claims look at what is due
        due = arena.stage.places("scheduled")[f"a{n}"]
        arena.stage.set_clock(due - 4)  # each claim takes an instant or two
        race(n, *(partial(claimer.claim, is_look=True) for claimer in claimers))
        assert [job_id for w in claimers for job_id in w.held] == [f"c{n}"], "started early"
        arena.stage.set_clock(due + 9)
        for claimer in claimers:
            for job_id in list(claimer.held):
                claimer.finish(job_id)
        *_, said = race(
            n,
            *(claimer.claim for claimer in claimers),
            partial(operator.cancel, f"a{n}", keep_us=KEPT_US),
        )
        for claimer in claimers:
            claimer.claim()
        started = Counter(job_id for w in claimers for job_id in w.held)
        assert set(started.values()) == {1}
        assert started[f"b{n}"] == 1
        assert (f"a{n}" in started) == (said.word == "requested")
        cancelled += 1
        for claimer in claimers:
            for job_id in list(claimer.held):
                claimer.finish(job_id, number=KEPT_US)
        assert [arena.stage.state(i) for i in ids] == ["cancelled", "succeeded"]
    assert arena.stage.counts()["cancelled"] == cancelled


# --- wake-ups ---------------------------------------------------------------------------

#: A wait that lasts this long was not ended by a wake-up: it was lost.
LOST_S = 15


class Sleeper:
    """A worker that claims, and blocks on its lane's token when there is nothing; as they do."""

    def __init__(self, arena: Arena, name: str, *, slots: int = 1, serves: Any = None) -> None:
        self.worker = arena.worker(name, slots=slots, serves=serves)
        self.wakes = 0
        self._lanes = serves or self.worker.stage.lanes.names

    def until_woken(self) -> bool:
        """Block; false when nothing woke it."""
        stage = self.worker.stage
        keys = [stage.key("wake", lane) for lane in self._lanes]
        woken = stage.client.blpop(keys, timeout=LOST_S)
        self.wakes += woken is not None
        return woken is not None


def until_blocked(client: redis.Redis, n: int) -> None:
    """Wait until so many clients block."""
    wait_until(lambda: int(client.info("clients")["blocked_clients"]) >= n)


def test_a_job_enqueued_between_an_empty_claim_and_the_block_wakes_at_once(arena: Arena) -> None:
    sleeper = Sleeper(arena, "w")
    for n in range(ROUNDS):
        assert sleeper.worker.take() == []
        arena.stage.put(f"j{n}")
        assert sleeper.until_woken()
        assert sleeper.worker.take() == [f"j{n}"]
        sleeper.worker.finish(f"j{n}")


def test_no_enqueue_is_lost_on_workers_that_go_to_sleep_at_any_moment(arena: Arena) -> None:
    sleepers = [Sleeper(arena, f"w{n}") for n in range(3)]
    total = 300
    ended: list[str] = []
    is_asleep: list[str] = []

    def sleep_and_work(sleeper: Sleeper) -> None:
        worker = sleeper.worker
        while len(ended) < total:
            ends = [worker.ended(i) for i in worker.held]
            got = worker.take(outcomes=ends)
            ended.extend(end.id for end in ends)
            if not got and len(ended) < total and not sleeper.until_woken():
                is_asleep.append(worker.id)
                return

    def produce() -> None:
        rng = random.Random(1)
        stage, n = arena.another(), 0
        while n < total:
            size = min(rng.choice([1, 1, 2, 5]), total - n)
            stage.put(*(f"j{i}" for i in range(n, n + size)))
            n += size
            # The sleepers go to sleep, or do not; but all have ended before the last are woken.
            while len(ended) < n - (rng.choice([0, 0, 3]) if n < total else 0):
                if is_asleep:
                    return
        for sleeper in sleepers:
            stage.client.rpush(stage.key("wake", "normal"), sleeper.worker.id)

    together(*(partial(sleep_and_work, sleeper) for sleeper in sleepers), produce)
    assert is_asleep == [], "a wake-up was lost"
    assert len(ended) == len(set(ended)) == total
    arena.stage.client.delete(arena.stage.key("wake", "normal"))


def test_jobs_of_one_call_wake_one_worker_at_a_time_and_none_is_left_asleep(
    arena: Arena, raw: redis.Redis
) -> None:
    crowd = [Sleeper(arena, f"w{n}") for n in range(5)]
    before = int(raw.info("clients")["blocked_clients"])
    for n in range(ROUNDS // 6):
        got: list[str] = []

        def wake_up(sleeper: Sleeper, got: list[str] = got) -> None:
            while not sleeper.worker.held:
                assert sleeper.until_woken(), "left asleep"
                got.extend(sleeper.worker.take())

        def enqueue(n: int = n) -> None:
            until_blocked(raw, before + len(crowd))
            arena.stage.put(*(f"j{n}-{i}" for i in range(len(crowd))))

        together(*(partial(wake_up, sleeper) for sleeper in crowd), enqueue)
        assert sorted(got) == [f"j{n}-{i}" for i in range(len(crowd))]
        for sleeper in crowd:
            for job_id in list(sleeper.worker.held):
                sleeper.worker.finish(job_id)
    # One token, handed on: nobody was woken for nothing.
    assert sum(sleeper.wakes for sleeper in crowd) == len(crowd) * (ROUNDS // 6)


def test_a_wake_up_that_died_with_its_worker_costs_no_more_than_a_look(arena: Arena) -> None:
    doomed, other = Sleeper(arena, "doomed"), Sleeper(arena, "other")
    for n in range(ROUNDS):
        arena.stage.put(f"a{n}")
        assert doomed.until_woken()  # and then it is gone: no claim of it follows
        if n % 2:
            # The next enqueue wakes another worker, which finds both ...
            arena.stage.put(f"b{n}")
            assert other.until_woken()
        # ... and without one, a worker that looks by itself, as each does after its poll.
        assert other.worker.take() == [f"a{n}"]
        other.worker.finish(f"a{n}")
        other.worker.claim()
        for job_id in list(other.worker.held):
            other.worker.finish(job_id)


def test_an_end_that_frees_a_slot_starts_the_next_job_in_the_same_call(arena: Arena) -> None:
    worker = arena.worker("w", slots=3, reserve={"urgent": 2})
    arena.stage.put("a", "b", "c", lane="batch")
    assert worker.take() == ["a"]
    assert worker.take() == []  # the other two slots are kept
    assert worker.take(outcomes=[worker.ended("a")]) == ["b"]
    arena.stage.put("u", lane="urgent")
    assert worker.take() == ["u"]
    assert worker.take(outcomes=[worker.ended("u")]) == []
    assert worker.take(outcomes=[worker.ended("b")]) == ["c"]


def test_a_resumed_lane_and_changed_settings_wake_whoever_listens(arena: Arena) -> None:
    sleeper = Sleeper(arena, "w")
    for n in range(ROUNDS // 3):
        arena.stage.set_lane("normal", {"paused": True})
        arena.stage.put(f"j{n}")
        sleeper.worker.stage.lanes = arena.stage.lanes
        assert sleeper.until_woken()
        assert sleeper.worker.take() == []
        assert arena.stage.tokens() == []
        together(sleeper.until_woken, lambda: arena.stage.set_lane("normal", {"paused": False}))
        assert sleeper.worker.stage.run(sleeper.worker.call()) is None, "told to read the lanes"
        sleeper.worker.stage.lanes = arena.stage.lanes
        assert sleeper.worker.take() == [f"j{n}"]
        sleeper.worker.finish(f"j{n}")
    assert sleeper.wakes == 2 * (ROUNDS // 3)


# --- reserves and settings --------------------------------------------------------------


def test_no_batch_job_is_admitted_into_a_reserved_slot_by_fifty_claims_at_once(
    arena: Arena,
) -> None:
    fleet = [arena.worker(f"w{n:02}", slots=3, reserve={"urgent": 1}) for n in range(50)]
    rng = random.Random(7)
    arena.stage.put(*(f"b{n:04}" for n in range(900)), lane="batch")

    def claim_in_turn(part: list[tuple[Worker, list[str]]]) -> None:
        for worker, ends in part:
            worker.claim(outcomes=[worker.ended(i) for i in ends])

    for round_ in range(6):
        arena.stage.put(*(f"u{round_}-{n}" for n in range(rng.choice([0, 10, 80]))), lane="urgent")
        plan = [
            (worker, [i for i in worker.held if rng.random() < 0.5])
            for worker in rng.sample(fleet, len(fleet))
        ]
        together(*(partial(claim_in_turn, plan[n::5]) for n in range(5)))
        for worker in fleet:
            running = Counter(job.lane for job in worker.held.values())
            assert running["batch"] <= 2, f"{worker.id}: batch jobs in the slot kept for urgent"
            idle = 3 - running.total()
            assert 0 <= idle <= max(0, 1 - running["urgent"]), f"{worker.id} leaves {idle} idle"
    starts = [job_id for worker in fleet for job_id in worker.held]
    assert len(starts) == len(set(starts))


def test_fifty_claims_at_once_leave_the_fleet_the_slots_of_its_reserve(arena: Arena) -> None:
    fleet = [arena.worker(f"w{n:02}") for n in range(50)]
    arena.stage.publish(Lane("urgent", priority=1000, reserve=10), Lane("batch", priority=10))
    for worker in fleet:
        worker.stage.lanes = arena.stage.lanes
        worker.claim()  # so that its slot is known
    arena.stage.put(*(f"b{n:04}" for n in range(600)), lane="batch")
    rng = random.Random(7)

    def claim_in_turn(part: list[Worker]) -> None:
        for worker in part:
            done = [worker.ended(i) for i in worker.held if rng.random() < 0.5]
            worker.claim(outcomes=done)

    for round_ in range(6):
        urgent = rng.choice([0, 3, 10, 25])
        arena.stage.put(*(f"u{round_}-{n}" for n in range(urgent)), lane="urgent")
        order = rng.sample(fleet, len(fleet))
        together(*(partial(claim_in_turn, order[n::5]) for n in range(5)))
        running = Counter(job.lane for worker in fleet for job in worker.held.values())
        kept = max(0, 10 - running["urgent"])
        assert running.total() + kept <= len(fleet), "batch jobs in slots kept for urgent"
        assert running.total() + kept == len(fleet), "slots idle that nobody keeps"
    starts = [job_id for worker in fleet for job_id in worker.held]
    assert len(starts) == len(set(starts))


def test_settings_that_change_while_claims_run_lose_no_job_and_a_pause_holds_at_once(
    arena: Arena,
) -> None:
    total = 240
    arena.stage.put(*(f"b{n:03}" for n in range(total)), lane="batch")
    started: list[str] = []
    early: list[str] = []
    epoch = [0]  # odd while the lane is paused
    stale_versions = Counter[str]()

    def work(name: str) -> Callable[[], None]:
        worker = arena.worker(name, slots=2)

        def run() -> None:
            while len(started) < total or worker.held:
                ends = [worker.ended(i, number=KEPT_US) for i in worker.held]
                asked_in = epoch[0]
                reply = worker.stage.run(worker.call(outcomes=ends))
                if reply is None:
                    stale_versions[name] += 1
                    worker.stage.lanes = worker.stage.run(lanes.read_lanes(worker.stage.keys))
                    continue
                for end in ends:
                    del worker.held[end.id]
                worker.held.update({job.id: job for job in reply.jobs})
                started.extend(worker.held)
                if asked_in % 2 and reply.jobs:
                    early.extend(worker.held)

        return run

    def operate() -> None:
        stage = arena.another()
        n = 0
        while len(started) < total:
            n += 1
            stage.set_lane("batch", {"paused": True, "priority": 10 + n % 3, "reserve": n % 2})
            epoch[0] += 1
            stage.look("b000")
            epoch[0] += 1
            stage.set_lane("batch", {"paused": False})
            seen = len(started)
            while seen == len(started) < total:
                pass

    together(*(work(f"w{n}") for n in range(3)), operate)
    assert early == [], "started after the pause was confirmed"
    assert len(started) == len(set(started)) == total
    assert stale_versions
    assert arena.stage.counts("batch")["succeeded"] == total


def test_an_id_enqueued_by_many_at_once_is_one_job(arena: Arena) -> None:
    stages = [arena.another() for _ in range(4)]
    for n in range(ROUNDS // 2):
        calls = [jobs.enqueue(arena.stage.keys, [new(f"j{n}"), new(f"k{n}-{i}")]) for i in range(4)]
        replies = race(
            n,
            *(
                partial(stage.ask, call, session=f"p{i}")
                for i, (stage, call) in enumerate(zip(stages, calls, strict=True))
            ),
        )
        assert sorted(replies) == [[b"ok"], *[[b"ok", 1]] * 3]
    assert arena.stage.counts()["enqueued"] == (ROUNDS // 2) * 5
