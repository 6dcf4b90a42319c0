"""Calls that are begun: sent at once, told to a callback, carried on after trouble."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import hiredis
import pytest
import redis

from laneq.calls.call import Call
from laneq.drive import AsyncDriver, Begun, is_trouble
from laneq.drive.persist import pack, pack_call
from laneq.drive.refusals import Lost
from laneq.embedded import EmbeddedServer
from laneq.errors import JobNotFound, RedisRefused, RedisUnavailable
from tests.drive.conftest import ECHO, Counter, echo, open_async, script
from tests.patience import PATIENCE_S, await_until
from tests.proxy import Proxy

T = TypeVar("T")

Run = Callable[[Any], Any]

FAIL = script("fail", "return redis.error_reply('MINE said by the script')")


class Told:
    """A callback that keeps what it is told."""

    def __init__(self) -> None:
        self.replies: list[Any] = []
        self._news = asyncio.Event()

    def __call__(self, reply: Any) -> None:
        self.replies.append(reply)
        self._news.set()

    async def heard(self, count: int = 1) -> list[Any]:
        """Return all replies once there are so many."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.replies) < count:
                self._news.clear()
                await self._news.wait()
        return self.replies


def marked(mark: Any, told: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a callback that has its replies told with a mark of its own."""
    return lambda reply: told((mark, reply))


async def soon(awaitable: Awaitable[T]) -> T:
    """Return the result, in bounded time."""
    async with asyncio.timeout(PATIENCE_S):
        return await awaitable


async def begin_in_trouble(driver: AsyncDriver, call: Call[T]) -> tuple[Begun[T], Any]:
    """Begin a call that meets trouble; return it, and the trouble."""
    told = Told()
    begun = driver.begin(call, told)
    (reply,) = await told.heard()
    assert is_trouble(reply), reply
    return begun, reply


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (hiredis.ReplyError("ERR no"), True),
        (Lost("cut"), True),
        (Lost("closed", is_closing=True), True),
        (None, False),
        (b"", False),
        (b"ERR no", False),
        (0, False),
        ([], False),
        ([hiredis.ReplyError("ERR no")], False),
    ],
)
def test_trouble_is_an_error_or_no_reply_and_nothing_else(reply: Any, expected: bool) -> None:
    assert is_trouble(reply) is expected


# --- begin ------------------------------------------------------------------------------------


def test_a_raw_reply_reaches_the_callback_and_is_read_as_the_call_says(
    run: Run, url: str, namespace: str
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            await driver.call(echo("the server has the script"))
            told = Told()
            begun = driver.begin(Call(ECHO, (), (7,), lambda reply: int(reply) + 1), told)
            assert told.replies == []
            assert await told.heard() == [b"7"]
            assert begun.call.read(told.replies[0]) == 8

    run(main())


def test_a_reply_of_nothing_is_a_reply(
    run: Run, url: str, namespace: str, counter: Counter
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            await driver.call(counter.get())
            told = Told()
            begun = driver.begin(counter.get(), told)
            assert await told.heard() == [None]
            assert not is_trouble(told.replies[0])
            assert begun.call.read(told.replies[0]) is None

    run(main())


def test_a_reply_of_a_megabyte_is_told_whole_and_once(run: Run, url: str, namespace: str) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            await driver.call(echo("the server has the script"))
            told = Told()
            driver.begin(echo(b"x" * 1_000_000), told)
            driver.begin(echo("after it"), told)
            assert await told.heard(2) == [b"x" * 1_000_000, b"after it"]

    run(main())


def test_what_was_begun_says_what_was_sent_and_where(run: Run, url: str, namespace: str) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            wire = await driver.connected()
            call = echo("x")
            told = Told()
            begun = driver.begin(call, told)
            assert begun == Begun(call, pack_call(call, None), wire)
            assert begun.wire is wire
            await told.heard()

    run(main())


def test_a_begun_call_goes_out_before_the_loop_turns(
    run: Run, url: str, namespace: str, counter: Counter
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            assert await driver.call(counter.count()) == 1
            told = Told()
            driver.begin(counter.count(), told)
            give_up_at = asyncio.get_running_loop().time() + PATIENCE_S
            while counter.value < 2:  # asks the server; our loop stands still
                assert asyncio.get_running_loop().time() < give_up_at
            assert told.replies == []
            assert await told.heard() == [2]

    run(main())


def test_replies_of_many_begun_and_awaited_calls_come_in_order_to_whom_they_are_for(
    run: Run, url: str, namespace: str
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            await driver.call(echo("the server has the script"))
            told = Told()
            heard: list[tuple[int, Any]] = []
            awaited = []
            for i in range(0, 300, 3):
                driver.begin(echo(str(i)), told)
                awaited.append(asyncio.create_task(driver.call(echo(str(i + 1)))))
                if i % 2:
                    await asyncio.sleep(0)  # some are sent in one turn of the loop, some not
                driver.begin(echo(str(i + 2)), marked(i, heard.append))
            expected = range(0, 300, 3)
            assert await told.heard(100) == [b"%d" % i for i in expected]
            assert await soon(asyncio.gather(*awaited)) == [b"%d" % (i + 1) for i in expected]
            await driver.command("PING")  # answered after all of them
            assert heard == [(i, b"%d" % (i + 2)) for i in expected]

    run(main())


def test_a_callback_is_told_in_the_loop_and_its_thread(run: Run, url: str, namespace: str) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            await driver.call(echo("the server has the script"))
            told = Told()
            places = []

            def answer(reply: Any) -> None:
                places.append((asyncio.get_running_loop(), threading.get_ident()))
                told(reply)

            driver.begin(echo("x"), answer)
            await told.heard()
            assert places == [(asyncio.get_running_loop(), threading.get_ident())]

    run(main())


def test_a_callback_may_begin_the_next_call(run: Run, url: str, namespace: str) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            await driver.call(echo("the server has the script"))
            told = Told()
            ready: list[bool] = []

            def answer(reply: Any) -> None:
                ready.append(driver.is_ready)
                if int(reply) < 5:
                    driver.begin(echo(str(int(reply) + 1)), answer)
                    driver.begin(echo(b"beside %b" % reply), told)
                told(reply)

            driver.begin(echo("0"), answer)
            other = asyncio.create_task(driver.call(echo("amid them")))
            replies = await told.heard(11)
            assert [reply for reply in replies if b" " not in reply] == [
                b"%d" % i for i in range(6)
            ]
            beside = [reply for reply in replies if b" " in reply]
            assert beside == [b"beside %d" % i for i in range(5)]
            assert await soon(other) == b"amid them"
            assert ready == [True] * 6

    run(main())


def test_begin_needs_a_connection(run: Run, proxy: Proxy, namespace: str) -> None:
    async def main() -> None:
        told = Told()
        driver = open_async(proxy.url, namespace)
        with pytest.raises(RuntimeError, match="not connected"):
            driver.begin(echo("x"), told)
        await driver.call(echo("connected"))
        proxy.cut()
        await await_until(lambda: not driver.is_ready)
        with pytest.raises(RuntimeError, match="not connected"):
            driver.begin(echo("x"), told)
        assert await driver.call(echo("again")) == b"again"
        await driver.aclose()
        with pytest.raises(RuntimeError, match="not connected"):
            driver.begin(echo("x"), told)
        assert told.replies == []

    run(main())


# --- is_ready ---------------------------------------------------------------------------------


def test_ready_is_a_driver_with_a_connection(run: Run, proxy: Proxy, namespace: str) -> None:
    async def main() -> None:
        connected: list[bool] = []
        driver: AsyncDriver = open_async(
            proxy.url, namespace, on_connect=lambda: connected.append(driver.is_ready)
        )
        assert not driver.is_ready
        proxy.blackhole()
        call = asyncio.create_task(driver.call(echo("connected")))
        await await_until(lambda: proxy.connections)
        assert not driver.is_ready
        proxy.restore()
        assert await soon(call) == b"connected"
        assert driver.is_ready
        proxy.cut()
        await await_until(lambda: not driver.is_ready)
        assert await driver.call(echo("again")) == b"again"
        assert driver.is_ready
        assert connected == [True, True]
        await driver.aclose()
        assert not driver.is_ready
        assert await driver.call(echo("anew")) == b"anew"
        assert driver.is_ready
        await driver.aclose()

    run(main())


def test_a_driver_whose_server_is_away_is_not_ready_until_it_is_back(
    run: Run, proxy: Proxy, namespace: str
) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace, patience_s=0.0) as driver:
            await driver.call(echo("connected"))
            proxy.refuse()
            for _ in range(2):
                with pytest.raises(RedisUnavailable):
                    await soon(driver.call(echo("?")))
                assert not driver.is_ready
            proxy.restore()
            assert await soon(driver.call(echo("back"))) == b"back"
            assert driver.is_ready

    run(main())


def test_a_connection_to_a_server_that_is_loading_is_not_ready(
    run: Run, proxy: Proxy, namespace: str
) -> None:
    async def main() -> None:
        away: list[bool] = []
        driver: AsyncDriver = open_async(
            proxy.url, namespace, on_disconnect=lambda _: away.append(driver.is_ready)
        )
        async with driver:
            wire = await driver.connected()
            await driver.call(echo("the server has the script"))
            proxy.answer_next("LOADING wait", "EVALSHA")
            begun, reply = await begin_in_trouble(driver, echo("loaded"))
            assert driver.is_ready  # nobody has looked at the reply yet
            assert await soon(driver.carry_on(begun, reply)) == b"loaded"
            assert away == [False]
            assert driver.is_ready
            assert await driver.connected() is wire

    run(main())


def test_a_call_that_is_refused_past_patience_leaves_the_driver_unready_until_an_answer(
    run: Run, proxy: Proxy, namespace: str
) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace, patience_s=0.0) as driver:
            await driver.call(echo("the server has the script"))
            proxy.answer_next("LOADING wait", "EVALSHA")
            begun, reply = await begin_in_trouble(driver, echo("?"))
            with pytest.raises(RedisRefused) as caught:
                await soon(driver.carry_on(begun, reply))
            assert (caught.value.word, caught.value.is_retryable) == ("LOADING", True)
            assert not driver.is_ready
            assert await soon(driver.call(echo("loaded"))) == b"loaded"
            assert driver.is_ready

    run(main())


# --- carry_on: errors -------------------------------------------------------------------------


def test_a_script_that_the_server_lacks_is_sent_once(
    run: Run, proxy: Proxy, namespace: str, raw: redis.Redis, counter: Counter
) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace) as driver:
            await driver.call(counter.count())
            raw.script_flush()
            proxy.calls.clear()
            begun, reply = await begin_in_trouble(driver, counter.count())
            assert str(reply).startswith("NOSCRIPT")
            assert await soon(driver.carry_on(begun, reply)) == 2
            told = Told()
            driver.begin(counter.count(), told)
            assert await told.heard() == [3]
            assert (proxy.calls["EVAL"], proxy.calls["EVALSHA"]) == (1, 2)

    run(main())


def test_many_that_were_begun_without_their_script_are_all_carried_on(
    run: Run, url: str, namespace: str, raw: redis.Redis, counter: Counter
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            await driver.connected()
            raw.script_flush()
            told = Told()
            begun = [driver.begin(counter.count(), told) for _ in range(20)]
            replies = await told.heard(20)
            assert all(is_trouble(reply) for reply in replies)
            counting = map(driver.carry_on, begun, replies)
            assert sorted(await soon(asyncio.gather(*counting))) == list(range(1, 21))

    run(main())


def test_fakeredis_gets_the_script_that_it_can_read(run: Run) -> None:
    async def main(url: str) -> None:
        async with open_async(url, "fake") as driver:
            await driver.connected()
            begun, reply = await begin_in_trouble(driver, echo("carried on"))
            assert await soon(driver.carry_on(begun, reply)) == b"carried on"

    with EmbeddedServer(engine="fake") as server:
        run(main(server.url))


@pytest.mark.parametrize("word", ["LOADING", "BUSY", "TRYAGAIN"])
def test_a_server_that_will_be_ready_soon_is_waited_for(
    run: Run, proxy: Proxy, namespace: str, counter: Counter, word: str
) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace) as driver:
            assert await driver.call(counter.count()) == 1
            shots = [proxy.answer_next(f"{word} wait a little", "EVALSHA") for _ in range(3)]
            begun, reply = await begin_in_trouble(driver, counter.count())
            assert await soon(driver.carry_on(begun, reply)) == 2
            assert all(shot.is_set() for shot in shots)

    run(main())


@pytest.mark.parametrize("word", ["READONLY", "MOVED"])
def test_a_server_that_is_the_wrong_one_by_now_is_left(
    run: Run, proxy: Proxy, namespace: str, counter: Counter, word: str
) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace) as driver:
            assert await driver.call(counter.count()) == 1
            proxy.answer_next(f"{word} ask another one", "EVALSHA")
            begun, reply = await begin_in_trouble(driver, counter.count())
            assert await soon(driver.carry_on(begun, reply)) == 2
            assert begun.wire.lost is not None
            assert await driver.connected() is not begun.wire
            assert driver.is_ready
            await await_until(lambda: proxy.connections == 1)

    run(main())


def test_an_error_of_the_script_reaches_who_carries_on_and_the_driver_works_on(
    run: Run, url: str, namespace: str
) -> None:
    async def main() -> None:
        read: list[Any] = []
        fail = Call(FAIL, (), (), read.append)
        async with open_async(url, namespace) as driver:
            wire = await driver.connected()
            begun, reply = await begin_in_trouble(driver, fail)
            for _ in range(2):  # the first finds that the server lacks the script
                with pytest.raises(RedisRefused, match="said by the script") as caught:
                    await soon(driver.carry_on(begun, reply))
                assert (caught.value.word, caught.value.is_retryable) == ("MINE", False)
                begun, reply = await begin_in_trouble(driver, fail)
                assert str(reply).startswith("MINE")
            assert read == []
            assert driver.is_ready
            assert await driver.connected() is wire

    run(main())


def test_a_refusal_is_not_tried_again(
    run: Run, proxy: Proxy, namespace: str, counter: Counter
) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace) as driver:
            assert await driver.call(counter.count()) == 1
            proxy.answer_next("OOM command not allowed", "EVALSHA")
            begun, reply = await begin_in_trouble(driver, counter.count())
            with pytest.raises(RedisRefused, match="free memory") as caught:
                await soon(driver.carry_on(begun, reply))
            assert caught.value.word == "OOM"
            assert counter.value == 1

    run(main())


def test_an_error_of_the_reader_reaches_who_carries_on(
    run: Run, proxy: Proxy, namespace: str
) -> None:
    def refuse(reply: Any) -> Any:
        raise JobNotFound(reply.decode())

    async def main() -> None:
        async with open_async(proxy.url, namespace) as driver:
            await driver.call(echo("the server has the script"))
            proxy.answer_next("LOADING wait", "EVALSHA")
            begun, reply = await begin_in_trouble(driver, Call(ECHO, (), ("j",), refuse))
            with pytest.raises(JobNotFound, match="j"):
                await soon(driver.carry_on(begun, reply))
            assert driver.is_ready

    run(main())


# --- carry_on: broken connections -------------------------------------------------------------


def test_a_call_whose_reply_is_lost_is_repeated_on_another_connection(
    run: Run, proxy: Proxy, namespace: str, counter: Counter
) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace) as driver:
            assert await driver.call(counter.count()) == 1
            cut = proxy.cut_before_next_reply("EVALSHA")
            begun, reply = await begin_in_trouble(driver, counter.count())
            assert cut.is_set()
            assert isinstance(reply, Lost)
            assert not reply.is_closing
            assert not driver.is_ready
            assert counter.value == 2
            assert await soon(driver.carry_on(begun, reply)) == 3
            assert driver.is_ready
            assert await driver.connected() is not begun.wire

    run(main())


def test_a_call_on_a_connection_that_has_just_broken_is_carried_on(
    run: Run, proxy: Proxy, namespace: str, counter: Counter
) -> None:
    """Before the driver has noticed: it is ready still, and the call goes nowhere."""

    async def main() -> None:
        async with open_async(proxy.url, namespace) as driver:
            assert await driver.call(counter.count()) == 1
            proxy.cut()
            assert driver.is_ready
            begun, reply = await begin_in_trouble(driver, counter.count())
            assert isinstance(reply, Lost)
            assert await soon(driver.carry_on(begun, reply)) == 2

    run(main())


def test_a_cut_after_the_reply_is_told_to_nobody_who_has_his(
    run: Run, proxy: Proxy, namespace: str
) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace) as driver:
            await driver.call(echo("the server has the script"))
            first, second = Told(), Told()
            driver.begin(echo("first"), first)
            assert await first.heard() == [b"first"]
            proxy.blackhole()
            driver.begin(echo("second"), second)
            proxy.cut()
            await second.heard()
            await await_until(lambda: not driver.is_ready)
            proxy.restore()
            assert await driver.call(echo("again")) == b"again"
            assert first.replies == [b"first"]
            assert [reply.__class__ for reply in second.replies] == [Lost]

    run(main())


def test_only_a_repeat_after_a_break_says_that_it_is_one(
    run: Run, proxy: Proxy, namespace: str, raw: redis.Redis
) -> None:
    async def main() -> None:
        call = Call(ECHO, (), (0,), int, again=0)
        async with open_async(proxy.url, namespace) as driver:
            await driver.connected()
            raw.script_flush()
            begun, reply = await begin_in_trouble(driver, call)
            assert await soon(driver.carry_on(begun, reply)) == 0
            proxy.answer_next("LOADING wait", "EVALSHA")
            begun, reply = await begin_in_trouble(driver, call)
            assert await soon(driver.carry_on(begun, reply)) == 0
            proxy.cut_before_next_reply("EVALSHA")
            begun, reply = await begin_in_trouble(driver, call)
            assert await soon(driver.carry_on(begun, reply)) == 1

    run(main())


def test_a_second_break_reaches_who_carries_on(run: Run, proxy: Proxy, namespace: str) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace) as driver:
            await driver.call(echo("the server has the script"))
            for _ in range(2):
                proxy.cut_before_next_reply("EVALSHA")
            begun, reply = await begin_in_trouble(driver, echo("never"))
            with pytest.raises(RedisUnavailable, match=f"127.0.0.1:{proxy.port}") as caught:
                await soon(driver.carry_on(begun, reply))
            assert caught.value.__cause__ is not None
            assert await driver.call(echo("later")) == b"later"

    run(main())


def test_an_outage_is_ridden_out(run: Run, proxy: Proxy, namespace: str) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace, patience_s=math.inf) as driver:
            await driver.call(echo("the server has the script"))
            proxy.refuse()
            begun, reply = await begin_in_trouble(driver, echo("patient"))
            carrying = asyncio.create_task(driver.carry_on(begun, reply))
            await await_until(lambda: proxy.refused)
            assert not carrying.done()
            assert not driver.is_ready
            proxy.restore()
            assert await soon(carrying) == b"patient"
            assert driver.is_ready

    run(main())


def test_no_server_reaches_who_carries_on_when_patience_is_spent(
    run: Run, proxy: Proxy, namespace: str
) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace, patience_s=0.1) as driver:
            await driver.call(echo("the server has the script"))
            proxy.refuse()
            begun, reply = await begin_in_trouble(driver, echo("?"))
            with pytest.raises(RedisUnavailable):
                await soon(driver.carry_on(begun, reply))
            assert not driver.is_ready

    run(main())


def test_a_break_is_told_to_all_that_were_begun_and_they_share_one_reconnect(
    run: Run, proxy: Proxy, namespace: str
) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace) as driver:
            await driver.call(echo("the server has the script"))
            proxy.blackhole()
            told = Told()
            begun = [driver.begin(echo(str(i)), marked(i, told)) for i in range(50)]
            proxy.calls.clear()
            proxy.cut()
            order, replies = zip(*await told.heard(50), strict=True)
            proxy.restore()
            assert order == tuple(range(50))
            assert [reply.__class__ for reply in replies] == [Lost] * 50
            texts = await soon(asyncio.gather(*map(driver.carry_on, begun, replies)))
            assert texts == [b"%d" % i for i in range(50)]
            assert proxy.calls["HELLO"] == 1
            assert len(told.replies) == 50

    run(main())


def test_who_begins_a_call_when_told_of_a_break_is_told_of_it_once_more_but_later(
    run: Run, proxy: Proxy, namespace: str
) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace) as driver:
            await driver.call(echo("the server has the script"))
            told, inner = Told(), Told()
            begun: list[Begun[bytes]] = []
            seen: list[Any] = []

            def answer(reply: Any) -> None:
                seen.append(driver.is_ready)
                begun.append(driver.begin(echo("inner"), inner))
                seen.append(list(inner.replies))
                told(reply)

            proxy.cut_before_next_reply("EVALSHA")
            driver.begin(echo("outer"), answer)
            (reply,) = await told.heard()
            assert await inner.heard() == [reply]
            assert seen == [False, []]
            assert await soon(driver.carry_on(begun[0], reply)) == b"inner"

    run(main())


def test_a_connection_that_falls_silent_is_given_up(
    run: Run, proxy: Proxy, namespace: str, counter: Counter
) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace, read_timeout_s=0.3) as driver:
            assert await driver.call(counter.count()) == 1
            swallowed = proxy.swallow_next_reply("EVALSHA")
            begun, reply = await begin_in_trouble(driver, counter.count())
            assert swallowed.is_set()
            assert reply.reason == "no reply within 0.3 s"
            assert await soon(driver.carry_on(begun, reply)) == 3

    run(main())


def test_trouble_is_taken_up_where_the_call_was_sent(
    run: Run, proxy: Proxy, namespace: str
) -> None:
    """Its connection may be gone by then; the one that the driver has now is not to blame."""

    async def main() -> None:
        async with open_async(proxy.url, namespace) as driver:
            await driver.call(echo("the server has the script"))
            for error in ("READONLY ask another one", "NOSCRIPT no such", "LOADING wait"):
                proxy.answer_next(error, "EVALSHA")
                begun, reply = await begin_in_trouble(driver, echo(error))
                proxy.cut()
                await await_until(lambda: not driver.is_ready)
                now = await driver.connected()
                assert now is not begun.wire
                assert await soon(driver.carry_on(begun, reply)) == error.encode()
                assert await driver.connected() is now
                assert driver.is_ready

    run(main())


def test_who_no_longer_carries_on_does_not_shift_the_replies_of_others(
    run: Run, proxy: Proxy, namespace: str
) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace) as driver:
            await driver.call(echo("the server has the script"))
            proxy.answer_next("NOSCRIPT no such", "EVALSHA")
            begun, reply = await begin_in_trouble(driver, echo("dropped"))
            proxy.blackhole()
            told = Told()
            carrying = asyncio.create_task(driver.carry_on(begun, reply))
            await asyncio.sleep(0)
            driver.begin(echo("told"), told)
            call = asyncio.create_task(driver.call(echo("called")))
            carrying.cancel()
            await asyncio.wait((carrying,), timeout=PATIENCE_S)
            assert carrying.cancelled()
            proxy.restore()
            assert await told.heard() == [b"told"]
            assert await soon(call) == b"called"

    run(main())


# --- a driver that is closed meanwhile --------------------------------------------------------


def test_a_close_is_told_to_those_who_wait_and_nothing_is_repeated(
    run: Run, proxy: Proxy, namespace: str
) -> None:
    async def main() -> None:
        driver = open_async(proxy.url, namespace)
        await driver.call(echo("the server has the script"))
        proxy.blackhole()
        told = Told()
        begun = [driver.begin(echo(str(i)), told) for i in range(3)]
        await driver.aclose()
        assert [reply.__class__ for reply in told.replies] == [Lost] * 3
        proxy.restore()
        proxy.calls.clear()
        for each, reply in zip(begun, told.replies, strict=True):
            assert reply.is_closing
            with pytest.raises(RedisUnavailable, match="closed"):
                await soon(driver.carry_on(each, reply))
        assert not driver.is_ready
        assert proxy.calls["HELLO"] == 0
        await await_until(lambda: proxy.connections == 0)
        assert len(told.replies) == 3

    run(main())


def test_a_close_ends_the_carrying_on_that_connects(run: Run, proxy: Proxy, namespace: str) -> None:
    async def main() -> None:
        driver = open_async(proxy.url, namespace, patience_s=math.inf)
        await driver.call(echo("the server has the script"))
        proxy.refuse()
        begun, reply = await begin_in_trouble(driver, echo("?"))
        carrying = asyncio.create_task(driver.carry_on(begun, reply))
        await await_until(lambda: proxy.refused)
        await driver.aclose()
        with pytest.raises(RedisUnavailable, match="closed"):
            await soon(carrying)
        assert not driver.is_ready

    run(main())


def test_a_close_ends_the_carrying_on_that_waits_for_the_server(
    run: Run, proxy: Proxy, namespace: str
) -> None:
    async def main() -> None:
        away = asyncio.Event()
        driver = open_async(
            proxy.url, namespace, patience_s=math.inf, on_disconnect=lambda _: away.set()
        )
        await driver.call(echo("the server has the script"))
        proxy.answer_next("LOADING wait", "EVALSHA")
        begun, reply = await begin_in_trouble(driver, echo("?"))
        carrying = asyncio.create_task(driver.carry_on(begun, reply))
        await soon(away.wait())
        await driver.aclose()
        with pytest.raises(RedisUnavailable, match="closed"):
            await soon(carrying)
        assert not driver.is_ready
        await await_until(lambda: proxy.connections == 0)

    run(main())


def test_the_end_of_the_loop_is_a_close(
    run: Run, proxy: Proxy, namespace: str, raw: redis.Redis
) -> None:
    driver = open_async(proxy.url, namespace)
    replies: list[Any] = []

    async def main() -> Begun[bytes]:
        await driver.call(echo("the server has the script"))
        proxy.blackhole()
        return driver.begin(echo("late"), replies.append)

    async def later(begun: Begun[bytes]) -> None:
        with pytest.raises(RedisUnavailable, match="closed"):
            await soon(driver.carry_on(begun, replies[0]))

    begun = run(main())
    assert [(reply.__class__, reply.is_closing) for reply in replies] == [(Lost, True)]
    assert not driver.is_ready
    proxy.restore()
    run(later(begun))
    assert not driver.is_ready


# --- the wire: send_to ------------------------------------------------------------------------


def packed(text: str) -> bytes:
    return pack((b"ECHO", text))


def test_futures_and_callbacks_get_their_replies_in_the_order_sent(
    run: Run, url: str, namespace: str
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            wire = await driver.connected()
            told = Told()
            futures = []
            for i in range(0, 60, 2):
                futures.append(wire.send(packed(str(i))))
                wire.send_to(packed(str(i + 1)), told)
            for future in futures[::2]:
                future.cancel()
            assert await told.heard(30) == [b"%d" % i for i in range(1, 60, 2)]
            kept = await soon(asyncio.gather(*futures[1::2]))
            assert kept == [b"%d" % i for i in range(2, 60, 4)]

    run(main())


def test_a_command_goes_out_at_once_and_those_behind_it_together(
    run: Run, url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            wire = await driver.connected()
            written: list[bytes] = []
            write = wire._write

            def spy(data: bytes) -> None:
                written.append(data)
                write(data)

            monkeypatch.setattr(wire, "_write", spy)
            told = Told()
            commands = [packed(str(i)) for i in range(4)]
            for each in commands:
                wire.send_to(each, told)
            assert written == commands[:1]
            assert await told.heard(4) == [b"0", b"1", b"2", b"3"]
            assert written == [commands[0], b"".join(commands[1:])]

    run(main())


def test_a_callback_is_told_before_a_caller_who_was_answered_earlier_wakes(
    run: Run, url: str, namespace: str
) -> None:
    """Where the replies come in one piece, as those of commands sent in one piece do."""

    async def main() -> None:
        async with open_async(url, namespace) as driver:
            wire = await driver.connected()
            told = Told()
            wire.send(packed("first"))  # the others are gathered behind it
            future = wire.send(packed("future"))
            future.add_done_callback(lambda future: told(future.result()))
            wire.send_to(packed("told"), told)
            assert await told.heard(2) == [b"told", b"future"]

    run(main())


def test_a_wire_that_is_lost_tells_so_once_and_not_before_the_sender_returns(
    run: Run, url: str, namespace: str
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            wire = await driver.connected()
            wire.give_up("no good")
            told = Told()
            wire.send_to(packed("x"), told)
            assert told.replies == []
            assert await told.heard() == [wire.lost]
            assert told.replies[0].reason == "no good"
            await soon(wire.ended)
            await driver.command("PING")
            assert len(told.replies) == 1

    run(main())


@pytest.mark.parametrize("is_closing", [True, False])
def test_the_end_of_a_wire_is_told_to_each_in_order_and_once(
    run: Run, proxy: Proxy, namespace: str, is_closing: bool
) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace) as driver:
            wire = await driver.connected()
            proxy.blackhole()
            told: list[tuple[int, Any]] = []
            for i in range(5):
                wire.send_to(packed("x"), marked(i, told.append))
            if is_closing:
                wire.close()
            else:
                wire.give_up("no good")
            assert wire.lost is not None
            assert wire.lost.is_closing is is_closing
            assert told == [(i, wire.lost) for i in range(5)]
            await soon(wire.ended)
            proxy.restore()
            await driver.command("PING")
            assert len(told) == 5

    run(main())


def test_a_wire_that_retires_tells_the_replies_that_it_owes(
    run: Run, proxy: Proxy, namespace: str
) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace) as driver:
            wire = await driver.connected()
            proxy.blackhole()
            told = Told()
            for i in range(3):
                wire.send_to(packed(str(i)), told)
            wire.retire()
            assert not driver.is_ready
            assert wire.lost is None
            proxy.restore()
            assert await told.heard(3) == [b"0", b"1", b"2"]
            await soon(wire.ended)
            assert wire.lost is not None

    run(main())


def test_messages_of_a_channel_are_no_replies(
    run: Run, url: str, namespace: str, counter: Counter
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            messages: list[bytes] = []
            await driver.subscribe(counter.channel, messages.append)
            publish = script("publish", "return redis.call('PUBLISH', KEYS[1], ARGV[1])")
            call = Call(publish, (counter.channel,), ("news",), int)
            await driver.call(call)
            told = Told()
            for _ in range(5):
                driver.begin(call, told)
                driver.begin(call, told)
            assert await told.heard(10) == [1] * 10
            await await_until(lambda: messages == [b"news"] * 11)

    run(main())


@pytest.mark.parametrize("verb", ["call", "carry_on"])
def test_a_close_ends_the_pause_before_a_new_connection(
    run: Run, proxy: Proxy, namespace: str, verb: str
) -> None:
    async def main() -> None:
        away = asyncio.Event()
        driver = open_async(
            proxy.url, namespace, patience_s=math.inf, on_disconnect=lambda _: away.set()
        )
        await driver.call(echo("s"))
        proxy.answer_next("READONLY no", "EVALSHA")
        if verb == "call":
            asking = asyncio.create_task(driver.call(echo("x")))
        else:
            begun, reply = await begin_in_trouble(driver, echo("x"))
            asking = asyncio.create_task(driver.carry_on(begun, reply))
        await soon(away.wait())
        await driver.aclose()
        with pytest.raises(RedisUnavailable, match="closed"):
            await soon(asking)
        assert not driver.is_ready

    run(main())
