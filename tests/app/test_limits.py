"""Limits and fair lanes through the public API."""

from __future__ import annotations

import pytest

from laneq import Lane, LaneFull, LaneQ
from laneq.errors import OptionError


def names_of(app: LaneQ, jobs: int) -> list[str]:
    order: list[str] = []

    @app.task(name="note", lane="shared", result_ttl=0)
    def note(tenant: str, n: int) -> None:
        order.append(f"{tenant}{n}")

    with app.testing() as test:
        for n in range(jobs):
            note.enqueue("flood", n)
        note.enqueue(n=0, tenant="small")
        app.enqueue_many([note.call("small", n) for n in (1, 2)])
        note.using(fair_key="other").enqueue("small", 3)
        test.run_all()
    return order


def test_a_lane_is_shared_by_the_value_of_an_argument():
    app = LaneQ("redis://nowhere", lanes=[Lane("shared", fair_by="tenant")])
    order = names_of(app, 20)
    assert order[:4] in (
        ["flood0", "small0", "small3", "flood1"],
        ["flood0", "small0", "flood1", "small3"],
    )
    assert order.index("small2") <= 8
    assert [name for name in order if name[:5] == "flood"] == [f"flood{n}" for n in range(20)]


def test_a_lane_that_is_not_fair_is_fifo():
    app = LaneQ("redis://nowhere", lanes=[Lane("shared")])
    assert names_of(app, 3)[:3] == ["flood0", "flood1", "flood2"]


def test_a_full_lane_raises_lane_full_in_the_producer_and_stores_nothing():
    app = LaneQ("redis://nowhere", lanes=[Lane("small", max_depth=2)])

    @app.task(lane="small")
    def work() -> None: ...

    with app.testing():
        work.enqueue()
        with pytest.raises(LaneFull) as caught:
            app.enqueue_many([work.call(), work.call()])
        assert (caught.value.lane, caught.value.max_depth) == ("small", 2)
        work.enqueue()


def test_a_tasks_max_running_is_not_for_one_call_to_change():
    app = LaneQ("redis://nowhere", lanes=[Lane("small")])

    @app.task(lane="small", max_running=2)
    def work() -> None: ...

    with pytest.raises(OptionError, match="not of one call"):
        work.using(max_running=3)
    work.using(max_running=2)


def test_an_app_in_a_test_keeps_no_slots_for_a_reserve():
    app = LaneQ("redis://nowhere", lanes=[Lane("urgent", reserve=3), Lane("normal")])

    @app.task(lane="normal")
    def work() -> int:
        return 1

    with app.testing() as test:
        job = work.enqueue()
        test.run_all()
        assert job.result() == 1


@pytest.mark.parametrize(
    "weights", [{"a": 0}, {"a": 101}, {"a": True}, {1: 1}, [("a", 1)], {"a": "1"}]
)
def test_wrong_weights_are_refused(weights):
    with pytest.raises(OptionError, match="fair_weights"):
        Lane("x", fair_weights=weights)


def test_weights_travel_and_are_set_as_json():
    lane = Lane("x", fair_by="t", fair_weights={"50%\tü": 2.0})
    assert Lane.from_wire(lane.to_wire()) == lane
    assert lane.changed(fair_weights='{"a": 3}').fair_weights == {"a": 3}
    assert lane.changed(fair_weights="none").fair_weights is None
