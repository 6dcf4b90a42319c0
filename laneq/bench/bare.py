"""The limits of a Redis: what a client that does nothing else gets from it.

`Bare` is a blocking socket with hiredis's parser, one command at a time. Each limit
is measured with as many connections, and as many jobs in a call, as laneq used.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

import hiredis

from laneq.bench.rig import Space
from laneq.drive.address import Address
from laneq.drive.connect import open_socket
from laneq.drive.persist import pack

# What a claim must do and nothing else: end n jobs, take n others. The replies are
# ids and records.
_TURN: Final = b"""#!lua flags=allow-oom
local n, keep, deadline = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local ended = {unpack(ARGV, 4)}
if #ended > 0 then
  redis.call("ZREM", KEYS[3], unpack(ended))
  redis.call("HDEL", KEYS[4], unpack(ended))
  if keep > 0 then
    local lines, ends = {}, {}
    for _, id in ipairs(ended) do
      lines[#lines + 1], lines[#lines + 2] = id, "succeeded 1"
      ends[#ends + 1], ends[#ends + 2] = keep, id
    end
    redis.call("HSET", KEYS[6], unpack(lines))
    redis.call("ZADD", KEYS[7], unpack(ends))
  else
    redis.call("HDEL", KEYS[2], unpack(ended))
  end
  redis.call("HINCRBY", KEYS[5], "succeeded", #ended)
end
local popped = redis.call("ZPOPMIN", KEYS[1], n)
local ids, leases, runs = {}, {}, {}
for i = 1, #popped, 2 do
  local id = popped[i]
  ids[#ids + 1] = id
  leases[#leases + 1], leases[#leases + 2] = deadline, id
  runs[#runs + 1], runs[#runs + 2] = id, popped[i + 1]
end
if #ids == 0 then return {} end
local records = redis.call("HMGET", KEYS[2], unpack(ids))
redis.call("ZADD", KEYS[3], unpack(leases))
redis.call("HSET", KEYS[4], unpack(runs))
redis.call("HINCRBY", KEYS[5], "started", #ids)
return {ids, records}
"""

# What an enqueue must do and nothing else.
_STORE: Final = b"""#!lua
local score = tonumber(ARGV[1])
local scored, bodies = {}, {}
for i = 2, #ARGV, 2 do
  scored[#scored + 1], scored[#scored + 2] = score + i, ARGV[i]
  bodies[#bodies + 1], bodies[#bodies + 2] = ARGV[i], ARGV[i + 1]
end
redis.call("HSET", KEYS[2], unpack(bodies))
redis.call("ZADD", KEYS[1], unpack(scored))
redis.call("HINCRBY", KEYS[5], "enqueued", #scored / 2)
return 1
"""

_WORDS: Final = ("waiting", "jobs", "leases", "runs", "counts", "outcomes", "ended")

#: A record as large as that of a job whose arguments are ``(12345, "user@example.com")``.
RECORD: Final = b"bench.plain\n\x92\xcd09\xb0user@example.com"


class Bare:
    """One connection, one command at a time; a context manager.

    Args:
        address: where Redis is.
    """

    def __init__(self, address: Address) -> None:
        self._socket = open_socket(address, "laneq-bench")
        self._socket.settimeout(None)
        self._reader = hiredis.Reader(notEnoughData=self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, packed: bytes) -> Any:
        """Send a packed command and return the reply.

        Raises:
            hiredis.ReplyError: the server refused.
            ConnectionError: the server closed the connection.
        """
        self._socket.sendall(packed)
        return self._reply()

    def ask_all(self, packed: Sequence[bytes]) -> list[Any]:
        """Send several commands at once and return their replies; raises as `ask` does."""
        self._socket.sendall(b"".join(packed))
        return [self._reply() for _ in packed]

    def _reply(self) -> Any:
        while (reply := self._reader.gets()) is self:
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._reader.feed(data)
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply

    def load(self, script: bytes) -> bytes:
        """Load a script and return its digest."""
        self.ask(pack((b"SCRIPT", b"LOAD", script)))
        return hashlib.sha1(script, usedforsecurity=False).hexdigest().encode()


def _keys(space: Space) -> list[bytes]:
    # Beside laneq's own keys, in the same namespace, so that they go with it.
    return [space.keys.prefix + b"bare:" + word.encode() for word in _WORDS]


def ping_rate(address: Address, *, seconds: float = 1.0) -> float:
    """Return PINGs per second, one at a time over one connection."""
    packed = pack((b"PING",))
    with Bare(address) as bare:
        start = time.monotonic()
        n = 0
        while (took := time.monotonic() - start) < seconds:
            for _ in range(100):
                bare.ask(packed)
            n += 100
    return n / took


def ping_times(address: Address, *, count: int, every_s: float) -> list[float]:
    """Return the seconds that each of `count` PINGs took, one each `every_s`."""
    packed = pack((b"PING",))
    found = []
    with Bare(address) as bare:
        bare.ask(packed)
        for _ in range(count):
            time.sleep(every_s)
            start = time.monotonic()
            bare.ask(packed)
            found.append(time.monotonic() - start)
    return found


def turn_rate(space: Space, *, jobs: int, jobs_per_call: float, keeps_results: bool) -> float:
    """Return jobs per second of a loop that ends some jobs and takes others in each call.

    Args:
        space: a namespace of the run; the keys used are beside laneq's own.
        jobs: how many to fill the lane with, and to take.
        jobs_per_call: how many to take in each call; a fraction is met on average.
        keeps_results: whether what ended is kept.
    """
    keys = _keys(space)
    with Bare(space.address) as bare:
        fill(bare, keys, jobs)
        sha = bare.load(_TURN)
        keep = 10**15 if keeps_results else 0
        ended: Sequence[bytes] = ()
        taken, calls = 0, 0
        start = time.monotonic()
        while taken < jobs:
            calls += 1
            n = max(1, round(calls * jobs_per_call) - taken)
            reply = bare.ask(pack((b"EVALSHA", sha, len(keys), *keys, n, keep, 10**15, *ended)))
            ended = reply[0]
            taken += len(ended)
        took = time.monotonic() - start
        bare.ask(pack((b"UNLINK", *keys)))
    return jobs / took


def fill(bare: Bare, keys: Sequence[bytes], jobs: int) -> None:
    """Put jobs into the lane of the bare script."""
    sha = bare.load(_STORE)
    for first in range(0, jobs, 1_000):
        pairs: list[bytes] = []
        for i in range(first, min(first + 1_000, jobs)):
            pairs += (b"bare%016d" % i, RECORD)
        bare.ask(pack((b"EVALSHA", sha, len(keys), *keys, first * 10, *pairs)))


def store_rate(space: Space, *, jobs: int, jobs_per_call: int, in_flight: int = 1) -> float:
    """Return jobs per second of a loop that stores some in each call.

    Args:
        space: a namespace of the run.
        jobs: how many to store.
        jobs_per_call: how many each call stores.
        in_flight: how many calls are sent before the replies are read.
    """
    keys = _keys(space)
    with Bare(space.address) as bare:
        sha = bare.load(_STORE)
        start = time.monotonic()
        for first in range(0, jobs, jobs_per_call * in_flight):
            calls = []
            for call in range(first, min(first + jobs_per_call * in_flight, jobs), jobs_per_call):
                pairs: list[bytes] = []
                for i in range(call, min(call + jobs_per_call, jobs)):
                    pairs += (b"bare%016d" % i, RECORD)
                calls.append(pack((b"EVALSHA", sha, len(keys), *keys, call * 10, *pairs)))
            bare.ask_all(calls)
        took = time.monotonic() - start
        bare.ask(pack((b"UNLINK", *keys)))
    return jobs / took


def stored_bytes(space: Space, *, jobs: int, used: Callable[[], int]) -> float:
    """Return bytes per job of a sorted set of ids and a hash of records, and no more."""
    keys = _keys(space)
    before = used()
    with Bare(space.address) as bare:
        fill(bare, keys, jobs)
    bytes_each = (used() - before) / jobs
    with Bare(space.address) as bare:
        bare.ask(pack((b"UNLINK", *keys)))
    return bytes_each
