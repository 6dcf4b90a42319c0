"""TLS and sentinels: what redis-py does before the drivers take the stream over."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from laneq.calls.call import Call, Plan, Until
from laneq.embedded import EmbeddedServer, find_server
from laneq.errors import RedisUnavailable
from tests.conftest import ENGINE
from tests.drive.conftest import GET, Colour, Counter, clients, echo, open_sync
from tests.patience import wait_until
from tests.tls import TlsEnd, make_certificates

# --- TLS ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificates, and is not installed")
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    return folder


@pytest.fixture
def tls(url: str, certificates: Path) -> Iterator[TlsEnd]:
    with TlsEnd(url, certificates) as end:
        yield end


def test_calls_and_waits_go_over_tls(
    colour: Colour, tls: TlsEnd, certificates: Path, namespace: str, counter: Counter
) -> None:
    driven = colour.open(
        f"rediss://127.0.0.1:{tls.port}/0?ssl_ca_certs={certificates / 'ca.pem'}", namespace
    )
    assert driven.call(counter.count_once()) == 1
    assert driven.call(echo(b"x" * 300_000)) == b"x" * 300_000

    def plan() -> Plan[Any]:
        answer = yield Until(
            counter.channel, Call(GET, (counter.key + b"x",), (), lambda reply: reply), bytes, 10
        )
        return answer

    waiting = driven.begin("run", plan())
    wait_until(lambda: counter.raw.pubsub_numsub(counter.channel)[0][1])
    counter.raw.publish(counter.channel, "over tls")
    assert waiting.result(10) == b"over tls"
    assert driven.call(counter.count_once()) == 2
    driven.close()


def test_a_certificate_of_somebody_else_is_refused_in_plain_words(
    colour: Colour, tls: TlsEnd, certificates: Path
) -> None:
    driven = colour.open(
        f"rediss://127.0.0.1:{tls.port}/0?ssl_ca_certs={certificates / 'other.pem'}",
        patience_s=0.0,
    )
    with pytest.raises(RedisUnavailable, match="certificate verify failed"):
        driven.call(echo("?"))


def test_a_certificate_can_be_taken_unseen(colour: Colour, tls: TlsEnd, namespace: str) -> None:
    driven = colour.open(f"rediss://127.0.0.1:{tls.port}/0?ssl_cert_reqs=none", namespace)
    assert driven.call(echo("taken")) == b"taken"
    driven.close()


# --- fakeredis -----------------------------------------------------------------------------


@pytest.fixture
def fake_url() -> Iterator[str]:
    with EmbeddedServer(engine="fake") as server:
        yield server.url


def test_fakeredis_gets_scripts_that_it_can_read(colour: Colour, fake_url: str) -> None:
    driven = colour.open(fake_url)
    assert [driven.call(echo(str(i))) for i in range(3)] == [b"0", b"1", b"2"]


def test_waits_end_at_fakeredis_too(colour: Colour, fake_url: str) -> None:
    driven = colour.open(fake_url)

    def plan(key: bytes, timeout_s: float) -> Plan[Any]:
        call: Call[Any] = Call(GET, (key,), (), lambda reply: reply)
        answer = yield Until(b"channel", call, bytes, timeout_s)
        return answer

    waiting = driven.begin("run", plan(b"key", 10))
    wait_until(lambda: driven.driver._state.is_plain)
    assert driven.command("SET", b"key", b"7") is not None
    assert waiting.result(10) == b"7"
    with pytest.raises(TimeoutError):
        driven.run(plan(b"other", 0.1))


def test_a_close_ends_a_wait_at_fakeredis(colour: Colour, fake_url: str) -> None:
    driven = colour.open(fake_url)

    def plan() -> Plan[Any]:
        answer = yield Until(b"channel", Call(GET, (b"key",), (), lambda reply: reply), bytes, 20)
        return answer

    waiting = driven.begin("run", plan())
    wait_until(lambda: driven.driver._state.is_plain)
    driven.close()
    with pytest.raises(RedisUnavailable, match="closed"):
        waiting.result(10)


def test_a_close_between_a_wait_and_its_first_look_at_fakeredis_ends_it(
    fake_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan() -> Plan[Any]:
        answer = yield Until(b"channel", Call(GET, (b"key",), (), lambda reply: reply), bytes, 20)
        return answer

    with open_sync(fake_url, "t") as driver:
        poll = driver._poll

        def close_first(*args: Any) -> Any:
            driver.close()
            return poll(*args)

        monkeypatch.setattr(driver, "_poll", close_first)
        with pytest.raises(RedisUnavailable, match="closed"):
            driver.run(plan())
        assert not driver._live


# --- sentinels ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sentinel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, EmbeddedServer]]:
    """A master with a password and its sentinel; the address, and the master."""
    _, binary = find_server(ENGINE)
    folder = tmp_path_factory.mktemp("sentinel")
    with EmbeddedServer(engine=ENGINE, port=0) as master, EmbeddedServer(port=0) as spare:
        port, master_port = (urlsplit(each.url).port for each in (spare, master))
        spare.stop()  # its port is free now
        with redis.Redis.from_url(master.url) as client:
            settings: Any = client
            settings.config_set("requirepass", "p/#%@:+é")
        conf = folder / "sentinel.conf"
        conf.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
            f"sentinel monitor shop 127.0.0.1 {master_port} 1\n"
            'sentinel auth-pass shop "p/#%@:+é"\n',
            "utf-8",
        )
        process = subprocess.Popen(
            [str(binary), str(conf), "--sentinel"], stdout=subprocess.DEVNULL
        )
        try:
            yield (
                f"redis+sentinel://:p%2F%23%25%40%3A%2B%C3%A9@127.0.0.1:1,127.0.0.1:{port}/shop/0",
                master,
            )
        finally:
            process.terminate()
            process.wait(10)


def test_the_master_is_found_by_asking_the_sentinels(
    colour: Colour, sentinel: tuple[str, EmbeddedServer]
) -> None:
    driven = colour.open(sentinel[0], patience_s=10.0)  # the sentinel has just started
    info = driven.command("INFO", "server")
    assert f"tcp_port:{urlsplit(sentinel[1].url).port}".encode() in info


def test_a_service_that_no_sentinel_knows_is_told(
    colour: Colour, sentinel: tuple[str, EmbeddedServer]
) -> None:
    driven = colour.open(sentinel[0].replace("/shop/", "/ship/"), patience_s=0.0)
    with pytest.raises(RedisUnavailable, match="master of service 'ship'") as caught:
        driven.call(echo("?"))
    assert "p%2F" not in str(caught.value)


def test_a_close_in_a_wait_leaves_no_connection_to_server_or_sentinel(
    colour: Colour, sentinel: tuple[str, EmbeddedServer], namespace: str
) -> None:
    def plan() -> Plan[Any]:
        call: Call[Any] = Call(GET, (b"key",), (), lambda reply: reply)
        answer = yield Until(channel, call, bytes, 20)
        return answer

    channel = namespace.encode()
    hosts = urlsplit(sentinel[0]).netloc.rpartition("@")[2]
    driven = colour.open(sentinel[0], namespace, client_name=namespace, patience_s=10.0)
    with (
        redis.Redis(port=int(hosts.rpartition(":")[2])) as watching,
        redis.Redis.from_url(sentinel[1].url, password="p/#%@:+é") as master,
    ):
        waiting = driven.begin("run", plan())
        wait_until(lambda: master.pubsub_numsub(channel)[0][1] and clients(watching, namespace))
        driven.close()
        with pytest.raises(RedisUnavailable, match="closed"):
            waiting.result(10)
        wait_until(lambda: not clients(master, namespace))
        wait_until(lambda: not clients(watching, namespace))
