"""What only the sync driver does: threads, forks, interrupts, a bounded pool."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from laneq.calls.call import Plan, Until
from laneq.drive import SyncDriver
from laneq.errors import RedisUnavailable
from tests.drive.conftest import Counter, clients, echo, open_sync
from tests.patience import wait_until
from tests.proxy import Proxy


@pytest.fixture
def driver(url: str, namespace: str) -> Iterator[SyncDriver]:
    with open_sync(url, namespace) as opened:
        yield opened


def test_threads_share_a_bounded_pool(
    url: str, namespace: str, counter: Counter, raw: redis.Redis
) -> None:
    with open_sync(url, namespace, max_connections=2) as driver:
        with ThreadPoolExecutor(8) as threads:
            counts = list(threads.map(lambda _: driver.call(counter.count_once()), range(400)))
        assert sorted(counts) == list(range(1, 401))
        assert len(clients(raw, namespace)) <= 2


def test_the_connection_used_last_is_used_next(driver: SyncDriver, raw: redis.Redis) -> None:
    ids = {driver.command("CLIENT", "ID") for _ in range(10)}
    assert len(ids) == 1


def test_a_caller_who_finds_all_connections_busy_is_told(
    url: str, namespace: str, counter: Counter
) -> None:
    with open_sync(url, namespace, read_timeout_s=0.2, max_connections=1) as driver:
        waiting = threading.Thread(
            target=lambda: driver.run(wait_for(counter)), name="waiting", daemon=True
        )
        waiting.start()
        wait_until(lambda: counter.raw.pubsub_numsub(counter.channel)[0][1])
        with pytest.raises(RedisUnavailable, match="all 1 connections were busy"):
            driver.call(echo("?"))
        counter.raw.publish(counter.channel, "done")
        waiting.join(10)
        assert driver.call(echo("free")) == b"free"


def test_a_caller_gets_the_connection_that_another_gives_back(
    url: str, namespace: str, counter: Counter
) -> None:
    with (
        open_sync(url, namespace, max_connections=1) as driver,
        ThreadPoolExecutor(2) as threads,
    ):
        waiting = threads.submit(driver.run, wait_for(counter))
        wait_until(lambda: counter.raw.pubsub_numsub(counter.channel)[0][1])
        next_one = threads.submit(driver.call, echo("mine"))
        wait_until(lambda: driver._waiting)
        counter.raw.publish(counter.channel, "done")
        assert next_one.result(10) == b"mine"
        assert waiting.result(10) == b"done"


def wait_for(counter: Counter, timeout_s: float = 10) -> Plan[Any]:
    answer = yield Until(counter.channel, counter.get(), bytes, timeout_s)
    return answer


# --- fork -------------------------------------------------------------------------------


def in_a_fork(work: Any) -> int:
    """Run this in a forked child and return its exit status."""
    with warnings.catch_warnings():
        # The tests' own threads (a proxy, a loop) are why Python 3.12 and later warn here.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_parent_and_forked_child_have_connections_of_their_own(
    driver: SyncDriver, counter: Counter, raw: redis.Redis, namespace: str
) -> None:
    mine = driver.command("CLIENT", "ID")

    def work() -> None:
        assert driver.command("CLIENT", "ID") != mine
        for _ in range(100):
            driver.call(counter.count_once())
        driver.close()

    assert in_a_fork(work) == 0
    assert driver.command("CLIENT", "ID") == mine
    assert driver.call(counter.count_once()) == 101
    wait_until(lambda: len(clients(raw, namespace)) == 1)


def test_a_child_forked_while_other_threads_call_can_call(
    driver: SyncDriver, counter: Counter
) -> None:
    is_over = threading.Event()

    def call_on() -> None:
        while not is_over.is_set():
            driver.call(counter.count_once())

    with ThreadPoolExecutor(4) as threads:
        calling = [threads.submit(call_on) for _ in range(4)]
        try:
            for _ in range(10):
                assert in_a_fork(lambda: driver.call(counter.count_once())) == 0
        finally:
            is_over.set()
        for each in calling:
            each.result(10)


def test_the_parents_close_reaches_the_server_while_a_child_lives(
    driver: SyncDriver, raw: redis.Redis, namespace: str
) -> None:
    driver.call(echo("open"))
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    try:
        driver.close()
        wait_until(lambda: not clients(raw, namespace))
    finally:
        os.close(writer)
        os.close(reader)
        os.waitpid(child, 0)


def child_of_multiprocessing(url: str, namespace: str, key: bytes) -> None:
    with open_sync(url, namespace) as driver:
        for _ in range(50):
            driver.command("INCR", key)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_children_started_by_other_means_connect_by_themselves(
    method: str, url: str, namespace: str, counter: Counter
) -> None:
    context: Any = multiprocessing.get_context(method)
    child = context.Process(target=child_of_multiprocessing, args=(url, namespace, counter.key))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert counter.value == 50


# --- interrupts ---------------------------------------------------------------------------


@pytest.fixture
def alarm() -> Iterator[Any]:
    """Raise KeyboardInterrupt in the main thread after so many seconds."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_an_interrupted_call_leaves_no_dirty_connection(
    proxy: Proxy, namespace: str, alarm: Any
) -> None:
    with open_sync(proxy.url, namespace) as driver:
        driver.call(echo("connected"))
        proxy.swallow_next_reply("EVALSHA")
        alarm(0.05)
        with pytest.raises(KeyboardInterrupt):
            driver.call(echo("interrupted"))
        assert driver.call(echo("mine")) == b"mine"
        wait_until(lambda: proxy.connections == 1)


