"""enqueue.lua: what is stored, in which order, and what is said of repeats."""

from __future__ import annotations

import pytest

from laneq.calls import jobs
from laneq.errors import UnknownLane
from tests.stage import SECOND, START_US, new


def test_enqueue_stores_the_record_and_the_place(stage):
    before = stage.snapshot()
    assert stage.enqueue(new("a")) == frozenset()
    after = stage.snapshot()
    assert after["jobs"] == {b"a": b"t\npayload of a"}
    assert after["waiting:normal"] == [(b"a", START_US + 1)]
    assert after["wake:normal"] == [b"1"]
    assert after["counts:normal"] == {b"enqueued": b"1"}
    assert after["task_counts"] == {b"t\tenqueued": b"1"}
    assert after["state"] == before["state"] | {b"clock": b"%d" % (START_US + 1)}
    assert after["session:s"] == b"1"
    changed = {word for word in after if after[word] != before.get(word)}
    assert changed == {
        "jobs", "waiting:normal", "wake:normal", "counts:normal", "task_counts", "state",
        "session:s",
    }  # fmt: skip


def test_a_repeated_id_is_ignored_and_said(stage):
    stage.put("a", "b")
    before = stage.snapshot()
    repeat = [new("x"), new("a", boost_us=5), new("y"), new("b", when="+5")]
    assert stage.enqueue(*repeat) == {1, 3}
    assert stage.order() == ["a", "b", "x", "y"]
    assert stage.hash("jobs")["a"] == before["jobs"][b"a"]
    assert stage.counts() == {"enqueued": 4, "deduplicated": 2}


def test_a_repeated_id_within_one_call_is_ignored_and_said(stage):
    assert stage.enqueue(new("a"), new("a"), new("a", lane="batch")) == {1, 2}
    assert stage.order() == ["a"]
    assert stage.order(lane="batch") == []


@pytest.mark.parametrize(("first", "second"), [("", "+5"), ("+5", ""), ("", "-5"), ("-5", "")])
def test_of_two_jobs_with_one_id_the_first_counts_whatever_their_kind(stage, first, second):
    jobs_ = [new("a", when=first), new("x"), new("a", when=second)]
    assert stage.enqueue(*jobs_) == {2}
    assert stage.state("a") == ("scheduled" if first == "+5" else "waiting")


def test_jobs_of_one_call_keep_its_order_whatever_their_kind(stage):
    stage.enqueue(new("z"), new("y", when="-1"), new("x"), new("l", when="+1"), new("w"))
    assert stage.order() == ["z", "y", "x", "w"]


def test_an_id_is_known_as_long_as_its_record_is_kept(stage):
    stage.put("a")
    worker = stage.worker()
    worker.take()
    worker.finish("a", number=60 * SECOND)
    assert stage.enqueue(new("a")) == {0}
    stage.forward(60 * SECOND)
    worker.claim(free=0, is_look=True)
    assert stage.enqueue(new("a")) == frozenset()


@pytest.mark.parametrize(
    ("before_seq", "reply"), [(0, [b"ok"]), (1, [b"again"]), (2, [b"again"]), (3, [b"ok"])]
)
def test_a_call_that_was_applied_before_its_connection_broke_is_not_applied_again(
    stage, before_seq, reply
):
    call = jobs.enqueue(stage.keys, [new("b")])
    keys = (stage.keys.prefix + b"session:new", stage.keys.prefix + b"session:old", *call.keys)
    stage.client.set(keys[1], 2, ex=60)
    text = call.script.plain if stage.is_fake else call.script.text
    assert stage.client.eval(text, len(keys), *keys, 1, before_seq, *call.argv) == reply
    assert stage.order() == (["b"] if reply == [b"ok"] else [])


def test_a_session_remembers_its_number_for_a_minute(stage):
    stage.put("a")
    assert 50 < stage.client.ttl(stage.keys.prefix + b"session:s") <= 60


def test_an_unknown_lane_stores_nothing(stage):
    before = stage.snapshot()
    with pytest.raises(UnknownLane, match="typo"):
        stage.enqueue(new("a"), new("b", lane="typo"), new("c"))
    assert stage.snapshot() == before


