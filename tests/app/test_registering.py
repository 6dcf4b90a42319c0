from __future__ import annotations

import copy
import functools
import pickle

import pytest

from laneq import Lane, LaneQ, OptionError, Retry, Task, UnknownLane, UsageError

module_app = LaneQ("redis://127.0.0.1:1/0", namespace="registering")


@module_app.task
def at_the_top(n: int) -> int:
    """Double a number."""
    return 2 * n


@pytest.fixture
def app() -> LaneQ:
    return LaneQ("redis://127.0.0.1:1/0", namespace="registering")


def test_a_task_runs_as_its_function_where_it_is_called():
    assert at_the_top(21) == 42
    assert (at_the_top.__name__, at_the_top.__doc__) == ("at_the_top", "Double a number.")


def test_a_task_is_named_by_module_and_function(app):
    @app.task
    def inner() -> None: ...

    assert at_the_top.name == f"{__name__}.at_the_top"
    assert (
        inner.name == f"{__name__}.test_a_task_is_named_by_module_and_function.inner"
    )  # where it was made, without <locals>
    assert app.tasks == {inner.name: inner}


def test_the_decorator_takes_brackets_with_and_without_options(app):
    @app.task()
    def bare() -> None: ...

    @app.task(name="shop.pay", lane="urgent", retry=Retry(5), timeout=5, executor="process")
    def pay() -> None: ...

    assert (bare.lane, bare.options.timeout) == ("normal", None)
    assert (pay.name, pay.lane, pay.options.timeout, pay.executor) == (
        "shop.pay",
        "urgent",
        5.0,
        "process",
    )


def test_where_a_function_runs_follows_its_kind(app):
    @app.task
    async def asynchronous() -> None: ...

    @app.task
    def blocking() -> None: ...

    assert (asynchronous.executor, blocking.executor) == ("async", "thread")
    assert (asynchronous.is_async, blocking.is_async) == (True, False)


def test_an_unknown_option_is_an_error_that_lists_the_known_ones(app):
    with pytest.raises(OptionError, match=r"laen: unknown option.*boost.*lane.*'lane'"):
        app.task(laen="urgent")
    with pytest.raises(OptionError, match=r"dealy.*Did you mean 'delay'"):
        at_the_top.using(dealy=3)  # type: ignore[call-arg]
    with pytest.raises(OptionError, match="delay: unknown option"):
        app.task(delay=3)  # of a call alone


@pytest.mark.parametrize("options", [{"timeout": True}, {"retry": 3}, {"executor": "fibre"}])
def test_an_option_of_a_wrong_kind_is_refused_when_the_module_is_imported(app, options):
    with pytest.raises(OptionError, match=next(iter(options))):
        app.task(**options)


def test_an_unknown_lane_is_refused_when_the_module_is_imported(app):
    with pytest.raises(UnknownLane, match=r"'urgnt'.*batch, critical.*Did you mean 'urgent'"):
        app.task(lane="urgnt")(at_the_top.function)


def test_a_task_that_names_no_lane_takes_normal_or_the_only_one():
    def f() -> None: ...

    only = LaneQ("redis://127.0.0.1:1/0", lanes=[Lane("mail")])
    assert only.task(f).lane == "mail"
    two = LaneQ("redis://127.0.0.1:1/0", lanes=[Lane("mail"), Lane("sms")])
    with pytest.raises(OptionError, match=r"names no lane.*mail, sms"):
        two.task(f)


def test_a_name_is_given_to_one_task_only(app):
    @app.task(name="twice")
    def first() -> None: ...

    with pytest.raises(
        UsageError, match=rf"twice is registered already, as {__file__}:\d+; here comes"
    ):
        app.task(name="twice")(lambda: None)
    assert app.tasks["twice"] is first


def test_what_has_no_name_of_its_own_must_be_given_one(app):
    for nameless in (lambda: None, functools.partial(print, 1)):
        with pytest.raises(OptionError, match=r"no name of its own.*name="):
            app.task(nameless)
    assert isinstance(app.task(name="named")(functools.partial(print, 1)), Task)


def test_what_could_have_no_result_is_refused(app):
    def generator():
        yield 1

    async def async_generator():
        yield 1

    for function in (generator, async_generator):
        with pytest.raises(UsageError, match="generator"):
            app.task(function)
    for no_function in (int, 3):
        with pytest.raises(UsageError, match="makes a function a task"):
            app.task(no_function)
    with pytest.raises(UsageError, match="is a task already"):
        app.task(at_the_top)


def test_a_blocking_function_is_kept_off_the_event_loop(app):
    with pytest.raises(OptionError, match="would block the worker's event loop"):
        app.task(executor="async")(at_the_top.function)
    with pytest.raises(OptionError, match="would block the worker's event loop"):
        at_the_top.using(executor="async")


def test_a_task_is_copied_and_pickled_by_reference():
    assert copy.deepcopy(at_the_top) is at_the_top
    assert pickle.loads(pickle.dumps(at_the_top)) is at_the_top


def test_what_is_published_of_a_task_is_its_lane_and_its_rule_for_crashes(app):
    def line(retry: Retry) -> str:
        task = app.task(name=f"t{len(app.tasks)}", lane="batch", retry=retry)(at_the_top.function)
        return task.published().to_line()

    assert line(Retry()) == "batch 3 2 1000000 600000000 1"
    assert line(Retry(5, backoff="linear", base=2, cap=9)) == "batch 5 1 2000000 9000000 1"
    assert line(Retry(5, jitter=False)) == "batch 5 2 1000000 600000000 0"
    # Scripts can run no function and know no schedule: they back off exponentially.
    assert line(Retry(4, backoff=lambda attempt: 7)) == "batch 4 2 1000000 600000000 1"
    assert line(Retry(4, schedule=[1, 2])) == "batch 4 2 1000000 600000000 1"
