"""check, books and lives: slices are bounded and whole, and the namespace may move between them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from laneq import check
from laneq.calls import checks
from laneq.calls.checks import START, Slice
from laneq.codec import encode_record
from laneq.options import Lane
from tests.audit import audit
from tests.stage import SECOND, Stage, new

ROOT = Path(__file__).parents[2]


def slices(stage: Stage, **options) -> list[Slice]:
    found, place = [], START
    while place.source:
        got = stage.run(checks.check(stage.keys, stage.lanes, place, **options))
        assert got is not None
        found.append(got)
        place = got.next
    return found


def fill(stage: Stage, n: int, lane: str = "normal") -> list[str]:
    ids = [f"{lane}{i:05}" for i in range(n)]
    for start in range(0, n, 500):
        stage.put(*ids[start : start + 500], lane=lane)
    return ids


def test_a_walk_sees_everything_in_bounded_slices(stage):
    fill(stage, 2000)
    fill(stage, 300, lane="batch")
    found = slices(stage)
    assert max(got.seen for got in found) <= 500
    open_jobs: Counter[tuple[str, str]] = Counter()
    for got in found:
        for task, state, n in got.open:
            open_jobs[task, state] += n
    assert open_jobs == {("t", "waiting"): 2300}
    books = stage.run(checks.books(stage.keys, stage.lanes))
    assert books is not None
    assert sum(got.seen for got in found) >= books.entries


def test_large_bodies_make_small_slices(stage):
    big = encode_record("t", b"x" * 900_000)
    for i in range(30):
        stage.enqueue(checks_job(f"{i:02}", big))
    records = [sum(n for _, _, n in got.open) for got in slices(stage)]
    assert sum(records) >= 30
    # A cursor gives whole buckets: Valkey's have seven entries and a chain.
    assert max(records) <= 21
    assert len([n for n in records if n]) > 1


def checks_job(job_id: str, record: bytes):
    job = new(job_id)
    job.record = record
    return job


def test_with_many_lanes_a_slice_has_fewer_entries(bare):
    bare.publish(*(Lane(f"lane{n}") for n in range(60)))
    fill(bare, 1000, lane="lane7")
    assert max(got.seen for got in slices(bare)) <= 60


def test_the_jobs_of_a_task_are_named_if_asked_for(stage):
    stage.put("a", "b")
    stage.enqueue(new("c", task="other"))
    stage.worker(slots=1).take()
    (got,) = slices(stage, wanted=["t"])
    assert sorted(got.wanted) == [("t", "running", "a"), ("t", "waiting", "b")]


def test_a_slice_of_other_lanes_than_those_in_force_is_refused(stage):
    before = stage.lanes
    stage.set_lane("normal", {"priority": 5})
    for call in (
        checks.check(stage.keys, before, START),
        checks.books(stage.keys, before),
        checks.mend(stage.keys, before, ["a"]),
        checks.tidy(stage.keys, before),
    ):
        assert stage.run(call) is None


def test_jobs_that_move_during_a_walk_are_no_problem(stage):
    """All the while jobs start, end, fail and come; lanes come too."""
    fill(stage, 1500)
    worker = stage.worker(slots=40)
    steps = check.check(stage.keys)
    step, n = next(steps), 0
    while True:
        n += 1
        answer = (
            step.read(stage.client.execute_command(*step.args))
            if isinstance(step, check.Command)
            else stage.run(step)
        )
        worker.claim(
            free=40,
            outcomes=[
                worker.ended(job_id, kind, number=SECOND)
                for job_id, kind in zip(
                    list(worker.held), ["succeeded", "retried", "handed_back", "dead"] * 10,
                    strict=False,
                )
            ],
        )  # fmt: skip
        stage.put(f"more{n}", lane="urgent")
        stage.forward(SECOND // 10)
        if n in {5, 9}:
            stage.publish(*stage_lanes(n))
        try:
            step = steps.send(answer)
        except StopIteration as end:
            report = end.value
            break
    assert n > 10
    assert report.problems == []


def stage_lanes(n: int) -> list[Lane]:
    return [
        *(Lane(name, priority=p) for name, p in (("urgent", 1000), ("normal", 100), ("batch", 10))),
        Lane(f"extra{n}"),
    ]


def test_a_task_that_is_off_is_found_among_thousands_of_jobs(stage):
    fill(stage, 1200)
    stage.client.hincrby(stage.keys.task_counts, "t\tenqueued", -1)
    stage.client.hincrby(stage.keys.task_counts, "u\tenqueued", 1)
    report = stage.audit()
    assert {problem.kind for problem in report.problems} == {"balance of a task"}
    assert sorted(problem.detail.split(":")[0] for problem in report.problems) == [
        "task t", "task u",
    ]  # fmt: skip
    stage.allow("balance of a task")


def test_tasks_that_are_counted_together_balance_together(stage):
    """Past 5,000 fields all further tasks are counted as `*`."""
    for start in range(0, 6000, 1000):
        stage.enqueue(*(new(f"{i}", task=f"task{i}") for i in range(start, start + 1000)))
    assert stage.task_counts("*")["enqueued"] > 900
    worker = stage.worker(slots=200)
    worker.take()
    assert stage.audit().problems == []
    stage.client.hincrby(stage.keys.task_counts, "*\tenqueued", 1)
    kinds = {problem.kind for problem in stage.audit().problems}
    assert kinds == {"balance of a task", "balance of tasks"}
    stage.allow(*kinds)


def test_problems_beyond_a_bound_are_counted(stage, monkeypatch):
    monkeypatch.setattr(check, "MOST", 10)
    stage.client.hset(stage.keys.history, mapping={f"{n}": "x" for n in range(50)})
    report = stage.audit()
    assert (len(report.problems), report.left_off) == (10, 40)
    mended = stage.audit(is_repair=True)
    assert (mended.problems, len(mended.repairs), mended.left_off) == ([], 10, 40)


def test_a_lane_that_was_lost_comes_back_whole(stage):
    ids = fill(stage, 700)
    stage.client.delete(stage.key("waiting", "normal"))
    report = stage.audit(is_repair=True)
    assert report.problems == []
    assert {repair.id for repair in report.repairs} == set(ids)
    assert sorted(stage.order()) == ids


@pytest.mark.parametrize("name", ["a*b", "a[bc]d", "a?b", "a\\b", "ü ñ"])
def test_keys_of_namespaces_with_odd_names_are_told_apart(fake, name):
    stage = Stage(fake, name, is_fake=True)
    stage.publish()
    for other in ("aXb", "abd", "axb", "ab"):
        fake.set(f"{{laneq:{other}}}:stray", 1)
    assert stage.audit().problems == []
    fake.set(stage.keys.prefix + b"stray", 1)
    assert [problem.kind for problem in stage.audit().problems] == ["key"]


def test_a_lane_that_is_published_while_keys_are_listed_is_known(stage):
    steps = check.check(stage.keys)
    step = next(steps)
    while not (isinstance(step, check.Command) and step.args[0] == "SCAN"):
        answer = stage.run(step) if not isinstance(step, check.Command) else 0
        step = steps.send(answer)
    stage.publish(Lane("late"))
    stage.put("a", lane="late")
    found = stage.client.execute_command(*step.args)
    step = steps.send(step.read(found))
    report = None
    while report is None:
        try:
            if isinstance(step, check.Command):
                step = steps.send(step.read(stage.client.execute_command(*step.args)))
            else:
                step = steps.send(stage.run(step))
        except StopIteration as end:
            report = end.value
    assert report.problems == []


def test_a_key_that_is_gone_meanwhile_is_no_problem(stage):
    lives = stage.run(checks.lives([stage.keys.jobs, stage.keys.state]))
    assert [(life.type, life.ttl_ms) for life in lives] == [("none", -2), ("hash", -1)]


def test_a_lease_that_has_run_out_is_no_problem_and_a_repair_brings_it_back(stage):
    stage.put("a")
    stage.worker().take()
    stage.forward(60 * SECOND)
    assert stage.audit().problems == []
    report = stage.audit(is_repair=True)
    assert [(repair.kind, repair.id) for repair in report.repairs] == [("lease", "a")]
    assert stage.state("a") == "waiting"
    assert stage.counts()["lost_leases"] == 1


def test_a_namespace_that_was_never_used_is_in_order(bare):
    bare.client.delete(bare.keys.state)
    assert bare.audit().problems == []


def test_jobs_without_any_lane_are_told(stage):
    stage.put("a")
    stage.client.delete(stage.keys.state, stage.keys.lanes)
    kinds = {
        problem.kind for problem in audit(stage.client, stage.namespace, is_fake=True).problems
    }
    assert {"config", "key"} <= kinds
    stage.publish()
    assert stage.audit(is_repair=True).problems == []


def test_the_types_are_those_of_the_documentation():
    from tests.contract.test_docs import key_rows

    told = {row[0].strip("`"): row[1] for row in key_rows() if ":" not in row[0]}
    assert told == check.TYPES


def test_the_guide_tells_of_every_kind():
    guide = (ROOT / "docs" / "operations.md").read_text("utf-8")
    table = guide.partition("## Checking")[2].partition("## Steering")[0]
    first_cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| ")]
    told = " ".join(first_cells)
    for kind in check.KINDS:
        words = kind.split(" of a ")
        assert all(word in told for word in words), kind
