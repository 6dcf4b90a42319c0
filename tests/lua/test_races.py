"""Many clients at once: each script is one step, so counts and places add up whatever meets."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
import redis

from laneq.calls import jobs
from tests.stage import START_US, Stage, new

THREADS = 4


def stage_of(url: str, namespace: str) -> Stage:
    stage = Stage(redis.Redis.from_url(url), namespace, is_fake=False)
    stage.publish()
    return stage


def together(*bodies) -> None:
    """Run all at once; the first error is raised here."""
    errors: list[BaseException] = []
    gate = threading.Barrier(len(bodies))

    def run(body) -> None:
        try:
            gate.wait()
            body()
        except BaseException as error:  # noqa: BLE001  raised below, in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.slow
def test_a_thousand_cancels_that_race_the_claims_leave_each_job_one_end(url, namespace, raw):
    raw.hset(f"{{laneq:{namespace}}}:state", "clock", START_US)
    first = stage_of(url, namespace)
    ids = [f"{n:04}" for n in range(1000)]
    first.put(*ids)
    said: dict[str, str] = {}
    started: list[str] = []

    def work(name: str):
        stage = stage_of(url, namespace)
        worker = stage.worker(name, slots=5)

        def run() -> None:
            while True:
                ends = [worker.ended(job_id, number=10**12) for job_id in worker.held]
                got = [job.id for job in worker.claim(free=5, outcomes=ends).jobs]
                started.extend(got)
                if not got:
                    break

        return run

    def cancel(part: list[str]):
        stage = stage_of(url, namespace)

        def run() -> None:
            for job_id in part:
                said[job_id] = stage.cancel(job_id, keep_us=10**12).word

        return run

    together(
        *(work(f"w{n}") for n in range(THREADS)),
        *(cancel(ids[n::THREADS]) for n in range(THREADS)),
    )
    ends = Counter(first.state(job_id) for job_id in ids)
    words = Counter(said.values())
    assert len(started) == len(set(started))
    assert ends["cancelled"] + ends["succeeded"] == 1000
    assert ends["cancelled"] == words["cancelled"] + words["requested"]
    assert all(said[job_id] != "cancelled" for job_id in started)
    assert first.problems() == []


@pytest.mark.slow
def test_each_job_starts_once_however_many_claim_and_enqueue(url, namespace, raw):
    raw.hset(f"{{laneq:{namespace}}}:state", "clock", START_US)
    first = stage_of(url, namespace)
    started: list[str] = []
    finished: list[int] = []
    each, ids = 200, THREADS // 2 * 200

    def produce(n: int):
        stage = stage_of(url, namespace)

        def run() -> None:
            for i in range(each):
                # Each id is sent by two producers: one of them hears that it is a repeat.
                stage.ask(jobs.enqueue(stage.keys, [new(f"{n // 2}-{i:03}")]), session=f"p{n}")
            finished.append(n)

        return run

    def work(name: str):
        stage = stage_of(url, namespace)
        worker = stage.worker(name, slots=3)

        def run() -> None:
            while True:
                are_all_there = len(finished) == THREADS
                ends = [worker.ended(job_id, number=10**12) for job_id in worker.held]
                got = [job.id for job in worker.claim(free=3, outcomes=ends).jobs]
                started.extend(got)
                if not got and are_all_there:
                    break

        return run

    together(*(produce(n) for n in range(THREADS)), *(work(f"w{n}") for n in range(THREADS)))
    assert len(started) == len(set(started)) == ids
    counts = first.counts()
    assert (counts["enqueued"], counts["deduplicated"]) == (ids, ids)
    assert counts["succeeded"] == ids
    assert first.problems() == []
