"""A pop and the call right behind it, sent at once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from laneq.calls.call import Call
from laneq.drive import blocking_wire
from laneq.errors import RedisRefused, RedisUnavailable
from tests.drive.conftest import Counter, clients, echo, open_async, script
from tests.drive.test_async import blocked
from tests.drive.test_begin import Told, soon
from tests.patience import await_until
from tests.proxy import Proxy

Run = Callable[[Any], Any]

#: Seconds of a pop that something else is to end.
LONG_S = 60

FAIL = script("fail", "return redis.error_reply('MINE said by the script')")


@pytest.fixture
def lists(counter: Counter) -> list[bytes]:
    """Keys of two lists (words of the namespace that may stay)."""
    return [counter.key.replace(b"counts:n", b"wake:%d" % i) for i in range(2)]


# --- the call follows the pop -------------------------------------------------------------


def test_the_call_is_carried_out_when_the_pop_has_got_something_and_not_before(
    run: Run, url: str, namespace: str, raw: Any, counter: Counter, lists: list[bytes]
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            assert await driver.call(counter.count()) == 1
            wire, told = driver.blocking(), Told()
            popping = asyncio.create_task(wire.pop_then(lists, LONG_S, counter.count(), told))
            await blocked(raw, namespace)
            await driver.command("PING")
            assert (counter.value, told.replies) == (1, [])
            raw.rpush(lists[1], "x", "y")
            await soon(popping)
            assert told.replies == [2]
            assert raw.lrange(lists[1], 0, -1) == [b"y"]
            assert wire.pop_error is None

    run(main())


def test_the_call_is_carried_out_when_the_pop_has_got_nothing(
    run: Run, url: str, namespace: str, counter: Counter, lists: list[bytes]
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            await driver.call(counter.count())
            wire, told = driver.blocking(), Told()
            began = time.monotonic()
            await soon(wire.pop_then(lists, 0.2, counter.count(), told))
            assert time.monotonic() - began > 0.19
            assert told.replies == [2]
            assert wire.pop_error is None

    run(main())


def test_the_raw_reply_is_told(
    run: Run, url: str, namespace: str, raw: Any, counter: Counter, lists: list[bytes]
) -> None:
    def read(reply: Any) -> Any:
        raise AssertionError(f"{reply} was read")

    async def main() -> None:
        async with open_async(url, namespace) as driver:
            await driver.call(echo("the server has the scripts"))
            await driver.call(counter.get())
            wire, told = driver.blocking(), Told()
            call = Call(echo("").script, (), (b"\xff\r\n",), read)
            await soon(wire.pop_then(lists, 0.001, call, told))
            await soon(wire.pop_then(lists, 0.001, counter.get(), told))
            assert told.replies == [b"\xff\r\n", None]

    run(main())


def test_it_is_told_in_the_loop_and_its_thread_before_the_wait_returns(
    run: Run, url: str, namespace: str, raw: Any, lists: list[bytes]
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            await driver.call(echo("the server has the script"))
            wire, told = driver.blocking(), Told()

            def tell(reply: Any) -> None:
                told((asyncio.get_running_loop(), threading.get_ident(), popping.done()))

            popping = asyncio.create_task(wire.pop_then(lists, LONG_S, echo("x"), tell))
            await blocked(raw, namespace)
            raw.rpush(lists[0], "x")
            await soon(popping)
            assert told.replies == [(asyncio.get_running_loop(), threading.get_ident(), False)]

    run(main())


def test_each_is_told_its_own_reply_once(
    run: Run, url: str, namespace: str, raw: Any, lists: list[bytes]
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            await driver.call(echo("the server has the script"))
            wire, told = driver.blocking(), Told()
            for i in range(0, 15, 3):
                raw.rpush(lists[0], "x")
                await soon(wire.pop_then(lists, LONG_S, echo(str(i)), told))  # there is one
                await soon(wire.pop_then(lists, 0.001, echo(str(i + 1)), told))  # there is none
                popping = asyncio.create_task(wire.pop_then(lists, LONG_S, echo(str(i + 2)), told))
                await blocked(raw, namespace)
                raw.rpush(lists[1], "x")  # there will be one
                await soon(popping)
                assert await wire.pop(lists, 0.001) is None
            assert told.replies == [b"%d" % i for i in range(15)]
            assert len(clients(raw, namespace)) == 2

    run(main())


def test_it_may_begin_a_call_of_the_driver(
    run: Run, url: str, namespace: str, lists: list[bytes]
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            await driver.call(echo("the server has the script"))
            wire, told = driver.blocking(), Told()

            def tell(reply: Any) -> None:
                told(reply)
                driver.begin(echo("next"), told)

            await soon(wire.pop_then(lists, 0.001, echo("first"), tell))
            assert await told.heard(2) == [b"first", b"next"]

    run(main())


# --- interrupts and cancels ------------------------------------------------------------------


def test_an_interrupt_ends_the_pop_and_the_call_follows(
    run: Run, url: str, namespace: str, raw: Any, counter: Counter, lists: list[bytes]
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            await driver.call(counter.count())
            wire, told = driver.blocking(), Told()
            assert await wire.pop(lists, 0.001) is None  # connects
            for i in range(2, 22):
                popping = asyncio.create_task(wire.pop_then(lists, LONG_S, counter.count(), told))
                if i % 2:
                    await blocked(raw, namespace)
                else:
                    await asyncio.sleep(0)  # also before it has reached the server
                await soon(wire.interrupt())
                raw.rpush(lists[0], "x")
                await soon(popping)
                assert told.replies[-1] == i
                assert raw.lpop(lists[0]) == b"x"
            assert told.replies == list(range(2, 22))
            assert wire.pop_error is None

    run(main())


def test_an_interrupt_while_it_connects_has_the_call_carried_out_at_once(
    run: Run, proxy: Proxy, namespace: str, lists: list[bytes]
) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace) as driver:
            await driver.call(echo("the server has the script"))
            wire, told = driver.blocking(), Told()
            proxy.blackhole()
            popping = asyncio.create_task(wire.pop_then(lists, LONG_S, echo("x"), told))
            await await_until(lambda: proxy.connections == 2)
            await soon(wire.interrupt())
            proxy.restore()
            await soon(popping)
            assert told.replies == [b"x"]

    run(main())


def test_an_interrupt_without_the_right_to_unblock_is_told_to_the_caller_alone(
    run: Run, url: str, namespace: str, raw: Any, lists: list[bytes]
) -> None:
    async def main() -> None:
        login_url = url.replace("://", "://drive-test:x@", 1)
        async with open_async(login_url, namespace) as driver:
            await driver.call(echo("the server has the script"))
            wire, told = driver.blocking(), Told()
            popping = asyncio.create_task(wire.pop_then(lists, LONG_S, echo("x"), told))
            await blocked(raw, namespace)
            await soon(wire.interrupt())
            with pytest.raises(RedisUnavailable):
                await soon(popping)
            await soon(wire.pop_then(lists, 0.001, echo("y"), told))
            assert told.replies == [b"y"]

    raw.acl_setuser(
        "drive-test",
        enabled=True,
        passwords=["+x"],
        categories=["+@all", "-@dangerous"],
        keys=["*"],
        channels=["*"],
    )
    try:
        run(main())
    finally:
        raw.acl_deluser("drive-test")


def test_an_interrupt_of_one_does_not_shorten_the_next(
    run: Run, url: str, namespace: str, raw: Any, lists: list[bytes]
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            await driver.call(echo("the server has the script"))
            wire, told = driver.blocking(), Told()
            await soon(wire.interrupt())  # nothing to end
            popping = asyncio.create_task(wire.pop_then(lists, LONG_S, echo("x"), told))
            await blocked(raw, namespace)
            await soon(wire.interrupt())
            await soon(popping)
            began = time.monotonic()
            await soon(wire.pop_then(lists, 0.3, echo("y"), told))
            assert time.monotonic() - began > 0.29
            assert told.replies == [b"x", b"y"]

    run(main())


def test_the_reply_of_one_that_was_cancelled_is_told_when_the_next_has_ended_its_pop(
    run: Run, url: str, namespace: str, raw: Any, counter: Counter, lists: list[bytes]
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            await driver.call(counter.count())
            wire, first, second = driver.blocking(), Told(), Told()
            popping = asyncio.create_task(wire.pop_then(lists, LONG_S, counter.count(), first))
            await blocked(raw, namespace)
            popping.cancel()
            await asyncio.wait((popping,), timeout=10)
            assert popping.cancelled()
            assert (counter.value, first.replies) == (1, [])
            await soon(wire.pop_then(lists, 0.001, counter.count(), second))
            assert (first.replies, second.replies) == ([2], [3])

    run(main())


def test_what_one_that_was_cancelled_pops_is_returned_by_the_next_pop(
    run: Run, url: str, namespace: str, raw: Any, lists: list[bytes]
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            await driver.call(echo("the server has the script"))
            wire, told = driver.blocking(), Told()
            popping = asyncio.create_task(wire.pop_then(lists[:1], LONG_S, echo("x"), told))
            await blocked(raw, namespace)
            popping.cancel()
            await asyncio.wait((popping,), timeout=10)
            raw.rpush(lists[0], "x")
            assert await told.heard() == [b"x"]
            assert await soon(wire.pop(lists[1:], LONG_S)) == lists[0]
            assert await soon(wire.pop(lists[1:], 0.001)) is None
            assert told.replies == [b"x"]

    run(main())


# --- errors ------------------------------------------------------------------------------------


def test_a_script_that_the_server_lacks_is_a_refusal_and_is_not_told(
    run: Run, url: str, namespace: str, raw: Any, counter: Counter, lists: list[bytes]
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            await driver.call(counter.count())
            wire, told = driver.blocking(), Told()
            raw.script_flush()
            raw.rpush(lists[0], "x")
            with pytest.raises(RedisRefused) as caught:
                await soon(wire.pop_then(lists, LONG_S, counter.count(), told))
            assert caught.value.word == "NOSCRIPT"
            assert counter.value == 1
            assert raw.llen(lists[0]) == 0  # the pop had its own way
            assert await driver.call(counter.count()) == 2
            await soon(wire.pop_then(lists, 0.001, counter.count(), told))
            assert told.replies == [3]

    run(main())


def test_an_error_of_the_script_is_a_refusal_and_is_not_told(
    run: Run, url: str, namespace: str, raw: Any, lists: list[bytes]
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            fail = Call(FAIL, (), (), lambda reply: reply)
            with pytest.raises(RedisRefused):
                await driver.call(fail)  # the server has the script from then on
            wire, told = driver.blocking(), Told()
            with pytest.raises(RedisRefused, match="said by the script") as caught:
                await soon(wire.pop_then(lists, 0.001, fail, told))
            assert (caught.value.word, caught.value.is_retryable) == ("MINE", False)
            await driver.call(echo("the server has the script"))
            await soon(wire.pop_then(lists, 0.001, echo("on"), told))
            assert told.replies == [b"on"]
            assert len(clients(raw, namespace)) == 2

    run(main())


def test_a_server_that_is_loading_is_a_refusal_at_once(
    run: Run, proxy: Proxy, namespace: str, lists: list[bytes]
) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace) as driver:
            await driver.call(echo("the server has the script"))
            wire, told = driver.blocking(), Told()
            proxy.calls.clear()
            proxy.answer_next("LOADING wait", "EVALSHA")
            with pytest.raises(RedisRefused) as caught:
                await soon(wire.pop_then(lists, 0.001, echo("x"), told))
            assert (caught.value.word, caught.value.is_retryable) == ("LOADING", True)
            assert proxy.calls["EVALSHA"] == 1
            assert driver.is_ready
            assert told.replies == []

    run(main())


def test_a_pop_that_is_refused_does_not_keep_the_call_from_being_told(
    run: Run, url: str, namespace: str, counter: Counter, lists: list[bytes]
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            await driver.call(counter.count())
            wire, told = driver.blocking(), Told()
            await soon(wire.pop_then([counter.key], LONG_S, counter.count(), told))
            assert told.replies == [2]
            assert isinstance(wire.pop_error, RedisRefused)
            assert wire.pop_error.word == "WRONGTYPE"
            await soon(wire.pop_then(lists, 0.001, counter.count(), told))
            assert told.replies == [2, 3]
            assert wire.pop_error is None

    run(main())


def test_what_the_server_said_to_a_pop_is_not_said_of_one_that_does_not_connect(
    run: Run, proxy: Proxy, namespace: str, counter: Counter, lists: list[bytes]
) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace, patience_s=0.0) as driver:
            await driver.call(counter.count())
            wire, told = driver.blocking(), Told()
            await soon(wire.pop_then([counter.key], LONG_S, counter.count(), told))
            assert wire.pop_error is not None
            proxy.refuse()
            await await_until(lambda: wire.wire is None and not driver.is_ready)
            with pytest.raises(RedisUnavailable):
                await soon(wire.pop_then(lists, 0.001, counter.count(), told))
            assert wire.pop_error is None
            assert told.replies == [2]

    run(main())


def test_a_server_that_ends_the_pop_by_itself_is_left(
    run: Run, url: str, namespace: str, raw: Any, counter: Counter, lists: list[bytes]
) -> None:
    """UNBLOCKED is what one says that has become a replica."""

    async def main() -> None:
        async with open_async(url, namespace) as driver:
            await driver.call(counter.count())
            wire, told = driver.blocking(), Told()
            popping = asyncio.create_task(wire.pop_then(lists, LONG_S, counter.count(), told))
            await blocked(raw, namespace)
            left = wire.wire
            raw.client_unblock(wire._client_id, error=True)
            await soon(popping)
            assert told.replies == [2]
            assert isinstance(wire.pop_error, RedisRefused)
            assert wire.pop_error.word == "UNBLOCKED"
            assert wire.wire is None
            await soon(wire.pop_then(lists, 0.001, counter.count(), told))
            assert told.replies == [2, 3]
            assert wire.wire is not left

    run(main())


@pytest.mark.parametrize(("word", "is_left"), [("READONLY", True), ("OOM", False)])
def test_a_server_that_refuses_the_call_is_left_where_it_is_the_wrong_one(
    run: Run, proxy: Proxy, namespace: str, lists: list[bytes], word: str, is_left: bool
) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace) as driver:
            await driver.call(echo("the server has the script"))
            wire, told = driver.blocking(), Told()
            await soon(wire.pop_then(lists, 0.001, echo("x"), told))
            before = wire.wire
            proxy.answer_next(f"{word} says the server", "EVALSHA")
            with pytest.raises(RedisRefused) as caught:
                await soon(wire.pop_then(lists, 0.001, echo("?"), told))
            assert caught.value.word == word
            assert wire.wire is (None if is_left else before)
            await soon(wire.pop_then(lists, 0.001, echo("y"), told))
            assert told.replies == [b"x", b"y"]

    run(main())


# --- broken connections ------------------------------------------------------------------------


def test_a_cut_amid_the_pop_is_told_to_the_caller_alone_and_the_next_reconnects(
    run: Run, proxy: Proxy, namespace: str, raw: Any, counter: Counter, lists: list[bytes]
) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace) as driver:
            await driver.call(counter.count())
            wire, told = driver.blocking(), Told()
            popping = asyncio.create_task(wire.pop_then(lists, LONG_S, counter.count(), told))
            await blocked(raw, namespace)
            proxy.cut()
            with pytest.raises(RedisUnavailable, match=f"127.0.0.1:{proxy.port}"):
                await soon(popping)
            await blocked(raw, namespace, count=0)
            assert wire.pop_error is None
            before = counter.value
            raw.rpush(lists[0], "x")
            await soon(wire.pop_then(lists, LONG_S, counter.count(), told))
            assert told.replies == [before + 1]
            assert raw.llen(lists[0]) == 0

    run(main())


def test_a_call_whose_reply_is_lost_is_not_repeated(
    run: Run, proxy: Proxy, namespace: str, counter: Counter, lists: list[bytes]
) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace) as driver:
            await driver.call(counter.count())
            wire, told = driver.blocking(), Told()
            cut = proxy.cut_before_next_reply("EVALSHA")
            with pytest.raises(RedisUnavailable):
                await soon(wire.pop_then(lists, 0.001, counter.count(), told))
            assert cut.is_set()
            assert (counter.value, told.replies) == (2, [])
            await soon(wire.pop_then(lists, 0.001, counter.count(), told))
            assert told.replies == [3]

    run(main())


def test_a_cut_after_the_reply_is_told_to_nobody(
    run: Run, proxy: Proxy, namespace: str, lists: list[bytes]
) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace) as driver:
            await driver.call(echo("the server has the script"))
            wire, told = driver.blocking(), Told()
            await soon(wire.pop_then(lists, 0.001, echo("x"), told))
            proxy.cut()
            await await_until(lambda: wire.wire is None)
            assert told.replies == [b"x"]
            await soon(wire.pop_then(lists, 0.001, echo("y"), told))
            assert told.replies == [b"x", b"y"]

    run(main())


def test_a_dead_connection_is_told_to_be_stale(
    run: Run,
    proxy: Proxy,
    namespace: str,
    counter: Counter,
    lists: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace) as driver:
            await driver.call(counter.count())
            wire, told = driver.blocking(), Told()
            await soon(wire.pop_then(lists, 0.001, counter.count(), told))
            monkeypatch.setattr(blocking_wire, "_MARGIN_S", 0.1)
            proxy.blackhole()
            with pytest.raises(RedisUnavailable, match=r"connection stale, no answer for 0\.2 s"):
                await soon(wire.pop_then(lists, 0.1, counter.count(), told))
            monkeypatch.undo()
            assert told.replies == [2]
            proxy.restore()
            await await_until(lambda: proxy.connections == 1)  # what was held has passed
            before = counter.value
            await soon(wire.pop_then(lists, 0.001, counter.count(), told))
            assert told.replies == [2, before + 1]

    run(main())


def test_a_connection_is_not_stale_once_the_reply_is_there(
    run: Run,
    url: str,
    namespace: str,
    lists: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            await driver.call(echo("the server has the script"))
            monkeypatch.setattr(blocking_wire, "_MARGIN_S", 0.2)
            wire, told = driver.blocking(), Told()
            await soon(wire.pop_then(lists, 0.001, echo("x"), told))
            monkeypatch.undo()
            first = wire.wire
            await soon(wire.pop_then(lists, 0.4, echo("y"), told))  # beyond the first one's limit
            assert told.replies == [b"x", b"y"]
            assert wire.wire is first

    run(main())


@pytest.mark.parametrize("what", ["pop", "driver"])
def test_a_close_is_told_to_the_caller_alone(
    run: Run, url: str, namespace: str, raw: redis.Redis, lists: list[bytes], what: str
) -> None:
    async def main() -> None:
        driver = open_async(url, namespace)
        await driver.call(echo("the server has the script"))
        wire, told = driver.blocking(), Told()
        popping = asyncio.create_task(wire.pop_then(lists, LONG_S, echo("x"), told))
        await blocked(raw, namespace)
        await soon(wire.aclose() if what == "pop" else driver.aclose())
        with pytest.raises(RedisUnavailable, match="closed"):
            await soon(popping)
        assert wire.pop_error is None
        await driver.aclose()
        await await_until(lambda: not clients(raw, namespace))
        assert told.replies == []

    run(main())


# --- nothing to wait for ------------------------------------------------------------------


def test_a_cancelled_caller_leaves_the_watch_over_a_silent_connection(
    run: Run,
    proxy: Proxy,
    namespace: str,
    raw: Any,
    lists: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace) as driver:
            await driver.call(echo("s"))
            wire = driver.blocking()
            assert await wire.pop(lists, 0.001) is None
            monkeypatch.setattr(blocking_wire, "_MARGIN_S", 0.3)
            shots = [proxy.swallow_next_reply("BLPOP"), proxy.swallow_next_reply("EVALSHA")]
            popping = asyncio.create_task(wire.pop_then(lists, 0.3, echo("x"), Told()))
            await blocked(raw, namespace)
            popping.cancel()
            await asyncio.wait((popping,), timeout=5)
            await await_until(lambda: all(shot.is_set() for shot in shots))
            await soon(wire.interrupt())

    run(main())


def test_what_a_cancelled_pop_got_is_news_enough(
    run: Run, url: str, namespace: str, raw: Any, lists: list[bytes]
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            await driver.call(echo("s"))
            wire, told = driver.blocking(), Told()
            popping = asyncio.create_task(wire.pop(lists, LONG_S))
            await blocked(raw, namespace)
            popping.cancel()
            await asyncio.wait((popping,), timeout=5)
            raw.rpush(lists[0], "x", "y")
            await soon(wire.pop_then(lists, LONG_S, echo("z"), told))
            assert told.replies == [b"z"]
            assert raw.lrange(lists[0], 0, -1) == [b"y"]

    run(main())


def test_a_pop_that_was_interrupted_while_it_connects_takes_nothing(
    run: Run, proxy: Proxy, namespace: str, raw: Any, lists: list[bytes]
) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace) as driver:
            await driver.call(echo("s"))
            wire, told = driver.blocking(), Told()
            proxy.blackhole()
            popping = asyncio.create_task(wire.pop_then(lists, LONG_S, echo("z"), told))
            await await_until(lambda: proxy.connections == 2)
            await soon(wire.interrupt())
            raw.rpush(lists[0], "x")
            proxy.restore()
            await soon(popping)
            assert told.replies == [b"z"]
            assert raw.lpop(lists[0]) == b"x"

    run(main())


def test_that_the_pop_was_refused_is_kept_where_the_call_is_too(
    run: Run, url: str, namespace: str, counter: Counter
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            await driver.call(counter.count())
            fail = Call(FAIL, (), (), lambda reply: reply)
            with pytest.raises(RedisRefused, match="MINE"):
                await driver.call(fail)  # the server has the script then
            wire, told = driver.blocking(), Told()
            with pytest.raises(RedisRefused, match="MINE"):
                await soon(wire.pop_then([counter.key], LONG_S, fail, told))
            assert "WRONGTYPE" in str(wire.pop_error)
            assert told.replies == []

    run(main())
