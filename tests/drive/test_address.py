"""Addresses: what is read, what is refused, and that no password is ever shown."""

from __future__ import annotations

import pickle
import traceback

import pytest

from laneq.drive import Address
from laneq.errors import ConfigError, OptionError

HARD = "p/#%@:+é"
HARD_ENCODED = "p%2F%23%25%40%3A%2B%C3%A9"


@pytest.mark.parametrize(
    ("url", "where", "db"),
    [
        ("redis://", "127.0.0.1:6379", 0),
        ("redis://example.org", "example.org:6379", 0),
        ("redis://example.org:7000/3", "example.org:7000", 3),
        ("redis://example.org/", "example.org:6379", 0),
        ("redis://[::1]:7000/3", "[::1]:7000", 3),
        ("redis://h?db=4", "h:6379", 4),
        ("  redis://h/1\n", "h:6379", 1),
        ("rediss://h/1", "h:6379", 1),
        ("unix:///tmp/a%20b.sock?db=2", "/tmp/a b.sock", 2),
        ("unix:///tmp/a@b.sock", "/tmp/a@b.sock", 0),
        ("redis+sentinel://a:1,b/shop/2", "a:1,b:26379 (sentinels of shop)", 2),
        ("rediss+sentinel://a/shop", "a:26379 (sentinels of shop)", 0),
    ],
)
def test_each_form_says_where_redis_is(url: str, where: str, db: int) -> None:
    address = Address.parse(url)
    assert (address.where, address.db) == (where, db)


@pytest.mark.parametrize(
    ("userinfo", "username", "password"),
    [
        (f"me:{HARD_ENCODED}", "me", HARD),
        (f":{HARD_ENCODED}", None, HARD),
        ("m%40e:x", "m@e", "x"),
        ("me", "me", None),
        ("me:", "me", None),
        (":a@b", None, "a@b"),
        (":100%", None, "100%"),
        (":a+b", None, "a+b"),
    ],
)
@pytest.mark.parametrize(
    "form", ["redis://{}@h:1/0", "rediss://{}@h", "unix://{}@/s.sock", "redis+sentinel://{}@h/s"]
)
def test_user_name_and_password_are_decoded(
    form: str, userinfo: str, username: str | None, password: str | None
) -> None:
    address = Address.parse(form.format(userinfo))
    assert (address.username, address.password) == (username, password)


@pytest.mark.parametrize(
    "url", [f"redis://me:{HARD_ENCODED}@h:1/0", f"unix://:{HARD_ENCODED}@/s", "redis://:sesame@h"]
)
def test_an_address_prints_masked(url: str) -> None:
    address = Address.parse(url)
    for shown in (str(address), repr(address), f"{address}", address.where):
        assert not any(secret in shown for secret in (HARD, HARD_ENCODED, "sesame"))
    assert ":***@" in str(address)


def test_what_is_printed_without_a_password_can_be_read_again() -> None:
    for url in ("redis://me@h:1/2", "unix:///s.sock?db=1", "redis+sentinel://a:1,b:2/shop/0"):
        assert str(Address.parse(url)) == url
        assert Address.parse(str(Address.parse(url))) == Address.parse(url)


def test_an_address_can_be_sent_to_a_process_and_used_as_a_key() -> None:
    address = Address.parse("rediss://:x@h?ssl_cert_reqs=none")
    assert pickle.loads(pickle.dumps(address)) == address
    assert {address: 1}[address] == 1


@pytest.mark.parametrize(
    "url",
    [
        "redis://:se/same@h/0",
        "redis://:se#same@h/0",
        "redis://:se?same@h/0",
        "redis://:se?same=x@h/0",
        "redis://se:same:h",
        "redis://me:sesame",
        "redis://:sesame@h:port",
        "redis://:sesame@h:70000",
        "redis://:sesame@h:0",
        "redis://:sesame@h/db",
        "redis://:sesame@h/1/2",
        "redis://:%FFsame@h",
        "http://:sesame@h",
        "sesame",
        "",
        "unix://:sesame@",
        "unix://host/sesame.sock",
        "redis+sentinel://:sesame@h",
    ],
)
def test_a_bad_address_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Address.parse(url)
    shown = "".join(traceback.format_exception_only(caught.value))
    assert not any(part in shown for part in ("same", "sesame"))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_options_of_tls_and_timeouts_are_read() -> None:
    address = Address.parse(
        "rediss://h?ssl_ca_certs=/ca.pem&ssl_cert_reqs=required&ssl_check_hostname=false"
        "&socket_connect_timeout=0.5",
        read_timeout_s=3.0,
    )
    assert dict(address.tls) == {
        "ssl_ca_certs": "/ca.pem",
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": False,
    }
    assert (address.connect_timeout_s, address.read_timeout_s) == (0.5, 3.0)


@pytest.mark.parametrize(
    ("query", "option", "says"),
    [
        ("ssl_validate_ocsp=1", "ssl_validate_ocsp", "supports"),
        ("soket_connect_timeout=1", "soket_connect_timeout", "socket_connect_timeout"),
        ("ssl_cert_reqs=maybe", "ssl_cert_reqs", "none, optional or required"),
        ("socket_connect_timeout=-1", "socket_connect_timeout", "above 0"),
        ("socket_connect_timeout=nan", "socket_connect_timeout", "above 0"),
        ("ssl_check_hostname=perhaps", "ssl_check_hostname", "true or false"),
        ("db=x", "db", "number"),
        ("sentinel_username=x", "sentinel_username", "no effect"),
    ],
)
def test_an_option_that_cannot_be_met_is_refused_by_name(
    query: str, option: str, says: str
) -> None:
    with pytest.raises(OptionError, match=says) as caught:
        Address.parse(f"rediss://h?{query}")
    assert caught.value.option == option


def test_tls_options_without_tls_are_refused() -> None:
    with pytest.raises(OptionError, match="rediss://"):
        Address.parse("redis://h?ssl_ca_certs=/ca.pem")
