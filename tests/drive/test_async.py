"""What only the async driver does: pipelines, cancellation, loops, pops, subscriptions."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis

from laneq.calls.call import Plan, Until
from laneq.drive import Address, blocking_wire
from laneq.errors import RedisRefused, RedisUnavailable
from tests.drive.conftest import Counter, clients, echo, open_async
from tests.patience import await_until, wait_until
from tests.proxy import Proxy

Run = Callable[[Any], Any]


# --- many calls in flight -------------------------------------------------------------------


def test_replies_reach_the_callers_they_are_for(run: Run, url: str, namespace: str) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            texts = [str(i).encode() for i in range(500)]
            assert await asyncio.gather(*(driver.call(echo(text)) for text in texts)) == texts

    run(main())


def test_all_callers_share_one_connection(
    run: Run, url: str, namespace: str, raw: redis.Redis
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            await asyncio.gather(*(driver.call(echo("x")) for _ in range(50)))
            assert len(clients(raw, namespace)) == 1

    run(main())


def test_a_script_flush_amid_a_pipeline_is_not_noticed(
    run: Run, url: str, namespace: str, counter: Counter, raw: Any
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:

            async def count_on() -> list[Any]:
                return [await driver.call(counter.count_once()) for _ in range(40)]

            counting = [asyncio.create_task(count_on()) for _ in range(10)]
            while not all(task.done() for task in counting):
                raw.script_flush()
                await asyncio.sleep(0)
            answers = [answer for task in counting for answer in task.result()]
            assert sorted(answers) == list(range(1, 401))

    run(main())


def test_killed_connections_lose_and_double_no_once_call(
    run: Run, url: str, namespace: str, counter: Counter, raw: Any
) -> None:
    """A call may give up after its second break; what it was told is then "unavailable"."""

    async def main() -> None:
        async with open_async(url, namespace) as driver:
            done = gone = 0

            async def count_on() -> None:
                nonlocal done, gone
                for _ in range(30):
                    try:
                        await driver.call(counter.count_once())
                        done += 1
                    except RedisUnavailable:
                        gone += 1

            counting = [asyncio.create_task(count_on()) for _ in range(10)]
            while not all(task.done() for task in counting):
                for client in clients(raw, namespace):
                    raw.client_kill_filter(_id=client)
                await asyncio.sleep(0.003)
            assert done + gone == 300
            assert done <= counter.value <= done + gone
            assert done > 0

    run(main())


def test_a_cancelled_caller_does_not_shift_the_replies_of_others(
    run: Run, proxy: Proxy, namespace: str
) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace) as driver:
            await driver.call(echo("connected"))
            proxy.blackhole()
            calls = [asyncio.create_task(driver.call(echo(str(i)))) for i in range(20)]
            await asyncio.sleep(0)
            for call in calls[::2]:
                call.cancel()
            await asyncio.sleep(0)
            proxy.restore()
            kept = await asyncio.gather(*calls[1::2])
            assert kept == [str(i).encode() for i in range(1, 20, 2)]
            assert all(call.cancelled() for call in calls[::2])

    run(main())


def test_callers_of_an_outage_share_one_reconnect(run: Run, proxy: Proxy, namespace: str) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace) as driver:
            await driver.call(echo("connected"))
            proxy.calls.clear()
            proxy.cut()
            texts = [str(i).encode() for i in range(200)]
            assert await asyncio.gather(*(driver.call(echo(text)) for text in texts)) == texts
            assert proxy.calls["HELLO"] == 1
            assert proxy.connections == 1

    run(main())


def test_endless_patience_waits_until_redis_is_back(run: Run, proxy: Proxy, namespace: str) -> None:
    async def main() -> None:
        heard: list[str] = []
        driver = open_async(
            proxy.url,
            namespace,
            patience_s=math.inf,
            on_disconnect=lambda error: heard.append("away"),
            on_connect=lambda: heard.append("back"),
        )
        async with driver:
            proxy.refuse()
            calls = [asyncio.create_task(driver.call(echo("x"))) for _ in range(20)]
            await await_until(lambda: heard)
            assert not any(call.done() for call in calls)
            proxy.restore()
            assert await asyncio.gather(*calls) == [b"x"] * 20
            assert heard == ["away", "back"]

    run(main())


def test_a_server_that_is_loading_is_not_yet_back(run: Run, proxy: Proxy, namespace: str) -> None:
    async def main() -> None:
        heard: list[str] = []
        driver = open_async(
            proxy.url, namespace, on_connect=lambda: heard.append("back"), patience_s=math.inf
        )
        async with driver:
            await driver.call(echo("connected"))
            loading = [proxy.answer_next("LOADING wait", "PING") for _ in range(2)]
            proxy.cut()
            assert await driver.call(echo("loaded")) == b"loaded"
            assert all(each.is_set() for each in loading)
            assert heard == ["back", "back"]

    run(main())


def test_a_silent_connection_is_replaced_though_calls_keep_coming(
    run: Run, proxy: Proxy, namespace: str
) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace, read_timeout_s=0.2) as driver:
            await driver.call(echo("connected"))
            first = driver._wire
            proxy.blackhole()
            calls = []
            while driver._wire is first:
                calls.append(asyncio.create_task(driver.call(echo(str(len(calls))))))
                await asyncio.sleep(0.02)
            proxy.restore()
            assert await asyncio.gather(*calls) == [b"%d" % i for i in range(len(calls))]

    run(main())


# --- loops ------------------------------------------------------------------------------------


def test_one_driver_serves_several_loops_in_a_row(
    run: Run, url: str, namespace: str, counter: Counter, raw: redis.Redis
) -> None:
    driver = open_async(url, namespace)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for expected in range(1, 4):
            assert run(driver.call(counter.count_once())) == expected
            wait_until(lambda: not clients(raw, namespace))
        gc.collect()


def test_a_driver_moves_to_the_loop_that_uses_it(
    url: str, namespace: str, raw: redis.Redis
) -> None:
    driver = open_async(url, namespace)
    with asyncio.Runner() as first, asyncio.Runner() as second:
        assert first.run(driver.call(echo("first"))) == b"first"
        assert second.run(driver.call(echo("second"))) == b"second"
        assert first.run(driver.call(echo("first"))) == b"first"
        assert second.run(driver.call(echo("second"))) == b"second"
        first.run(asyncio.sleep(0))
        assert len(clients(raw, namespace)) == 1
    wait_until(lambda: not clients(raw, namespace))


def test_close_in_flight_ends_calls_waits_and_pops(
    run: Run, url: str, namespace: str, counter: Counter, raw: redis.Redis
) -> None:
    async def main() -> None:
        driver = open_async(url, namespace)
        wire = driver.blocking()
        waits: list[asyncio.Task[Any]] = [
            asyncio.create_task(driver.run(wait_for(counter))),
            asyncio.create_task(wire.pop([counter.key + b":list"], 10)),
        ]
        await await_until(lambda: counter.raw.pubsub_numsub(counter.channel)[0][1])
        await await_until(lambda: raw.info("clients")["blocked_clients"])
        call = asyncio.create_task(driver.call(echo("in flight")))
        await asyncio.sleep(0)
        await driver.aclose()
        for task in (*waits, call):
            with pytest.raises(RedisUnavailable):
                await task
        await await_until(lambda: not clients(raw, namespace))

    run(main())


def test_close_while_connecting_tells_the_callers(run: Run, proxy: Proxy, namespace: str) -> None:
    async def main() -> None:
        driver = open_async(proxy.url, namespace, patience_s=math.inf)
        proxy.blackhole()
        call = asyncio.create_task(driver.call(echo("?")))
        await await_until(lambda: proxy.connections)
        await driver.aclose()
        with pytest.raises(RedisUnavailable, match="closed"):
            await call

    run(main())


def test_a_program_that_ends_without_close_gives_no_warning(url: str) -> None:
    program = (
        "import asyncio\n"
        "from laneq.drive import Address, AsyncDriver\n"
        f"driver = AsyncDriver(Address.parse({url!r}), prefix=b'x:')\n"
        "async def main():\n"
        "    print(await driver.command('PING'))\n"
        "asyncio.run(main())\n"
        "asyncio.run(main())\n"
    )
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "b'PONG'\n" * 2, "")


def test_parent_and_forked_child_have_connections_of_their_own(
    run: Run, url: str, namespace: str, counter: Counter
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            mine = await driver.command("CLIENT", "ID")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if child == 0:
                status = 1
                try:
                    asyncio.events._set_running_loop(None)
                    theirs = asyncio.new_event_loop().run_until_complete(
                        driver.command("CLIENT", "ID")
                    )
                    status = 0 if theirs != mine else 2
                finally:
                    os._exit(status)
            _, ended = await asyncio.to_thread(os.waitpid, child, 0)
            assert os.waitstatus_to_exitcode(ended) == 0
            assert await driver.command("CLIENT", "ID") == mine
            assert await driver.call(counter.count_once()) == 1

    run(main())


# --- channels -----------------------------------------------------------------------------------


def wait_for(counter: Counter) -> Plan[Any]:
    answer = yield Until(counter.channel, counter.get(), bytes, 10)
    return answer


def numsub(counter: Counter) -> int:
    return int(counter.raw.pubsub_numsub(counter.channel)[0][1])


def hears(counter: Counter, message: bytes, heard: list[bytes]) -> bool:
    """Publish a message, and return whether it, or one before it, was heard."""
    # The server may not have seen yet that a connection that broke is gone.
    counter.raw.publish(counter.channel, message)
    return message in heard


def test_a_subscriber_hears_messages_also_after_a_reconnect(
    run: Run, proxy: Proxy, namespace: str, counter: Counter
) -> None:
    async def main() -> None:
        heard: list[bytes] = []
        async with open_async(proxy.url, namespace, patience_s=math.inf) as driver:
            await driver.subscribe(counter.channel, heard.append)
            for i in range(3):
                await await_until(partial(hears, counter, b"%d" % i, heard))
                proxy.cut()
            assert sorted(set(heard)) == [b"0", b"1", b"2"]

    run(main())


def test_a_subscription_comes_back_when_its_connection_breaks_at_once(
    run: Run, proxy: Proxy, namespace: str, counter: Counter
) -> None:
    """In the turn of the loop in which the task that restored it has ended."""

    async def main() -> None:
        heard: list[bytes] = []
        async with open_async(proxy.url, namespace) as driver:
            await driver.subscribe(counter.channel, heard.append)
            proxy.cut()
            await await_until(lambda: driver._keeper)
            assert driver._keeper is not None
            await driver._keeper
            wire = driver._wire
            assert wire is not None
            wire.give_up("cut")
            await await_until(partial(hears, counter, b"x", heard))

    run(main())


def test_a_subscription_comes_back_after_an_outage_longer_than_patience(
    run: Run, proxy: Proxy, namespace: str, counter: Counter
) -> None:
    async def main() -> None:
        heard: list[bytes] = []
        async with open_async(proxy.url, namespace, patience_s=0.05) as driver:
            await driver.subscribe(counter.channel, heard.append)
            proxy.refuse()
            await await_until(lambda: driver._state.left_s() < 0)
            proxy.restore()
            await await_until(partial(hears, counter, b"x", heard))

    run(main())


def test_a_channel_is_left_with_its_last_listener(
    run: Run, url: str, namespace: str, counter: Counter
) -> None:
    async def main() -> None:
        heard: list[bytes] = []
        async with open_async(url, namespace) as driver:
            await driver.subscribe(counter.channel, heard.append)
            waiting = asyncio.create_task(driver.run(wait_for(counter)))
            await await_until(lambda: len(driver._listeners[counter.channel]) == 2)
            await driver.command("PING")  # answered after the wait's SUBSCRIBE
            counter.raw.publish(counter.channel, "x")
            assert await waiting == b"x"
            await await_until(lambda: heard == [b"x"])
            await driver.command("PING")
            assert numsub(counter) == 1
            driver.unsubscribe(counter.channel, heard.append)
            await driver.command("PING")
            assert numsub(counter) == 0

    run(main())


def test_a_cancelled_wait_leaves_no_subscription(
    run: Run, url: str, namespace: str, counter: Counter
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            waiting = asyncio.create_task(driver.run(wait_for(counter)))
            await await_until(lambda: numsub(counter) == 1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await driver.command("PING")
            assert numsub(counter) == 0

    run(main())


def test_a_subscriber_that_raises_is_reported_and_does_no_harm(
    run: Run, url: str, namespace: str, counter: Counter
) -> None:
    async def main() -> None:
        reported: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: reported.append(context)
        )

        def fail(message: bytes) -> None:
            raise IndexError(message)

        heard: list[bytes] = []
        async with open_async(url, namespace) as driver:
            await driver.subscribe(counter.channel, fail)
            await driver.subscribe(counter.channel, heard.append)
            counter.raw.publish(counter.channel, "x")
            await await_until(lambda: heard)
            assert await driver.call(echo("on")) == b"on"
        assert isinstance(reported[0]["exception"], IndexError)

    run(main())


def test_a_channel_that_is_not_allowed_is_refused_and_the_connection_goes_on(
    run: Run, url: str, namespace: str, raw: Any, counter: Counter
) -> None:
    async def main() -> None:
        login_url = url.replace("://", "://drive-test:x@", 1)
        async with open_async(login_url, namespace) as driver:
            with pytest.raises(RedisRefused, match="NOPERM"):
                await driver.subscribe(counter.channel, print)
            assert await driver.call(echo("on")) == b"on"
            assert driver._listeners == {}

    raw.acl_setuser(
        "drive-test",
        enabled=True,
        reset_channels=True,
        passwords=["+x"],
        categories=["+@all"],
        keys=["*"],
    )
    try:
        run(main())
    finally:
        raw.acl_deluser("drive-test")


# --- blocking pops ------------------------------------------------------------------------------


@pytest.fixture
def lists(counter: Counter) -> list[bytes]:
    """Keys of two lists (words of the namespace that may stay)."""
    return [counter.key.replace(b"counts:n", b"wake:%d" % i) for i in range(2)]


async def blocked(raw: Any, namespace: str, *, count: int = 1) -> None:
    """Wait until so many of this test's connections are blocked at the server."""

    def is_so() -> bool:
        mine = [each for each in raw.client_list() if each["name"] == namespace]
        return len([each for each in mine if "b" in each["flags"]]) == count

    await await_until(is_so)


