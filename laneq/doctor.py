"""Diagnose a namespace: what is wrong, by which figures, why that matters, and what mends it.

Each rule is a small pure function of `Facts`; `diagnose` asks them all and puts the worst first.
A rule speaks up only where its figures say so: a pool that does well has no finding at all, save
those that tell of how it is set up (`can_starve`, say), which are of severity ``info``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from laneq.facts import Facts, LaneFacts
from laneq.precedence import Starvation, starvation
from laneq.sizing import reserve_for, servers_for_wait
from laneq.wording import duration

Severity = Literal["error", "warning", "info"]

#: Worst first.
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "info")

#: Fewer measured jobs say nothing of a percentile.
_JOBS: Final = 20

#: A wait under so many seconds is none.
_NO_WAIT_S: Final = 0.02

#: A lane that has waited so long, in seconds, is not just behind for a moment.
_LONG_S: Final = 60.0

#: How long the run time of other jobs is, in own run times, where a wait can follow it.
_LONGER: Final = 3.0

#: Between which shares of the others' longest run time a wait is said to follow it.
_FOLLOWS: Final = (0.25, 2.0)

#: Share of starts that lost their lease, and of ends that died, from which on it is often.
_OFTEN: Final = 0.01
_AT_LEAST: Final = 3

#: Share of a limit from which on it is near.
_NEAR: Final = 0.8
_VERY_NEAR: Final = 0.95

#: A rate is what holds a lane back when it starts this share of what is allowed.
_AT_RATE: Final = 0.9

#: What arrives is more than what ends from this ratio on.
_MORE: Final = 1.1

#: A round trip of so many seconds is slow, and very slow.
_SLOW_S: Final = 0.005
_VERY_SLOW_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        severity: ``error``: jobs are not run, or may be lost; ``warning``: they will be, or are
            late; ``info``: good to know.
        finding: its name, as `FINDINGS` lists it.
        lane: the lane that it is about; None for none, or all.
        evidence: the figures that it was seen by; times in seconds.
        reason: what they mean.
        advice: what mends it, as a command where there is one.
    """

    severity: Severity
    finding: str
    lane: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    reason: str
    advice: str


Rule = Callable[[Facts], Iterator[Finding]]

#: Finding → in which situation it is seen.
FINDINGS: Final = {
    "no_lanes": "nothing was published in this namespace",
    "no_worker": "no live worker",
    "unserved_lane": "a lane has jobs, and no live worker serves it",
    "unknown_task": "jobs of a task that no live worker knows",
    "stuck_worker": "a worker lives but does not work",
    "jobs_left_behind": "jobs that did not end when they were told to run on beside their slots",
    "pool_too_small": "jobs wait, and nothing of the lane was completed for long",
    "backlog_grows": "more jobs arrive than are completed, and they wait for long",
    "wait_follows_others": "a lane without a reserve waits as long as other lanes' jobs run",
    "reserve_too_small": "a lane with a reserve waits longer than its jobs run",
    "reserve_too_large": "a reserve idles while other lanes wait",
    "reserves_unmet": "reserves of the fleet promise more slots than it has",
    "lane_full": "a lane is at or near its max_depth: enqueues are, or will be, refused",
    "max_running_holds": "a lane's max_running is what holds its jobs back",
    "rate_holds": "a lane's rate is what holds its jobs back",
    "task_limit_holds": "a task's max_running is what holds its jobs back",
    "paused": "a lane is paused, and has jobs waiting",
    "can_starve": "a lane whose jobs can wait for ever, by how lanes are set up",
    "leases_expire": "leases expire often: workers die, or are cut off from Redis",
    "dead_letters_grow": "jobs die often",
    "dead_letters_full": "a lane's dead letters are at or near their most: the oldest are dropped",
    "no_persistence": "Redis keeps nothing on disk",
    "snapshots_only": "Redis keeps snapshots only: a crash loses what came after the last",
    "write_failed": "Redis could not write its log or its snapshot",
    "eviction_policy": "Redis may drop jobs when memory is short",
    "evicted": "Redis has dropped keys for want of memory",
    "memory_short": "Redis is near its maxmemory, or the memory of its machine",
    "slow_redis": "round trips to Redis take long",
    "not_checked": "the server does not let this user ask",
}


