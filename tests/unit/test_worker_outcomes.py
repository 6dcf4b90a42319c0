"""From what a job returned or raised to its outcome, without a worker."""

from __future__ import annotations

import pytest

from laneq import Retry, codec
from laneq.errors import GiveUpRequested, JobTimeout, RetryRequested, SnoozeRequested
from laneq.worker import outcomes

TWICE = Retry(2, base=3, backoff="fixed", jitter=False)


@pytest.mark.parametrize(
    ("error", "attempt", "kind", "number"),
    [
        (ValueError("x"), 1, "retried", 3_000_000),
        (ValueError("x"), 2, "dead", 0),
        (RetryRequested(None), 1, "retried", 3_000_000),
        (RetryRequested(0.5), 1, "retried", 500_000),
        (RetryRequested(0.5), 2, "dead", 0),
        (SnoozeRequested(7), 2, "snoozed", 7_000_000),
        (GiveUpRequested("why"), 1, "dead", 0),
        (SystemExit(3), 1, "dead", 0),
    ],
)
def test_what_is_raised_decides_the_outcome(
    error: BaseException, attempt: int, kind: str, number: int
) -> None:
    verdict = outcomes.raised(error, retry=TWICE, attempt=attempt)
    assert (verdict.kind, verdict.number) == (kind, number)
    assert (verdict.error is None) == (kind == "snoozed")


def test_a_time_out_is_told_as_one_and_judged_as_the_built_in_error() -> None:
    cause = JobTimeout()
    verdict = outcomes.timed_out(1.5, cause, retry=Retry(3, never_on=TimeoutError), attempt=1)
    assert verdict.kind == "dead"
    error = codec.decode_error(verdict.body)
    assert (error.type, error.message) == ("JobTimeout", "timed out after 1.5 s")


def test_a_process_that_died_spends_an_attempt_whatever_exceptions_the_rule_names() -> None:
    rule = Retry(2, retry_on=KeyError, base=0)
    assert outcomes.lost_process("exited", retry=rule, attempt=1).kind == "retried"
    assert outcomes.lost_process("exited", retry=rule, attempt=2).kind == "dead"


def test_a_result_is_kept_as_long_as_its_task_says_and_never_over_the_limit() -> None:
    kept = outcomes.returned([1], keep_us=5, max_payload=100)
    assert isinstance(kept, outcomes.Verdict)
    assert (kept.kind, kept.number, codec.decode_value(kept.body)) == ("succeeded", 5, [1])
    for value, error in (("x" * 200, "PayloadTooLarge"), (object(), "NotSerializable")):
        # It has done its work: it is not to do it again.
        dead = outcomes.returned(value, keep_us=5, max_payload=100)
        assert (dead.kind, codec.decode_error(dead.body).type) == ("dead", error)
