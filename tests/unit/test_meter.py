"""What a worker measures goes into the right buckets, and nothing is lost on the way."""

from __future__ import annotations

import random

import pytest

from laneq.histogram import LAST_BUCKET, bucket_of
from laneq.worker.meter import Meter


def taken(meter: Meter) -> dict[tuple[str, str], int]:
    meter.take()  # retires what was noted
    return {(sample.lane, sample.field): sample.n for sample in meter.take()}


@pytest.mark.parametrize("us", [-5, 0, 0.2, 1, 1.05, 1.1, 2, 999, 1e6, 3.3e9, 1e15, 1e30])
def test_a_duration_is_counted_in_the_bucket_that_the_histogram_says(us: float) -> None:
    meter = Meter()
    meter.note("normal", us, us, us)
    bucket = bucket_of(us)
    assert 0 <= bucket <= LAST_BUCKET
    assert taken(meter) == {("normal", f"{kind}{bucket}"): 1 for kind in "wrl"}


def test_every_job_is_counted_once_however_many_there_are() -> None:
    meter = Meter()
    rng = random.Random(1)
    for n in range(1_234):
        meter.note(f"lane{n % 3}", rng.expovariate(1e-4), rng.expovariate(1e-3), 5)
        if n == 777:
            early = meter.take()
    samples = [*early, *meter.take(), *meter.take()]
    for kind in "wrl":
        assert sum(s.n for s in samples if s.field[0] == kind) == 1_234
    assert not meter.has_counts


def test_samples_that_could_not_be_sent_are_sent_with_the_next() -> None:
    meter = Meter()
    meter.note("normal", 10, 20, 30)
    meter.take()
    samples = meter.take()
    meter.put_back(samples)
    meter.put_back(samples)
    assert meter.has_counts
    assert {sample.n for sample in meter.take()} == {2}


def test_what_is_noted_while_the_counts_are_taken_is_not_lost() -> None:
    meter = Meter()
    meter.note("normal", 1, 1, 1)
    table = meter._tables["normal"]
    meter.take()
    table.wait.append(1)  # by the loop, which had got hold of the table before
    table.run.append(1)
    table.latency.append(1)
    assert {sample.n for sample in meter.take()} == {2}
