"""Each public pair, blocking and asynchronous, takes the same and gives the same."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from laneq import Job, LaneQ, PreparedTask, Task, TaskRef
from laneq.testing import Testing

#: Public methods of these classes that ask Redis, and so must be pairs.
PAIRED = {
    LaneQ: {"enqueue", "enqueue_many", "carry_out", "close"},
    Job: {"state", "info", "result", "cancel", "retry"},
    Task: {"enqueue"},
    PreparedTask: {"enqueue"},
    TaskRef: {"enqueue"},
    Testing: {"run", "run_all"},
}

#: Coroutine functions without a twin, and why: none.
ALONE: dict[type, set[str]] = {}


def methods(owner: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(owner).items():
        if inspect.isfunction(value) and not name.startswith("_"):
            yield name, value


def twins() -> list[tuple[type, str]]:
    return [(owner, name) for owner, names in PAIRED.items() for name in sorted(names)]


@pytest.mark.parametrize(
    ("owner", "name"), twins(), ids=lambda part: getattr(part, "__name__", part)
)
def test_a_pair_has_one_signature_in_two_colours(owner, name):
    blocking, asynchronous = vars(owner)[name], vars(owner)[f"a{name}"]
    assert inspect.signature(blocking) == inspect.signature(asynchronous)
    assert inspect.iscoroutinefunction(asynchronous)
    assert not inspect.iscoroutinefunction(blocking)
    assert "twin of `" in asynchronous.__doc__ or "see `" in blocking.__doc__


@pytest.mark.parametrize("owner", PAIRED, ids=lambda owner: owner.__name__)
def test_every_coroutine_function_is_the_twin_of_a_blocking_one(owner):
    coroutines = {name for name, method in methods(owner) if inspect.iscoroutinefunction(method)}
    assert coroutines - ALONE.get(owner, set()) == {f"a{name}" for name in PAIRED[owner]}


@pytest.mark.parametrize(
    ("owner", "name"),
    [pair for pair in twins() if pair[0] is not Testing and pair[1] not in {"close", "carry_out"}],
    ids=lambda part: getattr(part, "__name__", part),
)
def test_a_pair_is_two_bodies_of_one_line_over_the_same_plan(owner, name):
    def body(method: Any) -> list[str]:
        lines = inspect.getsource(method).strip().splitlines()
        quotes = [n for n, line in enumerate(lines) if '"""' in line]
        return [line.strip() for line in lines[quotes[-1] + 1 :]]

    (blocking,), (asynchronous,) = body(vars(owner)[name]), body(vars(owner)[f"a{name}"])
    as_blocking = (
        asynchronous.replace("await ", "")
        .replace("acarry_out", "carry_out")
        .replace("aenqueue", "enqueue")
    )
    assert as_blocking == blocking
