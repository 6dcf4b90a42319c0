"""Each rule of laneq.doctor: the situation that it sees, and the one beside that it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from laneq.doctor import FINDINGS, SEVERITIES, diagnose
from laneq.facts import Facts, LaneFacts, ServerFacts, TaskFacts, server_facts
from laneq.precedence import Rule
from tests.doctor.situations import GOOD, MIB, TASKS, batch, facts, lane, situations, urgent, worker


def found(facts_: Facts) -> dict[str, str]:
    """Return finding → severity."""
    return {finding.finding: finding.severity for finding in diagnose(facts_)}


def served(server: ServerFacts) -> Facts:
    return facts(server=server)


def with_server(**changes: Any) -> Facts:
    return facts(server=replace(GOOD, **changes))


def of_lanes(*lanes: LaneFacts, **more: Any) -> Facts:
    return facts(*lanes, **more)


#: Finding → facts in which it is seen, its severity, and facts just beside, in which it is not.
CASES: dict[str, tuple[Facts, str, Facts]] = {
    "no_lanes": (Facts(namespace="shop", lanes=(), server=GOOD), "error", facts()),
    "no_worker": (facts(workers=()), "error", facts(workers=[worker("a")])),
    "unserved_lane": (
        of_lanes(urgent(), batch(workers=0, slots=0)),
        "error",
        of_lanes(urgent(), batch(workers=0, slots=0, waiting=0)),
    ),
    "unknown_task": (
        facts(tasks=(TaskFacts(name="gone", open=1),)),
        "error",
        facts(tasks=(TaskFacts(name="gone", open=0), TaskFacts(name="here", open=9, workers=1))),
    ),
    "stuck_worker": (
        facts(workers=[worker("a"), worker("b", unwell="its event loop does not turn")]),
        "error",
        facts(workers=[worker("a"), worker("b")]),
    ),
    "jobs_left_behind": (facts(workers=[worker("a", stuck=3)]), "warning", facts()),
    "pool_too_small": (
        of_lanes(urgent(), batch(started=0, ended=0, jobs=0, running=0, oldest_wait_s=400.0)),
        "error",
        of_lanes(urgent(), batch(started=0, ended=0, jobs=0, running=0, oldest_wait_s=200.0)),
    ),
    "backlog_grows": (
        of_lanes(urgent(), batch(arrived=9000, ended=7000, oldest_wait_s=70.0)),
        "warning",
        of_lanes(urgent(), batch(arrived=9000, ended=8900, oldest_wait_s=70.0)),
    ),
    "wait_follows_others": (
        of_lanes(urgent(reserve=0, wait_p99_s=0.2), batch()),
        "warning",
        of_lanes(urgent(reserve=0, wait_p99_s=0.019), batch()),
    ),
    "reserve_too_small": (
        of_lanes(urgent(wait_p99_s=0.2), batch()),
        "warning",
        of_lanes(urgent(wait_p99_s=0.049), batch()),  # within its slo
    ),
    "reserve_too_large": (
        of_lanes(urgent(reserve=7), batch(waiting=90, oldest_wait_s=30.0)),
        "warning",
        of_lanes(urgent(reserve=4), batch(waiting=90, oldest_wait_s=30.0)),
    ),
    "reserves_unmet": (
        of_lanes(urgent(reserve=9), batch()),
        "warning",
        of_lanes(urgent(reserve=8), batch()),
    ),
    "lane_full": (
        of_lanes(urgent(), batch(waiting=90, scheduled=10, max_depth=100)),
        "error",
        of_lanes(urgent(), batch(waiting=60, scheduled=10, max_depth=100)),
    ),
    "max_running_holds": (
        of_lanes(urgent(), batch(max_running=4, running=4, waiting=90, oldest_wait_s=9.0)),
        "info",
        of_lanes(urgent(), batch(max_running=4, running=3, waiting=90, oldest_wait_s=9.0)),
    ),
    "rate_holds": (
        of_lanes(urgent(), batch(starts_per_s=31.0, waiting=90, oldest_wait_s=9.0)),
        "info",
        of_lanes(urgent(), batch(starts_per_s=60.0, waiting=90, oldest_wait_s=9.0)),
    ),
    "task_limit_holds": (
        facts(tasks=(TaskFacts(name="t", open=5, workers=1, max_running=2, parked=3),)),
        "info",
        facts(tasks=(TaskFacts(name="t", open=2, workers=1, max_running=2),)),
    ),
    "paused": (
        of_lanes(urgent(), batch(paused=True)),
        "info",
        of_lanes(urgent(paused=True), batch()),  # nothing of it waits
    ),
    "can_starve": (of_lanes(urgent(), batch(reserve=0)), "info", of_lanes(urgent(), batch())),
    "leases_expire": (
        of_lanes(urgent(lost=90), batch()),
        "warning",
        of_lanes(urgent(lost=80), batch()),  # under 1 % of 9,000
    ),
    "dead_letters_grow": (
        of_lanes(urgent(died=90), batch()),
        "warning",
        of_lanes(urgent(died=80, dead_letters=80), batch()),
    ),
    "dead_letters_full": (
        of_lanes(urgent(dead_letters=10_000), batch()),
        "warning",
        of_lanes(urgent(dead_letters=7_000), batch()),
    ),
    "no_persistence": (with_server(has_log=False, save=""), "warning", with_server(save="")),
    "snapshots_only": (with_server(has_log=False), "info", facts()),
    "write_failed": (with_server(snapshot_failed=True), "error", facts()),
    "eviction_policy": (with_server(policy="volatile-lru"), "error", with_server(policy=None)),
    "evicted": (with_server(policy="allkeys-lru", evicted=1), "error", with_server(evicted=1)),
    "memory_short": (
        with_server(used_bytes=900 * MIB),
        "warning",
        with_server(used_bytes=800 * MIB),
    ),
    "slow_redis": (with_server(round_trip_s=0.006), "warning", with_server(round_trip_s=0.004)),
    "not_checked": (with_server(unchecked=(("INFO", "NOPERM"),)), "info", facts()),
}  # fmt: skip


def test_a_pool_that_does_well_has_no_finding():
    assert diagnose(facts()) == []


def test_every_finding_has_a_case_and_every_case_a_finding():
    assert set(CASES) == set(FINDINGS)


@pytest.mark.parametrize("finding", CASES)
def test_a_finding_is_seen_in_its_situation_and_not_just_beside_it(finding: str):
    bad, severity, beside = CASES[finding]
    assert found(bad).get(finding) == severity
    assert finding not in found(beside)


@pytest.mark.parametrize("finding", CASES)
def test_a_finding_has_figures_a_reason_and_what_to_do(finding: str):
    (seen, *_) = [one for one in diagnose(CASES[finding][0]) if one.finding == finding]
    assert seen.evidence
    assert seen.reason
    assert seen.advice
    assert seen.severity in SEVERITIES


@pytest.mark.parametrize("situation", situations(), ids=lambda one: one.title)
def test_each_made_up_situation_has_its_findings_and_no_other(situation):
    findings = [one.finding for one in diagnose(situation.facts)]
    assert findings == list(situation.expected)


def test_the_worst_comes_first():
    everything = facts(
        urgent(reserve=0, wait_p99_s=0.2, lost=90), batch(reserve=0, paused=True),
        tasks=(TaskFacts(name="gone", open=1),),
        server=replace(GOOD, policy="allkeys-lru", has_log=False, save=""),
    )  # fmt: skip
    severities = [finding.severity for finding in diagnose(everything)]
    assert severities == sorted(severities, key=SEVERITIES.index)
    assert set(severities) == set(SEVERITIES)


# --- what a rule weighs ---------------------------------------------------------


def test_a_worker_that_does_not_work_and_no_job_is_a_warning_only():
    idle = {"waiting": 0, "running": 0}
    assert found(facts(urgent(**idle), batch(**idle), workers=()))["no_worker"] == "warning"


def test_jobs_that_are_scheduled_in_a_lane_that_nobody_serves_are_a_warning():
    later = batch(workers=0, slots=0, waiting=0, scheduled=4, oldest_wait_s=None)
    assert found(facts(urgent(), later))["unserved_lane"] == "warning"


def test_a_lane_without_an_objective_may_wait_as_long_as_it_runs():
    for wait_s, is_seen in ((0.02, False), (0.2, True)):
        lanes = (urgent(slo_s=None, wait_p99_s=wait_s), batch())
        assert ("reserve_too_small" in found(facts(*lanes))) == is_seen


def test_a_wait_that_is_far_longer_than_the_other_lanes_jobs_does_not_follow_them():
    assert "wait_follows_others" not in found(facts(urgent(reserve=0, wait_p99_s=30.0), batch()))


def test_the_lowest_lane_may_wait_for_as_long_as_it_takes():
    assert found(facts(urgent(), batch(wait_p99_s=900.0, oldest_wait_s=900.0))) == {}


def test_few_measured_jobs_say_nothing():
    assert found(facts(urgent(wait_p99_s=5.0, jobs=5), batch())) == {}


def test_an_automatic_reserve_is_not_told_to_be_smaller_and_is_told_to_have_a_larger_pool():
    idle = urgent(reserve="auto", reserve_slots=7)
    assert found(facts(idle, batch(waiting=90, oldest_wait_s=30.0))) == {}
    late = urgent(reserve="auto", reserve_slots=7, wait_p99_s=0.3)
    (finding,) = diagnose(facts(late, batch()))
    assert finding.finding == "reserve_too_small"
    assert "start more slots" in finding.advice


def test_a_reserve_of_single_workers_counts_and_is_changed_where_it_was_set():
    kept = urgent(reserve=0, kept=7)
    (finding,) = diagnose(facts(kept, batch(waiting=90, oldest_wait_s=30.0)))
    assert finding.finding == "reserve_too_large"
    assert "--reserve urgent=4" in finding.advice


def test_a_lane_at_its_own_limit_is_not_a_pool_that_is_too_small():
    stuck = batch(max_running=0, running=0, started=0, ended=0, jobs=0, oldest_wait_s=900.0)
    names = found(facts(urgent(), stuck))
    assert "max_running_holds" in names
    assert "pool_too_small" not in names


def test_long_jobs_that_take_every_slot_are_a_warning_where_nothing_at_all_is_an_error():
    long = batch(started=0, ended=0, jobs=0, running=9, oldest_wait_s=900.0)
    assert found(facts(urgent(), long))["pool_too_small"] == "warning"


def test_a_lane_that_starves_now_is_a_warning_where_one_that_could_is_good_to_know():
    now = batch(reserve=0, started=0, ended=0, jobs=0, running=0, oldest_wait_s=900.0)
    assert found(facts(urgent(), now))["can_starve"] == "warning"


def test_a_lane_that_starves_unsaid_is_one_step_worse_until_somebody_says_that_it_may():
    def severity(**changes: Any) -> tuple[str, Any, str]:
        own = replace(high, lane="batch", priority=10, may_starve=changes.pop("may_starve", False))
        lanes = urgent(rule=high), batch(rule=own, reserve=0, **changes)
        (finding,) = [f for f in diagnose(facts(*lanes)) if f.finding == "can_starve"]
        return finding.severity, finding.evidence["accepted"], finding.reason + finding.advice

    high = Rule("urgent", 5_000, 2, 800)
    now = {"started": 0, "ended": 0, "jobs": 0, "running": 0, "oldest_wait_s": 900.0}
    kind, is_accepted, text = severity()
    assert (kind, is_accepted) == ("warning", False)
    assert "nothing says that it may wait for ever behind urgent" in text
    assert "laneq lanes set batch may_starve=true" in text
    assert severity(**now)[:2] == ("error", False)
    kind, is_accepted, text = severity(may_starve=True)
    assert (kind, is_accepted) == ("info", True)
    assert "accepted knowingly: may_starve is set" in text
    assert severity(may_starve=True, **now)[:2] == ("warning", True)


def test_a_reserve_that_cannot_be_kept_does_not_hide_a_lane_that_can_starve():
    (finding,) = [
        f for f in diagnose(facts(urgent(reserve=9), batch(reserve=1))) if f.finding == "can_starve"
    ]
    assert finding.advice.startswith("start more slots")


def test_what_waits_only_behind_a_lane_that_is_late_is_neither_accepted_nor_not():
    lanes = urgent(rule=Rule("urgent", 500, 2, 800)), batch(reserve=0)
    (finding,) = [f for f in diagnose(facts(*lanes)) if f.finding == "can_starve"]
    assert finding.severity == "info"
    assert "accepted" not in finding.evidence
    assert finding.reason == "No job of batch starts while urgent is 2m35s late"


def test_a_policy_that_evicts_without_a_limit_is_a_warning():
    assert found(with_server(policy="allkeys-lru", max_bytes=0))["eviction_policy"] == "warning"


def test_memory_is_held_against_the_machine_where_there_is_no_limit():
    (finding,) = diagnose(with_server(max_bytes=0, used_bytes=4000 * MIB))
    assert (finding.finding, finding.severity) == ("memory_short", "error")
    assert finding.evidence["machine_memory"] == 4096 * MIB


def test_a_server_that_says_nothing_is_not_accused():
    assert diagnose(served(ServerFacts())) == []


def test_info_tells_some_of_what_config_may_not():
    info = {
        "maxmemory_policy": "allkeys-lru", "maxmemory": "100", "used_memory": "99",
        "aof_enabled": "0", "evicted_keys": "7", "rdb_last_bgsave_status": "err",
    }  # fmt: skip
    server = server_facts({}, info)
    assert found(served(server)) == {
        "eviction_policy": "error", "evicted": "error", "memory_short": "error",
        "write_failed": "error",
    }  # fmt: skip
    assert server.save is None  # so nothing is said of snapshots


def test_no_finding_is_made_of_a_namespace_in_which_nothing_happened_yet():
    quiet = (
        lane("urgent", 1000, reserve=1, measured_s=None, workers=1),
        lane("batch", 10, reserve=1, measured_s=None, workers=1),
    )
    assert diagnose(facts(*quiet, tasks=TASKS)) == []
