"""Limits beyond a worker's own slots: reserves over the fleet, max_running, rate."""

from __future__ import annotations

import random
from collections import Counter
from uuid import uuid4

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laneq.calls import workers as calls
from laneq.options import DEFAULT_LANES, Lane
from laneq.order import fleet_reserve, may_start
from tests.conftest import drop_namespace
from tests.stage import SECOND, START_US, Stage

URGENT, NORMAL, BATCH = DEFAULT_LANES[1:]


def lanes(**changes) -> list[Lane]:
    """Return urgent, normal and batch; ``urgent={"reserve": 2}`` changes one."""
    return [lane.changed(**changes.get(lane.name, {})) for lane in (URGENT, NORMAL, BATCH)]


def fill(stage: Stage, lane: str, n: int, prefix: str = "") -> None:
    stage.put(*(f"{prefix or lane[0]}{i}" for i in range(n)), lane=lane)


def fleet(stage: Stage) -> dict[str, str]:
    return {field: value.decode() for field, value in stage.hash("fleet").items()}


def hush(stage: Stage) -> None:
    for lane in stage.lanes.names:
        stage.client.delete(stage.key("wake", lane))


# --- reserves over the fleet ----------------------------------------------------------


def test_other_lanes_leave_the_reserve_free_over_all_workers(stage):
    stage.publish(*lanes(urgent={"reserve": 3}))
    team = [stage.worker(f"w{n}", slots=4) for n in range(2)]
    # Until a worker has claimed it is not known, and its slots are nobody's.
    for worker in team:
        worker.claim()
    fill(stage, "batch", 20)
    taken = [worker.take() for worker in team]
    assert [len(ids) for ids in taken] == [4, 1]
    fill(stage, "urgent", 4)
    assert team[1].take() == ["u0", "u1", "u2"]
    assert team[0].take() == []


def test_a_single_worker_keeps_the_reserve_by_itself(stage):
    stage.publish(*lanes(urgent={"reserve": 2}))
    fill(stage, "batch", 9)
    worker = stage.worker(slots=5)
    assert len(worker.take()) == 3
    fill(stage, "urgent", 1)
    assert worker.take() == ["u0"]
    assert worker.take() == []


def test_a_reserve_leaves_one_slot_of_the_fleet_to_the_others(stage):
    stage.publish(*lanes(urgent={"reserve": 50}))
    fill(stage, "batch", 5)
    worker = stage.worker(slots=4)
    assert worker.take() == ["b0"]
    assert worker.take() == []
    fill(stage, "urgent", 9)
    assert worker.take() == ["u0", "u1", "u2"]


def test_a_lane_may_take_more_than_its_reserve(stage):
    stage.publish(*lanes(urgent={"reserve": 1}))
    fill(stage, "urgent", 9)
    assert len(stage.worker(slots=4).take()) == 4


def test_two_reserves_are_both_kept(stage):
    stage.publish(*lanes(urgent={"reserve": 2}, normal={"reserve": 1}))
    fill(stage, "batch", 9)
    worker = stage.worker(slots=6)
    assert len(worker.take()) == 3
    fill(stage, "normal", 5)
    assert worker.take() == ["n0"]
    fill(stage, "urgent", 5)
    assert worker.take() == ["u0", "u1"]


def test_a_worker_that_does_not_serve_the_reserved_lane_is_not_held_to_it(stage):
    stage.publish(*lanes(urgent={"reserve": 2}))
    mixed = stage.worker("mixed", slots=3)
    mixed.claim()
    fill(stage, "batch", 20)
    assert len(stage.worker("batch-only", slots=5, serves=["batch"]).take()) == 5
    # And its slots are none of the reserve: those of the mixed one are.
    stage.worker("idle-batch-only", slots=5, serves=["batch"]).claim(free=0)
    assert len(mixed.take()) == 1


def test_a_worker_that_leaves_takes_its_slots_along(stage):
    stage.publish(*lanes(urgent={"reserve": 2}))
    one, two = stage.worker("one", slots=4), stage.worker("two", slots=4)
    one.claim()
    two.claim()
    fill(stage, "batch", 20)
    assert len(two.take()) == 4
    assert fleet(stage)["slots:urgent"] == "8"
    stage.run(calls.leave(stage.keys, "two"))
    assert fleet(stage)["slots:urgent"] == "4"
    assert "worker:two" not in fleet(stage)
    assert len(one.take()) == 2


