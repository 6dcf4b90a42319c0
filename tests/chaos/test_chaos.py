"""A short chaos run, and books that are wrong: they must say so."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from rich.console import Console

from tests.chaos import diary, report
from tests.chaos.books import Account, Books
from tests.chaos.diary import Entry
from tests.chaos.faults import Row, read, run, show
from tests.chaos.harvest import Seen
from tests.chaos.havoc import Blow
from tests.chaos.ledger import Ledger
from tests.chaos.run import Plan, carry_out

SECOND = 1_000_000_000


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_half_a_minute_of_chaos_loses_nothing_and_doubles_nothing(capsys):
    plan = Plan(minutes=0.4, seed=7, rate=60, pace=0.7, workers=3)
    done = carry_out(plan, progress=lambda _: None)
    report.show(done, Console())
    said = capsys.readouterr().out
    assert done.is_well, said
    assert done.account.jobs > 200
    assert done.faults.total() > 10
    document = json.loads(json.dumps(report.as_json(done)))
    assert document["ok"]
    assert document["seed"] == 7


class Story:
    """One job, told by ledger, diary and Redis."""

    def __init__(self, kind: str = "quick") -> None:
        self.ledger = Ledger()
        self.wanted = self.ledger.want(kind, "normal")
        self.wanted.id = "J1"
        self.entries: list[Entry] = []
        self.outcomes: dict[str, set[Seen]] = {}
        self.counts: Counter[str] = Counter(enqueued=1)
        self.blows: list[Blow] = []

    def run(self, fence: int, *, at_s: float, end: str = diary.OK, worker: str = "w1.1") -> None:
        at_ns = int(at_s * SECOND)
        self.counts["started"] += 1
        self.entries.append(Entry(diary.START, "J1", "1", fence, worker, at_ns, "-"))
        if end:
            ended_ns = at_ns + SECOND // 10
            self.entries.append(Entry(end, "J1", "1", fence, worker, ended_ns, "-"))

    def ended(self, state: str, fence: int, *, result: int | None = None, attempt: int = 1) -> None:
        self.counts[state] += 1
        seen = Seen(state, attempt, fence, fence, "normal", result, "")
        self.outcomes.setdefault("J1", set()).add(seen)

    def close(self) -> Account:
        return Books(
            self.ledger, self.entries, self.outcomes, self.counts, self.blows, numbers={}
        ).close()


def story(kind: str = "quick") -> Story:
    found = Story(kind)
    found.run(10, at_s=100)
    found.ended("succeeded", 10, result=10)
    return found


def test_books_of_a_job_that_ran_once_balance():
    account = story().close()
    assert account.problems == []
    assert (account.jobs, account.starts, account.extra) == (1, 1, 0)


def test_a_job_without_an_outcome_is_lost():
    lost = Story()
    lost.run(10, at_s=100)
    assert any("no outcome" in problem for problem in lost.close().problems)


def test_a_job_with_two_outcomes_was_ended_twice():
    twice = story()
    twice.run(20, at_s=101)
    twice.ended("succeeded", 20, result=20)
    assert any("2 outcomes in 1 lives" in problem for problem in twice.close().problems)


def test_an_extra_start_is_explained_by_a_blow_to_the_worker_of_the_first_and_no_other():
    def again(*blows: Blow) -> Account:
        found = Story()
        found.run(10, at_s=100, end="")
        found.run(20, at_s=110, worker="w2.1")
        found.ended("succeeded", 20, result=20)
        found.blows += blows
        return found.close()

    hit = again(Blow("killed", frozenset({"w1.1"}), 105 * SECOND, 105 * SECOND))
    assert hit.problems == []
    assert (hit.extra, hit.bound) == (1, 1)
    assert any("nothing hit" in problem for problem in again().problems)
    other = again(Blow("killed", frozenset({"w2.1"}), 105 * SECOND, 105 * SECOND))
    assert any("nothing hit" in problem for problem in other.problems)
    late = again(Blow("killed", frozenset({"w1.1"}), 130 * SECOND, 130 * SECOND))
    assert any("nothing hit" in problem for problem in late.problems)


def test_a_job_of_one_attempt_must_not_start_again_whatever_was_hit():
    twice = Story("once")
    twice.run(10, at_s=100, end="")
    twice.run(20, at_s=110)
    twice.ended("succeeded", 20, result=20)
    twice.blows.append(Blow("killed", None, 101 * SECOND, 102 * SECOND))
    assert any("at most one attempt" in problem for problem in twice.close().problems)


def test_a_result_of_another_attempt_is_noticed():
    wrong = Story()
    wrong.run(10, at_s=100)
    wrong.ended("succeeded", 10, result=9)
    assert any("the result of another" in problem for problem in wrong.close().problems)


def test_a_success_that_no_body_came_to_is_noticed():
    wrong = Story()
    wrong.run(10, at_s=100, end=diary.FAILED)
    wrong.ended("succeeded", 10, result=10)
    assert any("its body did not" in problem for problem in wrong.close().problems)


def test_a_confirmed_cancel_that_changed_nothing_is_noticed():
    kept = story()
    kept.wanted.cancel_ns = 1
    kept.wanted.may_be_cancelled = True
    assert any("its cancel was confirmed" in problem for problem in kept.close().problems)


def test_a_number_that_became_two_jobs_is_noticed():
    twice = story()
    twice.entries.append(Entry(diary.START, "J2", "1", 30, "w1.1", 200 * SECOND, "-"))
    assert any("became several jobs" in problem for problem in twice.close().problems)


def test_a_child_of_an_attempt_that_did_not_count_is_noticed():
    ghost = Story("parent")
    ghost.run(10, at_s=100, end="")
    ghost.entries.append(Entry(diary.CHILD, "J1", "1", 10, "w1.1", 100 * SECOND, "C1"))
    ghost.run(20, at_s=110)
    ghost.ended("succeeded", 20, result=20)
    ghost.blows.append(Blow("killed", None, 101 * SECOND, 102 * SECOND))
    assert ghost.close().problems == []
    ghost.entries.append(Entry(diary.START, "C1", "1.0", 40, "w1.1", 111 * SECOND, "-"))
    ghost.counts["started"] += 1
    assert any("nobody enqueued it" in problem for problem in ghost.close().problems)


def test_counts_that_differ_from_what_was_seen_are_noticed():
    wrong = story()
    wrong.counts["succeeded"] += 1
    wrong.counts["enqueued"] += 1
    problems = wrong.close().problems
    assert any("succeeded by the counts" in problem for problem in problems)
    assert any("enqueued by the counts" in problem for problem in problems)


def test_the_list_of_faults_is_read_from_what_pytest_wrote():
    rows = read(
        "<testsuites><testsuite>"
        '<testcase classname="tests.faults.test_x" name="test_fault_A1_is_fine[ci]" time="1.26"/>'
        '<testcase classname="tests.faults.test_x" name="test_fault_C10_is_not" time="2">'
        '<failure message="assert 1 == 2&#10;more"/></testcase>'
        '<testcase classname="tests.faults.test_x" name="test_fault_D2_waits" time="0">'
        '<skipped message="no sentinel here"/></testcase>'
        '<testcase classname="tests.unit.test_y" name="test_fault_i1_is_small" time="0"/>'
        '<testcase classname="tests.faults.test_x" name="test_of_something_else" time="2"/>'
        "</testsuite></testsuites>"
    )
    assert [(row.fault, row.outcome, row.seconds, row.reason) for row in rows] == [
        ("A1", "passed", 1.3, ""),
        ("C10", "failed", 2.0, "assert 1 == 2"),
        ("D2", "skipped", 0.0, "no sentinel here"),
        ("I1", "passed", 0.0, ""),
    ]
    assert rows[0].test == "tests/faults/test_x.py::test_fault_A1_is_fine[ci]"


def test_a_list_of_faults_that_could_not_be_run_is_no_list():
    with pytest.raises(RuntimeError, match="pytest ended with status 4"):
        run(progress=lambda _: None, arguments=("no/such/folder",))


def test_the_list_of_faults_shows_names_and_reasons_as_they_are(capsys):
    name = f"tests/x.py::test_fault_A1_is_{'very_' * 20}fine[ci]"
    rows = [
        Row("A1", name, "passed", 1.0, ""),
        Row("C10", "tests/x.py::test_fault_C10_is_not[full]", "failed", 62.0, "no [/such] thing"),
    ]
    show(rows, Console(width=60))
    assert capsys.readouterr().out.splitlines() == [
        f"A1      1.0 s  passed   {name}",
        "C10    62.0 s  failed   tests/x.py::test_fault_C10_is_not[full]",
        "              no [/such] thing",
        "2 tests in 63 s: 1 failed, 1 passed",
    ]


def test_a_failure_that_says_nothing_is_a_failure():
    (row,) = read('<t><testcase name="test_fault_A1_x"><failure message=""/></testcase></t>')
    assert (row.outcome, row.reason) == ("failed", "")
