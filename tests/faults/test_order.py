"""Kind E: order at the ends of each range, hoarding, starving, pausing."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from unittest import mock

import psutil
import pytest

from laneq import Lane
from laneq.calls.jobs import read_outcome
from laneq.calls.lanes import set_lane
from laneq.errors import OptionError
from tests.conftest import keys_in
from tests.faults.clocks import Clock
from tests.faults.conftest import NewField
from tests.faults.field import FACTOR, Field, two_sizes, wait_until

ODD_JOBS: Final = Path(__file__).with_name("odd_jobs.py")

LOWEST, HIGHEST, LONGEST_BOOST = -1_000_000, 1_000_000, 10_000_000


# --- E1: order ------------------------------------------------------------------------


def _burst(field: Field, producers: int, jobs: int, places: Sequence[str]) -> list[list[str]]:
    """Have producers enqueue at once; return what each printed, line by line."""
    with contextlib.ExitStack() as stack:
        started = []
        for _ in range(producers):
            popen = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.bursts", str(jobs // producers), *places],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **field.environment},
            )
            started.append(stack.enter_context(popen))
            stack.callback(popen.kill)
        for popen in started:
            assert popen.stdout is not None
            assert popen.stdout.readline() == "ready\n"
        for popen in started:
            assert popen.stdin is not None
            popen.stdin.write("go\n")
            popen.stdin.flush()
        printed = [popen.communicate(timeout=60)[0].splitlines() for popen in started]
        assert [popen.returncode for popen in started] == [0] * producers
    return printed


@pytest.fixture(params=["now", "2090"])
def since_s(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[float]:
    """When the server lives that is started in this test, in seconds since the epoch."""
    if request.param == "now":
        yield time.time()
        return
    in_2090 = 3_786_912_000.0
    clock = Clock(tmp_path / "server-clock", in_2090 - time.time())
    with mock.patch.dict(os.environ, clock.env):
        yield in_2090


def test_fault_E1_jobs_start_in_order_of_priority_and_enqueue_over_the_whole_range(
    new_field: NewField, since_s: float
) -> None:
    priorities = {"max": HIGHEST, "middle": 1.5, "min1": LOWEST + 1, "min": LOWEST}
    field = new_field(
        app=ODD_JOBS, lanes=[Lane(name, priority=p, aging=0) for name, p in priorities.items()]
    )
    # In turn over lanes, the least first, and in the lane in the middle over all boosts.
    # Seconds apart, so that a slow burst does not mix what is meant to be apart.
    boosts = [LONGEST_BOOST, LONGEST_BOOST - 600, 5_000_000, 600, 0.000001, 0]
    places = ["min", "min1", "max", *(f"middle+{boost}" for boost in reversed(boosts))]
    printed = _burst(field, 4, 2_000, places)
    place_of = dict(line.split(" ") for lines in printed for line in lines)
    assert len(place_of) == 4 * (2_000 // 4)

    field.worker(slots=1)
    field.until_settled(place_of)
    started = [entry.id for entry in field.starts()]
    field.assert_once(place_of)
    # A boost of a microsecond is too short to pass a job that came before.
    groups = ["max", *(f"middle+{boost}" for boost in boosts[:-2]), "middle+0", "min1", "min"]
    group_of = {i: "middle+0" if p == "middle+1e-06" else p for i, p in place_of.items()}
    assert [group_of[job_id] for job_id in started] == sorted(group_of.values(), key=groups.index)
    outcomes = field.raw.hmget(field.keys.outcomes, started)
    enqueued_us = {
        job_id: read_outcome(line).enqueued_us
        for job_id, line in zip(started, outcomes, strict=True)
    }
    assert all(0 <= us / 1e6 - since_s < 600 for us in enqueued_us.values())
    for name in groups:
        in_group = [job_id for job_id in started if group_of[job_id] == name]
        instants = [enqueued_us[job_id] for job_id in in_group]
        assert instants == sorted(set(instants)), f"{name}: not in the order of the enqueues"
        for lines in printed:
            of_one = [line.split(" ")[0] for line in lines if line.split(" ")[0] in in_group]
            assert [job_id for job_id in in_group if job_id in of_one] == of_one


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("priority", [LOWEST - 1, HIGHEST + 1, "3", True, float("nan"), None]),
        ("boost", [-0.000001, LONGEST_BOOST + 0.000001, "3", True, float("inf"), None]),
    ],
)
def test_fault_E1_a_priority_outside_its_range_is_an_error_and_stores_nothing(
    field: Field, option: str, values: list[Any]
) -> None:
    before = {key: field.raw.dump(key) for key in keys_in(field.raw, field.namespace)}
    for value in values:
        with pytest.raises(OptionError, match=f"^{option}: must be"):
            _use(field, option, value)
    if option == "priority":
        for text in (str(LOWEST - 1), str(HIGHEST + 1), "three", "true", "nan"):
            field.laneq("lanes", "set", "normal", f"priority={text}", status=2)
    assert {key: field.raw.dump(key) for key in keys_in(field.raw, field.namespace)} == before


def _use(field: Field, option: str, value: Any) -> None:
    if option == "priority":
        Lane("normal", priority=value)
    else:
        field.tasks.nap.using(boost=value).enqueue(0)


# --- E2: hoarding ---------------------------------------------------------------------


@two_sizes("scheduled", ci=(10_000,), full=(100_000,))
def test_fault_E2_a_worker_holds_what_it_has_slots_for_and_nothing_more(
    new_field: NewField, scheduled: int
) -> None:
    field = new_field(lanes=[Lane("high", priority=1000), Lane("low", priority=10)])
    nap = field.tasks.nap
    field.app.enqueue_many(nap.using(lane="low", delay=3600).call(0) for _ in range(scheduled))
    low = {job.id for job in field.app.enqueue_many([nap.using(lane="low").call(1)] * 200)}
    leases = [field.keys.of_lane("leases", lane) for lane in ("high", "low")]
    most_held = 0

    def held() -> int:
        nonlocal most_held
        # At one instant: a slot may pass from one lane to the other between two reads.
        with field.raw.pipeline(transaction=True) as together:
            for key in leases:
                together.zcard(key)
            most_held = max(most_held, sum(together.execute()))
        return most_held

    first = field.worker(slots=2)
    process = psutil.Process(first.pid)
    before_bytes = process.memory_info().rss
    wait_until(lambda: held() and len(field.starts()) >= 2)
    wait_until(lambda: held() and len(field.starts()) >= 4)
    urgent = nap.using(lane="high").enqueue(0)
    seen = len(field.starts())
    wait_until(lambda: held() and field.starts(urgent.id), 2 * FACTOR, "the start of the high job")
    started = [entry.id for entry in field.starts()]
    assert started.index(urgent.id) - seen <= 2
    assert most_held <= 2
    grown = process.memory_info().rss - before_bytes
    assert grown < 20_000_000, f"{grown:,} bytes"

    second = field.worker(slots=2, is_ready=False)
    second.until_ready()
    ready_at = field.now_us()
    wait_until(lambda: held() and [e for e in field.starts() if e.pid == second.pid])
    start = next(entry for entry in field.starts() if entry.pid == second.pid)
    assert start.at_us - ready_at <= FACTOR * 1e6
    wait_until(lambda: held() and len(field.starts()) >= 20)
    assert most_held <= 4
    assert {entry.id for entry in field.starts()} <= low | {urgent.id}
    for worker in (first, second):
        worker.term()
        assert worker.wait() == 0
    field.assert_once()
    assert field.raw.zcard(field.keys.of_lane("scheduled", "low")) == scheduled


# --- E3: starving ---------------------------------------------------------------------


@contextlib.contextmanager
def _feeding(field: Field, lane: str, run_s: float, per_s: float) -> Iterator[None]:
    """Enqueue jobs into a lane, evenly, from a thread of its own."""
    call = field.tasks.nap.using(lane=lane).call(run_s)
    is_over = threading.Event()
    began = time.monotonic()

    def feed() -> None:
        sent = 0
        while not is_over.wait(0.1):
            due = int((time.monotonic() - began) * per_s)
            field.app.enqueue_many([call] * (due - sent))
            sent = due

    # What is there at first keeps every slot busy from the start.
    field.app.enqueue_many([call] * 20)
    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


SLOTS: Final = 4
RUN_S: Final = 0.5


@pytest.mark.parametrize("high_ages", [False, True], ids=["high is level", "both age"])
@two_sizes("feed_s, bound_s", ci=(8.0, 3.0), full=(120.0, 40.0))
def test_fault_E3_a_low_job_starts_within_the_bound_that_aging_gives(
    new_field: NewField, high_ages: bool, feed_s: float, bound_s: float
) -> None:
    aging = 90 / bound_s
    field = new_field(
        lanes=[
            Lane("high", priority=100, aging=aging if high_ages else 0, aging_cap=1e6),
            Lane("low", priority=10, aging=aging, aging_cap=1e6),
        ]
    )
    field.worker(slots=SLOTS)
    with _feeding(field, "high", RUN_S, 1.5 * SLOTS / RUN_S):
        began_us = field.now_us()
        field.until_started(2 * SLOTS)
        low = field.tasks.nap.using(lane="low").enqueue(RUN_S)
        wait_until(lambda: field.starts(low.id), 3 * feed_s, "the start of the low job")
        wait_until(lambda: field.now_us() - began_us > feed_s * 1e6, feed_s + 10)
        field.until_started(len(field.starts()) + 2 * SLOTS)
    ended_us = field.now_us()
    (start,) = field.starts(low.id)
    view = low.info()
    assert view.ready_at is not None
    waited_s = start.at_us / 1e6 - view.ready_at
    if high_ages:
        # Each high job that became ready within the bound goes first, none that did later.
        order = [entry.id for entry in field.starts()]
        high = field.app.job(order[order.index(low.id) - SLOTS]).info()
        assert high.ready_at is not None
        assert high.ready_at <= view.ready_at + bound_s
        after = field.app.job(order[order.index(low.id) + SLOTS]).info()
        assert after.ready_at is not None
        assert after.ready_at >= view.ready_at + bound_s
    else:
        assert bound_s - 0.1 <= waited_s <= bound_s + FACTOR
    # Of what the machine gave the slots: how much that is depends on what else it does.
    of_all = _busy_s(field, began_us, ended_us)
    assert _busy_s(field, began_us, ended_us, but=low.id) >= 0.9 * of_all
    field.laneq("lanes", "purge", "high", "--yes")


def _busy_s(field: Field, from_us: int, upto_us: int, *, but: str = "") -> float:
    """Return the slot seconds that jobs, but for one, took between two instants."""
    begun: dict[str, int] = {}
    total = 0
    for entry in field.runlog():
        if entry.id == but:
            continue
        if entry.word == "start":
            begun[entry.id] = entry.at_us
        else:
            first = begun.pop(entry.id)
            total += max(min(entry.at_us, upto_us) - max(first, from_us), 0)
    return (total + sum(max(upto_us - first, 0) for first in begun.values())) / 1e6


@two_sizes("feed_s", ci=(6.0,), full=(120.0,))
def test_fault_E3_without_aging_a_low_job_waits_until_nothing_higher_does(
    new_field: NewField, feed_s: float
) -> None:
    field = new_field(lanes=[Lane("high", priority=100), Lane("low", priority=10, aging=0)])
    field.worker(slots=SLOTS)
    with _feeding(field, "high", RUN_S, 1.5 * SLOTS / RUN_S):
        field.until_started(2 * SLOTS)
        low = field.tasks.nap.using(lane="low").enqueue(0)
        first_us = field.now_us()
        wait_until(lambda: field.now_us() - first_us > feed_s * 1e6, feed_s + 10)
        assert field.starts(low.id) == []
        assert low.state() == "waiting"
    field.laneq("lanes", "purge", "high", "--yes")
    assert low.result(10) == "slept"


def test_fault_E3_equal_lanes_share_a_worker_equally(new_field: NewField) -> None:
    names = [f"lane{n}" for n in range(7)]
    field = new_field(app=ODD_JOBS, lanes=[Lane(name) for name in names])
    calls = [field.tasks.touch.using(lane=name).call() for name in names]
    jobs = field.app.enqueue_many(calls[n % 7] for n in range(7_000))
    lane_of = {job.id: names[n % 7] for n, job in enumerate(jobs)}
    worker = field.worker(slots=SLOTS)
    field.until_started(700)
    worker.term()
    assert worker.wait() == 0
    shares = Counter(lane_of[entry.id] for entry in field.starts()[:700])
    assert all(60 <= shares[name] <= 140 for name in names), shares


# --- E4: pausing ----------------------------------------------------------------------


@two_sizes("rounds, quiet_s, first_quiet_s", ci=(5, 0.3, 2.0), full=(200, 0.5, 10.0))
def test_fault_E4_nothing_of_a_lane_starts_once_its_pause_has_returned(
    new_field: NewField, rounds: int, quiet_s: float, first_quiet_s: float
) -> None:
    field = new_field(app=ODD_JOBS)
    supervisor = field.worker(slots=1, processes=8, is_ready=False)
    supervisor.until("is ready", times=8, within_s=150)
    set_paused = {
        paused: set_lane(field.keys, "normal", {"paused": paused}) for paused in (True, False)
    }
    call = field.app.sync_driver.call
    # Kept for longer than the test takes.
    nap = field.tasks.nap.using(result_ttl=3600)
    touch = field.tasks.touch.using(result_ttl=3600).call()
    ids: list[str] = []
    for n in range(rounds):
        running = nap.enqueue(0.1)
        wait_until(lambda job=running: field.starts(job.id))  # type: ignore[misc]
        if n == 0:
            field.laneq("lanes", "pause", "normal")
        else:
            call(set_paused[True])
        jobs = field.app.enqueue_many([touch] * 100)
        asked_us = field.now_us()
        quiet_us = (quiet_s if n else first_quiet_s) * 1e6
        assert running.result(10) == "slept", "what ran when the lane was paused ends as ever"
        wait_until(lambda since=asked_us, us=quiet_us: field.now_us() - since > us)  # type: ignore[misc]
        fresh = {job.id for job in jobs}
        assert [entry for entry in field.starts() if entry.id in fresh] == [], f"round {n}"
        call(set_paused[False])
        resumed_us = field.now_us()
        field.until_settled(fresh)
        first = min(entry.at_us for entry in field.starts() if entry.id in fresh)
        assert first - resumed_us <= FACTOR * 1e6, f"round {n}"
        ids += [running.id, *fresh]
    field.assert_once(ids)
    field.assert_conserved(ids)
    assert supervisor.is_running
