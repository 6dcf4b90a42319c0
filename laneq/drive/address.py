"""Where Redis is and how to reach it: one parser of addresses for all programs.

Forms::

    redis://[user:password@]host[:port][/db][?option=value&...]
    rediss://...                                 TLS
    unix://[user:password@]/path/to.sock[?db=0]
    redis+sentinel://[user:password@]host[:port],host[:port]/service[/db]
    rediss+sentinel://...                        TLS to the sentinels too

A user name or password is percent-decoded, so any character can be written.
An address never shows its password: not by `str`, by `repr` or in an error,
neither as it is nor encoded. The parser is written by hand because the standard
library's errors quote what they could not read, which may be a password.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self
from urllib.parse import parse_qsl, quote, unquote

from laneq.errors import ConfigError, OptionError, suggest

_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379
_LAST_PORT: Final = 65535
_SCHEMES: Final = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")
_HOST: Final = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.%]+)\]|(?P<name>[^\[\]:@/]*))(?::(?P<port>\d*))?"
)
_ENCODE: Final = (
    "Percent-encode the user name and password: "
    "python -c 'import urllib.parse as u; print(u.quote(input(), safe=\"\"))'"
)

#: Options of redis-py that decide how bytes are read or when a reply is late.
#: They are taken and have no effect: laneq sets them as it needs them.
OVERRIDDEN: Final = frozenset(
    {
        "client_name",
        "decode_responses",
        "encoding",
        "encoding_errors",
        "health_check_interval",
        "legacy_responses",
        "lib_name",
        "lib_version",
        "max_connections",
        "protocol",
        "retry_on_timeout",
        "socket_keepalive",
        "socket_read_size",
        "socket_timeout",
        "timeout",
    }
)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


def _flag(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    return words[text.lower()]


def _database(text: str) -> int:
    if not text.isdecimal():
        raise ValueError
    return int(text)


def _one_of(*words: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if text not in words:
            raise ValueError
        return text

    return check


#: Options that count: how each is read, and what it takes.
_OPTIONS: Final[Mapping[str, tuple[Callable[[str], Any], str]]] = {
    "db": (_database, "a database number"),
    "socket_connect_timeout": (_seconds, "seconds above 0"),
    "ssl_ca_certs": (str, "a file"),
    "ssl_ca_path": (str, "a folder"),
    "ssl_cert_reqs": (_one_of("none", "optional", "required"), "none, optional or required"),
    "ssl_certfile": (str, "a file"),
    "ssl_check_hostname": (_flag, "true or false"),
    "ssl_ciphers": (str, "a list of ciphers"),
    "ssl_keyfile": (str, "a file"),
    "ssl_password": (str, "the key file's password"),
    "sentinel_password": (str, "the sentinels' password"),
    "sentinel_username": (str, "the sentinels' user name"),
}


@dataclass(frozen=True, slots=True, repr=False)
class Address:
    """Where Redis is, and how to reach it; prints without the password.

    Attributes:
        scheme: ``redis``, ``rediss``, ``unix``, ``redis+sentinel`` or ``rediss+sentinel``.
        hosts: host and port of the server, or of each sentinel; empty for a unix socket.
        path: the unix socket; empty for the other schemes.
        service: the name under which the sentinels know the server; else empty.
        db: number of the database.
        username: None is the default user.
        password: None asks for no authentication.
        connect_timeout_s: seconds that making a connection may take.
        read_timeout_s: seconds that a reply may take.
        tls: the ``ssl_`` options.
        sentinel_username: likewise, for the sentinels themselves.
        sentinel_password: likewise.
    """

    scheme: str
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    service: str = ""
    db: int = 0
    username: str | None = None
    password: str | None = None
    connect_timeout_s: float = 2.0
    read_timeout_s: float = 10.0
    tls: tuple[tuple[str, Any], ...] = ()
    sentinel_username: str | None = None
    sentinel_password: str | None = None

    @classmethod
    def parse(
        cls, url: str, *, connect_timeout_s: float = 2.0, read_timeout_s: float = 10.0
    ) -> Self:
        """Read an address.

        Args:
            url: in one of the forms that this module names.
            connect_timeout_s: seconds that making a connection may take; the option
                ``socket_connect_timeout`` of the address wins.
            read_timeout_s: seconds that a reply may take.

        Raises:
            ConfigError: it is not an address. The message shows no part of it that
                may be a password.
            OptionError: an option is unknown or has a wrong value.
        """
        scheme, colon, rest = url.strip().partition("://")
        if not colon or scheme not in _SCHEMES:
            raise ConfigError(
                f"the Redis address must begin with one of "
                f"{', '.join(f'{known}://' for known in _SCHEMES)}"
            )
        rest, _, query = rest.partition("?")
        if "#" in rest:
            raise ConfigError(f"the Redis address has a '#'. {_ENCODE}")
        authority, slash, path = rest.partition("/")
        userinfo, at, where = authority.rpartition("@")
        if "@" in path and scheme != "unix":
            raise ConfigError(f"the Redis address has an '@' after a '/'. {_ENCODE}")
        username, password = _credentials(userinfo) if at else (None, None)
        address = cls(
            scheme,
            username=username,
            password=password,
            connect_timeout_s=connect_timeout_s,
            read_timeout_s=read_timeout_s,
        )
        if scheme == "unix":
            if where or not path:
                raise ConfigError("a unix address needs an absolute path: unix:///path/to.sock")
            address = replace(address, path=slash + _decoded(path))
        else:
            address = address._with_hosts(where, path)  # noqa: SLF001  of this class
        return address._with_options(query)  # noqa: SLF001

    def _with_hosts(self, where: str, path: str) -> Self:
        parts = [part for part in path.split("/") if part]
        service = ""
        if self.has_sentinels:
            if not parts:
                raise ConfigError(
                    "the sentinel address names no service: redis+sentinel://host:port/service/db"
                )
            service = _decoded(parts.pop(0))
            hosts = tuple(_host(text, _SENTINEL_PORT) for text in where.split(","))
        else:
            hosts = (_host(where, _PORT),)
        if len(parts) > 1 or not all(part.isdecimal() for part in parts):
            raise ConfigError(
                f"the path of the Redis address must be a database number, as in /0. {_ENCODE}"
            )
        db = int(parts[0]) if parts else 0
        return replace(self, hosts=hosts, service=service, db=db)

    def _with_options(self, query: str) -> Self:
        found: dict[str, Any] = {}
        for name, text in parse_qsl(query, keep_blank_values=True):
            if name in OVERRIDDEN:
                continue
            if name not in _OPTIONS:
                if not name.isidentifier() or ("@" in query and self.password is None):
                    raise ConfigError(f"the options of the Redis address cannot be read. {_ENCODE}")
                raise OptionError(
                    name,
                    "not an option of a Redis address that laneq supports. "
                    + suggest(name, _OPTIONS),
                )
            read, wants = _OPTIONS[name]
            try:
                found[name] = read(text)
            except (ValueError, KeyError):
                raise OptionError(name, f"must be {wants}") from None
        tls = tuple((name, found.pop(name)) for name in list(found) if name.startswith("ssl_"))
        if tls and not self.is_tls:
            raise OptionError(
                tls[0][0], f"has no effect with {self.scheme}://. TLS takes rediss://."
            )
        if not self.has_sentinels:
            for name in found:
                if name.startswith("sentinel_"):
                    raise OptionError(name, f"has no effect with {self.scheme}://")
        connect_timeout_s = found.pop("socket_connect_timeout", self.connect_timeout_s)
        return replace(self, tls=tls, connect_timeout_s=connect_timeout_s, **found)

    @property
    def has_sentinels(self) -> bool:
        """Whether the server is found by asking sentinels."""
        return self.scheme.endswith("+sentinel")

    @property
    def is_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.scheme.startswith("rediss")

    @property
    def where(self) -> str:
        """Host and port, or path, for messages."""
        if self.scheme == "unix":
            return self.path
        hosts = ",".join(
            f"{f'[{host}]' if ':' in host else host}:{port}" for host, port in self.hosts
        )
        return f"{hosts} (sentinels of {self.service})" if self.has_sentinels else hosts

    def __str__(self) -> str:
        user = quote(self.username, safe="") if self.username else ""
        login = f"{user}:***@" if self.password is not None else f"{user}@" if user else ""
        if self.scheme == "unix":
            return f"unix://{login}{self.path}?db={self.db}"
        hosts = ",".join(
            f"{f'[{host}]' if ':' in host else host}:{port}" for host, port in self.hosts
        )
        service = f"/{self.service}" if self.has_sentinels else ""
        return f"{self.scheme}://{login}{hosts}{service}/{self.db}"

    def __repr__(self) -> str:
        return f"<Address {self}>"


def _decoded(text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise ConfigError(
            "the Redis address has percent-encoded bytes that are not UTF-8. " + _ENCODE
        ) from None


def _credentials(userinfo: str) -> tuple[str | None, str | None]:
    username, colon, password = userinfo.partition(":")
    return _decoded(username) or None, _decoded(password) if colon and password else None


def _host(text: str, default_port: int) -> tuple[str, int]:
    found = _HOST.fullmatch(text)
    if not found:
        # The text is not shown: with a password that is not encoded, it is part of it.
        raise ConfigError(f"the Redis address has no proper host:port. {_ENCODE}")
    port = int(found["port"] or default_port)
    if not 0 < port <= _LAST_PORT:
        raise ConfigError(f"the port of the Redis address must be 1 to {_LAST_PORT}")
    return found["six"] or found["name"] or "127.0.0.1", port
