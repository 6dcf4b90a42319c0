from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from laneq import (
    Lane,
    NotSerializable,
    OptionError,
    PayloadTooLarge,
    RedisUnavailable,
    Retry,
    TaskCall,
    UnknownLane,
    UsageError,
    WrongArguments,
)
from laneq.codec import Record, decode_record
from tests.conftest import keys_in


def add(a, b=1, *, c=0):
    return a + b + c


@pytest.fixture
def task(app):
    return app.task(add)


def test_an_enqueued_job_waits_in_its_lane_with_its_arguments(colour, task):
    job = colour.ask(task, "enqueue", 1, c="é\0")
    view = colour.ask(job, "info")
    assert (view.id, view.state, view.lane, view.task) == (job.id, "waiting", "normal", task.name)
    assert (view.args, view.kwargs, view.attempt) == ((1,), {"c": "é\0"}, 0)
    assert job.deduplicated is False


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((1, 2, 3), {}),
        ((1,), {"a": 2}),
        ((1,), {"d": 2}),
        ((), {"b": 2}),
    ],
)
def test_a_call_that_the_function_does_not_take_fails_at_the_producer(colour, task, args, kwargs):
    with pytest.raises(TypeError, match=rf"{task.name}: .*It takes \(a, b=1, \*, c=0\)") as error:
        colour.ask(task, "enqueue", *args, **kwargs)
    assert isinstance(error.value, WrongArguments)
    with pytest.raises(TypeError):
        task.call(*args, **kwargs)


FUNCTIONS = [
    "def f(): ...",
    "def f(a, b=1): ...",
    "def f(a, /, b): ...",
    "def f(a=0, /, b=1): ...",
    "def f(a, *, b): ...",
    "def f(*, a=1, b): ...",
    "def f(*a, b=0): ...",
    "def f(a, /, *b, **c): ...",
    "def f(a, b=0, **c): ...",
    "def f(a, /, b, *rest, c, d=4, **others): ...",
]


@pytest.mark.parametrize("source", FUNCTIONS)
def test_arguments_are_compared_as_python_does(new_app, source):
    names: dict[str, Any] = {"__name__": "m"}
    exec(source, names)
    function, task = names["f"], new_app().task(names["f"])
    for n in range(4):
        for size in range(4):
            for keys in itertools.combinations("abcd", size):
                args, kwargs = tuple(range(n)), dict.fromkeys(keys)
                try:
                    function(*args, **kwargs)
                except TypeError:
                    with pytest.raises(TypeError, match=r"task m\.f: "):
                        task.call(*args, **kwargs)
                else:
                    task.call(*args, **kwargs)


def test_what_cannot_make_the_trip_is_named_with_its_path(colour, task):
    with pytest.raises(NotSerializable, match=r"args\[0\]\['when'\]"):
        colour.ask(task, "enqueue", {"when": object()})


def test_the_limit_of_a_payload_is_exact_and_nothing_over_it_is_stored(
    colour, new_app, raw, namespace
):
    app = new_app(max_payload=1000)
    colour.ends.append(app)
    task = app.task(add)
    overhead = len(task.call(b"").payload) + 1  # from 256 bytes on, a length takes two
    job = colour.ask(task, "enqueue", bytes(1000 - overhead))
    with pytest.raises(
        PayloadTooLarge, match=rf"arguments of task {task.name} is 1,001 bytes.*1,0"
    ):
        colour.ask(task, "enqueue", bytes(1001 - overhead))
    assert raw.hkeys(app.keys.jobs) == [job.id.encode()]


def test_a_delay_and_an_instant_schedule_a_job(colour, task):
    at = datetime.now(UTC) + timedelta(hours=1)
    for prepared in (
        task.using(delay=3600),
        task.using(delay=timedelta(hours=1)),
        task.using(at=at),
    ):
        view = colour.ask(colour.ask(prepared, "enqueue", 1), "info")
        assert view.state == "scheduled"
        assert abs(view.ready_at - at.timestamp()) < 60
    past = colour.ask(task.using(at=at - timedelta(hours=2)), "enqueue", 1)
    assert colour.ask(past, "state") == "waiting"


