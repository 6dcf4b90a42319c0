"""Made-up namespaces: one that does well, and ten in which something is wrong.

`docs/doctor.md` shows what ``laneq doctor`` and ``laneq jobs why`` print of the ten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from laneq.calls.jobs import JobPlace, LaneBeside
from laneq.facts import Facts, LaneFacts, ServerFacts, TaskFacts
from laneq.model import JobView, RemoteError, State, WorkerView
from laneq.precedence import Rule

NOW: Final = 1_800_000_000.0
MIB: Final = 2**20

#: A server that has nothing to complain of.
GOOD: Final = ServerFacts(
    policy="noeviction",
    max_bytes=1024 * MIB,
    used_bytes=200 * MIB,
    machine_bytes=4096 * MIB,
    evicted=0,
    has_log=True,
    save="3600 1",
    round_trip_s=0.000_2,
)


def lane(name: str, priority: float, **changes: Any) -> LaneFacts:
    """Return a lane that was measured for five minutes; settings of its rule go there too."""
    reserve = changes.get("reserve", 0)
    rule = Rule(name, priority, 2, 800, reserve, changes.get("max_running"))
    given = {
        "slots": 10,
        "workers": 2,
        "measured_s": 300.0,
        "reserve_slots": reserve if isinstance(reserve, int) else 0,
        "rule": rule,
        **changes,
    }
    return LaneFacts(name=name, **given)


def urgent(**changes: Any) -> LaneFacts:
    """Return the lane of short jobs that somebody waits for: 30 a second of 20 ms."""
    given = {
        "reserve": 3, "arrived": 9000, "started": 9000, "ended": 9000, "jobs": 9000,
        "wait_p99_s": 0.008, "run_p50_s": 0.02, "run_p99_s": 0.021, "run_s": 0.02, "slo_s": 0.05,
        "running": 1,
        **changes,
    }  # fmt: skip
    return lane("urgent", 1000, **given)


def batch(**changes: Any) -> LaneFacts:
    """Return the lane of a backlog: 30 a second of 200 ms."""
    given = {
        "reserve": 1, "arrived": 9000, "started": 9000, "ended": 9000, "jobs": 9000,
        "wait_p99_s": 0.9, "run_p50_s": 0.2, "run_p99_s": 0.3, "run_s": 0.2,
        "waiting": 4, "running": 6, "oldest_wait_s": 0.15,
        **changes,
    }  # fmt: skip
    return lane("batch", 10, **given)


def worker(name: str = "a", **changes: Any) -> WorkerView:
    """Return a live worker with five slots for both lanes."""
    given: dict[str, Any] = {
        "id": f"worker-{name}", "name": name, "host": f"host-{name}", "pid": 100, "slots": 5,
        "reserve": {}, "running": 3, "lanes": ("urgent", "batch"),
        "tasks": ("shop.charge", "shop.reindex"), "started_at": NOW - 3600,
        "last_heartbeat_at": NOW - 2,
        **changes,
    }  # fmt: skip
    return WorkerView(**given)


TASKS: Final = (
    TaskFacts(name="shop.charge", open=1, workers=2),
    TaskFacts(name="shop.reindex", open=10, workers=2),
)


def facts(
    *lanes: LaneFacts,
    workers: Sequence[WorkerView] | None = None,
    tasks: Sequence[TaskFacts] = TASKS,
    server: ServerFacts = GOOD,
) -> Facts:
    """Return a namespace with these lanes, the healthy ones where none is given."""
    return Facts(
        namespace="shop",
        lanes=lanes or (urgent(), batch()),
        workers=tuple((worker("a"), worker("b")) if workers is None else workers),
        tasks=tuple(tasks),
        server=server,
    )


def job(lane_: str = "batch", state: State = State.WAITING, **changes: Any) -> JobView:
    """Return a job of a lane."""
    given: dict[str, Any] = {
        "id": f"{lane_}-7", "task": "shop.charge" if lane_ == "urgent" else "shop.reindex",
        "lane": lane_, "state": state, "args": (), "kwargs": {}, "attempt": 0, "max_attempts": 3,
        "enqueued_at": NOW - 40, "ready_at": NOW - 40,
        **changes,
    }  # fmt: skip
    return JobView(**given)


def place(
    of: JobView, lanes: Sequence[LaneFacts], *, waited_s: float = 40.0, **changes: Any
) -> JobPlace:
    """Return where a job stands beside these lanes; heads have waited as long as the oldest."""
    now_us = int(NOW * 1e6)
    beside = {
        one.name: LaneBeside(
            one.waiting,
            one.running,
            None if not one.waiting else now_us - int((one.oldest_wait_s or 0.0) * 1e6),
        )
        for one in lanes
    }
    beside |= changes.pop("beside", {})
    given: dict[str, Any] = {
        "now_us": now_us,
        "place": "none" if of.state.is_final else of.state.value,
        "lane": of.lane,
        "ahead": 0,
        "score_us": now_us - int(waited_s * 1e6),
        "lease_ends_us": None,
        "task": of.task,
        "task_most": None,
        "task_running": 0,
        "task_parked": 0,
        "is_parked": False,
        "parked_before": None,
        "lanes": beside,
        **changes,
    }
    return JobPlace(**given)


@dataclass(frozen=True, slots=True)
class Situation:
    """A namespace, and a job of it.

    Attributes:
        title, story: for people.
        expected: findings that `laneq doctor` must have among its own, worst first.
        holds: kinds that `laneq jobs why` must give, in its order.
    """

    title: str
    story: str
    facts: Facts
    job: JobView
    place: JobPlace
    expected: tuple[str, ...]
    holds: tuple[str, ...] = ()


def _made(
    title: str, story: str, found: Facts, of: JobView, expected: str, holds: str = "", **at: Any
) -> Situation:
    return Situation(
        title,
        story,
        found,
        of,
        place(of, found.lanes, **at),
        tuple(expected.split()),
        tuple(holds.split()),
    )


def _busy(*names: str) -> list[WorkerView]:
    return [worker(name, running=5) for name in names]


def _us(seconds: float) -> int:
    return int((NOW + seconds) * 1e6)


def situations() -> list[Situation]:
    """Return the ten."""
    slow_urgent = {"arrived": 9000, "wait_p99_s": 0.088, "waiting": 1, "oldest_wait_s": 0.04}
    return [
        _made(
            "First in line, and late all the same",
            "Urgent jobs go first, but no slot is kept for them: each waits for a batch job.",
            facts(
                urgent(reserve=0, running=0, **slow_urgent),
                batch(running=10, waiting=2000, oldest_wait_s=41.0, arrived=9000),
                workers=_busy("a", "b"),
            ),
            job("urgent"),
            "wait_follows_others",
            "slots_busy",
            waited_s=0.04,
        ),
        _made(
            "More load than the reserve was made for",
            "150 urgent jobs a second, and two slots kept for them.",
            facts(
                urgent(
                    reserve=2, arrived=45_000, started=45_000, ended=45_000, jobs=45_000,
                    wait_p99_s=0.077, running=2, waiting=2, oldest_wait_s=0.03,
                ),
                batch(running=8, waiting=500, oldest_wait_s=15.0),
                workers=_busy("a", "b"),
            ),
            job("urgent"),
            "reserve_too_small",
            "slots_busy ahead",
            waited_s=0.02,
            ahead=1,
        ),
        _made(
            "A pool that is too small",
            "Urgent jobs alone keep all ten slots busy; no batch job has been completed for long.",
            facts(
                urgent(
                    arrived=165_000, started=150_000, ended=150_000, jobs=150_000, wait_p99_s=1.2,
                    run_s=0.02, running=10, waiting=180, oldest_wait_s=1.2, reserve=3,
                ),
                batch(
                    reserve=0, arrived=12, started=0, ended=0, jobs=0, run_s=None, run_p50_s=None,
                    run_p99_s=None, wait_p99_s=None, running=0, waiting=40, oldest_wait_s=1800.0,
                ),
                workers=_busy("a", "b"),
            ),
            job("batch"),
            "pool_too_small can_starve",
            "slots_busy higher_lanes",
            waited_s=1800.0,
        ),
        _made(
            "A reserve that idles",
            "Eight of ten slots are kept for an urgent lane with one job a second.",
            facts(
                urgent(reserve=8, arrived=300, started=300, ended=300, jobs=300, running=0,
                       wait_p99_s=0.001),
                batch(running=2, waiting=900, oldest_wait_s=90.0, arrived=3000, started=3000,
                      ended=2950),
                workers=[worker("a", running=1), worker("b", running=1)],
            ),
            job("batch"),
            "reserve_too_large",
            "fleet_reserve ahead",
            ahead=399,
            beside={
                "urgent": LaneBeside(0, 0, None, slots=10, free=8),
                "batch": LaneBeside(900, 2, _us(-90), slots=10, free=8),
            },
        ),
        _made(
            "A lane that nobody serves",
            "The workers were started with --lanes urgent.",
            facts(
                urgent(),
                batch(workers=0, slots=0, arrived=12, started=0, ended=0, jobs=0, run_s=None,
                      running=0, waiting=12, oldest_wait_s=700.0),
                workers=[worker("a", lanes=("urgent",)), worker("b", lanes=("urgent",))],
            ),
            job("batch"),
            "unserved_lane",
            "unserved_lane ahead",
            ahead=3,
        ),
        _made(
            "A task that no worker knows",
            "A producer was deployed before the workers.",
            facts(tasks=(*TASKS, TaskFacts(name="shop.invoice", open=31))),
            job("batch", task="shop.invoice"),
            "unknown_task",
            "unknown_task",
            waited_s=0.1,
        ),
        _made(
            "A lane that was paused, and forgotten",
            "Somebody ran laneq lanes pause batch yesterday.",
            facts(
                urgent(),
                batch(paused=True, running=0, started=0, ended=0, jobs=0, waiting=86_000,
                      oldest_wait_s=60_000.0),
            ),
            job("batch"),
            "paused",
            "paused ahead",
            ahead=85_990,
        ),
        _made(
            "A rate that is lower than the arrivals",
            "The lane calls an API that takes 20 requests a second, and gets 30.",
            facts(
                urgent(),
                batch(starts_per_s=20.0, started=6000, ended=6000, jobs=6000, running=4,
                      waiting=3000, oldest_wait_s=150.0),
            ),
            job("batch"),
            "rate_holds",
            "rate ahead",
            ahead=400,
            beside={"batch": LaneBeside(3000, 4, _us(-150), next_start_us=_us(0.12))},
        ),
        _made(
            "A task at its own limit",
            "Two jobs of shop.reindex may run at a time; others of the lane go on.",
            facts(
                tasks=(
                    TASKS[0],
                    TaskFacts(name="shop.reindex", open=44, workers=2, max_running=2, parked=42),
                ),
            ),
            job("batch", State.SCHEDULED),
            "task_limit_holds",
            "task_max_running",
            task_most=2, task_running=2, task_parked=42, is_parked=True, parked_before=9,
        ),
        _made(
            "Workers that die, on a server that loses jobs",
            "Hosts are killed for want of memory; Redis persists nothing and evicts.",
            facts(
                urgent(),
                batch(lost=140, died=160),
                workers=[worker("a")],
                server=replace(
                    GOOD, policy="allkeys-lru", used_bytes=990 * MIB, evicted=1204, has_log=False,
                    save="", round_trip_s=0.031,
                ),
            ),
            job("batch", State.RUNNING, attempt=2, worker="worker-b", started_at=NOW - 9),
            "eviction_policy evicted memory_short no_persistence leases_expire dead_letters_grow "
            "slow_redis",
            lease_ends_us=_us(6.0),
        ),
    ]  # fmt: skip


#: A job that died, for tests.
DEAD: Final = job(
    "urgent", State.DEAD, attempt=3, ended_at=NOW - 60, error=RemoteError("ValueError", "no card")
)
