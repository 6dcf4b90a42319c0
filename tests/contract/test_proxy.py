"""The proxy that other tests trust: each fault is what it says."""

from __future__ import annotations

import socket
from typing import Any

import hiredis
import pytest
import redis

from tests.proxy import Proxy, value_end


@pytest.fixture
def client(proxy: Proxy):
    with redis.Redis.from_url(proxy.url, socket_timeout=0.3, retry=None) as connected:
        connected.ping()
        yield connected


def test_a_proxy_passes_calls_and_replies_on_and_counts_them(proxy, client, raw, namespace):
    key = f"{{laneq:{namespace}}}:counts:x"
    with client.pipeline(transaction=False) as pipeline:
        pipeline.hset(key, "a", "1").hset(key, "b", "x" * 100_000).hgetall(key)
        assert pipeline.execute()[2] == {b"a": b"1", b"b": b"x" * 100_000}
    assert raw.hlen(key) == 2
    assert proxy.calls["HSET"] == 2
    assert proxy.connections == 1


def test_a_swallowed_reply_belongs_to_a_call_that_the_server_did(proxy, client, raw, namespace):
    key = f"{{laneq:{namespace}}}:counts:x"
    swallowed = proxy.swallow_next_reply("HINCRBY")
    client.ping()
    assert not swallowed.is_set()
    with pytest.raises(redis.TimeoutError):
        client.hincrby(key, "n", 1)
    assert swallowed.wait(5)
    assert raw.hget(key, "n") == b"1"


def test_a_cut_before_the_reply_comes_after_the_server_did_the_call(proxy, client, raw, namespace):
    key = f"{{laneq:{namespace}}}:counts:x"
    was_cut = proxy.cut_before_next_reply("HINCRBY")
    with pytest.raises(redis.ConnectionError):
        client.hincrby(key, "n", 1)
    assert was_cut.wait(5)
    assert raw.hget(key, "n") == b"1"
    assert client.ping()


def test_a_forged_error_comes_in_its_turn_and_never_reaches_the_server(
    proxy, client, raw, namespace
):
    key = f"{{laneq:{namespace}}}:counts:x"
    forged = proxy.answer_next("OOM command not allowed", "HINCRBY")
    with client.pipeline(transaction=False) as pipeline:
        pipeline.echo("before").hincrby(key, "n", 1).echo("after")
        before, error, after = pipeline.execute(raise_on_error=False)
    assert (before, after) == (b"before", b"after")
    assert "command not allowed" in str(error)
    assert forged.is_set()
    assert not raw.exists(key)


def test_a_forged_error_comes_in_its_turn_on_a_connection_that_listens(proxy, raw, namespace):
    key, channel = f"{{laneq:{namespace}}}:counts:x", f"{{laneq:{namespace}}}:lanes"
    reader = hiredis.Reader()
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as listening:

        def ask(*calls: str) -> list[Any]:
            commands: list[Any] = [tuple(call.split()) for call in calls]
            listening.sendall(b"".join(hiredis.pack_command(words) for words in commands))
            replies: list[Any] = []
            while len(replies) < len(commands):
                if (reply := reader.gets()) is not False:
                    replies.append(reply)
                else:
                    reader.feed(listening.recv(65536))
            return replies

        ask("HELLO 3")
        if not isinstance(ask(f"SUBSCRIBE {channel}")[0], hiredis.PushNotification):
            pytest.skip("this server speaks RESP2 to who subscribes")
        forged = proxy.answer_next("BUSY a script runs", "HINCRBY")
        before, error, after = ask("ECHO before", f"HINCRBY {key} n 1", "ECHO after")
        assert (before, after) == (b"before", b"after")
        assert "BUSY" in str(error)
        assert forged.is_set()
        assert not raw.exists(key)
        # What is announced, and each change of what is listened for, takes nobody's place.
        lost = proxy.swallow_next_reply("HINCRBY")
        raw.publish(channel, "news")
        more = ask(
            f"UNSUBSCRIBE {channel}",
            "ECHO before",
            f"HINCRBY {key} n 1",
            f"SUBSCRIBE {channel} {channel}2",
            "ECHO after",
        )
        assert lost.wait(5)
        kinds = [each[0] if isinstance(each, list) else each for each in more]
        kinds.remove(b"message")
        assert kinds == [b"unsubscribe", b"before", b"subscribe", b"subscribe"]
        assert ask("ECHO then") == [b"after"]
        assert raw.hget(key, "n") == b"1"


def test_a_black_hole_answers_nothing_until_it_is_restored(proxy, client):
    proxy.blackhole()
    with pytest.raises(redis.TimeoutError):
        client.ping()
    proxy.restore()
    assert client.ping()


def test_a_delay_holds_each_way(proxy, client):
    proxy.delay(0.4)
    with pytest.raises(redis.TimeoutError):
        client.ping()
    proxy.delay(0)
    assert client.ping()


def test_a_cut_connection_can_be_made_again_and_a_refused_one_cannot(proxy, client):
    with client.client() as held:
        held.ping()
        proxy.cut()
        with pytest.raises(redis.ConnectionError):
            held.ping()
        assert held.ping()
    proxy.refuse()
    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            client.ping()
    proxy.restore()
    assert client.ping()


@pytest.mark.parametrize(
    "value",
    [
        b"+OK\r\n",
        b":1\r\n",
        b"$-1\r\n",
        b"$0\r\n\r\n",
        b"$2\r\n\r\n\r\n",
        b"*-1\r\n",
        b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
        b"%1\r\n+a\r\n_\r\n",
    ],
)
def test_the_end_of_a_value_is_found_and_not_before_all_of_it_is_there(value):
    assert value_end(b"xx" + value + b"+more\r\n", 2) == 2 + len(value)
    for length in range(len(value)):
        assert value_end(value[:length], 0) is None
