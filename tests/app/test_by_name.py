from __future__ import annotations

import pytest

from laneq import Lane, OptionError, UnknownLane, UsageError, WrongArguments
from laneq.codec import decode_record


def reindex(doc: str, *, deep: bool = False) -> None: ...


@pytest.fixture
def shop(new_app):
    """An app whose worker has published its lanes and its task."""
    app = new_app(lanes=[Lane("urgent", priority=1000), Lane("batch", priority=10)])
    app.task(name="shop.reindex", lane="batch")(reindex)
    app.sync_driver.call(app.publish_call())
    return app


def test_a_task_is_enqueued_by_name_with_its_functions_arguments_and_nothing_else(colour, app):
    app.task(name="shop.reindex", lane="batch", result_ttl=0)(reindex)
    job = colour.ask(app, "enqueue", "shop.reindex", "a.txt", deep=True)
    view = colour.ask(job, "info")
    assert (view.task, view.lane) == ("shop.reindex", "batch")
    assert (view.args, view.kwargs) == (("a.txt",), {"deep": True})
    with pytest.raises(WrongArguments):
        colour.ask(app, "enqueue", "shop.reindex", "a.txt", lane="urgent")


def test_even_an_argument_called_name_is_the_functions(colour, app):
    job = colour.ask(app, "enqueue", "hello", name="you", self=1)
    assert colour.ask(job, "info").kwargs == {"name": "you", "self": 1}


def test_the_lane_of_a_task_that_is_not_here_is_the_one_that_a_worker_published(
    colour, shop, new_app
):
    producer = new_app()
    colour.ends.append(producer)
    job = colour.ask(producer, "enqueue", "shop.reindex", "a.txt")
    assert colour.ask(job, "info").lane == "batch"


def test_the_published_lane_is_asked_for_once_in_a_while_only(shop, new_app, raw):
    producer = new_app()
    producer.enqueue("shop.reindex", "a.txt")
    raw.config_resetstat()
    for _ in range(5):
        producer.enqueue("shop.reindex", "a.txt")
    producer.enqueue_many(producer.ref("shop.reindex").call("a.txt") for _ in range(5))
    assert raw.info("commandstats")["cmdstat_evalsha"]["calls"] == 6


def test_options_go_with_a_reference(colour, shop, new_app):
    producer = new_app()
    colour.ends.append(producer)
    reference = producer.ref("shop.reindex").using(lane="urgent").using(delay=5, timeout=3)
    view = colour.ask(colour.ask(reference, "enqueue", "a.txt"), "info")
    assert (view.lane, view.state) == ("urgent", "scheduled")
    # What is given counts, even where it is the default: the task itself may say otherwise.
    new = producer.ref("t").using(lane="urgent", result_ttl=300, timeout=None).call().new_job()
    found = decode_record(new.record)
    assert (found.ttl_us, found.timeout_us, found.max_attempts) == (300_000_000, 0, None)


def test_a_reference_to_a_task_that_is_here_has_the_tasks_own_options(shop):
    assert shop.ref("shop.reindex").call("a").new_job().lane == "batch"
    with pytest.raises(WrongArguments):
        shop.ref("shop.reindex").call()


def test_a_task_that_nobody_published_takes_normal(colour, new_app):
    producer = new_app()  # in an empty namespace, whose lanes it makes known
    colour.ends.append(producer)
    job = colour.ask(producer, "enqueue", "somewhere.task", 1)
    assert colour.ask(job, "info").lane == "normal"


def test_a_task_that_nobody_published_takes_the_only_lane_there_is(new_app):
    new_app(lanes=[Lane("mail")]).task(name="t")(reindex).enqueue("x")
    assert new_app().enqueue("other", 1).info().lane == "mail"


def test_default_lanes_do_not_appear_in_a_namespace_of_others(colour, shop, new_app, raw):
    producer = new_app()
    colour.ends.append(producer)
    with pytest.raises(UnknownLane, match=r"'normal'\. Known: batch, urgent"):
        colour.ask(producer, "enqueue", "somewhere.task", 1)
    with pytest.raises(UnknownLane, match="critical"):
        colour.ask(producer.ref("shop.reindex").using(lane="critical"), "enqueue", 1)
    assert sorted(raw.hkeys(shop.keys.lanes)) == [b"batch", b"urgent"]


def test_calls_by_name_go_with_others_into_one_enqueue(colour, shop, new_app):
    producer = new_app()
    colour.ends.append(producer)
    calls = [producer.ref("shop.reindex").call("a"), producer.ref("x").using(lane="urgent").call()]
    jobs = colour.ask(producer, "enqueue_many", calls)
    assert [colour.ask(job, "info").lane for job in jobs] == ["batch", "urgent"]


def test_a_call_by_name_alone_cannot_be_a_child_without_a_lane(new_app):
    producer = new_app()
    with pytest.raises(UsageError, match=r"its lane is not known.*using\(lane=\.\.\.\)"):
        producer.ref("shop.reindex").call("a").new_job()


@pytest.mark.parametrize("name", ["", "two words", "a\tb", 3, "x" * 201])
def test_a_name_that_no_task_can_have_is_refused(new_app, name):
    with pytest.raises(OptionError, match="name: must be 1 to 200 characters"):
        new_app().enqueue(name)


def test_an_unknown_option_of_a_reference_is_refused_at_once(new_app):
    with pytest.raises(OptionError, match=r"dealy.*Did you mean 'delay'"):
        new_app().ref("t").using(dealy=3)
