"""Ids are unique over threads, forks and the end of the counter."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from laneq import ids


def test_an_id_has_twenty_characters_and_is_recognised() -> None:
    made = ids.new_id()
    assert len(made) == 20
    assert ids.is_id(made)


@pytest.mark.parametrize(
    "text", ["", "a" * 19, "a" * 21, "a" * 12 + "0000000G", "é" * 12 + "0" * 8, "a" * 20 + "\n"]
)
def test_other_texts_are_not_ids(text: str) -> None:
    assert not ids.is_id(text)


def test_ids_made_in_bulk_are_distinct_and_in_order() -> None:
    made = ids.new_ids(1_000)
    assert len(set(made)) == 1_000
    assert made == sorted(made)
    assert all(map(ids.is_id, made))
    assert ids.new_id() not in made


@pytest.mark.parametrize("n", [0, 1])
def test_bulk_of_none_or_one(n: int) -> None:
    assert len(ids.new_ids(n)) == n


def test_threads_never_get_the_same_id() -> None:
    with ThreadPoolExecutor(4) as pool:
        batches = list(pool.map(lambda _: [ids.new_id() for _ in range(2_000)], range(4)))
    assert len({an_id for batch in batches for an_id in batch}) == 8_000


def test_a_counter_that_runs_out_gets_a_new_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "_stream", ids._new_stream(ids._LIMIT - 2))
    made = [ids.new_id() for _ in range(4)]
    assert len(set(made)) == 4
    assert all(map(ids.is_id, made))
    assert made[1][:12] != made[2][:12]


def test_a_counter_that_runs_out_within_a_bulk_gets_a_new_prefix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ids, "_stream", ids._new_stream(ids._LIMIT - 2))
    made = ids.new_ids(5)
    assert len(set(made)) == 5
    assert all(map(ids.is_id, made))


FORKING = """
import os
from laneq import ids
if os.fork() == 0:
    print(ids.new_id(), flush=True)
    os._exit(0)
os.wait()
print(ids.new_id())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_another_prefix() -> None:
    # In a process of its own: forking one that has threads is an error (fault L4).
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, check=True)
    child, parent = done.stdout.decode().split()
    assert ids.is_id(child)
    assert ids.is_id(parent)
    assert child[:12] != parent[:12]


def test_worker_ids_are_random_text_of_sixteen_characters() -> None:
    made = {ids.worker_id() for _ in range(100)}
    assert len(made) == 100
    assert {len(worker) for worker in made} == {16}
    assert all(worker.isalnum() and worker.isascii() for worker in made)
