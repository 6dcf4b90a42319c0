"""What a driver has learned of where its namespace is: in a cluster, or behind sentinels.

No I/O here. All keys of a namespace share one hash tag, so one node of a cluster has them
all, and a driver needs a connection to that node only. Any node tells which one it is
(CLUSTER SLOTS); the others are remembered, so that one of them can be asked when it is gone.
A node that has been reached is called by the name that it was reached by (it tells its id,
CLUSTER MYID): the one that it has in the cluster may lead nowhere from here.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final, TypeAlias

from redis.crc import key_slot
from redis.exceptions import ClusterDownError, RedisError
from redis.exceptions import ConnectionError as NoConnection

#: Host and port.
Place: TypeAlias = tuple[str, int]

#: What can go wrong while connecting, before it is made an error of laneq's.
CONNECT_ERRORS: Final = (RedisError, OSError, ValueError)


class Route:
    """Where one driver's namespace is.

    Args:
        prefix: the namespace's key prefix, with its hash tag.

    Attributes:
        nodes: of the cluster, the one that has the namespace first; empty for no cluster.
        master: what the sentinels said last; None without sentinels.
    """

    __slots__ = ("_slot", "master", "nodes")

    def __init__(self, prefix: bytes) -> None:
        self._slot: int = key_slot(prefix)
        self.nodes: tuple[Place, ...] = ()
        self.master: Place | None = None

    def seek(self, seed: Place) -> Generator[tuple[Place, int], Any, None]:
        """Say where to connect, one place after the other, until one has the namespace.

        Yields a place, and how many are left after it; is sent its id and its answer to
        CLUSTER SLOTS, None where it is no cluster's, or thrown why there is no connection.
        Ends when the place is the right one.

        Args:
            seed: the place in the address.
        """
        left = list(dict.fromkeys((*self.nodes, seed)))
        tried: set[Place] = set()
        while True:
            place = left.pop(0)
            tried.add(place)
            try:
                told = yield place, len(left)
                if told is None and place == seed:
                    self.nodes = ()
                    return
                id, slots = told or (b"", ())
                nodes = self._read(id, slots, place)
            except CONNECT_ERRORS:
                if not left:
                    raise
                continue
            self.nodes = nodes
            if nodes[0] == place:
                return
            left = [each for each in dict.fromkeys((*nodes, *left)) if each not in tried]
            if not left:
                host, port = nodes[0]
                raise NoConnection(
                    f"{host}:{port}, the node that has hash slot {self._slot}, gives no answer"
                )

    def _read(self, id: bytes, slots: Sequence[Any], place: Place) -> tuple[Place, ...]:
        """Return the nodes in an answer to CLUSTER SLOTS, the one with the namespace first."""
        owner: Place | None = None
        others: list[Place] = []
        for first, last, *nodes in slots:
            places = [place if node[2] == id else _place_of(node, place) for node in nodes]
            if first <= self._slot <= last:
                owner = places[0]
            others += places
        if owner is None:
            raise ClusterDownError(f"no node has hash slot {self._slot}", status_code="CLUSTERDOWN")
        return tuple(dict.fromkeys((owner, *others)))


def _place_of(node: Sequence[Any], asked: Place) -> Place:
    # A node that does not know its own name leaves it out: it is the one that was asked.
    host = node[0].decode() if node[0] else ""
    return (host if host not in {"", "?"} else asked[0]), int(node[1])