def test_a_worker_that_is_silent_for_long_takes_its_slots_along(stage):
    stage.publish(*lanes(urgent={"reserve": 2}))
    info = calls.WorkerInfo(name="two", host="h", pid=1, slots=4, reserve={}, lanes=[], tasks=[])
    stage.run(calls.register(stage.keys, "two", info))
    stage.worker("two", slots=4).claim()
    assert fleet(stage)["free:urgent"] == "4"
    stage.forward(calls.ALIVE_US + SECOND)
    stage.worker("one", slots=3).claim(is_look=True)
    assert fleet(stage)["free:urgent"] == fleet(stage)["slots:urgent"] == "3"


def test_a_reserve_that_is_set_live_acts_at_the_next_claim(stage):
    stage.publish(*lanes())
    team = [stage.worker(f"w{n}", slots=3) for n in range(2)]
    stage.set_lane("urgent", {"reserve": 4})
    for worker in team:
        worker.claim()
    fill(stage, "batch", 20)
    for worker in team:
        worker.claim()
    assert sum(len(worker.held) for worker in team) == 2
    stage.set_lane("urgent", {"reserve": 1})
    for worker in team:
        worker.claim()
    assert sum(len(worker.held) for worker in team) == 5
    stage.set_lane("urgent", None)
    for worker in team:
        worker.claim()
    assert sum(len(worker.held) for worker in team) == 6
    assert fleet(stage) == {}


def test_a_second_reserve_knows_the_workers_that_the_first_one_had_noted(stage):
    stage.publish(*lanes(urgent={"reserve": 1}))
    stage.worker("one", slots=3).claim()
    stage.worker("two", slots=2, serves=["batch", "urgent"]).claim()
    stage.set_lane("normal", {"reserve": 1})
    found = fleet(stage)
    assert (found["slots:normal"], found["slots:urgent"]) == ("3", "5")


def test_a_paused_lane_keeps_no_slots(stage):
    stage.publish(*lanes(urgent={"reserve": 2}))
    fill(stage, "batch", 9)
    worker = stage.worker(slots=4)
    stage.set_lane("urgent", {"paused": True})
    assert len(worker.take()) == 4
    worker.finish("b0")
    worker.finish("b1")
    stage.set_lane("urgent", {"paused": False})
    assert worker.take() == []


def test_reserves_of_a_worker_and_of_the_fleet_hold_together(stage):
    stage.publish(*lanes(urgent={"reserve": 2}))
    fill(stage, "batch", 9)
    worker = stage.worker(slots=6, reserve={"normal": 3})
    assert len(worker.take()) == 3
    other = stage.worker("other", slots=4)
    assert len(other.take()) == 4, "the first worker's free slots are the reserve"


# --- who listens, and who is woken -----------------------------------------------------


def test_a_lane_that_the_reserve_leaves_nothing_is_not_listened_for(stage):
    stage.publish(*lanes(urgent={"reserve": 2}))
    fill(stage, "batch", 9)
    worker = stage.worker(slots=4)
    reply = worker.claim(listening=["urgent", "normal", "batch"])
    assert len(reply.jobs) == 2
    assert reply.closed == {"critical", "normal", "batch"}
    assert stage.client.lrange(stage.keys.doorbell("w"), 0, -1) == [b"1"]


def test_when_the_reserve_gives_way_a_worker_that_waits_for_it_is_woken(stage):
    stage.publish(*lanes(urgent={"reserve": 2}))
    busy, idle = stage.worker("busy", slots=2), stage.worker("idle", slots=2)
    idle.claim()
    fill(stage, "batch", 9)
    busy.claim()
    assert len(busy.held) == 2
    assert idle.claim().closed == {"critical", "normal", "batch"}
    hush(stage)
    # One batch job ends, and an urgent one takes its slot: what urgent lacks is less by one,
    # so the other worker may start a batch job. It waits for urgent only.
    fill(stage, "urgent", 1)
    hush(stage)
    assert busy.take(outcomes=[busy.ended("b0")]) == ["u0"]
    assert "urgent" in stage.tokens()
    assert idle.take() == ["b2"]