def test_an_interrupted_wait_leaves_no_dirty_connection(
    driver: SyncDriver, counter: Counter, alarm: Any
) -> None:
    alarm(0.05)
    with pytest.raises(KeyboardInterrupt):
        driver.run(wait_for(counter))
    wait_until(lambda: not counter.raw.pubsub_numsub(counter.channel)[0][1])
    assert driver.call(echo("mine")) == b"mine"


def test_interrupts_do_not_use_up_the_pool(proxy: Proxy, namespace: str, alarm: Any) -> None:
    with open_sync(proxy.url, namespace, max_connections=1) as driver:
        for _ in range(3):
            driver.call(echo("connected"))
            proxy.swallow_next_reply("EVALSHA")
            alarm(0.02)
            with pytest.raises(KeyboardInterrupt):
                driver.call(echo("interrupted"))
        assert driver.call(echo("mine")) == b"mine"


# --- the end ------------------------------------------------------------------------------


def test_a_connection_in_use_at_close_is_closed_when_it_is_given_back(
    driver: SyncDriver, counter: Counter, raw: redis.Redis, namespace: str
) -> None:
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(driver.run, wait_for(counter))
        wait_until(lambda: counter.raw.pubsub_numsub(counter.channel)[0][1])
        driver.close()
        counter.raw.publish(counter.channel, "done")
        assert waiting.result(10) == b"done"
    wait_until(lambda: not clients(raw, namespace))


def test_a_reply_that_is_read_at_close_reaches_its_caller(proxy: Proxy, namespace: str) -> None:
    driver = open_sync(proxy.url, namespace)
    with ThreadPoolExecutor(1) as threads:
        calling = begin_in_blackhole(driver, proxy, threads)
        driver.close()
        proxy.restore()
        assert calling.result(10) == b"in flight"
    wait_until(lambda: proxy.connections == 0)


def test_a_call_whose_connection_breaks_after_a_close_does_not_connect_anew(
    proxy: Proxy, namespace: str
) -> None:
    driver = open_sync(proxy.url, namespace)
    with ThreadPoolExecutor(1) as threads:
        calling = begin_in_blackhole(driver, proxy, threads)
        driver.close()
        proxy.calls.clear()
        proxy.cut()
        proxy.restore()
        with pytest.raises(RedisUnavailable, match="closed"):
            calling.result(10)
    assert proxy.calls["HELLO"] == 0
    wait_until(lambda: proxy.connections == 0)


def begin_in_blackhole(
    driver: SyncDriver, proxy: Proxy, threads: ThreadPoolExecutor
) -> Future[bytes]:
    """Begin a call whose reply does not come; return when its connection is in use."""
    driver.call(echo("connected, and the server has the script"))
    proxy.blackhole()
    calling = threads.submit(driver.call, echo("in flight"))
    wait_until(lambda: not driver._idle)
    return calling


