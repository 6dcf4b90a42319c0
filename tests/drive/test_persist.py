"""Backoff and the steps of a call in trouble, without a connection."""

from __future__ import annotations

from typing import Any

import hiredis
import pytest

from laneq.calls.call import Call
from laneq.drive import Address, backoff_s
from laneq.drive.persist import (
    Asked,
    Fresh,
    Pause,
    Send,
    ServerState,
    Session,
    free_session,
    pack_call,
    persist,
)
from laneq.drive.refusals import Lost
from laneq.errors import RedisRefused, RedisUnavailable
from tests.drive.conftest import COUNT_ONCE

PREFIX = b"{laneq:x}:"
CALL: Call[Any] = Call(COUNT_ONCE, (b"k",), (b"a",), lambda reply: reply, once=True)


class Wire:
    """What the steps need of a connection."""

    def __init__(self) -> None:
        self.sessions: list[Session] = []
        self.is_retired = False

    def retire(self) -> None:
        self.is_retired = True


def begin(reply: Any, *, patience_s: float = 2.0, is_pinned: bool = False) -> Any:
    wire = Wire()
    session = free_session(wire, PREFIX)
    asked = Asked(CALL, pack_call(CALL, session), session)
    steps = persist(
        asked,
        reply,
        wire,
        address=Address.parse("redis://h"),
        prefix=PREFIX,
        state=ServerState(patience_s),
        is_pinned=is_pinned,
    )
    return steps, wire, session


def words(packed: bytes) -> list[bytes]:
    reader = hiredis.Reader()
    reader.feed(packed)
    answer: list[bytes] = reader.gets()
    return answer


@pytest.mark.parametrize("tries", [0, 1, 10, 5_000])
def test_backoff_stays_within_its_bounds(tries: int) -> None:
    pauses = [backoff_s(tries) for _ in range(100)]
    assert all(0 < pause <= min(2.0, 0.05 * 2 ** min(tries, 16)) for pause in pauses)
    assert len(set(pauses)) > 50


def test_late_backoffs_are_spread_over_more_than_a_second() -> None:
    pauses = [backoff_s(100) for _ in range(1_000)]
    assert max(pauses) - min(pauses) > 1.0


def test_the_first_try_names_itself_as_the_one_before_and_counts_from_one() -> None:
    session = Session(PREFIX)
    for seq in (1, 2):
        sent = words(pack_call(CALL, session))
        assert sent[2:] == [b"3", session.key, session.key, b"k", b"%d" % seq, b"0", b"a"]


def test_sessions_have_keys_of_their_own_in_the_namespace() -> None:
    keys = {Session(PREFIX).key for _ in range(100)}
    assert len(keys) == 100
    assert all(key.startswith(b"{laneq:x}:session:") for key in keys)
    assert {len(key) for key in keys} == {len(b"{laneq:x}:session:") + 16}


def test_a_repeat_has_a_session_of_the_new_wire_and_names_the_old_one() -> None:
    steps, _, session = begin(Lost("cut"))
    assert isinstance(next(steps), Fresh)
    fresh = Wire()
    step = steps.send(fresh)
    assert isinstance(step, Send)
    sent = words(step.packed)
    assert sent[0] == b"EVALSHA"
    assert sent[3] != session.key
    assert sent[4:] == [session.key, b"k", b"1", b"1", b"a"]
    with pytest.raises(StopIteration) as end:
        steps.send(b"again")
    assert end.value.value == b"again"
    assert [each.key for each in fresh.sessions] == [sent[3]]


def test_a_text_sent_for_a_repeat_still_names_the_lost_try() -> None:
    steps, _, session = begin(Lost("cut"))
    next(steps)
    steps.send(Wire())
    step = steps.send(hiredis.ReplyError("NOSCRIPT No matching script."))
    sent = words(step.packed)
    assert sent[:2] == [b"EVAL", COUNT_ONCE.text]
    assert sent[4:] == [session.key, b"k", b"2", b"1", b"a"]


def test_a_server_without_script_flags_gets_the_plain_text() -> None:
    steps, _, _ = begin(hiredis.ReplyError("NOSCRIPT No matching script."))
    assert words(next(steps).packed)[1] == COUNT_ONCE.text
    step = steps.send(hiredis.ReplyError("ERR user_script:1: unexpected symbol near '#'"))
    assert words(step.packed)[1] == COUNT_ONCE.plain
    with pytest.raises(RedisRefused):
        steps.send(hiredis.ReplyError("ERR user_script:1: unexpected symbol near '#'"))


def test_a_second_break_is_not_repeated() -> None:
    steps, _, _ = begin(Lost("cut"))
    next(steps)
    steps.send(Wire())
    with pytest.raises(RedisUnavailable, match="cut again"):
        steps.send(Lost("cut again"))


def test_nothing_is_repeated_for_a_driver_that_closes() -> None:
    steps, _, _ = begin(Lost("closed", is_closing=True))
    with pytest.raises(RedisUnavailable):
        next(steps)


def test_a_pinned_call_is_not_repeated_elsewhere() -> None:
    lost = Lost("cut")
    steps, _, _ = begin(lost, is_pinned=True)
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert end.value.value is lost


def test_a_replica_is_left_after_a_pause() -> None:
    steps, wire, _ = begin(hiredis.ReplyError("READONLY You can't write"))
    assert isinstance(next(steps), Pause)
    assert wire.is_retired
    assert isinstance(next(steps), Fresh)


def test_a_call_without_patience_is_told_at_once() -> None:
    steps, _, _ = begin(hiredis.ReplyError("LOADING wait"), patience_s=0.0)
    with pytest.raises(RedisRefused, match="LOADING"):
        next(steps)


def test_endless_patience_never_runs_out() -> None:
    steps, _, _ = begin(hiredis.ReplyError("LOADING wait"), patience_s=float("inf"))
    step = next(steps)
    for _ in range(5_000):
        assert isinstance(step, Pause)
        assert isinstance(next(steps), Send)
        step = steps.send(hiredis.ReplyError("LOADING wait"))