def test_a_worker_that_is_woken_wakes_the_next_while_there_is_work_and_room(stage):
    stage.publish(*lanes(urgent={"reserve": 2}))
    busy = stage.worker("busy", slots=2)
    idle = [stage.worker(f"idle{n}") for n in range(2)]
    for worker in idle:
        worker.claim()
    fill(stage, "batch", 9)
    busy.claim()
    for worker in idle:
        assert "batch" in worker.claim().closed
    fill(stage, "urgent", 2)
    hush(stage)
    assert busy.take(outcomes=[busy.ended("b0"), busy.ended("b1")]) == ["u0", "u1"]
    for n, worker in enumerate(idle):
        assert "urgent" in stage.tokens()
        hush(stage)
        assert worker.take() == [f"b{n + 2}"]
    assert stage.tokens() == ["batch"], "nobody is left to be woken through urgent"


@pytest.mark.parametrize("kind", ["serves urgent only", "keeps all it has for urgent"])
def test_workers_that_cannot_use_the_room_are_not_woken_without_end(stage, kind):
    stage.publish(*lanes(urgent={"reserve": 1}))
    is_one_lane = kind == "serves urgent only"
    idle = stage.worker(
        "idle",
        slots=4,
        serves=["urgent"] if is_one_lane else None,
        reserve={} if is_one_lane else {"urgent": 4},
    )
    busy = stage.worker("busy", slots=2)
    idle.claim()
    fill(stage, "batch", 9)
    assert busy.take() == ["b0", "b1"]
    hush(stage)
    # The fleet has three slots more than its reserve asks for, none of them for batch. A
    # token for urgent would be popped by this very worker, and its claim would put another.
    assert idle.take() == []
    assert stage.tokens() == ["batch"]
    assert busy.take(outcomes=[busy.ended("b0")]) == ["b2"]
    assert stage.tokens() == ["batch"]


def test_a_worker_that_waits_for_the_reserve_is_forgotten_when_it_leaves(stage):
    stage.publish(*lanes(urgent={"reserve": 2}))
    worker = stage.worker(slots=2)
    stage.worker("other", slots=1).claim()
    fill(stage, "batch", 9)
    worker.claim()
    assert "batch" in worker.claim().closed
    assert fleet(stage)["deaf"] == ",w,"
    stage.run(calls.leave(stage.keys, "w"))
    assert fleet(stage)["deaf"] == ","


# --- max_running -----------------------------------------------------------------------


def test_no_more_jobs_of_a_lane_run_than_its_max_running(stage):
    stage.publish(*lanes(normal={"max_running": 3}))
    fill(stage, "normal", 9)
    fill(stage, "batch", 2)
    one, two = stage.worker("one", slots=2), stage.worker("two", slots=4)
    assert one.take() == ["n0", "n1"]
    assert two.take() == ["n2", "b0", "b1"]
    assert two.take() == []


def test_a_lane_at_its_limit_wakes_nobody_until_one_of_its_jobs_ends(stage):
    stage.publish(*lanes(batch={"max_running": 1}))
    fill(stage, "batch", 3)
    one, two = stage.worker("one", slots=2), stage.worker("two", slots=2)
    assert one.take() == ["b0"]
    hush(stage)
    fill(stage, "batch", 2, prefix="late")
    assert two.take() == []
    assert two.claim().closed == frozenset()
    assert stage.tokens() == []
    # Whoever ends it has no use for the room: it is draining.
    one.finish("b0")
    assert stage.tokens() == ["batch"]
    hush(stage)
    assert two.take() == ["b1"]


def test_a_max_running_that_is_raised_wakes_a_worker(stage):
    stage.publish(*lanes(batch={"max_running": 1}))
    fill(stage, "batch", 9)
    worker = stage.worker(slots=5)
    worker.claim()
    hush(stage)
    stage.set_lane("batch", {"max_running": 3})
    assert "batch" in stage.tokens()
    assert worker.take() == ["b1", "b2"]
    stage.set_lane("batch", {"max_running": None})
    assert worker.take() == ["b3", "b4"]
    hush(stage)
    fill(stage, "batch", 1, prefix="late")
    assert stage.tokens() == ["batch"]