def diagnose(facts: Facts) -> list[Finding]:
    """Return what is wrong, the worst first; of equal severity in the order of `RULES`."""
    found = [finding for rule in RULES for finding in rule(facts)]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


# --- who works --------------------------------------------------------------


def no_worker(facts: Facts) -> Iterator[Finding]:
    """Nobody runs anything."""
    if not facts.lanes:
        yield Finding(
            severity="error",
            finding="no_lanes",
            evidence={"lanes": 0},
            reason="nothing was published in this namespace, or all of it was lost",
            advice="start a worker, which publishes its app: laneq worker MODULE:APP",
        )
    elif not facts.workers:
        open_ = sum(lane.waiting + lane.scheduled + lane.running for lane in facts.lanes)
        yield Finding(
            severity="error" if open_ else "warning",
            finding="no_worker",
            evidence={"workers": 0, "open_jobs": open_},
            reason="no worker has sent a heartbeat of late: nothing is run",
            advice="laneq worker MODULE:APP",
        )


def unserved_lane(facts: Facts) -> Iterator[Finding]:
    """Jobs of a lane wait for workers that there are not."""
    if not facts.workers:
        return
    for lane in facts.lanes:
        if lane.workers or not lane.waiting + lane.scheduled or lane.paused:
            continue
        yield Finding(
            severity="error" if lane.waiting else "warning",
            finding="unserved_lane",
            lane=lane.name,
            evidence={
                "waiting": lane.waiting,
                "scheduled": lane.scheduled,
                "oldest_wait_s": lane.oldest_wait_s,
                "workers": len(facts.workers),
                "workers_that_serve_it": 0,
            },
            reason="each live worker leaves the lane out (--lanes), keeps all its slots for other "
            "lanes (--reserve), or does not work",
            advice=f"laneq worker MODULE:APP --lanes {lane.name}",
        )


def unknown_task(facts: Facts) -> Iterator[Finding]:
    """Jobs of a task wait for code that no worker has."""
    if not facts.workers:
        return
    for task in facts.tasks:
        if task.open and not task.workers:
            yield Finding(
                severity="error",
                finding="unknown_task",
                evidence={"task": task.name, "open_jobs": task.open, "workers": len(facts.workers)},
                reason="workers that claim such a job hand it back, again and again",
                advice="start a worker of the app that has the task, or drop its jobs: laneq jobs "
                f"--task {task.name}, then laneq jobs cancel ID",
            )


def stuck_worker(facts: Facts) -> Iterator[Finding]:
    """A worker lives but does not work, or has jobs that it cannot end."""
    for worker in facts.workers:
        place = {"worker": worker.name, "host": worker.host, "pid": worker.pid}
        if worker.unwell:
            yield Finding(
                severity="error",
                finding="stuck_worker",
                evidence={**place, "says": worker.unwell, "slots": worker.slots},
                reason="it sends heartbeats, so that its jobs are not given to others, and starts "
                "nothing",
                advice=f"look at its log, then on {worker.host}: kill {worker.pid}",
            )
        if worker.stuck:
            yield Finding(
                severity="warning",
                finding="jobs_left_behind",
                evidence={**place, "stuck": worker.stuck},
                reason="jobs that did not end at their timeout or cancel run on beside the slots, "
                "and use memory and processor",
                advice='give such tasks executor="process", which can be killed; then restart '
                "the worker",
            )


# --- work that does not come through ----------------------------------------


