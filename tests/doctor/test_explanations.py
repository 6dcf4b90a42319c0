"""laneq.why: what holds a job back, which slots may take it, and when it is expected to start."""

from __future__ import annotations

from typing import Any

import pytest

from laneq.calls.jobs import LaneBeside
from laneq.model import Attempt, JobView, State
from laneq.why import HOLDS, STOPS, Explanation, explain
from tests.doctor.situations import (
    DEAD,
    NOW,
    batch,
    job,
    lane,
    place,
    situations,
    urgent,
    worker,
)

BOTH = (urgent(waiting=0), batch(running=3, waiting=4))


def why(of: JobView, lanes: Any = BOTH, workers: Any = None, **at: Any) -> Explanation:
    team = [worker("a"), worker("b")] if workers is None else workers
    return explain(of, place(of, lanes, **at), lanes=lanes, workers=team)


def kinds(found: Explanation) -> list[str]:
    return [hold.kind for hold in found.holds]


@pytest.mark.parametrize("situation", situations(), ids=lambda one: one.title)
def test_each_made_up_situation_is_explained(situation):
    lanes, workers = situation.facts.lanes, situation.facts.workers
    found = explain(situation.job, situation.place, lanes=lanes, workers=workers)
    assert kinds(found) == list(situation.holds)
    assert set(kinds(found)) <= set(HOLDS)


def test_a_job_that_nothing_holds_back_starts_with_the_next_claim():
    found = why(job("urgent"), waited_s=0.001)
    assert found.holds == ()
    assert found.text == "Nothing holds it back: it starts with the next claim."
    assert found.expected is not None
    assert found.expected.in_s == 0
    assert found.advice is None


# --- what stops it wholly -------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "lanes", "workers"),
    [
        ("paused", (BOTH[0], batch(paused=True)), None),
        ("no_worker", BOTH, []),
        ("unserved_lane", BOTH, [worker("a", lanes=("urgent",))]),
        ("unserved_lane", BOTH, [worker("a", reserve={"urgent": 5})]),
        ("unserved_lane", BOTH, [worker("a", unwell="deaf")]),
        ("unknown_task", BOTH, [worker("a", tasks=("shop.charge",))]),
        (
            "unknown_task",
            BOTH,
            [worker("a", tasks=("shop.charge",)), worker("b", lanes=("urgent",))],
        ),
    ],
)
def test_what_stops_a_job_wholly_comes_first_and_has_no_expected_start(kind, lanes, workers):
    found = why(job(), lanes, workers, ahead=3)
    assert kinds(found)[0] == kind
    assert kind in STOPS
    assert found.expected is not None
    assert found.expected.in_s is None
    assert found.advice


def test_a_scheduled_job_says_what_will_stop_it_when_it_is_due():
    later = job(state=State.SCHEDULED)
    found = why(later, (BOTH[0], batch(paused=True)), waited_s=-30.0)
    assert kinds(found) == ["paused"]
    assert found.text == "It is due in 30 s: it was enqueued for later."
    assert found.due_at == NOW + 30
    assert found.expected is not None
    assert found.expected.in_s is None


def test_a_scheduled_job_starts_when_it_is_due():
    found = why(job(state=State.SCHEDULED), waited_s=-30.0)
    assert found.expected is not None
    assert found.expected.in_s == pytest.approx(30)
    retried = job(
        state=State.SCHEDULED, attempt=1, history=(Attempt(1, NOW - 9, NOW - 8, "w", "failed"),)
    )
    assert "attempt 1 of 3 ended (failed)" in why(retried, waited_s=-30.0).text
    snoozed = job(state=State.SCHEDULED, attempt=1)
    assert "attempt 1 put it off" in why(snoozed, waited_s=-30.0).text


# --- limits ---------------------------------------------------------------------


def test_a_lane_at_its_max_running_holds_the_job():
    lanes = (BOTH[0], batch(max_running=3, running=3))
    found = why(job(), lanes)
    assert kinds(found) == ["max_running"]
    assert found.advice == "laneq lanes set batch max_running=6, if that can be borne"
    assert kinds(why(job(), (BOTH[0], batch(max_running=4, running=3)))) == []


