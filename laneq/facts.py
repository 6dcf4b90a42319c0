"""What a namespace looks like at one moment, as `laneq.doctor` and `laneq.why` judge it.

Everything is read in bounded calls: the present and the counts of all lanes in one, a histogram
for each lane, the live workers, the counts of tasks, and what the server says of itself. What a
server forbids to ask is noted, and is no error.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from laneq import histogram
from laneq.calls import stats
from laneq.calls import workers as worker_calls
from laneq.calls.lanes import LanesInForce, read_lanes
from laneq.calls.stats import Depths, Spread
from laneq.drive import SyncDriver
from laneq.errors import RedisRefused
from laneq.health import serves
from laneq.keys import Keys
from laneq.model import WorkerView
from laneq.precedence import Rule

#: Seconds over which is measured unless told otherwise.
WINDOW_S: Final = 300

#: Round trips whose median says how slow the server is.
_PINGS: Final = 9

#: Tasks with a limit of their own whose parked jobs are counted.
_MOST_CAPPED: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneFacts:
    """One lane. Times are seconds; None where nothing was measured, or nothing is limited.

    Attributes:
        rule: its place among the others.
        paused: whether an operator has paused it.
        reserve: as set: slots, or ``auto``.
        reserve_slots: slots of the fleet that are kept for it now.
        kept: slots that single workers keep for it.
        slots: of live workers, those that its jobs may ever start on.
        workers: live workers that have such a slot.
        max_running, max_depth: its limits.
        starts_per_s: starts that its `rate` allows.
        slo_s: its wait objective.
        dead_max: dead letters that are kept.
        waiting, scheduled, running, dead_letters: jobs, now.
        oldest_wait_s: how long the first waiting job has waited.
        measured_s: over how long the five that follow were counted.
        arrived, started, ended, died, lost: jobs that arrived, attempts that started, jobs that
            succeeded or died, jobs that died, leases that expired.
        jobs: jobs whose wait and run time were measured.
        wait_p99_s, run_p50_s, run_p99_s, run_s: of these; `run_s` is the mean.
    """

    name: str
    rule: Rule
    paused: bool = False
    reserve: int | str = 0
    reserve_slots: int = 0
    kept: int = 0
    slots: int = 0
    workers: int = 0
    max_running: int | None = None
    max_depth: int | None = None
    starts_per_s: float | None = None
    slo_s: float | None = None
    dead_max: int = 10_000
    waiting: int = 0
    scheduled: int = 0
    running: int = 0
    dead_letters: int = 0
    oldest_wait_s: float | None = None
    measured_s: float | None = None
    arrived: int = 0
    started: int = 0
    ended: int = 0
    died: int = 0
    lost: int = 0
    jobs: int = 0
    wait_p99_s: float | None = None
    run_p50_s: float | None = None
    run_p99_s: float | None = None
    run_s: float | None = None

    @property
    def sure_slots(self) -> int:
        """Return the slots that no other lane can take from it."""
        return max(self.reserve_slots, self.kept)

    @property
    def arrivals_per_s(self) -> float | None:
        """Return its arrivals per second."""
        return self._per_s(self.arrived)

    @property
    def started_per_s(self) -> float | None:
        """Return its starts per second."""
        return self._per_s(self.started)

    @property
    def ended_per_s(self) -> float | None:
        """Return its completions per second."""
        return self._per_s(self.ended)

    def _per_s(self, count: int) -> float | None:
        return None if not self.measured_s else count / self.measured_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """One task.

    Attributes:
        open: its jobs that have not ended.
        workers: live workers that know it.
        max_running: its own limit; None for none.
        parked: its jobs that step aside since it is at that limit.
    """

    name: str
    open: int = 0
    workers: int = 0
    max_running: int | None = None
    parked: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What the server says of itself; None for what it did not say.

    Attributes:
        policy: ``maxmemory-policy``.
        max_bytes: ``maxmemory``; 0 for no limit.
        used_bytes, machine_bytes: memory that it uses, and that its machine has.
        evicted: keys that it dropped for want of memory since it started.
        has_log: whether it appends each write to a log.
        save: when it takes snapshots; empty for never.
        log_failed, snapshot_failed: whether the last write of either did.
        round_trip_s: median of some pings.
        unchecked: what could not be asked → the server's word.
    """

    policy: str | None = None
    max_bytes: int | None = None
    used_bytes: int | None = None
    machine_bytes: int | None = None
    evicted: int | None = None
    has_log: bool | None = None
    save: str | None = None
    log_failed: bool = False
    snapshot_failed: bool = False
    round_trip_s: float | None = None
    unchecked: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A namespace at one moment, and the server that it is on.

    Attributes:
        lanes: most urgent first.
        window_s: over about how long was measured.
    """

    namespace: str
    lanes: tuple[LaneFacts, ...]
    workers: tuple[WorkerView, ...] = ()
    tasks: tuple[TaskFacts, ...] = ()
    server: ServerFacts = ServerFacts()
    window_s: float = WINDOW_S

    @property
    def slots(self) -> int:
        """Return the slots of all live workers that work."""
        return sum(worker.slots for worker in self.workers if not worker.unwell)

    @property
    def free(self) -> int:
        """Return the slots that run nothing now."""
        return max(0, self.slots - sum(lane.running for lane in self.lanes))


# --- read -------------------------------------------------------------------


def usable_slots(worker: WorkerView, lane: str) -> int:
    """Return the slots of a worker that the lane's jobs may ever start on."""
    if not serves(worker, lane):
        return 0
    return worker.slots - sum(n for other, n in worker.reserve.items() if other != lane)


