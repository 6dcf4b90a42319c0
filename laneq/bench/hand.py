"""A worker without jobs: enqueue, claim and end through the calls that a worker makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from laneq import codec, ids
from laneq.bench.rig import Space
from laneq.calls.jobs import BATCH, NewJob, enqueue
from laneq.calls.lanes import PublishedTask, publish, read_lanes
from laneq.calls.workers import ClaimCalls, Claimed, Ended, Seats
from laneq.errors import ConfigError
from laneq.options import DEFAULT_LANES

_TASK: Final = "bench.plain"
_LANE: Final = "normal"
_PAYLOAD: Final = codec.encode_call((12345, "user@example.com"), {})


class Hand:
    """Enqueues jobs of ``(12345, "user@example.com")``, claims them and ends them.

    Args:
        space: the namespace.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        space.driver.call(
            publish(
                space.keys,
                lanes=[(lane.name, lane.to_wire()) for lane in DEFAULT_LANES],
                tasks={_TASK: PublishedTask(_LANE, 3, 2, 1_000_000, 600_000_000)},
            )
        )
        lanes = space.driver.call(read_lanes(space.keys))
        self._calls = ClaimCalls(space.keys, ids.worker_id(), lanes)
        self._seq = 0

    def enqueue(self, count: int) -> None:
        """Enqueue so many jobs."""
        record = codec.encode_record(_TASK, _PAYLOAD)
        for first in range(0, count, BATCH):
            new = [NewJob(_LANE, an_id, record) for an_id in ids.new_ids(min(BATCH, count - first))]
            self._space.driver.call(enqueue(self._space.keys, new))

    def claim(
        self, free: int, *, ended: Sequence[Claimed] = (), keep_us: int = 0, running: int = 0
    ) -> list[Claimed]:
        """Report some jobs as succeeded and claim others, in one call.

        Args:
            free: how many to claim at most.
            ended: those that succeeded.
            keep_us: how long their results are kept.
            running: how many of the lane this hand holds.
        """
        self._seq += 1
        body = codec.encode_value(1) if keep_us else b""
        outcomes = [Ended(job.lane, job.id, job.fence, "succeeded", keep_us, body) for job in ended]
        seats = {_LANE: Seats(is_served=True, running=running)}
        reply = self._space.driver.call(
            self._calls.claim(
                seq=self._seq, slots=free + running, free=free, seats=seats, outcomes=outcomes
            )
        )
        if reply is None:
            raise ConfigError("the lanes of the benchmark's namespace were changed under it")
        return reply.jobs