def pool_too_small(facts: Facts) -> Iterator[Finding]:
    """Jobs wait and none is completed for long, or fewer than arrive."""
    for lane in facts.lanes:
        if not lane.waiting or lane.paused or not lane.workers or _is_limited(lane):
            continue
        oldest_s = lane.oldest_wait_s or 0.0
        evidence = {
            "waiting": lane.waiting,
            "oldest_wait_s": lane.oldest_wait_s,
            "running": lane.running,
            "completed": max(lane.ended, lane.jobs),
            "window_s": facts.window_s,
            "slots": lane.slots,
        }
        if not max(lane.ended, lane.jobs) and oldest_s >= facts.window_s:
            others = [one.name for one in facts.lanes if one is not lane and one.jobs]
            if lane.running:
                reason = "the jobs that run have not ended in all that time, and take every slot"
            elif others:
                reason = f"the slots run {' and '.join(others)} all the time: all lanes together "
                reason += "ask for more than the pool has"
            else:
                reason = "nothing was completed in any lane: all slots are held"
            yield Finding(
                severity="warning" if lane.running else "error",
                finding="pool_too_small",
                lane=lane.name,
                evidence=evidence,
                reason=reason,
                advice="start more slots: laneq worker MODULE:APP -c N; laneq size says how many. "
                f"Until then laneq lanes set {lane.name} reserve=1 keeps one slot for it",
            )
        elif _grows(lane) and oldest_s >= _LONG_S:
            yield Finding(
                severity="warning",
                finding="backlog_grows",
                lane=lane.name,
                evidence={
                    **evidence,
                    "arrivals_per_s": _round(lane.arrivals_per_s),
                    "completions_per_s": _round(lane.ended_per_s),
                },
                reason="more jobs arrive than are completed: the wait grows for as long as that "
                "goes on",
                advice="start more slots: laneq worker MODULE:APP -c N; laneq size says how many",
            )


def _grows(lane: LaneFacts) -> bool:
    if not lane.measured_s or lane.measured_s < _LONG_S:
        return False
    return lane.arrived >= _JOBS and lane.arrived > _MORE * lane.ended


def _is_limited(lane: LaneFacts) -> bool:
    """Return whether a limit of the lane's own is what holds it back."""
    return _at_max_running(lane) or _at_rate(lane)


def _at_max_running(lane: LaneFacts) -> bool:
    return lane.max_running is not None and lane.running >= lane.max_running


def _at_rate(lane: LaneFacts) -> bool:
    if lane.starts_per_s is None or lane.started_per_s is None:
        return False
    return lane.started_per_s >= _AT_RATE * lane.starts_per_s


def lane_limits_hold(facts: Facts) -> Iterator[Finding]:
    """A limit that somebody set for a lane is what its jobs wait for."""
    for lane in facts.lanes:
        if not lane.waiting or lane.paused or not lane.workers or not _is_late(lane):
            continue
        evidence = {
            "waiting": lane.waiting,
            "oldest_wait_s": lane.oldest_wait_s,
            "arrivals_per_s": _round(lane.arrivals_per_s),
            "completions_per_s": _round(lane.ended_per_s),
        }
        severity: Severity = "warning" if _grows(lane) or _misses(lane) else "info"
        if _at_max_running(lane) and facts.free:
            yield Finding(
                severity=severity,
                finding="max_running_holds",
                lane=lane.name,
                evidence={
                    "running": lane.running,
                    "max_running": lane.max_running,
                    "free_slots": facts.free,
                    **evidence,
                },
                reason="as many of the lane run as may, while slots are free",
                advice=f"laneq lanes set {lane.name} max_running={2 * (lane.max_running or 1)}, if "
                "what it protects can bear it",
            )
        if _at_rate(lane):
            yield Finding(
                severity=severity,
                finding="rate_holds",
                lane=lane.name,
                evidence={
                    "started_per_s": _round(lane.started_per_s),
                    "rate_per_s": _round(lane.starts_per_s),
                    **evidence,
                },
                reason="the lane starts as many jobs as its rate lets it",
                advice=f"laneq lanes set {lane.name} rate={2 * (lane.starts_per_s or 0):.3g}/s, if "
                "what it protects can bear it",
            )


def task_limits_hold(facts: Facts) -> Iterator[Finding]:
    """A limit of a task is what its jobs wait for."""
    for task in facts.tasks:
        if task.parked:
            yield Finding(
                severity="info",
                finding="task_limit_holds",
                evidence={
                    "task": task.name,
                    "parked": task.parked,
                    "max_running": task.max_running,
                    "open_jobs": task.open,
                },
                reason="so many jobs of the task run as may; those beyond step aside",
                advice=f"raise max_running of the task {task.name} in the app, if what it protects "
                "can bear it",
            )


def _is_late(lane: LaneFacts) -> bool:
    late_s = _NO_WAIT_S if lane.slo_s is None else lane.slo_s
    return (lane.oldest_wait_s or 0.0) > max(late_s, lane.run_s or 0.0)


def _misses(lane: LaneFacts) -> bool:
    return lane.slo_s is not None and (lane.oldest_wait_s or 0.0) > lane.slo_s


