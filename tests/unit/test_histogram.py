"""Percentiles from buckets are within 5 % of the exact ones."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laneq import histogram
from laneq.errors import OptionError

WEEK_US = 7 * 86_400 * 10**6
durations = st.integers(1, 8 * WEEK_US) | st.floats(0, 40).map(lambda power: int(2**power) + 1)


def counted(samples: list[int]) -> dict[int, int]:
    return histogram.merge(*({histogram.bucket_of(us): 1} for us in samples))


def exact(samples: list[int], q: float) -> int:
    return sorted(samples)[max(1, math.ceil(round(q * len(samples), 9))) - 1]


@settings(max_examples=50)
@given(durations)
def test_a_bucket_stands_for_its_durations_within_five_percent(us: int) -> None:
    assert histogram.value_of(histogram.bucket_of(us)) == pytest.approx(us, rel=0.05)


def test_a_bucket_is_within_five_percent_at_every_border() -> None:
    for bucket in range(histogram.LAST_BUCKET):
        border = 1.1**bucket
        for us in (math.floor(border), math.ceil(border), border * (1 - 1e-12), border):
            found = histogram.value_of(histogram.bucket_of(us))
            assert found == pytest.approx(max(us, 1), rel=0.05)


@settings(max_examples=30)
@given(
    st.lists(durations, min_size=1, max_size=60), st.sampled_from([0, 0.07, 0.5, 0.9, 0.99, 1.0])
)
def test_a_percentile_is_within_five_percent_of_the_exact_one(samples: list[int], q: float) -> None:
    assert histogram.percentile(counted(samples), q) == pytest.approx(exact(samples, q), rel=0.05)


def test_the_percentiles_of_ten_thousand_waits_are_within_five_percent() -> None:
    rng = random.Random(3)
    samples = [int(rng.lognormvariate(10, 2)) + 1 for _ in range(10_000)]
    counts = counted(samples)
    for q in (0.5, 0.9, 0.99, 0.999):
        assert histogram.percentile(counts, q) == pytest.approx(exact(samples, q), rel=0.05)


def test_buckets_rise_with_the_duration_and_are_few() -> None:
    buckets = [histogram.bucket_of(2**power) for power in range(64)]
    assert buckets == sorted(buckets)
    assert histogram.bucket_of(WEEK_US) < 290


@pytest.mark.parametrize("us", [0, -5, 0.3, 1])
def test_no_wait_at_all_is_in_the_first_bucket(us: float) -> None:
    assert histogram.bucket_of(us) == 0


@pytest.mark.parametrize("us", [10**15, 10**30, math.inf])
def test_endless_durations_are_in_the_last_bucket(us: float) -> None:
    assert histogram.bucket_of(us) == histogram.LAST_BUCKET


def test_nothing_counted_has_no_percentile() -> None:
    assert histogram.percentile({}, 0.5) is None
    assert histogram.percentile({3: 0}, 0.5) is None


@pytest.mark.parametrize("q", [-0.1, 1.1, 99, math.nan])
def test_a_share_outside_of_zero_to_one_is_refused(q: float) -> None:
    with pytest.raises(OptionError, match=r"^q: "):
        histogram.percentile({1: 1}, q)


def test_merged_histograms_count_everything_once() -> None:
    assert histogram.merge({1: 2, 3: 1}, {}, {1: 1, 2: 5}) == {1: 3, 2: 5, 3: 1}
    assert histogram.merge() == {}
