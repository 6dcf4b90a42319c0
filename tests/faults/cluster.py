"""A cluster of three nodes on this machine, each an ordinary server of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

import redis

from laneq.embedded import EmbeddedServer, Engine
from tests.faults.field import Field, wait_until
from tests.faults.ports import free_port
from tests.faults.sentinel import port_of

SLOTS: Final = 16384
_NODE_TIMEOUT_MS: Final = 2000


class Cluster:
    """Nodes that share the hash slots; a context manager.

    Args:
        folder: an empty folder.
        engine: the server to start.
        nodes: masters, each with a share of the slots.
        replicas: further nodes, each a replica of the first masters in turn.

    Attributes:
        servers: all nodes, masters first.
    """

    def __init__(self, folder: Path, *, engine: Engine, nodes: int = 3, replicas: int = 0) -> None:
        self._masters = nodes
        self.servers = [
            EmbeddedServer(engine=engine, port=0, config=_directives(folder / f"node-{n}"))
            for n in range(nodes + replicas)
        ]
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            for server in self.servers:
                stack.enter_context(server)
            self._join()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def ask(self, n: int, *words: str | bytes | int) -> Any:
        """Send a command to one of the nodes."""
        with redis.Redis(port=port_of(self.servers[n])) as client:
            return client.execute_command(*words, NEVER_DECODE=True)

    def _join(self) -> None:
        share = -(-SLOTS // self._masters)
        for n in range(self._masters):
            last = min((n + 1) * share, SLOTS) - 1
            self.ask(n, "CLUSTER", "ADDSLOTSRANGE", n * share, last)
            # Else every node begins with the same one, and they quarrel about it for a while.
            self.ask(n, "CLUSTER", "SET-CONFIG-EPOCH", n + 1)
        for n, server in enumerate(self.servers[1:], 1):
            bus = self.ask(n, "CONFIG", "GET", "cluster-port")
            words = ("CLUSTER", "MEET", "127.0.0.1", port_of(server), int(_value(bus)))
            self.ask(0, *words)
        wait_until(lambda: all(self._knows_all(n) for n in range(len(self.servers))))
        for n in range(self._masters, len(self.servers)):
            master = self.ask((n - self._masters) % self._masters, "CLUSTER", "MYID")
            self.ask(n, "CLUSTER", "REPLICATE", master.decode())
        wait_until(lambda: all(self._is_ok(n) for n in range(len(self.servers))))

    def _knows_all(self, n: int) -> bool:
        nodes = self.ask(n, "CLUSTER", "NODES").decode().splitlines()
        return len(nodes) == len(self.servers) and not any("handshake" in line for line in nodes)

    def _is_ok(self, n: int) -> bool:
        if b"cluster_state:ok" not in self.ask(n, "CLUSTER", "INFO"):
            return False
        role = self.ask(n, "ROLE")
        return n < self._masters or (role[0] == b"slave" and role[3] == b"connected")

    def adopt(self, field: Field, n: int) -> None:
        """Have a field's app, workers and commands use the cluster, by the address of one node."""
        field.url = field.environment["LANEQ_URL"] = self.url(n)
        field.app.override(url=field.url)
        field.app.sync_driver.call(field.app.publish_call())
        self._stack.callback(setattr, field, "raw", field.raw)
        self.follow(field)

    def follow(self, field: Field) -> None:
        """Have `field.raw` ask the node that has the namespace."""
        key = field.keys.prefix.decode()
        # A node that has just lost another may not know it yet.
        wait_until(lambda: self.servers[self.node_of(key)].is_running, what="a new owner")
        owner = self.servers[self.node_of(key)]
        field.raw = self._stack.enter_context(redis.Redis(port=port_of(owner)))

    def node_of(self, key: str) -> int:
        """Return which node has a key."""
        live = next(n for n, server in enumerate(self.servers) if server.is_running)
        slot = self.ask(live, "CLUSTER", "KEYSLOT", key)
        for first, last, master, *_ in self.ask(live, "CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return [port_of(server) for server in self.servers].index(master[1])
        raise AssertionError(f"no node has slot {slot}")

    def move(self, key: str, to: int) -> None:
        """Move the slot of a key, with all that it has, to another node, as operators do."""
        source = self.node_of(key)
        slot = self.ask(source, "CLUSTER", "KEYSLOT", key)
        ids = {n: self.ask(n, "CLUSTER", "MYID").decode() for n in (source, to)}
        self.ask(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
        self.ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[to])
        where = ("127.0.0.1", port_of(self.servers[to]))
        while keys := self.ask(source, "CLUSTER", "GETKEYSINSLOT", slot, 100):
            self.ask(source, "MIGRATE", *where, "", 0, 5000, "KEYS", *keys)
        for n in (to, source, *range(self._masters)):
            self.ask(n, "CLUSTER", "SETSLOT", slot, "NODE", ids[to])

    def url(self, n: int) -> str:
        """Return the address of one of the nodes."""
        return self.servers[n].url


def _directives(folder: Path) -> Mapping[str, str]:
    return {
        "cluster-enabled": "yes",
        "cluster-config-file": f"{folder}.conf",
        "cluster-node-timeout": str(_NODE_TIMEOUT_MS),
        # By default it is the port and 10,000, which may be past the last there is.
        "cluster-port": str(free_port()),
        "repl-diskless-sync-delay": "0",
    }


def _value(reply: Any) -> bytes:
    value: bytes = reply[b"cluster-port"] if isinstance(reply, dict) else reply[1]
    return value