def lane_full(facts: Facts) -> Iterator[Finding]:
    """A lane takes no more jobs, or soon will not."""
    for lane in facts.lanes:
        if lane.max_depth is None or not lane.max_depth:
            continue
        depth = lane.waiting + lane.scheduled
        if depth < _NEAR * lane.max_depth:
            continue
        is_full = depth >= lane.max_depth
        yield Finding(
            severity="error" if is_full else "warning",
            finding="lane_full",
            lane=lane.name,
            evidence={
                "waiting": lane.waiting,
                "scheduled": lane.scheduled,
                "max_depth": lane.max_depth,
                "completions_per_s": _round(lane.ended_per_s),
            },
            reason="enqueues are refused with LaneFull"
            if is_full
            else "at max_depth enqueues are refused with LaneFull",
            advice=f"laneq lanes set {lane.name} max_depth={2 * lane.max_depth}, or start more "
            "slots: laneq worker MODULE:APP -c N",
        )


def paused(facts: Facts) -> Iterator[Finding]:
    """A lane waits since somebody paused it."""
    for lane in facts.lanes:
        if lane.paused and lane.waiting:
            yield Finding(
                severity="warning" if _misses(lane) else "info",
                finding="paused",
                lane=lane.name,
                evidence={"waiting": lane.waiting, "oldest_wait_s": lane.oldest_wait_s},
                reason="an operator or the app has paused the lane: nothing of it starts",
                advice=f"laneq lanes resume {lane.name}",
            )


# --- reserves ---------------------------------------------------------------


def wait_follows_others(facts: Facts) -> Iterator[Finding]:
    """Jobs wait until a long job of another lane ends: priority cannot stop what runs."""
    for lane in facts.lanes:
        if lane.sure_slots or not _waits_too_long(facts, lane):
            continue
        wait_s, run_s = lane.wait_p99_s or 0.0, lane.run_p50_s or 0.0
        longer = [
            one
            for one in _below(facts, lane)
            if (one.run_p50_s or 0.0) >= _LONGER * run_s
            and _FOLLOWS[0] * (one.run_p99_s or 0.0) <= wait_s <= _FOLLOWS[1] * (one.run_p99_s or 0)
        ]
        if not longer:
            continue
        other = max(longer, key=lambda one: one.jobs * (one.run_s or 0.0))
        yield Finding(
            severity="warning",
            finding="wait_follows_others",
            lane=lane.name,
            evidence={
                **_waits(lane),
                "reserve": 0,
                "other_lane": other.name,
                "other_run_p99_s": _round(other.run_p99_s),
            },
            reason=f"its jobs wait until a job of {other.name} ends, as no slot is kept for them: "
            "being first in line does not stop what runs",
            advice=f"laneq lanes set {lane.name} reserve={_wanted_reserve(lane)}, or reserve=auto",
        )


def reserve_too_small(facts: Facts) -> Iterator[Finding]:
    """The reserve is full too often."""
    for lane in facts.lanes:
        if not lane.sure_slots or not _waits_too_long(facts, lane):
            continue
        wanted = max(lane.sure_slots + 1, _wanted_reserve(lane))
        if lane.reserve == "auto":
            advice = (
                "it sizes itself as far as the pool goes: start more slots, laneq worker "
                "MODULE:APP -c N, or give the lane an slo that says what is late"
            )
        elif lane.kept >= lane.reserve_slots:
            advice = (
                f"laneq lanes set {lane.name} reserve={wanted}, or --reserve {lane.name}=N of "
                "its workers"
            )
        else:
            advice = f"laneq lanes set {lane.name} reserve={wanted}"
        yield Finding(
            severity="warning",
            finding="reserve_too_small",
            lane=lane.name,
            evidence={
                **_waits(lane),
                "reserve": lane.sure_slots,
                "reserve_wanted": wanted,
                "arrivals_per_s": _round(lane.arrivals_per_s),
            },
            reason="its jobs wait longer than they run: the slots kept for it are often all busy, "
            "and the shared ones with other lanes' jobs",
            advice=advice,
        )


def _waits_too_long(facts: Facts, lane: LaneFacts) -> bool:
    """Return whether a lane above others waits longer than it runs, and than it may."""
    if lane.jobs < _JOBS or lane.wait_p99_s is None or lane.run_p99_s is None or lane.paused:
        return False
    if _is_limited(lane) or not _below(facts, lane):
        return False
    return lane.wait_p99_s > max(lane.run_p99_s, lane.slo_s or 0.0, _NO_WAIT_S)


