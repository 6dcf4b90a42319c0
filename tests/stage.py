"""A namespace set up for tests of scripts: lanes, calls, workers, and a clock that tests move.

Scripts take the greater of the server's clock and the greatest instant they have seen. The
stage puts the latter far ahead, so that time stands still until a test moves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import redis

from laneq.calls import jobs, lanes
from laneq.calls.call import Call
from laneq.calls.jobs import NewJob
from laneq.calls.lanes import LanesInForce, PublishedTask
from laneq.calls.workers import ClaimCalls, Claimed, ClaimReply, Ended, Seats
from laneq.check import Problem, Report
from laneq.codec import encode_record
from laneq.keys import Keys, keys_of
from laneq.options import DEFAULT_LANES, Lane
from tests.audit import allowed_in, audit, forget, problems_in

T = TypeVar("T")

#: 2100-01-01: where the clock of a stage stands at first, in µs.
START_US: Final = 4_102_444_800_000_000

SECOND: Final = 1_000_000


class Stage:
    """One namespace on one server, real or fake."""

    def __init__(self, client: redis.Redis, namespace: str, *, is_fake: bool) -> None:
        self.client: Any = client
        self.namespace = namespace
        self.is_fake = is_fake
        self.keys: Keys = keys_of(namespace)
        if is_fake:
            forget(namespace)  # another test had a server of its own
        self.lanes = LanesInForce(version=0, lanes=(), declared={}, overrides={})
        self._seq = 0

    # --- calls ---

    def ask(self, call: Call[Any], *, session: str = "s", before: str = "") -> Any:
        """Run a call and return the reply as it came."""
        keys, argv = call.keys, call.argv
        if call.once:
            self._seq += 1
            prefix = self.keys.prefix + b"session:"
            keys = (prefix + session.encode(), prefix + b"before", *keys)
            argv = (self._seq, 0, *argv)
        text = call.script.plain if self.is_fake else call.script.text
        return self.client.eval(text, len(keys), *keys, *argv)

    def run(self, call: Call[T]) -> T:
        """Run a call and return its value."""
        return call.read(self.ask(call))

    def publish(
        self, *lanes_: Lane, tasks: Mapping[str, PublishedTask] | None = None
    ) -> LanesInForce:
        """Publish lanes (the default ones without arguments) and read them back."""
        declared = [(lane.name, lane.to_wire()) for lane in lanes_ or DEFAULT_LANES]
        self.run(lanes.publish(self.keys, lanes=declared, tasks=tasks or {}))
        self.lanes = self.run(lanes.read_lanes(self.keys))
        return self.lanes

    def set_lane(self, name: str, changes: Mapping[str, Any] | None) -> None:
        """Set a lane as an operator does, and read the lanes again."""
        self.run(lanes.set_lane(self.keys, name, changes))
        self.lanes = self.run(lanes.read_lanes(self.keys))

    def enqueue(self, *jobs_: NewJob) -> frozenset[int] | None:
        """Enqueue in one call; the positions of the ids that were there already."""
        return self.run(jobs.enqueue(self.keys, jobs_))

    def put(self, *ids: str, lane: str = "normal", when: str = "", **options: Any) -> list[str]:
        """Enqueue jobs of task ``t`` with these ids in one call."""
        assert self.enqueue(*(new(i, lane=lane, when=when, **options) for i in ids)) == frozenset()
        return list(ids)

    def look(self, job_id: str) -> Any:
        """Read one job: a JobView, or None for an unknown id."""
        return self.run(jobs.look(self.keys, [job_id], lanes=self.lanes.names))[0]

    def state(self, job_id: str) -> str | None:
        """Return the state of a job, None for an unknown one."""
        view = self.look(job_id)
        return view.state.value if view else None

    def cancel(self, job_id: str, *, keep_us: int = 300 * SECOND) -> jobs.Cancelled:
        """Cancel one job."""
        call = jobs.cancel(self.keys, job_id, lanes=self.lanes.names, keep_us=keep_us)
        return self.run(call)

    def revive(self, *ids: str) -> list[str]:
        """Give ended jobs a new life."""
        return self.run(jobs.revive(self.keys, ids, lanes=self.lanes.names))

    def counts(self, lane: str = "normal") -> dict[str, int]:
        """Return a lane's counts that are not zero."""
        return {event: int(n) for event, n in self.hash("counts", lane).items()}

    def task_counts(self, task: str = "t") -> dict[str, int]:
        """Return a task's counts that are not zero."""
        rows = ((name.rpartition("\t"), n) for name, n in self.hash("task_counts").items())
        return {event: int(n) for (of_task, _, event), n in rows if of_task == task}

    def worker(
        self,
        name: str = "w",
        *,
        slots: int = 1,
        serves: Iterable[str] | None = None,
        reserve: Mapping[str, int] | None = None,
    ) -> Worker:
        """Return a worker that serves these lanes, all without the argument."""
        served = tuple(serves) if serves is not None else None
        return Worker(self, name, slots=slots, serves=served, reserve=dict(reserve or {}))

    # --- time ---

    def now(self) -> int:
        """Return the greatest instant that scripts have seen, in µs."""
        return int(self.client.hget(self.keys.state, "clock") or 0)

    def set_clock(self, instant_us: int) -> None:
        """Put the clock of scripts where it is wanted."""
        self.client.hset(self.keys.state, "clock", instant_us)

    def forward(self, us: int) -> int:
        """Move time forward; the value is the instant then."""
        self.set_clock(self.now() + us)
        return self.now()

    # --- what Redis has ---

    def key(self, word: str, lane: str = "") -> bytes:
        """Return a key by its word, of a lane if one is named."""
        if lane:
            return self.keys.of_lane(word, lane)
        found: bytes = getattr(self.keys, word)
        return found

    def places(self, word: str, lane: str = "normal") -> dict[str, int]:
        """Return a lane's sorted set: id → score, in order."""
        rows = self.client.zrange(self.key(word, lane), 0, -1, withscores=True)
        return {job_id.decode(): int(score) for job_id, score in rows}

    def places_of(self, word: str) -> dict[str, int]:
        """Return a sorted set of the namespace: member → score, in order."""
        rows = self.client.zrange(self.key(word), 0, -1, withscores=True)
        return {member.decode(): int(score) for member, score in rows}

    def order(self, word: str = "waiting", lane: str = "normal") -> list[str]:
        """Return the ids of a lane's sorted set in order."""
        return list(self.places(word, lane))

    def tokens(self) -> list[str]:
        """Return the lanes that have a wake-up token."""
        return [n for n in self.lanes.names if self.client.llen(self.key("wake", n))]

    def hash(self, word: str, lane: str = "") -> dict[str, bytes]:
        """Return a hash: field → bytes."""
        rows = self.client.hgetall(self.key(word, lane))
        return {name.decode(): value for name, value in rows.items()}

    def run_line(self, job_id: str) -> list[str]:
        """Return the words of a job's run line, none without one."""
        line = self.client.hget(self.keys.runs, job_id)
        return line.decode().split(" ") if line else []

    def snapshot(self) -> dict[str, Any]:
        """Return every key and its value."""
        found: dict[str, Any] = {}
        for key in sorted(self.client.scan_iter(match=self.keys.prefix + b"*", count=1000)):
            word = key[len(self.keys.prefix) :].decode()
            match self.client.type(key):
                case b"hash":
                    found[word] = self.client.hgetall(key)
                case b"zset":
                    found[word] = self.client.zrange(key, 0, -1, withscores=True)
                case b"list":
                    found[word] = self.client.lrange(key, 0, -1)
                case _:
                    found[word] = self.client.get(key)
        return found

    def problems(self) -> list[Problem]:
        """Return each broken invariant that this test did not make on purpose."""
        return problems_in(self.client, self.namespace, is_fake=self.is_fake)

    def audit(self, *, is_repair: bool = False) -> Report:
        """Check the namespace, whatever this test does on purpose."""
        return audit(self.client, self.namespace, is_repair=is_repair, is_fake=self.is_fake)

    def allow(self, *kinds: str) -> None:
        """Name kinds of problems that this test makes on purpose."""
        allowed_in(self.namespace).update(kinds)