def test_a_namespace_without_lanes_refuses_every_lane(bare):
    with pytest.raises(UnknownLane, match="normal"):
        bare.enqueue(new("a"))


def test_jobs_of_one_bulk_call_start_in_its_order_whatever_their_ids(stage):
    ids = [f"{n:04}" for n in range(1000, 0, -1)]
    stage.put(*ids)
    assert stage.order() == ids
    scores = list(stage.places("waiting").values())
    assert scores == sorted(set(scores))


def test_calls_in_the_same_microsecond_start_in_their_order(stage):
    ids = [f"{n:02}" for n in range(50, 0, -1)]
    for job_id in ids:
        stage.put(job_id)
    assert stage.order() == ids


def test_order_stands_when_the_servers_clock_steps_back(stage):
    # The stage's clock is ahead of the server's by decades: as after a step back.
    stage.put("z")
    seen = stage.now()
    stage.put("a")
    assert stage.order() == ["z", "a"]
    assert stage.now() > seen


def test_the_clock_is_the_servers_when_that_is_ahead(bare):
    bare.set_clock(0)
    bare.publish()
    bare.put("a")
    seconds, micros = bare.client.time()
    assert abs(bare.places("waiting")["a"] - (seconds * SECOND + micros)) < 60 * SECOND


@pytest.mark.parametrize(
    ("when", "due"),
    [("+5000000", START_US + 5 * SECOND), (f"@{START_US + 9}", START_US + 9), ("@12", 12)],
)
def test_a_delayed_job_is_scheduled(stage, when, due):
    stage.put("a", when=when)
    assert stage.places("scheduled") == {"a": due}
    assert stage.order() == []
    assert stage.hash("state")["next_due"] == b"%d" % due
    assert stage.hash("jobs")["a"] == b"t\tq=%d\npayload of a" % START_US
    assert stage.counts() == {"enqueued": 1}


def test_delayed_jobs_for_one_instant_keep_their_order(stage):
    at = START_US + SECOND
    ids = [f"{n:03}" for n in range(120, 0, -1)]
    stage.put(*ids[:50], when=f"@{at}")
    stage.put(*ids[50:51], when="+1000000")
    stage.put(*ids[51:], when=f"@{at}")
    assert stage.places("scheduled") == {job_id: at + n for n, job_id in enumerate(ids)}


def test_a_delayed_job_takes_the_first_gap_after_its_instant(stage):
    at = START_US + SECOND
    stage.put("b", when=f"@{at + 1}")
    stage.put("c", when=f"@{at + 3}")
    for job_id in ("d", "e", "f", "g"):
        stage.put(job_id, when=f"@{at}")
    assert stage.places("scheduled") == {
        "d": at, "b": at + 1, "e": at + 2, "c": at + 3, "f": at + 4, "g": at + 5,
    }  # fmt: skip


def test_a_boost_is_a_head_start(stage):
    stage.put("a")
    stage.put("b", boost_us=SECOND)
    assert stage.places("waiting") == {"b": START_US + 2 - SECOND, "a": START_US + 1}
    assert stage.hash("jobs")["b"] == b"t\tb=1000000\npayload of b"


def test_boosted_jobs_that_would_meet_a_taken_instant_come_after_it(stage):
    stage.put("z")
    stage.forward(9)
    # The tick is 11 after the start: with a boost of 10 it lands on z's instant.
    stage.put("a", boost_us=10)
    assert stage.places("waiting") == {"z": START_US + 1, "a": START_US + 2}


def test_boosted_jobs_never_take_the_instant_of_a_later_job(stage):
    # Many small boosts fill up the instants to now and beyond.
    stage.enqueue(*(new(f"{n:02}", boost_us=20 - n) for n in range(20)))
    stage.put("a", "b", "c")
    scores = list(stage.places("waiting").values())
    assert len(set(scores)) == 23
    assert stage.order()[-3:] == ["a", "b", "c"]