@pytest.mark.parametrize("reply", ["READONLY no", "LOADING wait"])
def test_a_close_ends_the_pause_of_a_call(
    proxy: Proxy, namespace: str, reply: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("laneq.drive.persist.backoff_s", lambda tries: 0.3)
    away = threading.Event()
    driver = open_sync(proxy.url, namespace, on_disconnect=lambda _: away.set())
    driver.call(echo("connected, and the server has the script"))
    proxy.answer_next(reply, "EVALSHA")
    proxy.calls.clear()
    with ThreadPoolExecutor(1) as threads:
        calling = threads.submit(driver.call, echo("?"))
        assert away.wait(10)
        driver.close()
        with pytest.raises(RedisUnavailable, match="closed"):
            calling.result(10)
    assert (proxy.calls["HELLO"], proxy.calls["EVALSHA"]) == (0, 1)
    wait_until(lambda: proxy.connections == 0)


def test_a_close_ends_the_pause_of_a_caller_that_connects(proxy: Proxy, namespace: str) -> None:
    driver = open_sync(proxy.url, namespace, patience_s=60)
    proxy.refuse()
    with ThreadPoolExecutor(1) as threads:
        calling = threads.submit(driver.call, echo("?"))
        wait_until(lambda: proxy.refused)
        driver.close()
        with pytest.raises(RedisUnavailable, match="closed"):
            calling.result(10)
    proxy.restore()
    assert driver.call(echo("a further call")) == b"a further call"
    driver.close()
    wait_until(lambda: proxy.connections == 0)


@pytest.mark.parametrize("patience_s", [0.0, 60.0])
def test_a_close_ends_the_pause_of_a_wait(
    proxy: Proxy, namespace: str, counter: Counter, patience_s: float
) -> None:
    driver = open_sync(proxy.url, namespace, patience_s=patience_s)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(driver.run, wait_for(counter, 60))
        wait_until(lambda: counter.raw.pubsub_numsub(counter.channel)[0][1])
        proxy.refuse()
        wait_until(lambda: proxy.refused)
        driver.close()
        with pytest.raises(RedisUnavailable, match="closed"):
            waiting.result(10)
    proxy.restore()
    assert proxy.connections == 0


def test_a_wait_whose_connection_breaks_after_a_close_does_not_connect_anew(
    proxy: Proxy, namespace: str, counter: Counter
) -> None:
    driver = open_sync(proxy.url, namespace)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(driver.run, wait_for(counter))
        wait_until(lambda: counter.raw.pubsub_numsub(counter.channel)[0][1])
        driver.close()
        proxy.calls.clear()
        proxy.cut()
        with pytest.raises(RedisUnavailable, match="closed"):
            waiting.result(10)
    assert proxy.calls["HELLO"] == 0
    wait_until(lambda: proxy.connections == 0)


def test_a_connection_that_is_made_at_close_is_closed_when_it_is_given_back(
    proxy: Proxy, namespace: str
) -> None:
    driver = open_sync(proxy.url, namespace)
    proxy.blackhole()
    with ThreadPoolExecutor(1) as threads:
        calling = threads.submit(driver.call, echo("connecting"))
        wait_until(lambda: proxy.connections)
        driver.close()
        proxy.restore()
        assert calling.result(10) == b"connecting"
    wait_until(lambda: proxy.connections == 0)


def test_a_caller_that_finds_all_connections_busy_at_close_does_not_connect(
    url: str, namespace: str, counter: Counter, raw: redis.Redis
) -> None:
    driver = open_sync(url, namespace, max_connections=1)
    with ThreadPoolExecutor(2) as threads:
        waiting = threads.submit(driver.run, wait_for(counter))
        wait_until(lambda: counter.raw.pubsub_numsub(counter.channel)[0][1])
        next_one = threads.submit(driver.call, echo("?"))
        wait_until(lambda: driver._waiting)
        driver.close()
        counter.raw.publish(counter.channel, "done")
        assert waiting.result(10) == b"done"
        with pytest.raises(RedisUnavailable, match="closed"):
            next_one.result(10)
    wait_until(lambda: not clients(raw, namespace))


def test_a_close_by_a_child_does_not_end_the_calls_of_its_parent(
    proxy: Proxy, namespace: str
) -> None:
    with (
        open_sync(proxy.url, namespace, patience_s=60) as driver,
        ThreadPoolExecutor(1) as threads,
    ):
        proxy.refuse()
        calling = threads.submit(driver.call, echo("patient"))
        wait_until(lambda: proxy.refused)
        assert in_a_fork(driver.close) == 0
        proxy.restore()
        assert calling.result(10) == b"patient"


def test_outages_and_closes_leave_no_file_open(proxy: Proxy, namespace: str) -> None:
    driver = open_sync(proxy.url, namespace, patience_s=0.0)
    before = files_open()
    for _ in range(10):
        driver.call(echo("connected"))
        proxy.refuse()
        with pytest.raises(RedisUnavailable):
            driver.call(echo("?"))
        proxy.restore()
        driver.call(echo("connected again"))
        driver.close()
    wait_until(lambda: files_open() == before)


def files_open() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def test_a_driver_dropped_without_close_gives_no_warning(
    url: str, namespace: str, raw: redis.Redis
) -> None:
    driver = open_sync(url, namespace)
    driver.call(echo("open"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del driver
        gc.collect()
    wait_until(lambda: not clients(raw, namespace))


def test_a_program_that_ends_without_close_gives_no_warning(url: str) -> None:
    program = (
        "from laneq.drive import Address, SyncDriver\n"
        f"driver = SyncDriver(Address.parse({url!r}), prefix=b'x:')\n"
        "print(driver.command('PING'))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "b'PONG'\n", "")
