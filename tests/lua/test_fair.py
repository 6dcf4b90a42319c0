"""Lanes that are shared fairly by key, and lanes that are full."""

from __future__ import annotations

from collections import Counter

import pytest

from laneq.calls import lanes
from laneq.errors import LaneFull
from laneq.options import Lane
from tests.stage import SECOND, new


def fair(stage, **changes) -> None:
    stage.publish(Lane("shared", priority=50, fair_by="tenant", **changes))


def put(stage, key: str, n: int, first: int = 0, **options) -> list[str]:
    ids = [f"{key}{first + i}" for i in range(n)]
    for job_id in ids:
        stage.enqueue(new(job_id, lane="shared", fair_key=key, **options))
    return ids


def test_a_key_that_floods_delays_another_keys_next_job_by_one(stage):
    fair(stage)
    put(stage, "a", 50)
    put(stage, "b", 1)
    worker = stage.worker()
    assert [worker.take(outcomes=[worker.ended(i) for i in worker.held])[0] for _ in range(3)] == [
        "a0", "b0", "a1",
    ]  # fmt: skip
    put(stage, "b", 1, first=1)
    assert stage.order(lane="shared")[:2] == ["a2", "b1"]


def test_keys_take_turns_and_each_keeps_its_order(stage):
    fair(stage)
    for key in "abc":
        put(stage, key, 20)
    order = stage.order(lane="shared")
    assert all({job_id[0] for job_id in order[n : n + 3]} == set("abc") for n in range(0, 60, 3))
    for key in "abc":
        assert [i for i in order if i[0] == key] == [f"{key}{n}" for n in range(20)]


@pytest.mark.parametrize("weights", [{"a": 3}, {"a": 0.5, "b": 4}, {"a": 70, "b": 10}])
def test_shares_follow_weights(stage, weights):
    fair(stage, fair_weights=weights)
    for key in "abc":
        put(stage, key, 400)
    # As many as leave something of each key.
    total = sum(weights.get(key, 1) for key in "abc")
    n = int(380 / max(weights.get(key, 1) for key in "abc") * total)
    taken = Counter(job_id[0] for job_id in stage.order(lane="shared")[:n])
    for key in "abc":
        share = weights.get(key, 1) / total
        assert taken[key] / n == pytest.approx(share, rel=0.05, abs=2 / n)


def test_a_key_with_a_percent_sign_or_a_tab_is_a_key_like_any_other(stage):
    fair(stage, fair_weights={"50%\tü": 2})
    for key in ("x", "50%\tü"):
        for n in range(30):
            stage.enqueue(new(f"{len(key)}-{n}", lane="shared", fair_key=key))
    first = stage.order(lane="shared")[:30]
    assert sum(job_id.startswith("5-") for job_id in first) == pytest.approx(20, abs=1)


def test_jobs_without_a_key_share_one(stage):
    fair(stage)
    stage.put(*(f"n{i}" for i in range(20)), lane="shared")
    put(stage, "a", 5)
    assert [i[0] for i in stage.order(lane="shared")[:9]].count("a") in {4, 5}


def test_keys_without_a_backlog_are_forgotten(stage):
    fair(stage)
    for n in range(40):
        put(stage, f"t{n}-", 1)
    worker = stage.worker(slots=40)
    worker.claim()
    put(stage, "last", 1)
    assert stage.client.zcard(stage.key("shares", "shared")) == 1
    put(stage, "last", 3, first=1)
    assert stage.client.zcard(stage.key("shares", "shared")) <= 2


def test_the_clock_does_not_follow_the_places_of_a_flood(stage):
    fair(stage)
    before = stage.now()
    put(stage, "a", 300)
    assert stage.places("waiting", "shared")["a299"] > before + 29_000
    assert stage.now() <= before + 310


def test_a_job_that_is_handed_back_keeps_its_place(stage):
    fair(stage)
    put(stage, "a", 5)
    put(stage, "b", 2)
    worker = stage.worker(slots=3)
    first = worker.take()
    assert first == ["a0", "b0", "a1"]
    now = stage.now()
    worker.claim(free=0, outcomes=[worker.ended(i, "handed_back") for i in reversed(first)])
    assert stage.order(lane="shared")[:3] == first
    assert stage.now() <= now + 10