def test_one_call_puts_one_token_in_each_lane_that_got_work(stage):
    stage.put(*"abc")
    stage.put("d", lane="batch")
    stage.put("e")
    assert stage.tokens() == ["normal", "batch"]
    assert stage.client.lrange(stage.key("wake", "normal"), 0, -1) == [b"1"]


def test_a_repeated_id_wakes_nobody(stage):
    stage.put("a")
    stage.client.delete(stage.key("wake", "normal"))
    stage.enqueue(new("a"))
    assert stage.tokens() == []


def test_a_job_due_before_anybody_looks_wakes_one_to_take_the_watch(stage):
    stage.put("a", when="+5000000")
    assert stage.tokens() == ["normal"]
    stage.client.delete(stage.key("wake", "normal"))
    stage.put("b", when="+6000000")
    assert stage.tokens() == []
    stage.put("c", when="+4000000", lane="batch")
    assert stage.tokens() == ["batch"]


def test_a_job_due_after_the_watch_wakes_nobody(stage):
    stage.put("a", when="+5000000")
    watcher = stage.worker()
    assert watcher.claim().wake_after_us == 5 * SECOND
    for lane in ("normal", "batch"):
        stage.client.delete(stage.key("wake", lane))
    stage.put("b", when="+5000001", lane="batch")
    assert stage.tokens() == []
    stage.put("c", when="+4999999", lane="batch")
    assert stage.tokens() == ["batch"]


def test_counts_are_of_the_lane_and_of_the_task(stage):
    stage.enqueue(new("a"), new("b", lane="urgent"), new("c", task="other", when="+1"), new("a"))
    assert stage.counts() == {"enqueued": 2, "deduplicated": 1}
    assert stage.counts("urgent") == {"enqueued": 1}
    assert stage.task_counts() == {"enqueued": 2, "deduplicated": 1}
    assert stage.task_counts("other") == {"enqueued": 1}


def test_task_names_without_end_are_counted_together(stage):
    stage.client.hset(stage.keys.task_counts, mapping={f"x{n}\tenqueued": 1 for n in range(5001)})
    stage.put("a")
    stage.client.hset(stage.keys.task_counts, "known\tenqueued", 6)
    stage.enqueue(new("b", task="known"))
    stage.worker(slots=2).take()
    # A task is counted by itself, or with the others, but never half and half.
    assert stage.task_counts("t") == {}
    assert stage.task_counts("*") == {"enqueued": 1, "started": 1}
    assert stage.task_counts("known") == {"enqueued": 7, "started": 1}
    stage.allow("balance of a task", "balance of tasks")


def test_a_thousand_jobs_of_one_mebibyte_in_all_and_one_payload_of_a_mebibyte(stage):
    big = b"t\n" + b"\xff\x00" * (512 * 1024 - 1)
    small = b"t\n" + b"x" * 1046
    calls = [jobs.NewJob("normal", f"{n:04}", small) for n in range(1000)]
    assert stage.enqueue(*calls) == frozenset()
    assert stage.enqueue(jobs.NewJob("normal", "big", big)) == frozenset()
    assert stage.hash("jobs")["big"] == big
    worker = stage.worker(slots=256)
    assert sum(len(worker.claim(free=256).jobs) for _ in range(4)) == 1001
    assert worker.held["big"].record == big


def test_a_record_without_a_head_does_not_stop_the_others_of_its_call(stage):
    odd = jobs.NewJob("normal", "odd", b"no line feed")
    late = jobs.NewJob("normal", "late", b"\xff\xfe", when="+1")
    assert stage.enqueue(odd, late, new("a")) == frozenset()
    assert stage.task_counts("?") == {"enqueued": 2}
    stage.forward(1)
    assert stage.worker(slots=3).take() == ["a"]
    assert stage.state("odd") == stage.state("late") == "dead"
    assert stage.look("odd").error.message == "record unreadable"
    assert stage.hash("jobs")["odd"] == b"no line feed"


def test_a_task_name_with_signs_of_patterns_is_counted_by_its_name(stage):
    stage.enqueue(new("a", task="%s.(.*)*[x]"))
    assert stage.task_counts("%s.(.*)*[x]") == {"enqueued": 1}
