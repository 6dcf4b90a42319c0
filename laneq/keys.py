"""Every Redis key of a namespace: its name, its owner and its life.

All keys begin with the namespace's hash tag, ``{laneq:NAME}:``, so that a
namespace lives on one node of a cluster and every script may touch all of it.
Attribute names are the words that script headers use in their KEYS line.

Namespace-wide keys (permanent, bounded by what is open):

========== ======= =========================================================
state      hash    clock, config (JSON rows of the lanes), due and sweep hints
lanes      hash    lane → declaration (JSON), as published by apps
overrides  hash    lane → what an operator set (JSON)
tasks      hash    task → ``lane max_attempts kind base_us cap_us jitter`` as published
jobs       hash    id → record: head that Lua reads, newline, opaque payload
runs       hash    id → the run line, from the first claim to the end
history    hash    id → ended attempts that were not the last word
progress   hash    id → last progress reported (opaque)
outcomes   hash    id → outcome line, newline, result or error (opaque)
ended      zset    id → when the record of an ended job is dropped
watchers   zset    id → until when somebody waits for its end
workers    hash    worker id → registration (JSON)
beats      zset    worker id → until when it counts as alive
parked     zset    ``task TAB score TAB lane TAB id`` of jobs whose task is at its limit;
                   ``TAB id TAB score TAB due`` of the same
fleet      hash    what live workers have free, for reserves over the fleet; when
                   the next start of a lane with a rate is due
sizing     hash    lane → the last decision on its automatic reserve (JSON)
task_counts hash   ``task<TAB>event`` → number
========== ======= =========================================================

Per lane (permanent): ``waiting`` and ``scheduled`` (zset id → µs), ``leases``
(zset id → deadline in µs), ``dead`` (zset id → died at), ``counts`` (hash
event → number), ``wake`` (list of at most one token), ``rates`` (list of
count snapshots, trimmed), ``shares`` (zset fair key → µs of virtual
time, of keys with a backlog). With a TTL: ``hist`` slices per lane, ``call`` and
``doorbell`` per worker, ``session`` per producer connection, and ``probe`` of a look at
the health, which is gone when the script that makes it ends.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

#: Names of the keys that live as long as the namespace; every other has a TTL.
PERMANENT: Final = frozenset(
    {
        "state", "lanes", "overrides", "tasks", "jobs", "runs", "history", "progress",
        "outcomes", "ended", "watchers", "workers", "beats", "fleet", "parked", "sizing",
        "task_counts",
        "waiting", "scheduled", "leases", "dead", "counts", "wake", "rates", "shares",
    }
)  # fmt: skip

#: Width of a fine histogram slice (the last minutes) and of a coarse one, in µs.
FINE_US: Final = 10_000_000
COARSE_US: Final = 60_000_000


class Keys:
    """The keys of one namespace, as bytes.

    Args:
        namespace: name of the queue system; any text without braces.
    """

    __slots__ = (
        "beats", "ended", "fleet", "history", "jobs", "lanes", "namespace", "outcomes", "overrides",
        "parked", "prefix", "progress", "runs", "sizing", "state", "task_counts", "tasks",
        "watchers",
        "workers",
    )  # fmt: skip

    def __init__(self, namespace: str) -> None:
        """Compute the namespace-wide keys."""
        self.namespace = namespace
        self.prefix = f"{{laneq:{namespace}}}:".encode()
        for name in (
            "beats", "ended", "fleet", "history", "jobs", "lanes", "outcomes", "overrides",
            "parked", "progress", "runs", "sizing", "state", "task_counts", "tasks", "watchers",
            "workers",
        ):  # fmt: skip
            setattr(self, name, self.prefix + name.encode())

    beats: bytes
    ended: bytes
    fleet: bytes
    history: bytes
    jobs: bytes
    lanes: bytes
    outcomes: bytes
    overrides: bytes
    parked: bytes
    progress: bytes
    runs: bytes
    sizing: bytes
    state: bytes
    task_counts: bytes
    tasks: bytes
    watchers: bytes
    workers: bytes

    def of_lane(self, word: str, lane: str) -> bytes:
        """Return the lane's key for a word of a script header, as ``waiting``."""
        return b"%b%b:%b" % (self.prefix, word.encode(), lane.encode())

    def waiting(self, lane: str) -> bytes:
        """Return the sorted set of the lane's waiting jobs."""
        return self.of_lane("waiting", lane)

    def wake(self, lane: str) -> bytes:
        """Return the list that a worker blocks on for the lane."""
        return self.of_lane("wake", lane)

    def fine(self, lane: str, now_us: int) -> bytes:
        """Return the 10 s histogram slice that holds `now_us`."""
        return b"%bhist:%b:f%d" % (self.prefix, lane.encode(), now_us // FINE_US)

    def coarse(self, lane: str, now_us: int) -> bytes:
        """Return the 1 min histogram slice that holds `now_us`."""
        return b"%bhist:%b:m%d" % (self.prefix, lane.encode(), now_us // COARSE_US)

    def call(self, worker: str) -> bytes:
        """Return the key that remembers a worker's last claim, for repeats."""
        return b"%bcall:%b" % (self.prefix, worker.encode())

    def doorbell(self, worker: str) -> bytes:
        """Return the list that ends a worker's own blocking wait."""
        return b"%bdoorbell:%b" % (self.prefix, worker.encode())

    def probe(self, look: str) -> bytes:
        """Return the key on which one look at the health tries what the server takes."""
        return b"%bprobe:%b" % (self.prefix, look.encode())

    def ended_channel(self, job_id: str) -> bytes:
        """Return the pub/sub channel on which the end of a watched job is told."""
        return b"%bended:%b" % (self.prefix, job_id.encode())

    @property
    def lanes_channel(self) -> bytes:
        """Return the pub/sub channel on which workers are told that the lanes changed."""
        return b"%bcontrol" % self.prefix

    def control_channel(self, worker: str) -> bytes:
        """Return the pub/sub channel on which a worker is told of cancels."""
        return b"%bcontrol:%b" % (self.prefix, worker.encode())


@lru_cache(maxsize=64)
def keys_of(namespace: str) -> Keys:
    """Return the keys of a namespace, computed once."""
    return Keys(namespace)