def _below(facts: Facts, lane: LaneFacts) -> list[LaneFacts]:
    """Return the lanes below one of which jobs were run."""
    return [one for one in facts.lanes if one.rule.priority < lane.rule.priority and one.jobs]


def _waits(lane: LaneFacts) -> dict[str, Any]:
    return {
        "wait_p99_s": _round(lane.wait_p99_s),
        "run_p99_s": _round(lane.run_p99_s),
        "slo_s": lane.slo_s,
        "jobs": lane.jobs,
    }


def _wanted_reserve(lane: LaneFacts) -> int:
    """Return the slots that few jobs would find busy, by what was measured."""
    rate, run_s = lane.arrivals_per_s, lane.run_s
    if not rate or not run_s:
        return 1
    return max(reserve_for(rate, run_s), servers_for_wait(rate, run_s))


def reserve_too_large(facts: Facts) -> Iterator[Finding]:
    """More slots are kept for a lane than it can use, while others wait."""
    for lane in facts.lanes:
        kept = lane.sure_slots
        is_measured = lane.measured_s is not None and lane.measured_s >= _LONG_S
        if not kept or lane.reserve == "auto" or not is_measured or lane.waiting:
            continue
        wanted = _wanted_reserve(lane)
        waiting = [
            one
            for one in facts.lanes
            if one is not lane and not one.paused and not _is_limited(one) and _is_held_up(one)
        ]
        if kept <= max(wanted, lane.running) or not waiting:
            continue
        longest = max(waiting, key=lambda one: one.oldest_wait_s or 0.0)
        how = f"laneq lanes set {lane.name} reserve={wanted}"
        if lane.kept > lane.reserve_slots:
            how = f"start its workers with fewer slots kept: --reserve {lane.name}={wanted} in all"
        yield Finding(
            severity="warning",
            finding="reserve_too_large",
            lane=lane.name,
            evidence={
                "reserve": kept,
                "reserve_wanted": wanted,
                "running": lane.running,
                "arrivals_per_s": _round(lane.arrivals_per_s),
                "run_s": _round(lane.run_s),
                "waiting_elsewhere": sum(one.waiting for one in waiting),
                "other_lane": longest.name,
                "other_oldest_wait_s": _round(longest.oldest_wait_s),
            },
            reason=f"slots kept for it idle, while jobs of {longest.name} wait",
            advice=how,
        )


def _is_held_up(lane: LaneFacts) -> bool:
    late_s = max(lane.slo_s or 0.0, lane.run_s or 0.0, 1.0)
    return lane.waiting > 0 and (lane.oldest_wait_s or 0.0) > late_s


def reserves_unmet(facts: Facts) -> Iterator[Finding]:
    """Reserves of the fleet are cut to what it has."""
    wanted = {
        lane.name: lane.reserve_slots
        for lane in facts.lanes
        if lane.reserve_slots and lane.workers and not lane.paused and lane.reserve != "auto"
    }
    total = sum(wanted.values())
    if not facts.slots or not wanted or total <= facts.slots - 1:
        return
    yield Finding(
        severity="warning",
        finding="reserves_unmet",
        evidence={**{f"reserve_{name}": n for name, n in wanted.items()}, "slots": facts.slots},
        reason="one slot of the fleet always stays open to all lanes, and the reserves are cut to "
        "the rest, the first lane first",
        advice=f"start {total + 1 - facts.slots} more slots, laneq worker MODULE:APP -c N, or "
        "lower a reserve: laneq lanes set LANE reserve=N",
    )


