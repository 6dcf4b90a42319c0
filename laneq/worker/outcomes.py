"""From what a job returned or raised to the outcome that is reported.

Pure but for chance (jitter): shared by the worker and its child processes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from laneq import codec
from laneq.errors import (
    GiveUpRequested,
    NotSerializable,
    PayloadTooLarge,
    RetryRequested,
    SnoozeRequested,
)
from laneq.model import RemoteError
from laneq.options import Retry, to_us

#: The encoded result of a function that returns nothing.
NOTHING: Final = codec.encode_value(None)


class Verdict(NamedTuple):
    """An outcome to report; see `calls.workers.Ended` for what the fields are.

    Attributes:
        error: what went wrong, for lines and hooks; None where nothing did.
        problem: a sentence for the log about the retry rule itself, if it misbehaved.
        children: jobs that a child process enqueued: lane, id, record, when.
    """

    kind: str
    number: int
    body: bytes
    error: RemoteError | None = None
    problem: str | None = None
    children: Sequence[tuple[str, str, bytes, str]] = ()


def returned(value: Any, *, keep_us: int, max_payload: int) -> Verdict:
    """Return the outcome of a job that returned.

    One whose result cannot be kept is dead, whatever attempts are left: it has done its
    work, and would do it again for a result that cannot be kept either (fault I5).
    """
    if value is None:
        return Verdict("succeeded", keep_us, NOTHING)
    try:
        body = codec.encode_value(value)
    except NotSerializable as error:
        return _dead(RemoteError(type(error).__name__, str(error)))
    except BaseException as error:  # noqa: BLE001  a value's own code may raise anything
        return _dead(codec.describe_exception(error))
    if len(body) > max_payload:
        too_large = PayloadTooLarge("result too large: it", len(body), max_payload)
        return _dead(RemoteError(type(too_large).__name__, str(too_large)))
    return Verdict("succeeded", keep_us, body)


def raised(error: BaseException, *, retry: Retry, attempt: int) -> Verdict:
    """Return the outcome of a job that raised, its own wishes (`JobControl`) among it."""
    match error:
        case SnoozeRequested():
            return Verdict("snoozed", to_us(error.delay_s), b"")
        case GiveUpRequested():
            return _dead(RemoteError("GaveUp", error.reason))
        case RetryRequested():
            told = RemoteError("RetryRequested", f"attempt {attempt} asked to be retried")
            return failed(None, told, retry=retry, attempt=attempt, delay_s=error.delay_s)
    return failed(error, codec.describe_exception(error), retry=retry, attempt=attempt)


def failed(
    error: BaseException | None,
    told: RemoteError,
    *,
    retry: Retry,
    attempt: int,
    delay_s: float | None = None,
) -> Verdict:
    """Return the outcome of a failed attempt: retried while the rule allows it, else dead.

    Args:
        error: what the rule judges; None leaves only the number of attempts to it.
        told: what is recorded.
        retry: the rule.
        attempt: number of the attempt that failed.
        delay_s: seconds to wait; None for the rule's backoff.
    """
    if not retry.may_retry(error, attempt):
        return _dead(told)
    problem = None
    if delay_s is None:
        delay_s, problem = retry.delay_s(attempt, random)
    return Verdict("retried", to_us(delay_s), codec.encode_error(told), told, problem)


def timed_out(
    timeout_s: float, cause: BaseException | None, *, retry: Retry, attempt: int
) -> Verdict:
    """Return the outcome of an attempt that ran out of time.

    Rules may name the built-in `TimeoutError` for it.

    Args:
        timeout_s: the limit.
        cause: what the job raised when it was stopped, for the traceback, if anything.
        retry: the rule.
        attempt: number of the attempt.
    """
    text = f"timed out after {timeout_s:g} s"
    traceback = codec.describe_exception(cause).traceback if cause is not None else ""
    told = RemoteError("JobTimeout", text, traceback)
    return failed(TimeoutError(text), told, retry=retry, attempt=attempt)


def lost_process(how: str, *, retry: Retry, attempt: int) -> Verdict:
    """Return the outcome of an attempt whose process died under it."""
    told = RemoteError("WorkerLost", f"worker lost: its process {how}")
    return failed(None, told, retry=retry, attempt=attempt)


def _dead(told: RemoteError) -> Verdict:
    return Verdict("dead", 0, codec.encode_error(told), told)