def test_a_job_that_was_delayed_takes_its_turn_when_it_is_due(stage):
    fair(stage)
    put(stage, "a", 50)
    stage.enqueue(new("later", lane="shared", fair_key="b", when=f"+{SECOND}"))
    stage.forward(SECOND)
    worker = stage.worker(slots=2)
    assert worker.take() == ["a0", "later"]
    job = worker.held["later"]
    assert stage.now() - job.score_us <= 10, "it waits since it was due, not since its place"
    assert stage.now() - job.enqueued_us == pytest.approx(SECOND, abs=100)


def test_a_job_waits_since_it_was_enqueued_whatever_its_place(stage):
    fair(stage)
    put(stage, "a", 50)
    stage.forward(5 * SECOND)
    put(stage, "b", 1)
    stage.forward(SECOND)
    worker = stage.worker(slots=2)
    waits = {job.id: stage.now() - job.score_us for job in worker.claim().jobs}
    assert waits["b0"] == pytest.approx(SECOND, abs=100)
    assert waits["a0"] == pytest.approx(6 * SECOND, abs=100)


def test_a_head_start_counts_in_a_fair_lane(stage):
    fair(stage)
    put(stage, "a", 5)
    put(stage, "b", 1, boost_us=SECOND)
    assert stage.order(lane="shared")[0] == "b0"


def test_a_fair_lane_ages_against_others(stage):
    fair(stage)
    put(stage, "a", 1)
    stage.forward(26 * SECOND)
    stage.put("n", lane="normal")
    worker = stage.worker(slots=1)
    assert worker.take() == ["a0"]


def test_a_retry_and_a_revival_take_their_turn(stage):
    fair(stage)
    (first,) = put(stage, "b", 1)
    put(stage, "a", 50)
    worker = stage.worker()
    worker.claim()
    worker.finish(first, "dead")
    assert stage.revive(first) == ["revived"]
    assert first in stage.order(lane="shared")[1:3]
    assert first in worker.take(free=3)
    worker.finish(first, "retried", number=SECOND)
    stage.forward(SECOND)
    worker.claim(free=0)
    assert first in stage.order(lane="shared")[1:3]


def test_a_lane_becomes_fair_and_plain_again_live(stage):
    for n in range(5):
        stage.put(f"n{n}", lane="batch")
        stage.forward(SECOND)
    stage.set_lane("batch", {"fair_by": "tenant"})
    stage.enqueue(new("b0", lane="batch", fair_key="b"))
    assert stage.order(lane="batch")[:2] == ["n0", "b0"]
    stage.set_lane("batch", None)
    stage.enqueue(new("b1", lane="batch", fair_key="b"))
    assert stage.order(lane="batch")[-1] == "b1"
    assert stage.hash("state").get("doors") is None


def test_a_purge_forgets_the_keys(stage):
    fair(stage)
    put(stage, "a", 5)
    while stage.run(lanes.purge(stage.keys, "shared")):
        pass
    assert not stage.client.exists(stage.key("shares", "shared"))


# --- full lanes ------------------------------------------------------------------------


def test_a_full_lane_refuses_and_stores_nothing(stage):
    stage.publish(Lane("small", max_depth=3))
    stage.put("a", "b", lane="small")
    before = stage.snapshot()
    with pytest.raises(LaneFull, match=r"small.*max_depth=3"):
        stage.enqueue(new("c", lane="small"), new("d", lane="small"))
    with pytest.raises(LaneFull):
        stage.enqueue(new("e"), new("c", lane="small"), new("d", lane="small"))
    assert stage.snapshot() == before
    stage.put("c", lane="small")
    with pytest.raises(LaneFull):
        stage.put("d", lane="small")


def test_scheduled_jobs_fill_a_lane_and_running_ones_do_not(stage):
    stage.publish(Lane("small", max_depth=2))
    stage.put("a", lane="small")
    stage.put("later", lane="small", when=f"+{SECOND}")
    with pytest.raises(LaneFull):
        stage.put("c", lane="small")
    assert stage.worker().take() == ["a"]
    stage.put("c", lane="small")


def test_a_limit_of_depth_is_set_live(stage):
    stage.put("a", "b", lane="batch")
    stage.set_lane("batch", {"max_depth": 2})
    with pytest.raises(LaneFull):
        stage.put("c", lane="batch")
    stage.put("other")
    stage.set_lane("batch", {"max_depth": 3})
    stage.put("c", lane="batch")