def test_a_rate_says_when_the_next_start_is_let():
    lanes = (BOTH[0], batch(starts_per_s=2.0, measured_s=None))
    beside = {"batch": LaneBeside(4, 3, int((NOW - 40) * 1e6), next_start_us=int((NOW + 3) * 1e6))}
    found = why(job(), lanes, ahead=4, beside=beside)
    assert kinds(found) == ["rate", "ahead"]
    assert "the next in 2.9 s" in found.holds[0].text  # a tenth of a second may be caught up
    assert found.expected is not None
    assert found.expected.in_s == pytest.approx(2.9 + 4 / 2)


def test_a_task_at_its_limit_holds_a_job_that_waits_too():
    found = why(job(), task_most=2, task_running=2)
    assert kinds(found) == ["task_max_running"]
    assert kinds(why(job(), task_most=2, task_running=1)) == []


# --- slots ----------------------------------------------------------------------


def test_a_worker_whose_free_slots_are_kept_for_others_may_not_start_it():
    kept = worker("a", running=3, reserve={"urgent": 2})
    lanes = (urgent(waiting=0, running=0), batch(running=3, waiting=1))
    found = why(job(), lanes, [kept])
    assert kinds(found) == ["worker_reserve"]
    (taker,) = found.takers
    assert (taker.slots, taker.free, taker.may_start) == (3, 2, False)
    assert taker.text == "3 of 5 slots, 2 kept for other lanes, 2 free"


def test_a_slot_is_closed_only_where_it_is_so_whatever_runs_there():
    # Two urgent jobs run in the fleet: they may be this worker's, and fill its reserve.
    kept = worker("a", running=3, reserve={"urgent": 2})
    lanes = (urgent(waiting=0, running=2), batch(running=3, waiting=1))
    found = why(job(), lanes, [kept, worker("b", running=5)])
    assert found.takers[0].may_start
    assert kinds(found) == []


def test_a_reserved_slot_takes_the_jobs_of_its_own_lane():
    kept = worker("a", running=3, reserve={"urgent": 2})
    found = why(job("urgent"), BOTH, [kept], waited_s=0.01)
    assert kinds(found) == []
    assert "2 of them kept for urgent" in found.takers[0].text


def fleet(free: int) -> dict[str, LaneBeside]:
    return {
        "urgent": LaneBeside(0, 0, None, slots=10, free=free),
        "batch": LaneBeside(1, 7, int((NOW - 40) * 1e6), slots=10, free=free),
    }


@pytest.mark.parametrize(("free", "is_held"), [(3, True), (4, False)])
def test_what_the_fleets_reserves_need_is_not_taken(free, is_held):
    lanes = (urgent(waiting=0, running=0), batch(running=7, waiting=1))
    found = why(job(), lanes, beside=fleet(free))
    assert kinds(found) == (["fleet_reserve"] if is_held else [])
    if is_held:
        assert (
            found.holds[0].text == "3 slots of the fleet are free, and reserves keep 3 for urgent"
        )


def test_a_worker_that_serves_no_lane_with_a_reserve_is_not_held_to_it():
    lanes = (urgent(waiting=0, running=0), batch(running=7, waiting=1, reserve=0))
    team = [worker("a"), worker("b", lanes=("batch",))]
    assert kinds(why(job(), lanes, team, beside=fleet(3))) == []


def test_all_slots_busy_is_told_before_who_comes_first():
    lanes = (urgent(waiting=3, oldest_wait_s=1.0), batch())
    found = why(job(), lanes, [worker("a", running=5)], ahead=2)
    assert kinds(found) == ["slots_busy", "ahead", "higher_lanes"]
    assert "urgent (3 waiting, its first worth 1,002)" in found.holds[2].text


def test_a_job_that_aged_is_before_the_new_jobs_of_a_higher_lane():
    normal = lane("normal", 100, waiting=9, oldest_wait_s=1.0)
    lanes = (normal, batch())
    assert "higher_lanes" not in kinds(why(job(), lanes, waited_s=50.0))  # 10 + 100 > 102
    assert "higher_lanes" in kinds(why(job(), lanes, waited_s=40.0))  # 10 + 80 < 102


