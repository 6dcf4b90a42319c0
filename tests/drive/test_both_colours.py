"""What both drivers do: one text, run with the sync one, under asyncio and under uvloop."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis

from laneq.calls.call import Call, Plan, Until
from laneq.errors import JobNotFound, LaneqError, RedisRefused, RedisUnavailable
from tests.drive.conftest import ECHO, Colour, Counter, Driven, clients, echo
from tests.patience import wait_until
from tests.proxy import Proxy


@pytest.fixture
def driven(colour: Colour, url: str, namespace: str) -> Driven:
    return colour.open(url, namespace)


@pytest.fixture
def proxied(colour: Colour, proxy: Proxy, namespace: str) -> Driven:
    driven = colour.open(proxy.url, namespace)
    driven.call(echo("connected, and the server has the script"))
    return driven


# --- calls --------------------------------------------------------------------------


def test_a_call_returns_what_its_reader_makes_of_the_reply(driven: Driven) -> None:
    assert driven.call(Call(ECHO, (), (7,), lambda reply: int(reply) + 1)) == 8


def test_replies_are_bytes_and_arguments_are_binary_safe(driven: Driven) -> None:
    assert driven.call(echo(b"\xff\x00\r\n")) == b"\xff\x00\r\n"


def test_a_reply_of_a_megabyte_arrives_whole(driven: Driven) -> None:
    assert driven.call(echo(b"x" * 1_000_000)) == b"x" * 1_000_000


def test_an_error_of_the_reader_reaches_the_caller_and_the_driver_works_on(driven: Driven) -> None:
    def refuse(reply: Any) -> Any:
        raise JobNotFound("j")

    with pytest.raises(JobNotFound):
        driven.call(Call(ECHO, (), (1,), refuse))
    assert driven.call(echo("on")) == b"on"


def test_options_of_redis_py_in_the_address_change_nothing(
    colour: Colour, url: str, namespace: str
) -> None:
    options = "decode_responses=yes&protocol=2&socket_timeout=0.001&encoding=latin-1"
    driven = colour.open(f"{url}{'&' if '?' in url else '?'}{options}", namespace)
    assert driven.call(echo(b"\xff")) == b"\xff"


def test_a_command_returns_the_raw_reply(driven: Driven) -> None:
    assert driven.command("PING") == b"PONG"
    assert b"redis_version" in driven.command("INFO", "server")


def test_a_script_that_the_server_lacks_is_sent_once(
    proxied: Driven, proxy: Proxy, raw: redis.Redis
) -> None:
    raw.script_flush()
    proxy.calls.clear()
    assert [proxied.call(echo(str(i))) for i in range(3)] == [b"0", b"1", b"2"]
    assert (proxy.calls["EVAL"], proxy.calls["EVALSHA"]) == (1, 3)


# --- broken connections ---------------------------------------------------------------


def test_a_once_call_whose_reply_is_lost_takes_effect_once(
    proxied: Driven, proxy: Proxy, counter: Counter
) -> None:
    assert proxied.call(counter.count_once()) == 1
    cut = proxy.cut_before_next_reply("EVALSHA")
    assert proxied.call(counter.count_once()) == b"again"
    assert cut.is_set()
    assert counter.value == 2
    assert proxied.call(counter.count_once()) == 3


def test_a_once_call_that_never_reached_the_server_is_done_by_the_repeat(
    proxied: Driven, proxy: Proxy, counter: Counter
) -> None:
    proxied.call(counter.count_once())
    proxy.cut()
    assert proxied.call(counter.count_once()) == 2
    assert counter.value == 2


def test_a_once_call_is_applied_when_the_one_before_it_was_refused(
    proxied: Driven, proxy: Proxy, counter: Counter
) -> None:
    proxied.call(counter.count_once())
    proxy.answer_next("OOM command not allowed", "EVALSHA")
    with pytest.raises(RedisRefused):
        proxied.call(counter.count_once())
    proxy.cut_before_next_reply("EVALSHA")
    assert proxied.call(counter.count_once()) == b"again"
    assert counter.value == 2


def test_a_once_call_survives_a_lost_script_and_a_lost_reply_together(
    proxied: Driven, proxy: Proxy, counter: Counter, raw: redis.Redis
) -> None:
    raw.script_flush()
    proxy.cut_before_next_reply("EVAL")
    assert proxied.call(counter.count_once()) == b"again"
    assert counter.value == 1


def test_an_idempotent_call_is_repeated_once_on_a_fresh_connection(
    proxied: Driven, proxy: Proxy
) -> None:
    proxy.cut_before_next_reply("EVALSHA")
    assert proxied.call(echo("again")) == b"again"


def test_a_second_break_reaches_the_caller(proxied: Driven, proxy: Proxy) -> None:
    proxy.cut_before_next_reply("EVALSHA")
    proxy.cut_before_next_reply("EVALSHA")
    with pytest.raises(RedisUnavailable, match=f"127.0.0.1:{proxy.port}") as caught:
        proxied.call(echo("never"))
    assert caught.value.__cause__ is not None
    assert proxied.call(echo("later")) == b"later"


def test_a_killed_client_is_not_noticed_by_callers(
    driven: Driven, raw: Any, counter: Counter
) -> None:
    for expected in range(1, 6):
        assert driven.call(counter.count_once()) == expected
        raw.client_kill_filter(_id=driven.command("CLIENT", "ID"))
    assert counter.value == 5


def test_a_late_reply_ends_in_unavailable_and_never_in_a_hang(
    colour: Colour, proxy: Proxy, namespace: str
) -> None:
    driven = colour.open(
        proxy.url, namespace, read_timeout_s=0.3, connect_timeout_s=0.3, patience_s=0.1
    )
    driven.call(echo("connected"))
    proxy.blackhole()
    began = time.monotonic()
    with pytest.raises(RedisUnavailable, match="no answer within"):
        driven.call(echo("swallowed"))
    assert time.monotonic() - began < 3
    proxy.restore()
    assert driven.call(echo("healed")) == b"healed"


def test_a_swallowed_reply_is_asked_for_again_on_another_connection(
    colour: Colour, proxy: Proxy, counter: Counter, namespace: str
) -> None:
    driven = colour.open(proxy.url, namespace, read_timeout_s=0.3)
    driven.call(counter.count_once())
    swallowed = proxy.swallow_next_reply("EVALSHA")
    assert driven.call(counter.count_once()) == b"again"
    assert swallowed.is_set()
    assert counter.value == 2


# --- no connection ----------------------------------------------------------------------


def test_no_server_is_told_within_the_connect_timeout(colour: Colour) -> None:
    driven = colour.open("redis://:sesame@127.0.0.1:1/0", connect_timeout_s=0.5, patience_s=0.5)
    began = time.monotonic()
    with pytest.raises(RedisUnavailable, match=r"127\.0\.0\.1:1") as caught:
        driven.call(echo("?"))
    assert time.monotonic() - began < 1.5
    assert caught.value.__cause__ is not None
    assert "sesame" not in "".join(traceback.format_exception(caught.value))


def test_a_server_that_does_not_answer_is_told_within_the_connect_timeout(
    colour: Colour, proxy: Proxy
) -> None:
    proxy.blackhole()
    driven = colour.open(proxy.url, connect_timeout_s=0.3, patience_s=0.3)
    began = time.monotonic()
    with pytest.raises(RedisUnavailable, match=r"no answer within 0\.3 s"):
        driven.call(echo("?"))
    assert time.monotonic() - began < 1.5


def test_a_short_outage_is_ridden_out(proxied: Driven, proxy: Proxy) -> None:
    proxy.refuse()
    answer = proxied.begin("call", echo("patient"))
    wait_until(lambda: proxied.driver._state.since is not None)
    proxy.restore()
    assert answer.result(10) == b"patient"


def test_patience_is_spent_once_per_outage(colour: Colour, proxy: Proxy, namespace: str) -> None:
    driven = colour.open(proxy.url, namespace, patience_s=2)
    driven.call(echo("connected"))
    proxy.refuse()
    with pytest.raises(RedisUnavailable):
        driven.call(echo("waits"))
    wait_until(lambda: driven.driver._state.left_s() <= 0)
    began = time.monotonic()
    with pytest.raises(RedisUnavailable):
        driven.call(echo("does not wait"))
    assert time.monotonic() - began < 1
    proxy.restore()
    assert driven.call(echo("back")) == b"back"
    assert driven.driver._state.since is None


def test_hooks_hear_of_an_outage_once_and_of_each_connection(
    colour: Colour, proxy: Proxy, namespace: str
) -> None:
    heard: list[str] = []
    driven = colour.open(
        proxy.url,
        namespace,
        on_disconnect=lambda error: heard.append(type(error).__name__),
        on_connect=lambda: heard.append("connected"),
        patience_s=0.2,
    )
    driven.call(echo(1))  # type: ignore[arg-type]
    proxy.refuse()
    for _ in range(3):
        with pytest.raises(RedisUnavailable):
            driven.call(echo("?"))
    proxy.restore()
    driven.call(echo("back"))
    assert heard == ["connected", "RedisUnavailable", "connected"]


# --- refusals ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "is_retryable", "says"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'.", True, "free memory"),
        ("MISCONF Redis is configured to save RDB snapshots", True, "disk"),
        ("NOPERM this user has no permissions", False, "ACL SETUSER"),
        ("NOAUTH Authentication required.", False, "password"),
        ("CROSSSLOT Keys in request don't hash to the same slot", False, "single Redis"),
        ("EXECABORT Transaction discarded", False, "log"),
        ("ERR whatever", False, "whatever"),
    ],
)
def test_a_refusal_has_the_servers_word_and_what_to_do(
    proxied: Driven, proxy: Proxy, reply: str, is_retryable: bool, says: str
) -> None:
    proxy.answer_next(reply, "EVALSHA")
    with pytest.raises(RedisRefused, match=f"127.0.0.1:{proxy.port}") as caught:
        proxied.call(echo("?"))
    assert caught.value.word == reply.split(maxsplit=1)[0]
    assert caught.value.word in str(caught.value)
    assert says in str(caught.value)
    assert caught.value.is_retryable is is_retryable
    assert caught.value.__cause__ is not None
    assert proxied.call(echo("on")) == b"on"


@pytest.mark.parametrize(
    "word", ["LOADING", "MASTERDOWN", "CLUSTERDOWN", "BUSY", "TRYAGAIN", "ASK"]
)
def test_a_server_that_will_be_ready_soon_is_waited_for(
    proxied: Driven, proxy: Proxy, word: str
) -> None:
    shots = [proxy.answer_next(f"{word} wait a little", "EVALSHA") for _ in range(2)]
    assert proxied.call(echo("ready")) == b"ready"
    assert all(shot.is_set() for shot in shots)


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ("LOADING Redis is loading the dataset in memory", "wait until it has started"),
        ("NOREPLICAS Not enough good replicas to write.", "min-replicas-to-write"),
        ("MOVED 1234 127.0.0.1:6381", "Another node"),
        ("ASK 1234 127.0.0.1:6381", "moving"),
    ],
)
def test_a_state_that_lasts_longer_than_patience_is_a_refusal(
    colour: Colour, proxy: Proxy, namespace: str, reply: str, says: str
) -> None:
    driven = colour.open(proxy.url, namespace, patience_s=0.0)
    driven.call(echo("connected"))
    proxy.answer_next(reply, "EVALSHA")
    with pytest.raises(RedisRefused, match=says) as caught:
        driven.call(echo("?"))
    assert (caught.value.word, caught.value.is_retryable) == (reply.split(maxsplit=1)[0], True)


@pytest.mark.parametrize(
    "reply",
    [
        "READONLY You can't write against a read only replica.",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "NOREPLICAS Not enough good replicas to write.",
        "CLUSTERDOWN Hash slot not served",
        "MOVED 1234 127.0.0.1:6381",
    ],
)
def test_a_server_that_is_the_wrong_one_by_now_is_looked_up_again(
    proxied: Driven, proxy: Proxy, counter: Counter, reply: str
) -> None:
    proxied.call(counter.count_once())
    before = proxied.command("CLIENT", "ID")
    proxy.answer_next(reply, "EVALSHA")
    assert proxied.call(counter.count_once()) == 2
    assert proxied.command("CLIENT", "ID") != before
    wait_until(lambda: proxy.connections == 1)


def test_a_wrong_password_is_refused_and_never_shown(
    colour: Colour, raw: Any, url: str, namespace: str
) -> None:
    raw.acl_setuser("drive-test", enabled=True, passwords=["+right"], categories=["+@all"])
    try:
        login = "drive-test:p%2F%23%25%40%3A%2B%C3%A9@"
        driven = colour.open(url.replace("://", f"://{login}", 1), namespace)
        with pytest.raises(RedisRefused) as caught:
            driven.call(echo("?"))
        assert caught.value.word == "WRONGPASS"
        shown = "".join(traceback.format_exception(caught.value)) + repr(driven.driver.address)
        assert "p/#%@" not in shown
        assert "p%2F" not in shown
    finally:
        raw.acl_deluser("drive-test")


def test_a_password_of_any_characters_opens_the_door(
    colour: Colour, raw: Any, url: str, namespace: str
) -> None:
    raw.acl_setuser(
        "drive-test",
        enabled=True,
        passwords=["+p/#%@:+é"],
        categories=["+@all"],
        keys=["*"],
        channels=["*"],
    )
    try:
        login = "drive-test:p%2F%23%25%40%3A%2B%C3%A9@"
        driven = colour.open(url.replace("://", f"://{login}", 1), namespace)
        assert driven.command("ACL", "WHOAMI") == b"drive-test"
        driven.close()
    finally:
        raw.acl_deluser("drive-test")


# --- plans ------------------------------------------------------------------------------


def test_a_plan_gets_the_value_of_each_step(driven: Driven) -> None:
    def plan() -> Plan[bytes]:
        first = yield echo("a")
        second = yield echo(first + b"b")
        return first + second

    assert driven.run(plan()) == b"aab"


def test_a_plan_without_steps_returns_its_value(driven: Driven) -> None:
    def plan() -> Plan[int]:
        if driven is None:
            yield echo("never")
        return 1

    assert driven.run(plan()) == 1


def test_an_error_is_raised_where_the_plan_yields(proxied: Driven, proxy: Proxy) -> None:
    def plan() -> Plan[Any]:
        proxy.answer_next("ERR no", "EVALSHA")
        try:
            yield echo("?")
        except RedisRefused as error:
            caught = error
        answer = yield echo("still here")
        return caught.word, answer

    assert proxied.run(plan()) == ("ERR", b"still here")


def test_an_error_that_the_plan_leaves_reaches_the_caller(proxied: Driven, proxy: Proxy) -> None:
    cleaned: list[str] = []

    def plan() -> Plan[Any]:
        proxy.answer_next("ERR no", "EVALSHA")
        try:
            yield echo("?")
        finally:
            cleaned.append("up")

    with pytest.raises(RedisRefused):
        proxied.run(plan())
    assert cleaned == ["up"]


# --- waits ------------------------------------------------------------------------------


def wait_for(
    counter: Counter,
    timeout_s: float | None = 10,
    read: Callable[[bytes], Any] | None = None,
    *,
    renew_s: float | None = None,
) -> Plan[Any]:
    reads = read or (lambda _: None)
    answer = yield Until(counter.channel, counter.get(), reads, timeout_s, renew_s)
    return answer


def is_listening(counter: Counter) -> bool:
    return bool(counter.raw.pubsub_numsub(counter.channel)[0][1])


def test_a_wait_whose_answer_is_there_ends_at_once(driven: Driven, counter: Counter) -> None:
    counter.raw.set(counter.key, "7")
    assert driven.run(wait_for(counter)) == b"7"


def test_a_message_ends_a_wait(driven: Driven, counter: Counter) -> None:
    waiting = driven.begin("run", wait_for(counter, read=bytes.upper))
    wait_until(lambda: is_listening(counter))
    counter.raw.publish(counter.channel, "done")
    assert waiting.result(10) == b"DONE"


def test_a_message_that_says_nothing_makes_the_wait_ask_again(
    driven: Driven, counter: Counter
) -> None:
    waiting = driven.begin("run", wait_for(counter, timeout_s=None))
    wait_until(lambda: is_listening(counter))
    counter.raw.publish(counter.channel, "look")
    counter.raw.set(counter.key, "7")
    counter.raw.publish(counter.channel, "look again")
    assert waiting.result(10) == b"7"


def test_a_wait_does_not_poll(proxied: Driven, proxy: Proxy, counter: Counter) -> None:
    waiting = proxied.begin("run", wait_for(counter, timeout_s=0.5))
    wait_until(lambda: is_listening(counter))
    proxy.calls.clear()
    with pytest.raises(TimeoutError):
        waiting.result(10)
    assert proxy.calls.total() <= 3  # the asking at its begin, and the end of the subscription


def test_a_wait_ends_with_a_timeout_that_says_how_long(driven: Driven, counter: Counter) -> None:
    with pytest.raises(TimeoutError, match=r"within 0\.05 s"):
        driven.run(wait_for(counter, timeout_s=0.05))
    assert driven.call(echo("on")) == b"on"


def test_a_wait_of_no_time_asks_once(driven: Driven, counter: Counter) -> None:
    counter.raw.set(counter.key, "7")
    assert driven.run(wait_for(counter, timeout_s=0)) == b"7"
    counter.raw.delete(counter.key)
    with pytest.raises(TimeoutError):
        driven.run(wait_for(counter, timeout_s=0))


def test_a_wait_asks_again_after_its_connection_broke(
    proxied: Driven, proxy: Proxy, counter: Counter
) -> None:
    waiting = proxied.begin("run", wait_for(counter))
    wait_until(lambda: is_listening(counter))
    counter.raw.set(counter.key, "7")  # whose announcement was missed
    proxy.cut()
    assert waiting.result(10) == b"7"


def test_a_wait_goes_on_after_its_connection_broke(
    proxied: Driven, proxy: Proxy, counter: Counter
) -> None:
    proxy.calls.clear()
    waiting = proxied.begin("run", wait_for(counter, read=bytes))

    def is_listening_anew(connections: int) -> bool:
        return proxy.calls["SUBSCRIBE"] == connections and is_listening(counter)

    for connections in (1, 2, 3):
        wait_until(partial(is_listening_anew, connections))
        proxy.cut()

    def has_heard() -> bool:
        # The server may not have seen yet that the connection before is gone.
        counter.raw.publish(counter.channel, "done")
        return waiting.done()

    wait_until(has_heard)
    assert waiting.result(10) == b"done"


def test_a_wait_asks_again_after_a_long_silence(driven: Driven, counter: Counter) -> None:
    waiting = driven.begin("run", wait_for(counter, renew_s=0.05))
    wait_until(lambda: is_listening(counter))
    counter.raw.set(counter.key, "7")  # which nobody announces
    assert waiting.result(10) == b"7"


def test_a_wait_that_has_begun_rides_out_an_outage_of_its_own_time(
    colour: Colour, proxy: Proxy, counter: Counter, namespace: str
) -> None:
    driven = colour.open(proxy.url, namespace, connect_timeout_s=0.2, patience_s=0.1)
    waiting = driven.begin("run", wait_for(counter, timeout_s=30))
    wait_until(lambda: is_listening(counter))
    proxy.refuse()
    proxy.cut()
    until = time.monotonic() + 1.0
    wait_until(lambda: waiting.done() or time.monotonic() > until)
    counter.raw.set(counter.key, "7")
    proxy.restore()
    assert waiting.result(10) == b"7"


def test_a_wait_says_that_redis_is_away_when_its_time_is_over(
    colour: Colour, proxy: Proxy, counter: Counter, namespace: str
) -> None:
    driven = colour.open(proxy.url, namespace, connect_timeout_s=0.2, patience_s=0.1)
    waiting = driven.begin("run", wait_for(counter, timeout_s=1.5))
    wait_until(lambda: is_listening(counter))
    proxy.refuse()
    proxy.cut()
    with pytest.raises(RedisUnavailable):
        waiting.result(10)


def test_a_wait_that_redis_never_answered_fails_like_any_call(
    colour: Colour, proxy: Proxy, counter: Counter, namespace: str
) -> None:
    driven = colour.open(proxy.url, namespace, connect_timeout_s=0.2, patience_s=0.1)
    proxy.refuse()
    began = time.monotonic()
    with pytest.raises(RedisUnavailable):
        driven.run(wait_for(counter, timeout_s=60))
    assert time.monotonic() - began < 10


def test_a_wait_on_a_dead_connection_notices(
    colour: Colour,
    proxy: Proxy,
    counter: Counter,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("laneq.drive.persist.LONGEST_OUTAGE_S", 0.5)
    driven = colour.open(
        proxy.url, namespace, read_timeout_s=0.2, connect_timeout_s=0.2, patience_s=0.2
    )
    waiting = driven.begin("run", wait_for(counter, timeout_s=None))
    wait_until(lambda: is_listening(counter))
    proxy.blackhole()
    with pytest.raises(RedisUnavailable):
        waiting.result(10)


def test_a_wait_leaves_no_subscription_and_a_clean_connection(
    driven: Driven, counter: Counter
) -> None:
    waits = [driven.begin("run", wait_for(counter, read=bytes)) for _ in range(3)]
    wait_until(lambda: is_listening(counter))
    wait_until(
        lambda: all(wait.done() for wait in waits) or not counter.raw.publish(counter.channel, "x")
    )
    assert [wait.result(10) for wait in waits] == [b"x"] * 3
    wait_until(lambda: not is_listening(counter))
    assert [driven.call(echo(str(i))) for i in range(5)] == [b"%d" % i for i in range(5)]


def test_an_error_of_a_waits_reader_leaves_a_clean_connection(
    driven: Driven, counter: Counter
) -> None:
    def refuse(message: bytes) -> Any:
        raise LaneqError(message.decode())

    waiting = driven.begin("run", wait_for(counter, read=refuse))
    wait_until(lambda: is_listening(counter))
    counter.raw.publish(counter.channel, "bad news")
    with pytest.raises(LaneqError, match="bad news"):
        waiting.result(10)
    wait_until(lambda: not is_listening(counter))
    assert driven.call(echo("on")) == b"on"


# --- the end ----------------------------------------------------------------------------


def test_close_leaves_no_connection_and_a_later_call_opens_one(
    colour: Colour, url: str, namespace: str, raw: redis.Redis
) -> None:
    driven = colour.open(url, namespace, client_name=namespace)
    driven.call(echo("open"))
    assert len(clients(raw, namespace)) == 1
    driven.close()
    driven.close()
    wait_until(lambda: not clients(raw, namespace))
    assert driven.call(echo("open again")) == b"open again"
    driven.close()
    wait_until(lambda: not clients(raw, namespace))


def test_many_outages_leave_as_many_connections_as_before(proxied: Driven, proxy: Proxy) -> None:
    before = proxy.connections
    for i in range(20):
        proxy.cut()
        assert proxied.call(echo(str(i))) == b"%d" % i
    wait_until(lambda: proxy.connections == before)
