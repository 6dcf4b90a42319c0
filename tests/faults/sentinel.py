"""A replica of a field's server, and three sentinels that watch both.

    with Sentinels(field) as sentinels:
        worker = field.worker()          # finds the master by asking the sentinels
        sentinels.fail_over()

The field's address, app and workers go through the sentinels from then on, and `field.raw` asks
the master of the moment. The field's server must have a TCP port (``port=0``).
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

import redis

from laneq.embedded import EmbeddedServer, find_server
from tests.faults.field import FACTOR, Field, wait_until
from tests.faults.ports import free_port

SERVICE: Final = "shop"
_QUORUM: Final = 2

#: As an operator sets them who wants a failover in seconds; the rest are Sentinel's defaults.
_DOWN_AFTER_MS: Final = 2000
_FAILOVER_TIMEOUT_MS: Final = 10_000


class Sentinels:
    """See the module.

    Attributes:
        servers: both servers of the data, the first master first.
        ports: of the sentinels.
        url: the address that names the sentinels.
    """

    def __init__(self, field: Field, *, sentinels: int = 3) -> None:
        self.field = field
        self.ports = [free_port() for _ in range(sentinels)]
        self.servers = [field.server]
        self._folder = field.folder / "sentinels"
        self._stack = contextlib.ExitStack()
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        self.url = f"redis+sentinel://{hosts}/{SERVICE}/0"

    def __enter__(self) -> Self:
        field = self.field
        with contextlib.ExitStack() as stack:
            replica = stack.enter_context(
                EmbeddedServer(engine=field.server.engine, port=0, config=replication_settings())
            )
            self.servers.append(replica)
            for server in self.servers:
                # Else a fork for each full copy waits five seconds for further replicas.
                self._ask(server, "CONFIG", "SET", "repl-diskless-sync-delay", "0")
            self._ask(replica, "REPLICAOF", "127.0.0.1", str(port_of(field.server)))
            wait_until(self.is_in_step, what="the replica's first copy")
            for port in self.ports:
                stack.enter_context(self._sentinel(port))
            wait_until(self._are_agreed, what="three sentinels that know of each other")
            field.url = field.environment["LANEQ_URL"] = self.url
            field.app.override(url=self.url)
            stack.callback(setattr, field, "raw", field.raw)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._stack:
            self.field.end_workers()
            if kind is None:
                self.field.assert_in_order()

    # --- the servers ------------------------------------------------------------------

    @property
    def master(self) -> EmbeddedServer:
        """The server that the sentinels call master."""
        port = self.master_port()
        return next(server for server in self.servers if port_of(server) == port)

    def master_port(self, sentinel: int = 0) -> int:
        """Return the port of the master, as one of the sentinels has it."""
        reply = self.ask_sentinel(sentinel, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return int(reply[1])

    def ask_sentinel(self, n: int, *words: str) -> Any:
        """Send a command to one of the sentinels."""
        with redis.Redis(port=self.ports[n]) as client:
            return client.execute_command(*words, NEVER_DECODE=True)

    @staticmethod
    def _ask(server: EmbeddedServer, *words: str) -> Any:
        with redis.Redis(port=port_of(server)) as client:
            return client.execute_command(*words)

    def role(self, server: EmbeddedServer) -> str:
        """Return ``master`` or ``slave``, as the server sees itself."""
        role: str = self._ask(server, "ROLE")[0].decode()
        return role

    def is_in_step(self) -> bool:
        """Return whether there is one master, and a replica that follows it."""
        roles = [self._ask(server, "ROLE") for server in self.servers]
        masters = [role for role in roles if role[0] == b"master"]
        return len(masters) == 1 and any(
            role[0] == b"slave" and role[3] == b"connected" for role in roles
        )

    def _follow(self) -> None:
        """Have the field look at the master."""
        self.field.raw = self._stack.enter_context(redis.Redis(port=self.master_port()))

    # --- failovers --------------------------------------------------------------------

    def fail_over(self) -> None:
        """Have the sentinels swap master and replica; return once they have."""
        before = self.master_port()
        wait_until(lambda: self._takes_failover(before), 40, "a failover that is taken up")
        self._until_master_is_not(before)

    def _takes_failover(self, before: int) -> bool:
        if self.master_port() != before:
            return True
        with contextlib.suppress(redis.ResponseError):
            self.ask_sentinel(0, "SENTINEL", "FAILOVER", SERVICE)
            return True
        return False

    def kill_master(self) -> None:
        """End the field's server, the first master, as the power does; wait for the next one."""
        before = self.master_port()
        assert before == port_of(self.field.server)
        self.field.stop_server(kill=True)
        self._until_master_is_not(before)

    def swap_by_hand(self) -> None:
        """Swap master and replica as an operator does, and tell the sentinels."""
        old = self.master
        new = next(server for server in self.servers if server is not old)
        # The server's own way, which loses nothing: writes wait until the replica has all.
        self._ask(old, "FAILOVER", "TO", "127.0.0.1", str(port_of(new)), "TIMEOUT", "5000")
        wait_until(lambda: self.role(new) == "master", 10, "the swap")
        for n in range(len(self.ports)):
            self.ask_sentinel(n, "SENTINEL", "REMOVE", SERVICE)
            self.ask_sentinel(
                n, "SENTINEL", "MONITOR", SERVICE, "127.0.0.1", str(port_of(new)), str(_QUORUM)
            )
        self._until_master_is_not(port_of(old))

    def _until_master_is_not(self, before: int) -> None:
        wait_until(
            lambda: all(self.master_port(n) != before for n in range(len(self.ports))),
            40,
            "the sentinels' new master",
        )
        self._follow()

    def until_in_step(self) -> None:
        """Wait until the old master has become a replica: some ten seconds by Sentinel's ways."""
        wait_until(self.is_in_step, 30 * FACTOR, "a replica that follows the new master")

    # --- the sentinels ----------------------------------------------------------------

    @contextlib.contextmanager
    def _sentinel(self, port: int) -> Iterator[None]:
        folder = self._folder / str(port)
        folder.mkdir(parents=True)
        conf = folder / "sentinel.conf"
        conf.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {folder}\nlogfile {folder / 'log'}\n"
            f"sentinel monitor {SERVICE} 127.0.0.1 {port_of(self.field.server)} {_QUORUM}\n"
            f"sentinel down-after-milliseconds {SERVICE} {_DOWN_AFTER_MS}\n"
            f"sentinel failover-timeout {SERVICE} {_FAILOVER_TIMEOUT_MS}\n"
        )
        with running([str(_binary(self.field)), str(conf), "--sentinel"], folder / "stderr"):
            yield

    def _are_agreed(self) -> bool:
        for n in range(len(self.ports)):
            try:
                reply = self.ask_sentinel(n, "SENTINEL", "MASTER", SERVICE)
            except redis.ConnectionError:
                return False
            known = (
                reply
                if isinstance(reply, dict)
                else dict(zip(reply[::2], reply[1::2], strict=True))
            )
            others, replicas = known[b"num-other-sentinels"], known[b"num-slaves"]
            if (int(others), int(replicas)) != (len(self.ports) - 1, 1):
                return False
        return True


def replication_settings() -> dict[str, str]:
    """Return the directives of a server that is to be a replica soon."""
    return {"repl-diskless-load": "on-empty-db", "replica-announce-ip": "127.0.0.1"}


def port_of(server: EmbeddedServer) -> int:
    """Return the port of a server that has one."""
    port = urlsplit(server.url).port
    assert port is not None
    return port


def _binary(field: Field) -> Path:
    _, binary = find_server(field.server.engine)
    assert binary is not None
    return binary


#: Ends the program when what started it has gone, however that ended: its pipe closes then.
_UNTIL_TOLD: Final = '"$@" <&- & read -r _; kill $!; wait $!'


@contextlib.contextmanager
def running(command: list[str], log: Path) -> Iterator[None]:
    """Run a program until the block ends, and no longer than this process lives."""
    words = ["/bin/sh", "-c", _UNTIL_TOLD, "sh", *command]
    with log.open("ab") as out:
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=out, stderr=out)
        try:
            yield
        finally:
            process.communicate(timeout=10)