def test_a_pop_returns_the_list_that_it_popped(
    run: Run, url: str, namespace: str, raw: redis.Redis, lists: list[bytes]
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            wire = driver.blocking()
            popping = asyncio.create_task(wire.pop(lists, 10))
            await blocked(raw, namespace)
            raw.rpush(lists[1], "x")
            assert await popping == lists[1]
            assert await wire.pop(lists, 0.01) is None
            assert len(clients(raw, namespace)) == 2
            await wire.aclose()
            await await_until(lambda: len(clients(raw, namespace)) == 1)

    run(main())


def test_an_interrupted_pop_ends_at_once_and_takes_nothing_more(
    run: Run, url: str, namespace: str, raw: Any, lists: list[bytes]
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            wire = driver.blocking()
            await wire.interrupt()  # nothing to end
            for _ in range(20):
                popping = asyncio.create_task(wire.pop(lists, 10))
                await asyncio.sleep(0)  # also before it has reached the server
                await wire.interrupt()
                raw.rpush(lists[0], "x")
                assert await popping is None
                assert raw.lpop(lists[0]) == b"x"

    run(main())


def test_an_interrupt_without_the_right_to_unblock_ends_the_connection(
    run: Run, url: str, namespace: str, raw: Any, lists: list[bytes]
) -> None:
    async def main() -> None:
        login_url = url.replace("://", "://drive-test:x@", 1)
        async with open_async(login_url, namespace) as driver:
            wire = driver.blocking()
            popping = asyncio.create_task(wire.pop(lists, 10))
            await blocked(raw, namespace)
            await wire.interrupt()
            with pytest.raises(RedisUnavailable):
                await popping
            await blocked(raw, namespace, count=0)
            raw.rpush(lists[0], "x")
            assert await wire.pop(lists, 10) == lists[0]

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


def test_a_pop_at_a_server_that_was_left_meanwhile_is_not_ended_at_the_other_one(
    run: Run, url: str, namespace: str, raw: Any, proxy: Proxy, lists: list[bytes]
) -> None:
    """The number of a connection means somebody else's on another server."""

    async def main(other: Proxy) -> None:
        async with open_async(proxy.url, namespace) as driver:
            wire = driver.blocking()
            popping = asyncio.create_task(wire.pop(lists, 10))
            await blocked(raw, namespace)
            driver.address = Address.parse(other.url)
            assert driver._wire is not None
            driver._wire.give_up("another server is the master now")
            before = raw.info("commandstats").get("cmdstat_client|unblock")
            await wire.interrupt()
            with pytest.raises(RedisUnavailable):
                await popping
            assert raw.info("commandstats").get("cmdstat_client|unblock") == before
            await blocked(raw, namespace, count=0)

    with Proxy(url) as other:
        run(main(other))


def test_what_a_cancelled_pop_takes_is_returned_by_the_next(
    run: Run, url: str, namespace: str, raw: Any, lists: list[bytes]
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            wire = driver.blocking()
            popping = asyncio.create_task(wire.pop(lists[:1], 10))
            await blocked(raw, namespace)
            popping.cancel()
            with pytest.raises(asyncio.CancelledError):
                await popping
            raw.rpush(lists[0], "x")
            assert raw.llen(lists[0]) == 0
            assert await wire.pop(lists[1:], 10) == lists[0]
            assert await wire.pop(lists[1:], 0.01) is None

    run(main())


def test_a_cancelled_pop_that_got_nothing_is_ended_by_the_next(
    run: Run, url: str, namespace: str, raw: Any, lists: list[bytes]
) -> None:
    async def main() -> None:
        async with open_async(url, namespace) as driver:
            wire = driver.blocking()
            popping = asyncio.create_task(wire.pop(lists[:1], 10))
            await blocked(raw, namespace)
            popping.cancel()
            await asyncio.wait([popping])
            second = asyncio.create_task(wire.pop(lists[1:], 10))
            await asyncio.sleep(0)
            raw.rpush(lists[1], "y")
            assert await second == lists[1]
            raw.rpush(lists[0], "x")
            assert raw.lpop(lists[0]) == b"x"

    run(main())


def test_a_pop_on_a_dead_connection_is_told_that_it_is_stale(
    run: Run, proxy: Proxy, namespace: str, lists: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace) as driver:
            wire = driver.blocking()
            assert await wire.pop(lists, 0.01) is None
            proxy.blackhole()
            monkeypatch.setattr(blocking_wire, "_MARGIN_S", 0.1)
            began = time.monotonic()
            with pytest.raises(RedisUnavailable, match="connection stale"):
                await wire.pop(lists, 0.1)
            assert time.monotonic() - began < 3
            proxy.restore()
            monkeypatch.undo()
            assert await wire.pop(lists, 0.01) is None

    run(main())


def test_a_pop_whose_connection_breaks_is_told_and_the_next_reconnects(
    run: Run, proxy: Proxy, namespace: str, raw: redis.Redis, lists: list[bytes]
) -> None:
    async def main() -> None:
        async with open_async(proxy.url, namespace) as driver:
            wire = driver.blocking()
            popping = asyncio.create_task(wire.pop(lists, 10))
            await blocked(raw, namespace)
            proxy.cut()
            with pytest.raises(RedisUnavailable):
                await popping
            await blocked(raw, namespace, count=0)
            raw.rpush(lists[0], "x")
            assert await wire.pop(lists, 10) == lists[0]

    run(main())
