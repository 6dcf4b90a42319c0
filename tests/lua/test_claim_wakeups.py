"""claim.lua: doorbell, tokens and the watch: who is woken, and that none is forgotten."""

from __future__ import annotations

import pytest

from laneq.calls.workers import pass_on
from laneq.options import Lane
from tests.patience import wait_until
from tests.stage import SECOND, START_US, new

ALL = ("critical", "urgent", "normal", "batch")


def rung(stage, worker) -> bool:
    return stage.client.lrange(stage.keys.doorbell(worker.id), 0, -1) == [b"1"]


def hush(stage) -> None:
    """Take every token away, as workers that listen do."""
    for lane in stage.lanes.names:
        stage.client.delete(stage.key("wake", lane))


# --- tokens that are passed on ----------------------------------------------


def test_a_wake_up_that_is_passed_on_is_there_for_another(stage):
    stage.run(pass_on(stage.keys, ["normal"]))
    assert stage.client.lrange(stage.key("wake", "normal"), 0, -1) == [b"1"]
    assert stage.client.llen(stage.key("wake", "batch")) == 0


def test_a_wake_up_passed_on_to_a_lane_that_was_armed_meanwhile_stays_one(stage):
    stage.put("a")
    stage.run(pass_on(stage.keys, ["normal"]))
    assert stage.client.llen(stage.key("wake", "normal")) == 1


# --- doorbell ---------------------------------------------------------------


def test_a_claim_that_fills_the_last_slot_ends_the_workers_wait(stage):
    stage.put("a")
    worker = stage.worker()
    worker.claim(listening=ALL)
    assert rung(stage, worker)
    assert 50 < stage.client.ttl(stage.keys.doorbell("w")) <= 60


def test_a_claim_that_leaves_a_usable_slot_does_not_ring(stage):
    stage.put("a")
    worker = stage.worker(slots=2)
    worker.claim(listening=ALL)
    assert not rung(stage, worker)


def test_a_worker_that_does_not_listen_is_not_rung(stage):
    stage.put("a")
    worker = stage.worker()
    worker.claim()
    assert not rung(stage, worker)


def test_a_slot_that_is_left_for_another_lane_ends_the_wait_for_this_one(stage):
    stage.put("a", lane="batch")
    worker = stage.worker(slots=2, reserve={"urgent": 1})
    worker.claim(listening=["urgent", "batch"])
    assert worker.held.keys() == {"a"}
    assert rung(stage, worker)


def test_a_slot_that_is_left_for_the_lane_listened_for_does_not(stage):
    stage.put("a", lane="batch")
    worker = stage.worker(slots=2, reserve={"urgent": 1})
    worker.claim(listening=["urgent"])
    assert worker.held.keys() == {"a"}
    assert not rung(stage, worker)


def test_a_worker_that_listens_for_a_paused_lane_is_rung(stage):
    stage.set_lane("batch", {"paused": True})
    worker = stage.worker()
    worker.claim(listening=["normal"])
    assert not rung(stage, worker)
    worker.claim(listening=["batch"])
    assert rung(stage, worker)


def test_a_doorbell_holds_one_ring(stage):
    stage.put("a", "b")
    worker = stage.worker(slots=2)
    worker.claim(listening=ALL, free=1)
    worker.claim(listening=ALL, free=1)
    assert rung(stage, worker)


def test_what_a_call_brings_back_wakes_others_and_not_the_worker_that_it_filled(
    raw, namespace, request
):
    """Redis serves of two keys that one script fills the one that was filled first."""
    from tests.stage import Stage

    stage = Stage(raw, namespace, is_fake=False)
    stage.set_clock(START_US)
    stage.publish()
    stage.put("a", "b", "c")
    worker = stage.worker(slots=2)
    worker.take(free=1)
    hush(stage)
    import threading

    popped: list = []
    woken = threading.Event()
    connection = raw.connection_pool.make_connection()
    keys = [stage.keys.doorbell("w"), *(stage.key("wake", lane) for lane in ALL)]

    def listen() -> None:
        connection.send_command("BLPOP", *keys, 5)
        popped.append(connection.read_response())
        woken.set()

    thread = threading.Thread(target=listen)
    thread.start()
    wait_until(lambda: raw.info("clients")["blocked_clients"])
    # One job is handed back, which wakes; another fills the only slot that was free.
    worker.claim(listening=ALL, free=1, outcomes=[worker.ended("a", "handed_back")])
    assert woken.wait(5)
    thread.join()
    connection.disconnect()
    assert popped == [[stage.keys.doorbell("w"), b"1"]]
    assert stage.tokens() == ["normal"]