def read_facts(driver: SyncDriver, keys: Keys, *, window_s: int = WINDOW_S) -> Facts:
    """Read what there is to know of a namespace and its server.

    Raises:
        StoreError: Redis is away, or refuses more than to speak of itself.

    Redis: lanes, depths, workers, task_counts; spread for each lane; CONFIG GET, INFO, PING.
    """
    lanes = driver.call(read_lanes(keys))
    alive = driver.call(worker_calls.list_workers(keys))
    return Facts(
        namespace=keys.namespace,
        lanes=read_lane_facts(driver, keys, lanes=lanes, workers=alive, window_s=window_s),
        workers=tuple(alive),
        tasks=_tasks(driver, keys, alive),
        server=_server(driver),
        window_s=window_s,
    )


def read_lane_facts(
    driver: SyncDriver,
    keys: Keys,
    *,
    lanes: LanesInForce,
    workers: Sequence[WorkerView],
    window_s: int = WINDOW_S,
) -> tuple[LaneFacts, ...]:
    """Read what there is to know of all lanes, most urgent first."""
    depths = driver.call(stats.depths(keys, lanes.names, window_s=window_s))
    found = []
    for rule, depth in zip(lanes.rules(), depths, strict=True):
        call = stats.spread(keys, rule.lane, now_us=depth.now_us, window_s=window_s)
        found.append(_lane(lanes, rule, depth, measured=driver.call(call), workers=workers))
    return tuple(found)


def _lane(
    lanes: LanesInForce,
    rule: Rule,
    depth: Depths,
    *,
    measured: Spread,
    workers: Sequence[WorkerView],
) -> LaneFacts:
    lane = lanes.lane(rule.lane)
    slo_us = lanes.wire(lane.name).get("slo_us")
    working = [worker for worker in workers if not worker.unwell]
    slots = [usable_slots(worker, lane.name) for worker in working]
    head_us = depth.head_ready_us
    run_us = stats.mean_us(measured["r"])
    return LaneFacts(
        name=lane.name,
        rule=rule,
        paused=lane.is_paused,
        reserve=lane.reserve,
        reserve_slots=lane.reserve_slots,
        kept=sum(worker.reserve.get(lane.name, 0) for worker in working),
        slots=sum(slots),
        workers=sum(n > 0 for n in slots),
        max_running=lane.max_running if lane.max_running >= 0 else None,
        max_depth=lane.max_depth if lane.max_depth >= 0 else None,
        starts_per_s=1e6 / lane.start_every_us if lane.start_every_us > 0 else None,
        slo_s=None if slo_us is None else slo_us / 1e6,
        dead_max=lane.dead_max,
        waiting=depth.waiting,
        scheduled=depth.scheduled,
        running=depth.running,
        dead_letters=depth.dead_letters,
        oldest_wait_s=None if head_us is None else max(depth.now_us - head_us, 0) / 1e6,
        jobs=sum(measured["w"].values()),
        wait_p99_s=_seconds(histogram.percentile(measured["w"], 0.99)),
        run_p50_s=_seconds(histogram.percentile(measured["r"], 0.5)),
        run_p99_s=_seconds(histogram.percentile(measured["r"], 0.99)),
        run_s=_seconds(run_us),
        **_since(depth),
    )


def _seconds(us: float | None) -> float | None:
    return None if us is None else us / 1e6


