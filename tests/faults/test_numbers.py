"""Faults K4 and K5: numbers that agree with what is there; views that read a page and no more."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner

from laneq import Lane, State
from laneq.calls import stats
from laneq.cli import main
from laneq.errors import WrongState
from laneq.model import BALANCE
from tests.faults.conftest import NewField
from tests.faults.field import FACTOR, Field, L, S, two_sizes, wait_until
from tests.faults.gauges import Monitor, unbounded
from tests.faults.ghost import LANE, Ghost
from tests.proxy import Proxy

# --- K4 --------------------------------------------------------------------------------------

#: Seconds between two kills of a worker: its successor needs some to start.
KILL_EVERY_S = 3.0


@two_sizes("seconds, workers", ci=(10, 3), full=(300, 8))
@pytest.mark.timeout(900)
def test_fault_K4_what_is_shown_is_what_is_there(
    new_field: NewField, seconds: float, workers: int
) -> None:
    # Letters over a limit would be dropped, and be nowhere; more than the usual 10,000 come.
    lanes = [Lane("normal", dead_max=None), Lane("batch", dead_max=None)]
    field = new_field(lanes=lanes, keeps_data=True)
    rng = random.Random(4)
    crew = [field.worker(slots=4) for _ in range(workers)]
    ends_at = time.monotonic() + seconds
    ids: list[str] = []
    restarts = killed = 0
    kill_at = 0.0
    while time.monotonic() < ends_at:
        ids += enqueue_some(field, rng)
        watch_ten_times(field, slots=4 * workers)
        cancel_and_requeue(field, ids, rng)
        wait_until(lambda: open_jobs(field) < 200, 120, "room for more jobs")
        if time.monotonic() >= kill_at:
            killed += 1
            kill_at = time.monotonic() + KILL_EVERY_S
            n = rng.randrange(len(crew))
            crew[n].kill9()
            crew[n] = field.worker(slots=4, is_ready=False)
        if restarts < 1 + (seconds - (ends_at - time.monotonic())) / 30:
            restarts += 1
            field.stop_server()
            field.start_server()
    assert killed
    wait_until(lambda: not open_jobs(field), FACTOR * (L + 2 * S) + 60, "the end of all jobs")

    # Status, a walk of the structures and the arithmetic of the RUNLOG say the same.
    states = field.assert_conserved(ids)
    assert sum(states.values()) == len(ids)
    assert_runlog_agrees(field)
    alive = {worker.pid for worker in crew}
    wait_until(
        lambda: {row["pid"] for row in field.laneq_json("workers")} == alive,
        FACTOR * (L + 2 * S),
        f"a list of the workers that live, {alive}",
    )


def enqueue_some(field: Field, rng: random.Random) -> list[str]:
    """Enqueue jobs of some kinds; the server is up at that time."""
    tasks = field.tasks
    calls = []
    for _ in range(40):
        options = {"lane": rng.choice(("normal", "batch")), "result_ttl": 3600}
        task, *args = rng.choice(
            ((tasks.survive, 0.01), (tasks.survive, 0.3), (tasks.fail,), (tasks.fail_until, 2))
        )
        calls.append(task.using(**options, delay=rng.choice((0, 0, 0.5))).call(*args))
    return [job.id for job in field.app.enqueue_many(calls)]


def cancel_and_requeue(field: Field, ids: list[str], rng: random.Random) -> None:
    for job_id in rng.sample(ids, 3):
        field.app.job(job_id).cancel()
    dead = field.raw.zrange(field.keys.of_lane("dead", "normal"), 0, 0)
    for letter in dead:
        # One that was revived a moment ago is no letter any more.
        with contextlib.suppress(WrongState):
            field.app.job(letter.decode()).retry()


def depths(field: Field) -> list[stats.Depths]:
    found: list[stats.Depths] = field.app.sync_driver.call(
        stats.depths(field.keys, list(field.app.lanes))
    )
    return found


def open_jobs(field: Field) -> int:
    return sum(depth.waiting + depth.scheduled + depth.running for depth in depths(field))


def watch_ten_times(field: Field, *, slots: int) -> None:
    """Under load: nothing is ever negative, and each sum is the total."""
    for _ in range(10):
        for depth in depths(field):
            present = Counter(
                waiting=depth.waiting, scheduled=depth.scheduled, running=depth.running
            )
            parts = {part: present[part] + depth.counts.get(part, 0) for part in BALANCE}
            assert min(present.values()) >= 0
            assert min(depth.counts.values(), default=0) >= 0
            assert sum(parts.values()) == depth.counts.get("enqueued", 0), parts
            # Of a worker that was killed the slots are still taken, until its leases end.
            assert depth.running <= 3 * slots


def assert_runlog_agrees(field: Field) -> None:
    """What bodies have written down fits the counts of what started and how it ended."""
    counts: Counter[str] = Counter()
    for depth in depths(field):
        counts.update(depth.counts)
    words = Counter(entry.word for entry in field.runlog())
    stopped = words["start"] - words["end"] - words["raise"]
    assert counts["started"] >= words["start"]
    assert counts["succeeded"] <= words["end"]
    assert counts["lost_leases"] + counts["handed_back"] + counts["stopped"] >= stopped
    # Each start ended in one way, by the counts.
    ways = ("succeeded", "failed_attempts", "lost_leases", "handed_back", "stopped")
    assert counts["started"] == sum(counts[way] for way in ways)
    ended = Counter(state.value for state in field.states().elements())
    revived = counts["dead"] - ended["dead"]
    assert revived >= 0
    assert ended["succeeded"] == counts["succeeded"]
    assert ended["cancelled"] == counts["cancelled"]
    succeeded = [i for i, [(state, _)] in field.places().items() if state is State.SUCCEEDED]
    assert set(succeeded) <= {entry.id for entry in field.runlog("end")}


# --- K5 --------------------------------------------------------------------------------------

VIEWS = (
    ("lanes",),
    ("lanes", "show", LANE),
    ("jobs",),
    ("jobs", "--lane", LANE),
    ("jobs", "--state", "dead"),
    ("jobs", "--state", "waiting"),
    ("jobs", "--task", "bench.plain"),
    ("dead",),
    ("workers",),
    ("health",),
)

#: What a page shows that refreshes by itself, and how often.
REFRESHED = (("lanes",), ("workers",), ("jobs",))
REFRESH_S = 2.0
BROWSERS = 10


@two_sizes(
    "waiting, dead, foreign", ci=(20_000, 5_000, 60_000), full=(1_000_000, 200_000, 3_000_000)
)
@pytest.mark.timeout(900)
def test_fault_K5_no_view_reads_more_than_a_page(
    new_field: NewField, monkeypatch: pytest.MonkeyPatch, waiting: int, dead: int, foreign: int
) -> None:
    lanes = [Lane(LANE, dead_max=None), Lane("batch")]
    # So long that no lease ends by itself while hundreds of thousands are claimed.
    field = new_field(lanes=lanes, lease=3600)
    fill(field, waiting=waiting, dead=dead, foreign=foreign)
    worker = field.worker("--lanes", "batch")
    monkeypatch.chdir(field.folder)

    with Proxy(field.url) as proxy, Monitor(field.url) as monitor:

        def view(*words: str) -> tuple[int, Any]:
            """Run a command in this process, which is warm: return its status and document."""
            environment = {"LANEQ_URL": proxy.url, "LANEQ_NAMESPACE": field.namespace}
            done = CliRunner().invoke(main, [*words, "--json"], env=environment)
            return done.exit_code, json.loads(done.stdout)

        for words in VIEWS:
            status, document = view(*words)
            assert document
            assert status in {0, 1}, words
            assert fastest_of(3, partial(view, *words)) <= FACTOR * 0.3, words
        assert len(view("jobs")[1]) == 50
        assert view("jobs", "show", view("dead")[1][0]["id"])[0] == 0
        assert proxy.largest_reply <= 256 * 1024
        assert unbounded(monitor.commands()) == []

    def refresh() -> None:
        for words in REFRESHED:
            view_once(field, *words)

    share = share_of_server(field, refresh, seconds=6)
    assert share < FACTOR * 0.02, f"{share:.1%} of a processor"
    assert worker.is_running


def fill(field: Field, *, waiting: int, dead: int, foreign: int) -> None:
    """Put jobs into the namespace, and keys of others beside it."""
    ghost = Ghost(field)
    ghost.enqueue(dead)
    ghost.end(ghost.claim_all(), "dead")
    ghost.enqueue(waiting)
    for first in range(0, foreign, 10_000):
        field.raw.mset({f"foreign:{n}": "x" for n in range(first, first + 10_000)})
    assert field.raw.zcard(field.keys.of_lane("dead", LANE)) == dead
    assert field.raw.zcard(field.keys.of_lane("waiting", LANE)) == waiting


def fastest_of(rounds: int, act: Callable[[], object]) -> float:
    """Return the seconds of the fastest of some rounds: load adds, and takes nothing away."""
    found = []
    for _ in range(rounds):
        began = time.monotonic()
        act()
        found.append(time.monotonic() - began)
    return min(found)


def view_once(field: Field, *words: str) -> None:
    environment = {"LANEQ_URL": field.url, "LANEQ_NAMESPACE": field.namespace}
    done = CliRunner().invoke(main, [*words, "--json"], env=environment)
    assert done.exit_code == 0, done.output


def share_of_server(field: Field, refresh: Callable[[], None], *, seconds: float) -> float:
    """Return the share of a processor that ten refreshing viewers add to the server's work."""

    def cpu_s() -> float:
        cpu = field.raw.info("cpu")
        return float(cpu["used_cpu_user_main_thread"] + cpu["used_cpu_sys_main_thread"])

    def spent(rounds: int) -> float:
        before, began = cpu_s(), time.monotonic()
        for n in range(rounds):
            refresh()
            time.sleep(max(0.0, began + seconds * (n + 1) / max(rounds, 1) - time.monotonic()))
        if not rounds:
            time.sleep(seconds)
        return (cpu_s() - before) / (time.monotonic() - began)

    idle = spent(0)
    return spent(int(BROWSERS * seconds / REFRESH_S)) - idle