def test_a_paused_lane_is_before_nobody():
    lanes = (urgent(waiting=3, oldest_wait_s=9.0, paused=True), batch())
    assert kinds(why(job(), lanes)) == []


# --- when -----------------------------------------------------------------------


def test_the_start_is_expected_by_the_lanes_measured_starts():
    found = why(job(), ahead=59, workers=[worker("a", running=5)])
    assert found.expected is not None
    assert found.expected.in_s == pytest.approx(60 / 30)
    assert found.expected.inputs == {"starts": 60, "starts_per_s": 30.0, "measured_s": 300.0}


def test_without_starts_it_is_expected_by_the_work_before_it():
    idle = {"arrived": 0, "started": 0, "ended": 0}
    lanes = (
        urgent(waiting=10, oldest_wait_s=1.0, run_s=0.5, arrived=600),
        batch(waiting=4, run_s=2.0, slots=3, **idle),
    )
    found = why(job(), lanes, [worker("a", running=5)], ahead=3)
    assert found.expected is not None
    # 3 × 2 s and 10 × 0.5 s, on 3 slots of which urgent keeps 600 / 300 s × 0.5 s = 1 busy.
    assert found.expected.in_s == pytest.approx(11 / 2)
    assert found.expected.inputs["work_s"] == 11


def test_nothing_is_expected_without_anything_to_go_by():
    fresh = batch(started=0, run_s=None)
    found = why(job(), (BOTH[0], fresh), [worker("a", running=5)], ahead=3)
    assert found.expected is not None
    assert found.expected.in_s is None
    assert "nothing of batch was started" in found.expected.how


# --- running and ended ------------------------------------------------------------


def running(**changes: Any) -> JobView:
    given = {"attempt": 1, "worker": "worker-a", "started_at": NOW - 0.1, **changes}
    return job(state=State.RUNNING, **given)


def test_a_running_job_tells_its_worker_and_what_is_left_of_its_lease():
    found = why(running(), lease_ends_us=int((NOW + 12) * 1e6))
    assert found.text == ("It runs on worker a (host host-a, pid 100) for 100 ms, attempt 1 of 3.")
    assert found.lease_left_s == pytest.approx(12)
    assert found.expected is None
    assert kinds(found) == []


@pytest.mark.parametrize(
    ("of", "left_s", "team", "words"),
    [
        (running(worker="gone"), 4.0, None, "heard of no more: another gets it in 4 s"),
        (running(), -2.0, None, "its lease ran out 2 s ago: the next claim gives it to another"),
        (running(), 9.0, [worker("a", unwell="deaf")], "lives but does not work: deaf"),
        (running(cancel_requested=True), 9.0, None, "was told to cancel it"),
        (running(started_at=NOW - 60), 9.0, None, "99 % of its lane take up to 300 ms"),
    ],
)
def test_what_is_odd_about_a_running_job_is_told(of, left_s, team, words):
    found = why(of, workers=team, lease_ends_us=int((NOW + left_s) * 1e6))
    assert words in found.text


def test_a_dead_job_tells_its_error_and_how_to_retry_it():
    found = why(DEAD)
    assert found.text == "It was given up on 1m00s ago, attempt 3 of 3: ValueError: no card."
    assert found.advice is not None
    assert "laneq jobs retry urgent-7" in found.advice


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (State.SUCCEEDED, "It succeeded 5 s ago, attempt 1 of 3, after 2 s."),
        (State.CANCELLED, "It was cancelled 5 s ago, in attempt 1 of 3."),
        (State.EXPIRED, "It expired 5 s ago: it had not started by then."),
    ],
)
def test_a_job_that_has_ended_tells_how(state, words):
    found = why(job(state=state, attempt=1, started_at=NOW - 7, ended_at=NOW - 5))
    assert found.text == words
    assert (found.holds, found.takers, found.expected) == ((), (), None)
