"""A worker without jobs: enqueue, claim and end through the calls that a worker makes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle, islice, repeat
from typing import Final

from laneq import codec, ids
from laneq.bench.rig import Space
from laneq.calls.jobs import BATCH, NewJob, enqueue
from laneq.calls.lanes import PublishedTask, publish, read_lanes
from laneq.calls.workers import ClaimCalls, Claimed, Ended, Seats
from laneq.errors import ConfigError
from laneq.options import DEFAULT_LANES, Lane

_TASK: Final = "bench.plain"
_LANE: Final = "normal"
_PAYLOAD: Final = codec.encode_call((12345, "user@example.com"), {})


class Hand:
    """Enqueues jobs of ``(12345, "user@example.com")``, claims them and ends them.

    Args:
        space: the namespace.
        lanes: its lanes. Jobs of a fair one are of each key in turn that has a weight.
        serves: those that it takes jobs of.
    """

    def __init__(
        self,
        space: Space,
        *,
        lanes: Sequence[Lane] = DEFAULT_LANES,
        serves: Sequence[str] = (_LANE,),
    ) -> None:
        """Publish the lanes."""
        self._space = space
        self._lane = serves[0]
        space.driver.call(
            publish(
                space.keys,
                lanes=[(lane.name, lane.to_wire()) for lane in lanes],
                tasks={_TASK: PublishedTask(self._lane, 3, 2, 1_000_000, 600_000_000)},
            )
        )
        in_force = space.driver.call(read_lanes(space.keys))
        self._calls = ClaimCalls(space.keys, ids.worker_id(), in_force)
        self._seats = {name: Seats(is_served=True) for name in serves}
        self._records = {lane.name: _records(lane) for lane in lanes}
        self._seq = 0

    def enqueue(self, count: int) -> None:
        """Enqueue so many jobs into the first lane that it serves."""
        self.enqueue_into(repeat(self._lane, count))

    def enqueue_into(self, lanes: Iterable[str]) -> None:
        """Enqueue a job into each of these lanes, in this order; a lane may come often."""
        ahead = iter(lanes)
        while some := list(islice(ahead, BATCH)):
            new = [
                NewJob(lane, an_id, next(self._records[lane]))
                for lane, an_id in zip(some, ids.new_ids(len(some)), strict=True)
            ]
            self._space.driver.call(enqueue(self._space.keys, new))

    def claim(
        self, free: int, *, ended: Sequence[Claimed] = (), keep_us: int = 0, running: int = 0
    ) -> list[Claimed]:
        """Report some jobs as succeeded and claim others, in one call.

        Args:
            free: how many to claim at most.
            ended: those that succeeded.
            keep_us: how long their results are kept.
            running: how many this hand goes on to hold.
        """
        self._seq += 1
        body = codec.encode_value(1) if keep_us else b""
        outcomes = [Ended(job.lane, job.id, job.fence, "succeeded", keep_us, body) for job in ended]
        reply = self._space.driver.call(
            self._calls.claim(
                seq=self._seq, slots=free + running, free=free, seats=self._seats, outcomes=outcomes
            )
        )
        if reply is None:
            raise ConfigError("the lanes of the benchmark's namespace were changed under it")
        return reply.jobs


def _records(lane: Lane) -> Iterator[bytes]:
    """Return the records of a lane's jobs in turn, for ever."""
    keys: Iterable[str | None] = [None]
    if lane.fair_by is not None:
        keys = lane.fair_weights or [""]
    return cycle([codec.encode_record(_TASK, _PAYLOAD, fair_key=key) for key in keys])