def test_a_lease_that_is_lost_makes_room_again(stage):
    stage.publish(*lanes(batch={"max_running": 1}))
    fill(stage, "batch", 2)
    stage.worker("gone").claim()
    stage.forward(16 * SECOND)
    assert stage.worker("other", slots=2).take(is_look=True) == ["b0"]


# --- rate ------------------------------------------------------------------------------


def test_starts_of_a_lane_keep_to_its_rate(stage):
    stage.publish(*lanes(batch={"rate": "2/s"}))
    fill(stage, "batch", 9)
    worker = stage.worker(slots=9)
    reply = worker.claim()
    assert [job.id for job in reply.jobs] == ["b0"]
    # It has the watch for the instant at which the next may start.
    assert reply.wake_after_us == pytest.approx(SECOND / 2 - calls.CATCH_UP_US, abs=10)
    stage.forward(reply.wake_after_us - 50)
    assert worker.take() == []
    stage.forward(100)
    assert worker.take() == ["b1"]
    stage.forward(10 * SECOND)
    assert worker.take() == ["b2"], "what was not used is not saved up"


def test_a_rate_lets_what_was_missed_by_a_little_be_caught_up(stage):
    stage.publish(*lanes(batch={"rate": "100/s"}))
    fill(stage, "batch", 200)
    worker = stage.worker(slots=200)
    started = []
    for _ in range(21):
        started.append(len(worker.take()))
        stage.forward(SECOND // 20)
    assert started[0] == 11
    assert started[1:] == [5] * 20


def test_a_lane_over_its_rate_does_not_block_others_and_wakes_nobody(stage):
    stage.publish(*lanes(urgent={"rate": "1/m"}))
    fill(stage, "urgent", 5)
    fill(stage, "batch", 2)
    worker = stage.worker(slots=4)
    assert worker.take() == ["u0", "b0", "b1"]
    hush(stage)
    fill(stage, "urgent", 1, prefix="late")
    assert worker.take() == []
    assert stage.tokens() == []
    stage.forward(60 * SECOND)
    assert stage.worker("other").take() == ["u0"], "whose lease has run out by then"


def test_jobs_that_expire_at_their_start_cost_no_start(stage):
    stage.publish(*lanes(batch={"rate": "1/m"}))
    stage.put("late", lane="batch", expires_us=SECOND)
    stage.put("good", lane="batch")
    stage.forward(2 * SECOND)
    assert stage.worker(slots=3).take() == ["good"]


def test_a_rate_that_is_raised_does_not_wait_for_the_start_that_the_old_one_had_due(stage):
    stage.publish(*lanes(batch={"rate": "1/h"}))
    fill(stage, "batch", 9)
    worker = stage.worker(slots=9)
    assert worker.take() == ["b0"]
    stage.set_lane("batch", {"rate": "5/s"})
    assert worker.take() == ["b1"]
    assert worker.take() == []
    stage.forward(SECOND // 5)
    assert worker.take() == ["b2"]


def test_a_rate_that_comes_back_after_none_does_not_wait_for_what_was_due_before(stage):
    stage.publish(*lanes(batch={"rate": "1/h"}))
    fill(stage, "batch", 3)
    worker = stage.worker()
    worker.finish(worker.take()[0])
    stage.set_lane("batch", {"rate": None})
    worker.finish(worker.take()[0])
    stage.set_lane("batch", {"rate": "5/s"})
    assert worker.take() == ["b2"]


# --- the books -------------------------------------------------------------------------


def wrong_sums(stage: Stage) -> dict[str, object]:
    """Return lanes whose sums are not those of the workers' lines."""
    found = fleet(stage)
    wrong: dict[str, object] = {}
    for field in found:
        word, _, lane = field.partition(":")
        if word == "slots":
            lines = [v.split() for f, v in found.items() if f.startswith("worker:")]
            mine = [(int(s), int(f)) for s, f, names in lines if f",{lane}," in names]
            sums = (sum(s for s, _ in mine), sum(f for _, f in mine))
            noted = (int(found[field]), int(found[f"free:{lane}"]))
            if sums != noted:
                wrong[lane] = (sums, noted)
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("claims", [10_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_fifty_workers_killed_at_random_never_take_the_reserve(raw: redis.Redis, claims: int):
    dice = random.Random(claims)
    stage = Stage(raw, f"fleet-{uuid4().hex[:10]}", is_fake=False)
    try:
        stage.set_clock(START_US)
        stage.publish(Lane("urgent", priority=1000, reserve=20, lease=2), Lane("batch", lease=2))
        born = 0

        def hire():
            nonlocal born
            born += 1
            worker = stage.worker(f"w{born}", slots=4)
            info = calls.WorkerInfo(
                name=worker.id, host="h", pid=born, slots=4, reserve={}, lanes=[], tasks=[]
            )
            stage.run(calls.register(stage.keys, worker.id, info))
            worker.claim()
            return worker

        team = [hire() for _ in range(50)]
        ids = 0
        for n in range(claims):
            if n % 25 == 0:
                ids += 1
                stage.put(*(f"b{ids}-{i}" for i in range(30)), lane="batch")
                if dice.random() < 0.7:
                    stage.put(*(f"u{ids}-{i}" for i in range(dice.randrange(20))), lane="urgent")
            if dice.random() < 0.01:
                gone = team.pop(dice.randrange(len(team)))
                if dice.random() < 0.3:
                    back = [gone.ended(job_id, "handed_back") for job_id in gone.held]
                    gone.claim(free=0, outcomes=back)
                    stage.run(calls.leave(stage.keys, gone.id))
                team.append(hire())
            if n % 500 == 0:
                for worker in team:
                    info = calls.WorkerInfo(
                        name=worker.id, host="h", pid=1, slots=4, reserve={}, lanes=[], tasks=[]
                    )
                    held = [
                        calls.Held(job.lane, job.id, job.fence, 2 * SECOND)
                        for job in worker.held.values()
                    ]
                    stage.run(
                        calls.beat(
                            stage.keys,
                            worker.id,
                            info,
                            now_us=stage.now(),
                            lanes=stage.lanes.names,
                            leases=held,
                        )
                    )
                stage.forward(SECOND)
            worker = dice.choice(team)
            done = [job_id for job_id in worker.held if dice.random() < 0.5]
            reply = worker.claim(outcomes=[worker.ended(job_id) for job_id in done])
            if any(job.lane == "batch" for job in reply.jobs):
                found = fleet(stage)
                slots = int(found["slots:urgent"])
                assert raw.zcard(stage.key("leases", "batch")) <= slots - min(20, slots - 1)
        assert wrong_sums(stage) == {}
        assert [p for p in stage.problems() if p.kind != "no body"] == []
    finally:
        drop_namespace(raw, stage.namespace)


NAMES = ("a", "b", "c")
amounts = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 4), max_size=2)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(
    reserve=amounts,
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    waiting=st.fixed_dictionaries({name: st.integers(0, 6) for name in NAMES}),
    order=st.lists(st.integers(0, 3), min_size=1, max_size=12),
)
def test_claims_admit_what_order_says(raw: redis.Redis, reserve, sizes, waiting, order):
    stage = Stage(raw, f"admit-{uuid4().hex[:10]}", is_fake=False)
    try:
        stage.set_clock(START_US)
        stage.publish(
            *(
                Lane(name, priority=30 - 10 * i, aging=0, reserve=reserve.get(name, 0))
                for i, name in enumerate(NAMES)
            )
        )
        team = [stage.worker(f"w{n}", slots=slots) for n, slots in enumerate(sizes)]
        for worker in team:
            worker.claim()
        for name, n in waiting.items():
            if n:
                stage.put(*(f"{name}{i}" for i in range(n)), lane=name)
        left, running = dict(waiting), Counter()
        slots = sum(sizes)
        for n in order:
            worker = team[n % len(team)]
            expected: Counter[str] = Counter()
            free = worker.slots - len(worker.held)
            while free > 0:
                pool_free = slots - running.total()
                kept = fleet_reserve(
                    {name: reserve[name] for name in NAMES if name in reserve},
                    slots=slots,
                    free=pool_free,
                    running=running,
                )
                able = [
                    name
                    for name in NAMES
                    if left[name] and may_start(name, free=pool_free, running=running, reserve=kept)
                ]
                if not able:
                    break
                left[able[0]] -= 1
                running[able[0]] += 1
                expected[able[0]] += 1
                free -= 1
            assert Counter(job.lane for job in worker.claim().jobs) == expected
            assert wrong_sums(stage) == {}
    finally:
        drop_namespace(raw, stage.namespace)