@pytest.mark.parametrize(
    "options",
    [
        {"delay": -1},
        {"delay": float("nan")},
        {"delay": True},
        {"at": datetime(2030, 1, 1)},  # noqa: DTZ001  on purpose
        {"at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 1},
        {"timeout": 0},
        {"lane": "no such name"},
    ],
)
def test_an_option_that_cannot_be_is_refused_before_anything_is_stored(task, options):
    with pytest.raises(OptionError):
        task.using(**options)


def test_an_unknown_lane_is_an_error_that_lists_the_known_ones(colour, task):
    colour.ask(task, "enqueue", 1)
    with pytest.raises(UnknownLane, match=r"'urgnt'\. Known: batch, .*Did you mean 'urgent'"):
        colour.ask(task.using(lane="urgnt"), "enqueue", 1)


def test_a_record_carries_what_scripts_read_and_what_the_call_overrides(new_app):
    app = new_app()
    own = Retry(5, base=2, jitter=False, backoff=lambda attempt: 3)
    task = app.task(
        lane="batch", boost=3, timeout=5, retry=own, expires=60, result_ttl=0, executor="process"
    )(add)

    def record(**options):
        call = task.using(**options).call(1) if options else task.call(1)
        new = call.new_job()
        return decode_record(new.record), new

    payload = task.call(1).payload
    base = Record(task.name, payload, boost_us=3_000_000, expires_us=60_000_000, ttl_us=0)
    found, new = record()
    assert (found, new.lane, new.when) == (base, "batch", "-3000000")
    assert record(retry=own, timeout=5, result_ttl=0, executor="process")[0] == base
    found, new = record(lane="urgent", boost=0, expires=None, timeout=None, result_ttl=300)
    assert (new.lane, new.when) == ("urgent", "")
    assert found == Record(task.name, payload, timeout_us=0, ttl_us=300_000_000)
    found, new = record(retry=Retry(7, cap=9), executor="thread", delay=2)
    assert new.when == "+2000000"
    assert found == base._replace(
        max_attempts=7, base_us=1_000_000, cap_us=9_000_000, backoff=2, jitter=1, executor=1
    )
    at = datetime(2040, 1, 1, tzinfo=UTC)
    found, new = record(at=at, expires=at)
    assert new.when == f"@{int(at.timestamp())}000000"
    assert (found.expires_us, found.expires_at_us) == (None, int(at.timestamp()) * 1_000_000)


def test_a_prepared_task_can_be_used_again(colour, task):
    prepared = task.using(lane="batch")
    made = [colour.ask(prepared, "enqueue", n) for n in (1, 2)]
    assert [colour.ask(job, "info").lane for job in made] == ["batch", "batch"]
    assert made[0] != made[1]


def test_a_call_can_be_made_now_and_enqueued_later(colour, app, task):
    arguments = [1]
    call = task.call(arguments)
    arguments.append(2)  # too late: it is encoded
    assert isinstance(call, TaskCall)
    (job,) = colour.ask(app, "enqueue_many", [call])
    assert colour.ask(job, "info").args == ([1],)


# --- many -----------------------------------------------------------------------


def test_many_jobs_are_enqueued_in_order_and_their_handles_come_back_in_it(colour, app, task):
    calls = (task.using(lane="batch" if n % 3 else "urgent").call(n) for n in range(20))
    made = colour.ask(app, "enqueue_many", calls)
    views = [colour.ask(job, "info") for job in made]
    assert [view.args for view in views] == [(n,) for n in range(20)]
    for lane in ("batch", "urgent"):
        times = [view.ready_at for view in views if view.lane == lane]
        assert times == sorted(times)


def test_no_jobs_are_no_round_trip(colour, new_app):
    unreachable = new_app()
    unreachable.override(url="redis://127.0.0.1:1/0")
    assert colour.ask(unreachable, "enqueue_many", []) == []


def test_many_jobs_take_one_call_for_each_thousand(new_app, raw, hand):
    app = new_app()
    task = app.task(add)
    task.enqueue(0)
    hand.stage.client.config_resetstat()
    made = app.enqueue_many(task.call(n) for n in range(2_500))
    assert raw.info("commandstats")["cmdstat_evalsha"]["calls"] == 3
    assert len({job.id for job in made}) == 2_500
    assert list(hand.stage.places("waiting"))[1:] == [job.id for job in made]


def test_many_large_jobs_are_split_by_their_bytes(new_app, raw):
    app = new_app()
    task = app.task(add)
    task.enqueue(b"")
    raw.config_resetstat()
    made = app.enqueue_many(task.call(bytes(900_000)) for n in range(9))
    assert raw.info("commandstats")["cmdstat_evalsha"]["calls"] == 3  # four of them are 4 MiB
    assert len(made) == 9


def test_nothing_is_stored_where_an_item_is_no_call(colour, app, task, raw):
    with pytest.raises(UsageError, match=r"calls\[1\] is 'a.txt', .*task.call"):
        colour.ask(app, "enqueue_many", [task.call(1), "a.txt"])
    with pytest.raises(UnknownLane):
        colour.ask(app, "enqueue_many", [task.call(1), task.using(lane="nowhere").call(1)])
    assert raw.hlen(app.keys.jobs) == 0


def test_an_error_on_the_way_says_how_many_jobs_are_stored(new_app, proxy, monkeypatch):
    app = new_app(connect_timeout=0.2)
    app.override(url=proxy.url)
    task = app.task(add)
    task.enqueue(0)

    def calls():
        for n in range(2_000):
            yield task.call(n)

    calls_made = 0
    call = app.sync_driver.call

    def cut_after_one(asked):
        nonlocal calls_made
        if calls_made == 1:
            proxy.refuse()
        calls_made += 1
        return call(asked)

    monkeypatch.setattr(app.sync_driver, "call", cut_after_one)
    with pytest.raises(RedisUnavailable) as error:
        app.enqueue_many(calls())
    assert error.value.__notes__ == ["1,000 of 2,000 jobs had been stored before."]


# --- lanes become known ------------------------------------------------------------


def test_the_first_enqueue_makes_the_apps_lanes_known(colour, new_app, raw, namespace):
    app = new_app(lanes=[Lane("mail", priority=7), Lane("sms")])
    colour.ends.append(app)
    task = app.task(lane="sms")(add)
    assert keys_in(raw, namespace) == []
    job = colour.ask(task, "enqueue", 1)
    assert colour.ask(job, "info").lane == "sms"
    assert sorted(raw.hkeys(app.keys.lanes)) == [b"mail", b"sms"]
    assert raw.hget(app.keys.tasks, task.name) == b"sms 3 2 1000000 600000000 1"


def test_what_an_operator_set_is_not_touched_by_a_producer(new_app, hand):
    first = new_app(lanes=[Lane("mail")])
    first.task(name="t", lane="mail")(add).enqueue(1)
    hand.stage.set_lane("mail", {"priority": 77})
    second = new_app(lanes=[Lane("mail"), Lane("sms")])
    second.task(name="t", lane="sms")(add).enqueue(1)
    hand.take()
    assert hand.stage.lanes.lane("mail").priority == 77


def test_a_task_of_main_is_refused_with_a_hint(colour, new_app):
    app = new_app()
    colour.ends.append(app)

    def f(): ...

    f.__module__ = "__main__"
    task = app.task(f)
    with pytest.raises(UsageError, match=r"__main__\..*another name in a worker.*@app.task\(name="):
        colour.ask(task, "enqueue")
    with pytest.raises(UsageError, match="__main__"):
        colour.ask(app, "enqueue_many", [task.call()])
    named = app.task(name="script.f")(f)
    assert colour.ask(named, "enqueue").state() == "waiting"
