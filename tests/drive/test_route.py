"""Where to connect, one place after the other: the decisions, without a server."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import ClusterDownError
from redis.exceptions import ConnectionError as NoConnection

from laneq.drive.route import Place, Route
from laneq.keys import keys_of

PREFIX = keys_of("shop").prefix
SEED: Place = ("seed", 1)
A: Place = ("a", 1)
B: Place = ("b", 2)

#: Ids, and answers to CLUSTER SLOTS. The slot of the namespace shop is 8935.
IDS = {A: b"id of a", B: b"id of b"}
A_HAS_IT = [[0, 8000, [b"b", 2, IDS[B]]], [8001, 16383, [b"a", 1, IDS[A]]]]
B_HAS_IT = [[0, 16383, [b"b", 2, IDS[B]], [b"a", 1, IDS[A]]]]


def sought(route: Route, answers: dict[Place, Any], seed: Place = SEED) -> list[Place]:
    """Return where was connected to, until the right place was found."""
    steps = route.seek(seed)
    asked: list[Place] = []
    place, _ = next(steps)
    while True:
        asked.append(place)
        answer = answers.get(place, NoConnection("down"))
        try:
            if isinstance(answer, Exception):
                place, _ = steps.throw(answer)
            else:
                told = None if answer is None else (IDS.get(place, b"id of the seed"), answer)
                place, _ = steps.send(told)
        except StopIteration:
            return asked


def test_a_server_that_is_in_no_cluster_is_the_one() -> None:
    route = Route(PREFIX)
    assert sought(route, {SEED: None}) == [SEED]
    assert route.nodes == ()


def test_a_node_says_which_one_has_the_namespace_and_that_is_remembered() -> None:
    route = Route(PREFIX)
    answers = {SEED: A_HAS_IT, A: A_HAS_IT}
    assert sought(route, answers) == [SEED, A]
    assert sought(route, answers) == [A]


def test_the_other_nodes_are_asked_when_the_one_that_had_it_is_gone() -> None:
    route = Route(PREFIX)
    sought(route, {SEED: A_HAS_IT, A: A_HAS_IT})
    assert sought(route, {B: B_HAS_IT}) == [A, B]
    assert sought(route, {B: B_HAS_IT}) == [B]


def test_a_node_that_is_said_to_have_it_and_is_dead_is_told_by_name() -> None:
    with pytest.raises(NoConnection, match=r"a:1, the node that has hash slot 8935"):
        sought(Route(PREFIX), {SEED: A_HAS_IT, B: A_HAS_IT})


def test_a_slot_that_no_node_has_is_a_refusal() -> None:
    with pytest.raises(ClusterDownError, match="no node has hash slot 8935"):
        sought(Route(PREFIX), {SEED: [[0, 1, [b"seed", 1, b"id of the seed"]]]})


def test_a_node_without_a_name_is_the_one_that_was_asked() -> None:
    for nameless in (b"", None, b"?"):
        assert sought(Route(PREFIX), {SEED: [[0, 16383, [nameless, 1, b"an id"]]]}) == [SEED]


def test_a_node_keeps_the_name_that_it_was_reached_by() -> None:
    """As through a tunnel, or a container's port: its own name leads nowhere from here."""
    route = Route(PREFIX)
    unreachable = [[0, 16383, [b"172.17.0.2", 6379, b"id of the seed"], [b"b", 2, IDS[B]]]]
    assert sought(route, {SEED: unreachable}) == [SEED]
    assert route.nodes == (SEED, B)


def test_a_remembered_node_that_is_in_no_cluster_any_more_is_passed_over() -> None:
    route = Route(PREFIX)
    sought(route, {SEED: A_HAS_IT, A: A_HAS_IT})
    assert sought(route, {A: None, B: B_HAS_IT}) == [A, B]


def test_two_nodes_that_name_each_other_are_asked_once_each() -> None:
    with pytest.raises(NoConnection, match="gives no answer"):
        sought(Route(PREFIX), {A: B_HAS_IT, B: A_HAS_IT}, seed=A)
