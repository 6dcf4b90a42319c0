"""Where a benchmark runs: a server, its figures about itself, and a namespace of its own.

Without an address the server is a private one on a free TCP port, since that is
how most users reach theirs, and its persistence is off. With one it is the user's:
nothing outside the benchmark's namespace is read or changed.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Self

from laneq.drive.address import Address
from laneq.drive.sync_driver import SyncDriver
from laneq.embedded import EmbeddedServer, Engine
from laneq.errors import ConfigError
from laneq.keys import Keys, keys_of

_SCAN_COUNT: Final = 1_000
_SETTLE_S: Final = 0.3
_SCRIPT_CALLS: Final = frozenset({"evalsha", "eval", "fcall"})


@dataclass(frozen=True, slots=True)
class Space:
    """A namespace that belongs to one run of a benchmark.

    Attributes:
        url: where Redis is.
        namespace: its name; empty at first, gone afterwards.
        keys: its keys.
        driver: carries out calls on it.
    """

    url: str
    address: Address
    namespace: str
    keys: Keys
    driver: SyncDriver


class Rig:
    """A server to measure on; a context manager.

    Args:
        url: an address; None starts a private server.
        engine: which private server, ``redis`` or ``valkey``; None takes the first found.
        namespace: the name that every run uses, one after the other; None makes one up
            for each. One that holds anything is refused.
    """

    def __init__(
        self, url: str | None = None, *, engine: Engine | None = None, namespace: str | None = None
    ) -> None:
        """Note what is wanted; nothing is started yet."""
        self._given = url
        self._engine = engine
        self._namespace = namespace
        self._exit = ExitStack()
        self._driver: SyncDriver | None = None
        self.url = ""

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            if self._given is None:
                server = starting.enter_context(EmbeddedServer(port=0, engine=self._engine))
                self.url = server.url
            else:
                self.url = self._given
            self.address = Address.parse(self.url)
            self._driver = starting.enter_context(
                SyncDriver(self.address, prefix=b"", client_name="laneq-bench")
            )
            self.command("PING")
            self._exit = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    @contextmanager
    def space(self, suffix: str = "") -> Iterator[Space]:
        """Lend a namespace that is empty, and delete all of it afterwards.

        Args:
            suffix: added to its name, to tell namespaces apart that are lent at the same time.

        Raises:
            ConfigError: the namespace holds something.
        """
        name = (self._namespace or f"bench-{secrets.token_hex(4)}") + suffix
        keys = keys_of(name)
        if self._keys_of(keys):
            raise ConfigError(
                f"namespace {name!r} on this Redis is not empty: a benchmark would disturb what "
                "is in it. Name another one, or none and it makes one up."
            )
        with SyncDriver(self.address, prefix=keys.prefix, client_name="laneq-bench") as driver:
            try:
                yield Space(self.url, self.address, name, keys, driver)
            finally:
                while found := self._keys_of(keys):
                    self.command("UNLINK", *found)

    def command(self, *args: bytes | str | int) -> Any:
        """Send a plain command."""
        if self._driver is None:
            raise ConfigError("the rig has no connection: enter it first")
        return self._driver.command(*args)

    def _keys_of(self, keys: Keys) -> list[bytes]:
        found: list[bytes] = []
        pattern = keys.prefix.replace(b"\\", b"\\\\").replace(b"[", b"\\[")
        pattern = pattern.replace(b"*", b"\\*").replace(b"?", b"\\?") + b"*"
        cursor: bytes = b"0"
        while True:
            cursor, some = self.command("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_COUNT)
            found += some
            if int(cursor) == 0:
                return found

    # --- what the server says of itself -----------------------------------------

    def info(self, section: str) -> dict[str, str]:
        """Read a section of INFO."""
        return _read_info(self.command("INFO", section))

    @property
    def server_name(self) -> str:
        """Which server, for captions: ``Redis 7.0.15``, ``Valkey 9.0.0``."""
        told = self.info("server")
        if "valkey_version" in told:
            return f"Valkey {told['valkey_version']}"
        return f"Redis {told['redis_version']}"

    def meter(self) -> Meter:
        """Read the server's counters."""
        cpu = self.info("cpu")
        commands = self.info("commandstats")
        return Meter(
            cpu_s=_main_thread_s(cpu),
            calls=_of_commands(commands, "calls"),
            us=_of_commands(commands, "usec"),
        )

    def used_memory(self) -> int:
        """Return the bytes that the server has allocated, once they have settled.

        Buffers of connections are given back and hash tables are moved in the
        background: the figure is read until it stays.
        """
        before = -1
        while True:
            now = int(self.info("memory")["used_memory"])
            if abs(now - before) < 4_096:  # noqa: PLR2004  a page or so of noise
                return now
            before = now
            time.sleep(_SETTLE_S)


@dataclass(frozen=True, slots=True)
class Meter:
    """What a server has done since it started.

    Attributes:
        cpu_s: CPU seconds of its main thread.
        calls: command → how often, those inside scripts included.
        us: command → µs that they took; those of a script include what it called.
    """

    cpu_s: float
    calls: Mapping[str, int]
    us: Mapping[str, int]

    def since(self, before: Meter) -> Meter:
        """Return what was done since `before`."""
        return Meter(
            self.cpu_s - before.cpu_s,
            {name: n - before.calls.get(name, 0) for name, n in self.calls.items()},
            {name: n - before.us.get(name, 0) for name, n in self.us.items()},
        )

    @property
    def commands(self) -> int:
        """How many commands in all."""
        return sum(self.calls.values())

    @property
    def script_calls(self) -> int:
        """How many of them came from outside as script calls: round trips."""
        return sum(n for name, n in self.calls.items() if name in _SCRIPT_CALLS)

    @property
    def script_us(self) -> int:
        """µs that these took inside the server."""
        return sum(n for name, n in self.us.items() if name in _SCRIPT_CALLS)


def _of_commands(told: Mapping[str, str], figure: str) -> dict[str, int]:
    """Return a figure of INFO commandstats, ``cmdstat_get: calls=21,usec=175,…``, by command."""
    return {
        name.removeprefix("cmdstat_"): int(text.partition(f"{figure}=")[2].partition(",")[0])
        for name, text in told.items()
    }


def _main_thread_s(cpu: Mapping[str, str]) -> float:
    for suffix in ("_main_thread", ""):
        if f"used_cpu_user{suffix}" in cpu:
            return float(cpu[f"used_cpu_user{suffix}"]) + float(cpu[f"used_cpu_sys{suffix}"])
    raise ConfigError("this server does not tell its CPU time (INFO cpu): measure on another")


def _read_info(reply: Any) -> dict[str, str]:
    text: str = reply.decode() if isinstance(reply, bytes) else str(reply)
    pairs = (line.partition(":") for line in text.splitlines() if not line.startswith("#"))
    return {name: value for name, colon, value in pairs if colon}