def _since(depth: Depths) -> dict[str, Any]:
    """Return how the counts have changed since the lane's oldest note of the window."""
    if depth.past is None:
        return {}
    at_us, *noted = depth.past
    events = ("enqueued", "started", "succeeded", "dead", "inverted", "overtaken", "lost_leases")
    # A note of an older worker says less.
    then = dict(zip(events, noted, strict=False))

    def change(event: str) -> int:
        now = depth.counts.get(event, 0)
        return max(0, now - then.get(event, now))

    return {
        "measured_s": max((depth.now_us - at_us) / 1e6, 1.0),
        "arrived": change("enqueued"),
        "started": change("started"),
        "ended": change("succeeded") + change("dead"),
        "died": change("dead"),
        "lost": change("lost_leases"),
    }


_ENDS: Final = ("succeeded", "dead", "cancelled", "expired", "purged")


def _tasks(driver: SyncDriver, keys: Keys, alive: Sequence[WorkerView]) -> tuple[TaskFacts, ...]:
    capped = _capped(driver, keys)
    found = []
    for name, counts in driver.call(stats.task_counts(keys)).items():
        open_ = counts.get("enqueued", 0) - sum(counts.get(event, 0) for event in _ENDS)
        most = capped.get(name)
        found.append(
            TaskFacts(
                name=name,
                open=max(0, open_),
                workers=sum(name in worker.tasks for worker in alive),
                max_running=most,
                parked=0 if most is None else _parked(driver, keys, name),
            )
        )
    return tuple(sorted(found, key=lambda task: task.name))


def _capped(driver: SyncDriver, keys: Keys) -> dict[str, int]:
    """Return task → its own `max_running`, of the first tasks that have one."""
    text = driver.command("HGET", keys.state, "capped")
    caps: dict[str, int] = json.loads(text) if text else {}
    return {name: most for name, most in sorted(caps.items())[:_MOST_CAPPED] if most >= 0}


def _parked(driver: SyncDriver, keys: Keys, task: str) -> int:
    return int(driver.command("ZLEXCOUNT", keys.parked, f"[{task}\t", f"({task}\n"))


# --- the server -------------------------------------------------------------

_SETTINGS: Final = ("maxmemory-policy", "maxmemory", "save", "appendonly")


def _server(driver: SyncDriver) -> ServerFacts:
    unchecked: list[tuple[str, str]] = []
    settings: Mapping[str, str] = {}
    info: Mapping[str, str] = {}
    try:
        settings = _pairs(driver.command("CONFIG", "GET", *_SETTINGS))
    except RedisRefused as error:
        unchecked.append(("CONFIG GET", error.word))
    try:
        info = _fields(driver.command("INFO"))
    except RedisRefused as error:
        unchecked.append(("INFO", error.word))
    return server_facts(
        settings, info, round_trip_s=_round_trip_s(driver), unchecked=tuple(unchecked)
    )


def server_facts(
    settings: Mapping[str, str],
    info: Mapping[str, str],
    *,
    round_trip_s: float | None = None,
    unchecked: tuple[tuple[str, str], ...] = (),
) -> ServerFacts:
    """Put together what CONFIG GET and INFO said; INFO also tells some of the settings."""
    log = settings.get("appendonly") or {"0": "no", "1": "yes"}.get(info.get("aof_enabled", ""))
    return ServerFacts(
        policy=settings.get("maxmemory-policy") or info.get("maxmemory_policy"),
        max_bytes=_whole(settings.get("maxmemory") or info.get("maxmemory")),
        used_bytes=_whole(info.get("used_memory")),
        machine_bytes=_whole(info.get("total_system_memory")),
        evicted=_whole(info.get("evicted_keys")),
        has_log=None if log is None else log == "yes",
        save=settings.get("save"),
        log_failed=info.get("aof_last_write_status", "ok") != "ok",
        snapshot_failed=info.get("rdb_last_bgsave_status", "ok") != "ok",
        round_trip_s=round_trip_s,
        unchecked=unchecked,
    )


def _round_trip_s(driver: SyncDriver) -> float:
    took = []
    for _ in range(_PINGS):
        began = time.monotonic()
        driver.command("PING")
        took.append(time.monotonic() - began)
    return statistics.median(took)


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def _pairs(reply: Any) -> dict[str, str]:
    pairs: Iterable[tuple[bytes, bytes]]
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {name.decode().lower(): value.decode() for name, value in pairs}


def _fields(reply: Any) -> dict[str, str]:
    """Read INFO, which a client may have read already."""
    if isinstance(reply, dict):
        return {str(name): str(value) for name, value in reply.items()}
    lines = reply.decode(errors="replace").splitlines()
    found = (line.partition(":") for line in lines if ":" in line and not line.startswith("#"))
    return {name: value for name, _, value in found}
