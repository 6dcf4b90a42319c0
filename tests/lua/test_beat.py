"""beat.lua: leases are renewed, cancels are learned, samples and counts are added."""

from __future__ import annotations

from laneq.calls import stats, workers
from laneq.calls.workers import Held, Sample, WorkerInfo
from laneq.keys import COARSE_US, FINE_US
from tests.lua.test_claim_outcomes import running
from tests.stage import SECOND, START_US

INFO = WorkerInfo("name", "host", 7, 4, {"urgent": 1}, ["normal"], ["t"], running=2)


def beat(stage, leases=(), samples=(), *, worker="w", info=INFO):
    call = workers.beat(
        stage.keys,
        worker,
        info,
        now_us=stage.now(),
        lanes=stage.lanes.names,
        leases=leases,
        samples=samples,
    )
    return stage.run(call)


def held(worker, *ids, lease_us=15 * SECOND):
    return [Held(worker.held[i].lane, i, worker.held[i].fence, lease_us) for i in ids]


def test_every_lease_of_a_worker_is_renewed_in_one_call(stage):
    stage.put("u", lane="urgent")
    worker = stage.worker(slots=3)
    worker.take()
    running(stage, "x")
    stage.put("n")
    worker.take()
    other = stage.places("leases")["x"]
    stage.forward(5 * SECOND)
    reply = beat(stage, held(worker, "u", "n"))
    now = stage.now()
    assert (reply.now_us, reply.lost, reply.cancels) == (now, frozenset(), frozenset())
    assert stage.places("leases", "urgent") == {"u": now + 15 * SECOND}
    assert stage.places("leases") == {"x": other, "n": now + 15 * SECOND}


def test_a_lease_past_its_deadline_that_nobody_took_is_renewed(stage):
    worker = running(stage, "a")
    stage.forward(20 * SECOND)
    assert beat(stage, held(worker, "a")).lost == frozenset()
    assert stage.worker("v").take(is_look=True) == []


def test_a_lease_that_another_holds_or_nobody_is_lost(stage):
    worker = running(stage, "a", "b", "c", "d")
    mine = held(worker, *"abcd")
    worker.claim(
        free=0, outcomes=[worker.ended("b", "handed_back"), worker.ended("c", number=SECOND)]
    )
    stage.forward(15 * SECOND)
    stage.put("e")
    other = stage.worker("v", slots=1)
    other.take(is_look=True)
    stage.client.hset(stage.keys.runs, "d", "garbage")
    before = stage.places("leases")
    assert beat(stage, mine).lost == set("abcd")
    assert stage.places("leases") == before
    stage.client.hdel(stage.keys.runs, "d")
    stage.allow("run line")


def test_a_renewal_makes_no_lease_where_there_is_none(stage):
    worker = running(stage, "a")
    stage.client.zrem(stage.key("leases", "normal"), "a")
    beat(stage, held(worker, "a"))
    assert stage.places("leases") == {}
    stage.allow(
        "orphan",
        "balance of a lane",
        "balance of a task",
        "attempts of a lane",
        "attempts of a task",
    )


def test_a_worker_learns_of_cancels_at_its_next_heartbeat(stage):
    worker = running(stage, "a", "b")
    stage.cancel("b")
    for _ in range(2):
        assert beat(stage, held(worker, "a", "b")).cancels == {"b"}
    from tests.lua.test_progress import report

    report(stage, "b", worker.held["b"].fence)
    assert beat(stage, held(worker, "b")).cancels == {"b"}


def test_a_thousand_leases_are_renewed_in_one_call(stage):
    ids = [f"{n:04}" for n in range(1001)]
    worker = stage.worker(slots=2000)
    stage.put(*ids[:1000])
    stage.put(*ids[1000:])
    while worker.claim(free=256).jobs:
        pass
    stage.forward(SECOND)
    beat(stage, held(worker, *ids))
    assert set(stage.places("leases").values()) == {stage.now() + 15 * SECOND}


def test_a_heartbeat_lists_its_worker_as_alive(stage):
    beat(stage)
    (view,) = stage.run(workers.list_workers(stage.keys))
    assert (view.id, view.name, view.running, view.slots) == ("w", "name", 2, 4)
    assert stage.places_of("beats") == {"w": stage.now() + workers.ALIVE_US}
    # Taken off the list while it was cut off, it is back with its next heartbeat.
    stage.forward(workers.ALIVE_US)
    stage.worker("v").claim(is_look=True)
    assert stage.run(workers.list_workers(stage.keys)) == []
    beat(stage)
    assert len(stage.run(workers.list_workers(stage.keys))) == 1


def test_samples_are_added_up_in_the_slices_of_their_time(stage):
    samples = [Sample("normal", "w12", 3), Sample("normal", "r2", 1), Sample("batch", "l7", 2)]
    beat(stage, samples=samples)
    beat(stage, samples=samples)
    fine, coarse = START_US // FINE_US, START_US // COARSE_US
    prefix = stage.keys.prefix
    for key in (b"hist:normal:f%d" % fine, b"hist:normal:m%d" % coarse):
        assert stage.client.hgetall(prefix + key) == {b"w12": b"6", b"r2": b"2"}
    assert 360 < stage.client.ttl(prefix + b"hist:normal:f%d" % fine) <= 400
    assert 3660 < stage.client.ttl(prefix + b"hist:normal:m%d" % coarse) <= 3720
    stage.forward(10 * SECOND)
    beat(stage, samples=[Sample("normal", "w12", 1)])
    spread = stats.spread(stage.keys, "normal", now_us=stage.now(), window_s=60)
    assert stage.run(spread) == {"w": {12: 7}, "r": {2: 2}, "l": {}}
    for window_s, n in ((60, 1), (300, 7), (3600, 7)):
        then = stats.spread(
            stage.keys, "normal", now_us=stage.now() + 65 * SECOND, window_s=window_s
        )
        assert stage.run(then)["w"] == {12: n} or (window_s, n) == (60, 1)


def test_counts_are_noted_every_five_seconds_in_a_ring(stage):
    stage.put("a")
    beat(stage)
    stage.put("b")
    beat(stage)
    stage.forward(5 * SECOND)
    beat(stage, worker="other")
    lines = stage.client.lrange(stage.key("rates", "normal"), 0, -1)
    assert [line.split()[1:] for line in lines] == [
        [b"1", *[b"0"] * 6],
        [b"2", *[b"0"] * 6],
    ]
    stage.client.rpush(stage.key("rates", "normal"), *["5 0 0 0 0 0"] * 800)
    beat(stage)
    assert stage.client.llen(stage.key("rates", "normal")) == 721
