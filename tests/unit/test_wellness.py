"""A worker is well while its claims, its heartbeats and its loop make progress; no longer."""

from __future__ import annotations

import pytest

from laneq.worker.wellness import Signs, Wellness


class Watched:
    """A worker as far as its wellness goes, and a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.claims = self.beats = self.turns = 0
        self.must_claim = True
        self.wellness = Wellness(self.signs, lambda: self.now, limit_s=10)

    def signs(self) -> Signs:
        return Signs(
            self.claims, self.beats, self.turns, self.must_claim, claim_every_s=1, beat_every_s=5
        )

    def live(self, seconds: int, *but: str) -> tuple[str, ...]:
        """Go on for so long, looked at each second, with progress in all but these."""
        problems: tuple[str, ...] = ()
        for _ in range(seconds):
            self.now += 1
            for name in {"claims", "beats", "turns"} - set(but):
                setattr(self, name, getattr(self, name) + 1)
            problems = self.wellness.problems()
        return problems


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_worker_that_makes_progress_is_well(watched: Watched) -> None:
    assert watched.live(100) == ()


@pytest.mark.parametrize(
    ("what", "limit_s", "words"),
    [
        ("turns", 10, "event loop has not turned for 11 s"),
        ("claims", 11, "no claim of it has been answered for 12 s"),
        ("beats", 15, "no heartbeat of it has been answered for 16 s"),
    ],
)
def test_what_stands_still_for_longer_than_the_limit_makes_it_unwell(
    watched: Watched, what: str, limit_s: int, words: str
) -> None:
    assert watched.live(5) == ()
    assert watched.live(limit_s, what) == ()
    (problem,) = watched.live(1, what)
    assert words in problem
    assert watched.live(1) == ()


def test_each_thing_that_stands_still_is_named(watched: Watched) -> None:
    assert len(watched.live(20, "turns", "claims", "beats")) == 3


def test_a_worker_without_a_free_slot_need_not_claim_for_hours(watched: Watched) -> None:
    watched.live(5)
    watched.must_claim = False
    assert watched.live(7200, "claims") == ()
    watched.must_claim = True
    assert watched.live(11, "claims") == ()
    assert "no claim" in watched.live(1, "claims")[0]


def test_a_process_that_stood_still_gets_its_time_to_get_going(watched: Watched) -> None:
    watched.live(5)
    watched.now += 3600
    assert watched.wellness.problems() == ()
    assert watched.live(9, "turns", "claims", "beats") == ()
    assert len(watched.live(10, "turns", "claims", "beats")) == 3
