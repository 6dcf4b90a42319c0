"""Statistics: the present of every lane, its counts, its rates and its histograms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from laneq import histogram
from laneq.calls.call import Call
from laneq.calls.lanes import LanesInForce
from laneq.keys import COARSE_US, FINE_US, Keys
from laneq.model import EVENTS, LaneView, Percentiles
from laneq.scripts import load
from laneq.sizing import reserve_for

Reply = list[Any]

#: Windows over which percentiles are offered, in seconds.
WINDOWS_S: Final = (60, 300, 3600)

#: The longest window that is read from the fine slices, in seconds.
_FINE_WINDOW_S: Final = 300


@dataclass(frozen=True, slots=True)
class Depths:
    """A lane's present and counts, and its counts as noted `window` ago.

    Attributes:
        head_ready_us: when the first job that waits became ready, None when none waits.
        past: instant in µs and counts (enqueued, started, succeeded, dead, inverted,
            overtaken, lost_leases) of the oldest note within the window; None without one.
            Older workers note less.
    """

    now_us: int
    waiting: int
    scheduled: int
    running: int
    dead_letters: int
    head_ready_us: int | None
    counts: dict[str, int]
    past: tuple[int, ...] | None


def _pairs(flat: Sequence[Any]) -> dict[str, int]:
    return {flat[i].decode(): int(flat[i + 1]) for i in range(0, len(flat), 2)}


def depths(keys: Keys, lanes: Sequence[str], *, window_s: float = 60) -> Call[list[Depths]]:
    """Read the present and the counts of lanes, in their order."""
    script = load("depths")

    def read(reply: Reply) -> list[Depths]:
        now_us = int(reply[1])
        return [
            Depths(
                now_us=now_us,
                waiting=row[0],
                scheduled=row[1],
                running=row[2],
                dead_letters=row[3],
                head_ready_us=int(row[4]) if row[4] else None,
                counts=_pairs(row[5]),
                past=tuple(int(word) for word in row[6].split()) if row[6] else None,
            )
            for row in reply[2:]
        ]

    return Call(
        script,
        script.bind_keys(keys, lanes),
        script.bind_args({"window": int(window_s * 1e6)}),
        read,
    )


Spread = dict[str, dict[int, int]]


def spread(keys: Keys, lane: str, *, now_us: int, window_s: int) -> Call[Spread]:
    """Read a lane's histograms over about the last `window_s` seconds.

    The value has a bucket → count map for each of ``w`` (wait), ``r`` (run) and
    ``l`` (latency). Slices are of 10 s up to 5 min, of 1 min beyond.
    """
    script = load("spread")
    slices: Iterable[bytes]
    if window_s <= _FINE_WINDOW_S:
        slices = (
            keys.fine(lane, now_us - back * FINE_US)
            for back in range(window_s * 1_000_000 // FINE_US + 1)
        )
    else:
        slices = (
            keys.coarse(lane, now_us - back * COARSE_US)
            for back in range(window_s * 1_000_000 // COARSE_US + 1)
        )

    def read(reply: Reply) -> Spread:
        out: Spread = {"w": {}, "r": {}, "l": {}}
        for i in range(1, len(reply), 2):
            name = reply[i].decode()
            if name[:1] in out and name[1:].isdecimal():  # a newer worker may measure more
                out[name[0]][int(name[1:])] = int(reply[i + 1])
        return out

    return Call(script, tuple(slices), (), read)


def _percentiles(buckets: dict[int, int]) -> Percentiles:
    p50, p99 = histogram.percentile(buckets, 0.5), histogram.percentile(buckets, 0.99)
    return Percentiles(
        None if p50 is None else round(p50 / 1e3, 3),
        None if p99 is None else round(p99 / 1e3, 3),
    )


def mean_us(buckets: dict[int, int]) -> float | None:
    """Return the mean of a histogram in µs; None where it is empty."""
    total = sum(buckets.values())
    if not total:
        return None
    return sum(histogram.value_of(bucket) * n for bucket, n in buckets.items()) / total


def lane_view(lanes: LanesInForce, name: str, depth: Depths, measured: Spread) -> LaneView:
    """Put together what an operator sees of a lane."""
    lane = lanes.lane(name)
    counts = {event: depth.counts.get(event, 0) for event in EVENTS}
    arrivals = completions = adherence = overtaken_share = None
    started, inverted = counts["started"], depth.counts.get("inverted", 0)
    overtaken = depth.counts.get("overtaken", 0)
    if depth.past is not None:
        at_us, enqueued, past_started, succeeded, dead, past_inverted, *more = depth.past
        elapsed_s = max((depth.now_us - at_us) / 1e6, 1.0)
        arrivals = max(counts["enqueued"] - enqueued, 0) / elapsed_s
        ended = counts["succeeded"] + counts["dead"] - succeeded - dead
        completions = max(ended, 0) / elapsed_s
        if started > past_started:
            started, inverted = started - past_started, inverted - past_inverted
            overtaken -= more[0] if more else overtaken
    if started > 0:
        adherence = round(1 - inverted / started, 4)
        overtaken_share = round(overtaken / started, 4)
    run_us = mean_us(measured["r"])
    recommended = None
    if arrivals is not None and run_us is not None and arrivals > 0:
        recommended = reserve_for(arrivals, run_us / 1e6)
    oldest = None
    if depth.head_ready_us is not None:
        oldest = max((depth.now_us - depth.head_ready_us) / 1e6, 0.0)
    return LaneView(
        name=name,
        priority=lane.priority,
        depth=depth.waiting,
        scheduled=depth.scheduled,
        running=depth.running,
        oldest_wait_s=oldest,
        wait_ms=_percentiles(measured["w"]),
        run_ms=_percentiles(measured["r"]),
        latency_ms=_percentiles(measured["l"]),
        arrivals_per_s=None if arrivals is None else round(arrivals, 3),
        completions_per_s=None if completions is None else round(completions, 3),
        reserve=lane.reserve_slots,
        reserve_recommended=recommended,
        priority_adherence=adherence,
        overtaken_share=overtaken_share,
        paused=lane.is_paused,
        dead=depth.dead_letters,
        counts={
            **counts,
            "waiting": depth.waiting,
            "scheduled": depth.scheduled,
            "running": depth.running,
        },
    )


def task_counts(keys: Keys) -> Call[dict[str, dict[str, int]]]:
    """Read the event counts of every task."""
    script = load("task_counts")

    def read(reply: Reply) -> dict[str, dict[str, int]]:
        out: dict[str, dict[str, int]] = {}
        for field, n in _pairs(reply[1]).items():
            task, _, event = field.rpartition("\t")
            out.setdefault(task, {})[event] = n
        return out

    return Call(script, script.bind_keys(keys), (), read)