# --- tokens -----------------------------------------------------------------


def test_what_a_claim_leaves_behind_is_armed_again(stage):
    stage.put("a", "b")
    stage.put("c", lane="batch")
    hush(stage)
    stage.worker().claim()
    assert stage.tokens() == ["normal", "batch"]


def test_a_claim_that_takes_all_arms_nothing(stage):
    stage.put("a", "b")
    stage.put("c", lane="batch")
    hush(stage)
    stage.worker(slots=3).claim()
    assert stage.tokens() == []


def test_work_that_the_worker_may_not_take_is_armed_for_others(stage):
    stage.put("a", lane="batch")
    hush(stage)
    worker = stage.worker(slots=2, reserve={"urgent": 2})
    worker.claim(listening=ALL)
    assert worker.held == {}
    assert stage.tokens() == ["batch"]
    assert rung(stage, worker)


def test_a_paused_lane_is_not_armed(stage):
    stage.put("a")
    stage.set_lane("normal", {"paused": True})
    hush(stage)
    stage.worker().claim()
    assert stage.tokens() == []


@pytest.mark.parametrize("beside", [[], ["batch"]], ids=["one lane", "two lanes"])
@pytest.mark.parametrize("behind", [0, 1])
@pytest.mark.parametrize("slots", [1, 32, 33, 34, 161, 162, 163])
def test_a_token_is_put_exactly_when_work_is_left_at_the_border_of_a_chunk(
    stage, slots, behind, beside
):
    ids = [f"{n:03}" for n in range(slots + behind)]
    stage.put(*ids)
    for lane in beside:
        stage.put("other", lane=lane)
    hush(stage)
    assert stage.worker(slots=slots).take() == ids[:slots]
    assert stage.tokens() == (["normal"] if behind else []) + beside


def test_one_token_is_the_most(stage):
    stage.put(*"abcdef")
    for n in range(4):
        stage.worker(f"w{n}").claim()
    assert stage.client.llen(stage.key("wake", "normal")) == 1


# --- the watch --------------------------------------------------------------


def watch(stage) -> tuple[str, int] | None:
    state = stage.hash("state")
    if "watcher" not in state:
        return None
    return state["watcher"].decode(), int(state["watch_until"])


def test_one_idle_worker_takes_the_watch_and_others_do_not(stage):
    stage.put("a", when="+5000000")
    first, second = stage.worker("w1"), stage.worker("w2")
    assert first.claim().wake_after_us == 5 * SECOND
    assert second.claim().wake_after_us == -1
    stage.forward(SECOND)
    assert first.claim().wake_after_us == 4 * SECOND
    assert watch(stage) == ("w1", START_US + 5 * SECOND)


def test_the_next_lease_that_may_be_lost_is_watched_too(stage):
    stage.put("a")
    stage.put("b", when="+60000000")
    stage.worker("busy").claim()
    deadline = stage.places("leases")["a"]
    idle = stage.worker("idle")
    assert idle.claim().wake_after_us == deadline - stage.now()


def test_a_sooner_instant_takes_the_watch_over(stage):
    stage.put("a", when="+5000000")
    stage.worker("w1").claim()
    stage.put("b", when="+1000000")
    assert stage.worker("w2").claim().wake_after_us == SECOND
    assert watch(stage) == ("w2", START_US + SECOND)


def test_a_watch_that_was_not_kept_goes_to_the_next(stage):
    stage.put("a", when="+5000000")
    stage.worker("dead").claim()
    stage.put("b", when="+9000000")
    stage.forward(5 * SECOND + 1)
    assert stage.worker("w2").take() == ["a"]
    idle = stage.worker("w3")
    assert idle.claim().wake_after_us == 4 * SECOND - 2  # a microsecond went to the fence


def test_a_worker_that_is_busy_hands_the_watch_on(stage):
    stage.put("a", when="+500000")
    worker = stage.worker("w1", slots=1)
    worker.claim()
    stage.put("now")
    hush(stage)
    worker.claim()
    assert watch(stage) is None
    # Half a second is sooner than an idle worker looks by itself: one is woken.
    assert stage.tokens() == list(ALL)