def can_starve(facts: Facts) -> Iterator[Finding]:
    """How lanes are set up lets one wait for ever."""
    by_name = {lane.name: lane for lane in facts.lanes}
    kept = {lane.name: lane.kept for lane in facts.lanes}
    rules = [lane.rule for lane in facts.lanes]
    for found in starvation(rules, reserved=kept, slots=facts.slots or None):
        lane = by_name[found.lane]
        if lane.paused:
            continue
        # It is happening where the lane waits, runs nothing, and those before it have work.
        is_so = (
            _is_held_up(lane)
            and (lane.oldest_wait_s or 0.0) > _LONG_S
            and not lane.running
            and not max(lane.ended, lane.jobs)
            and any(by_name[other].waiting or by_name[other].running for other in found.by)
        )
        # Each is one step worse where nothing says that it is meant.
        worse: tuple[Severity, Severity] = ("error", "warning")
        usual: tuple[Severity, Severity] = ("warning", "info")
        now, later = worse if found.unsaid_by else usual
        yield Finding(
            severity=now if is_so else later,
            finding="can_starve",
            lane=lane.name,
            evidence={
                "waiting": lane.waiting,
                "oldest_wait_s": lane.oldest_wait_s,
                "behind": list(found.by),
                "if_late_s": {other: round(late_s, 3) for other, late_s in found.by.items()},
                **({"accepted": not found.unsaid_by} if found.strict_by else {}),
            },
            reason="; ".join(filter(None, (found.text.partition(". ")[0], found.acceptance))),
            advice=_ends_starving(lane, found),
        )


def _ends_starving(lane: LaneFacts, found: Starvation) -> str:
    if lane.rule.reserve:
        return (
            "start more slots, laneq worker MODULE:APP -c N: there are too few to keep its reserve"
        )
    reserve = f"laneq lanes set {found.lane} reserve=1"
    if not found.unsaid_by:
        return f"{reserve}, unless that is what you want"
    return (
        f"{reserve}, or a larger aging_cap; where that is what you want, say so: laneq lanes set "
        f"{found.lane} may_starve=true"
    )


# --- losses -----------------------------------------------------------------


def leases_expire(facts: Facts) -> Iterator[Finding]:
    """Workers lose their jobs."""
    for lane in facts.lanes:
        if lane.lost >= _AT_LEAST and lane.lost >= _OFTEN * lane.started:
            yield Finding(
                severity="warning",
                finding="leases_expire",
                lane=lane.name,
                evidence={
                    "lost_leases": lane.lost,
                    "started": lane.started,
                    "over_s": _round(lane.measured_s),
                },
                reason="workers died, stood still or were cut off from Redis for longer than a "
                "lease; each loss spends an attempt",
                advice="look at laneq workers and the workers' logs (killed for want of memory?); "
                f"where hosts stand still, laneq lanes set {lane.name} lease=60",
            )


def dead_letters(facts: Facts) -> Iterator[Finding]:
    """Jobs are given up on."""
    for lane in facts.lanes:
        if lane.died >= _AT_LEAST and lane.died >= _OFTEN * lane.ended:
            yield Finding(
                severity="warning",
                finding="dead_letters_grow",
                lane=lane.name,
                evidence={
                    "died": lane.died,
                    "ended": lane.ended,
                    "over_s": _round(lane.measured_s),
                    "dead_letters": lane.dead_letters,
                },
                reason="so many jobs have spent their last attempt",
                advice=f"laneq dead --lane {lane.name} shows their errors; after the fix: laneq "
                f"dead retry --all --lane {lane.name}",
            )
        if lane.dead_max and lane.dead_letters >= _NEAR * lane.dead_max:
            is_full = lane.dead_letters >= lane.dead_max
            yield Finding(
                severity="warning" if is_full else "info",
                finding="dead_letters_full",
                lane=lane.name,
                evidence={"dead_letters": lane.dead_letters, "dead_max": lane.dead_max},
                reason="each new dead letter drops the oldest"
                if is_full
                else "at dead_max each new dead letter drops the oldest",
                advice=f"laneq dead --lane {lane.name}, then laneq dead retry or laneq dead purge; "
                f"or laneq lanes set {lane.name} dead_max={2 * lane.dead_max}",
            )


# --- the server -------------------------------------------------------------


def persistence(facts: Facts) -> Iterator[Finding]:
    """A restart of the server loses jobs."""
    server = facts.server
    if server.log_failed or server.snapshot_failed:
        what = "log" if server.log_failed else "snapshot"
        yield Finding(
            severity="error",
            finding="write_failed",
            evidence={"log_failed": server.log_failed, "snapshot_failed": server.snapshot_failed},
            reason=f"Redis could not write its {what}: it refuses enqueues until it can, and a "
            "restart would lose what was not written",
            advice="look at the server's log and its disk",
        )
    if server.has_log is False and server.save == "":
        yield Finding(
            severity="warning",
            finding="no_persistence",
            evidence={"appendonly": "no", "save": ""},
            reason="a restart of the server loses all jobs",
            advice="redis-cli CONFIG SET appendonly yes, and the same in redis.conf",
        )
    elif server.has_log is False and server.save:
        yield Finding(
            severity="info",
            finding="snapshots_only",
            evidence={"appendonly": "no", "save": server.save},
            reason="a crash of the server loses what was enqueued and done since its last snapshot",
            advice="redis-cli CONFIG SET appendonly yes, and the same in redis.conf",
        )