@dataclass
class Worker:
    """A worker as far as scripts see it: it claims, holds jobs and reports outcomes."""

    stage: Stage
    id: str
    slots: int = 1
    serves: tuple[str, ...] | None = None
    reserve: dict[str, int] = field(default_factory=dict)
    seq: int = 0
    held: dict[str, Claimed] = field(default_factory=dict)

    def call(
        self,
        *,
        free: int | None = None,
        outcomes: Sequence[Ended] = (),
        listening: Iterable[str] = (),
        is_repeat: bool = False,
        is_look: bool = False,
        fence_floor: int = 0,
        lanes: LanesInForce | None = None,
    ) -> Call[ClaimReply | None]:
        """Build a claim; `free` is what is left of the slots unless given."""
        in_force = lanes or self.stage.lanes
        served = self.serves if self.serves is not None else in_force.names
        gone = {end.id for end in outcomes}
        running = [job.lane for job in self.held.values() if job.id not in gone]
        heard = tuple(listening)
        seats = {
            name: Seats(
                is_served=name in served,
                running=running.count(name),
                reserve=self.reserve.get(name, 0),
                is_listening=name in heard,
            )
            for name in in_force.names
        }
        if not is_repeat:
            self.seq += 1
        return ClaimCalls(self.stage.keys, self.id, in_force).claim(
            seq=self.seq,
            slots=self.slots,
            free=self.slots - len(running) if free is None else free,
            seats=seats,
            outcomes=outcomes,
            is_repeat=is_repeat,
            is_look=is_look,
            fence_floor=fence_floor,
        )

    def claim(self, **options: Any) -> ClaimReply:
        """Claim, and keep what it brought."""
        reply = self.stage.run(self.call(**options))
        assert reply is not None, "the lanes have changed"
        for end in options.get("outcomes", ()):
            self.held.pop(end.id, None)
        self.held.update({job.id: job for job in reply.jobs})
        return reply

    def take(self, **options: Any) -> list[str]:
        """Claim, and return the ids in the order of the reply."""
        return [job.id for job in self.claim(**options).jobs]

    def ended(self, job_id: str, kind: str = "succeeded", **options: Any) -> Ended:
        """Return what this worker reports of a job that it holds."""
        job = self.held[job_id]
        if kind == "succeeded":
            options.setdefault("body", b"\xc0")
        return Ended(job.lane, job.id, job.fence, kind, **options)

    def finish(self, job_id: str, kind: str = "succeeded", **options: Any) -> ClaimReply:
        """Report one outcome without asking for more work."""
        return self.claim(free=0, outcomes=[self.ended(job_id, kind, **options)])


def new(
    job_id: str, *, lane: str = "normal", when: str = "", task: str = "t", **options: Any
) -> NewJob:
    """Return a job about to be stored; further options are those of its record's head."""
    boost = options.get("boost_us", 0)
    if boost and not when:
        when = f"-{boost}"
    return NewJob(
        lane, job_id, encode_record(task, b"payload of " + job_id.encode(), **options), when
    )