def test_a_watch_that_is_far_off_is_left_without_waking_anybody(stage):
    stage.put("a", when="+5000000")
    worker = stage.worker("w1", slots=1)
    worker.claim()
    stage.put("now")
    hush(stage)
    worker.claim()
    assert watch(stage) is None
    assert stage.tokens() == []


def test_a_watch_for_nothing_is_given_up(stage):
    stage.put("a", when="+5000000")
    worker = stage.worker("w1")
    worker.claim()
    stage.cancel("a")
    stage.forward(10)
    # The hint is older than the cancel: the watcher looks in vain once, then nothing is due.
    stage.set_clock(START_US + 5 * SECOND)
    assert worker.claim().wake_after_us == -1
    assert watch(stage) is None
    hush(stage)
    stage.put("b", when="+1000000")
    assert stage.tokens() == ["normal"]


def test_a_claim_that_reports_only_does_not_take_the_watch(stage):
    stage.put("a", when="+5000000")
    assert stage.worker("w1").claim(free=0).wake_after_us == -1
    assert watch(stage) is None


# --- repeats ----------------------------------------------------------------


def test_a_claim_asked_for_again_gives_the_same_jobs_and_counts_once(stage):
    stage.put("x", "a", "b", "c")
    worker = stage.worker(slots=3)
    worker.claim(free=1)
    ends = [worker.ended("x", number=SECOND, children=[new("child")])]
    first = worker.claim(free=2, outcomes=ends)
    before = stage.snapshot()
    worker.held = {}
    again = stage.run(worker.call(free=2, outcomes=ends, is_repeat=True))
    assert sorted(again.jobs) == sorted(first.jobs)
    assert again.is_more
    assert stage.snapshot() == before
    assert stage.counts()["succeeded"] == 1


def test_a_claim_that_never_arrived_is_made_by_its_repeat(stage):
    stage.put("a", "b")
    worker = stage.worker(slots=2)
    worker.take(free=1)
    worker.seq += 1
    assert worker.take(is_repeat=True) == ["b"]


def test_a_repeat_names_what_was_stale(stage):
    stage.put("a")
    worker = stage.worker()
    worker.take()
    old = worker.ended("a")
    worker.finish("a", "handed_back")
    stage.worker("v").take()
    assert worker.claim(outcomes=[old], free=0).stale == ["a"]
    again = stage.run(worker.call(outcomes=[old], free=0, is_repeat=True))
    assert again.stale == ["a"]
    assert stage.counts()["stale"] == 1


def test_a_repeat_leaves_out_jobs_that_the_worker_has_lost_since(stage):
    stage.put("a", "b")
    worker = stage.worker(slots=2)
    worker.take()
    stage.forward(15 * SECOND)
    assert stage.worker("v").take(is_look=True) == ["a"]
    again = stage.run(worker.call(free=2, is_repeat=True))
    assert again.jobs == []


def test_a_repeat_stands_also_when_the_lanes_have_changed(stage):
    stage.put("a")
    worker = stage.worker()
    (job,) = worker.claim().jobs
    stage.set_lane("normal", {"priority": 5000})
    worker.held = {}
    assert stage.run(worker.call(free=1, is_repeat=True)).jobs == [job]


def test_ids_with_signs_of_their_own_are_repeated_whole(stage):
    ids = ["a:b", "c:1:2", "!d", "{e}", "é\x00f", "%s"]
    stage.put(*ids)
    worker = stage.worker(slots=9)
    first = worker.claim()
    assert [job.id for job in first.jobs] == ids
    worker.held = {}
    assert sorted(stage.run(worker.call(is_repeat=True)).jobs) == sorted(first.jobs)


def test_two_hundred_and_fifty_six_jobs_are_repeated_in_one_call(stage):
    stage.put(*(f"{n:03}" for n in range(256)))
    worker = stage.worker(slots=256)
    first = worker.claim()
    worker.held = {}
    assert stage.run(worker.call(is_repeat=True)).jobs == first.jobs


def test_what_a_claim_gave_is_remembered_for_a_minute(stage):
    stage.put("a")
    stage.worker().claim()
    assert 50 < stage.client.ttl(stage.keys.call("w")) <= 60


def test_a_claim_that_did_nothing_is_not_remembered(stage):
    stage.worker().claim()
    assert stage.client.exists(stage.keys.call("w")) == 0


def test_an_idle_claim_writes_next_to_nothing(bare):
    bare.publish(Lane("a"), Lane("b"))
    worker = bare.worker()
    worker.claim()
    before = bare.snapshot()
    worker.claim()
    assert bare.snapshot() == before