def memory(facts: Facts) -> Iterator[Finding]:
    """The server drops or refuses jobs for want of memory, or soon will."""
    server = facts.server
    limit = server.max_bytes or 0
    if server.policy is not None and server.policy != "noeviction":
        yield Finding(
            severity="error" if limit else "warning",
            finding="eviction_policy",
            evidence={"maxmemory_policy": server.policy, "maxmemory": limit},
            reason="when memory is short Redis drops keys, and so jobs"
            + ("" if limit else "; no limit is set for now"),
            advice="redis-cli CONFIG SET maxmemory-policy noeviction, and the same in redis.conf",
        )
        if server.evicted:
            yield Finding(
                severity="error",
                finding="evicted",
                evidence={"evicted_keys": server.evicted},
                reason="Redis has dropped keys since it started; whether jobs were among them, "
                "laneq check says",
                advice="laneq check",
            )
    whole = limit or server.machine_bytes
    if server.used_bytes is None or not whole or server.used_bytes < _NEAR * whole:
        return
    yield Finding(
        severity="error" if server.used_bytes >= _VERY_NEAR * whole else "warning",
        finding="memory_short",
        evidence={
            "used_memory": server.used_bytes,
            "maxmemory" if limit else "machine_memory": whole,
            "share": round(server.used_bytes / whole, 3),
        },
        reason="at maxmemory enqueues are refused with OOM; claims go on, and drain the backlog"
        if limit
        else "a server that outgrows its machine is killed",
        advice="let workers drain the backlog (laneq lanes), "
        + (
            f"or redis-cli CONFIG SET maxmemory {2 * limit}"
            if limit
            else "and set a limit: redis-cli CONFIG SET maxmemory N"
        ),
    )


def slow_redis(facts: Facts) -> Iterator[Finding]:
    """Each claim and each outcome waits for the server."""
    took_s = facts.server.round_trip_s
    if took_s is not None and took_s >= _SLOW_S:
        yield Finding(
            severity="error" if took_s >= _VERY_SLOW_S else "warning",
            finding="slow_redis",
            evidence={"round_trip_s": _round(took_s)},
            reason=f"a PING from here takes {duration(took_s)}: Redis, its host or the way there "
            "is busy or far; every claim and enqueue takes at least that",
            advice="redis-cli --latency beside the server tells the server from the network; "
            "redis-cli SLOWLOG GET names commands that hold it up",
        )


def not_checked(facts: Facts) -> Iterator[Finding]:
    """What a managed server, or an ACL, does not let be asked."""
    checks = {
        "CONFIG GET": "persistence, eviction policy and maxmemory",
        "INFO": "memory, evicted keys and failed writes",
    }
    for what, word in facts.server.unchecked:
        yield Finding(
            severity="info",
            finding="not_checked",
            evidence={"command": what, "answer": word},
            reason=f"could not check {checks.get(what, what)}: the server refuses {what}",
            advice="see in the server's own settings that it persists (appendonly yes) and that "
            "maxmemory-policy is noeviction"
            if what == "CONFIG GET"
            else f"allow it: ACL SETUSER NAME +{what.lower()}",
        )


def _round(value: float | None) -> float | None:
    """Return a figure with as many digits as were measured."""
    return None if value is None else float(f"{value:.4g}")


#: All rules; of equal severity their findings come in this order.
RULES: Final[tuple[Rule, ...]] = (
    no_worker, unserved_lane, unknown_task, stuck_worker, pool_too_small, lane_full,
    memory, persistence, wait_follows_others, reserve_too_small, reserve_too_large,
    reserves_unmet, lane_limits_hold, task_limits_hold, leases_expire, dead_letters, slow_redis,
    paused, can_starve, not_checked,
)  # fmt: skip
