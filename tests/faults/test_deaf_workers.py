"""C: a worker that lives and hears nothing; what client libraries do when Redis goes away."""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import psutil
import pytest
import redis

from laneq import Job, LaneQ, RedisUnavailable, State
from laneq.calls.lanes import set_lane
from tests.faults.access import Certificates, restricted
from tests.faults.conftest import NewField
from tests.faults.field import FACTOR, Field, L, S, two_sizes, wait_until
from tests.patience import await_until
from tests.processes import WorkerProcess
from tests.proxy import Proxy

#: Connections that a worker has: for its calls, for its wait, for its heartbeat
#: (docs/operations.md).
PER_WORKER = 3


def clients(field: Field, name: str = "laneq-") -> list[dict[str, str]]:
    """Return the server's clients whose name begins so."""
    return [client for client in field.raw.client_list() if client["name"].startswith(name)]


def threads_of(worker: WorkerProcess) -> int:
    return psutil.Process(worker.pid).num_threads()


def set_paused(field: Field, lane: str, *, paused: bool) -> None:
    field.app.sync_driver.call(set_lane(field.keys, lane, {"paused": paused}))


def started_at(field: Field, jobs: Sequence[Job[Any]], within_s: float) -> float:
    """Wait for the start of each of these jobs; return the last one, in seconds of Redis's time."""
    ids = {job.id for job in jobs}
    wait_until(
        lambda: ids <= {entry.id for entry in field.starts()}, within_s, f"{len(ids)} starts"
    )
    return max(entry.at_us for entry in field.starts() if entry.id in ids) / 1e6


# --- C1 ------------------------------------------------------------------------------------


def kill_connections(field: Field, seconds: float) -> None:
    """Kill every connection to the server, again and again."""
    give_up_at = time.monotonic() + seconds
    while time.monotonic() < give_up_at:
        for kind in ("normal", "pubsub"):
            field.raw.execute_command("CLIENT", "KILL", "TYPE", kind)
        time.sleep(0.1)


def expect_obedience(field: Field, limit_s: float) -> list[Job[Any]]:
    """Jobs start, and the workers heed pause, resume and cancel, each within the limit."""
    jobs: list[Job[Any]] = [field.tasks.nap.enqueue(0.01) for _ in range(20)]
    started_at(field, jobs, limit_s)
    set_paused(field, "normal", paused=True)
    held = field.tasks.nap.enqueue(0.01)
    following = field.tasks.nap.using(lane="urgent").enqueue(0.01)
    started_at(field, [following], limit_s)  # by a claim that looked at the paused lane too
    assert field.starts(held.id) == [], "a paused lane started a job"
    set_paused(field, "normal", paused=False)
    started_at(field, [held], limit_s)
    endless = field.tasks.nap.enqueue(600)
    started_at(field, [endless], limit_s)
    endless.cancel()
    wait_until(lambda: endless.state() is State.CANCELLED, limit_s, "a cancel that is heard")
    return [*jobs, held, following, endless]


@two_sizes("cycles", ci=(2,), full=(30,))
@pytest.mark.timeout(1800)
def test_fault_C1_a_worker_hears_everything_again_after_each_disconnect(
    new_field: NewField, cycles: int
) -> None:
    field = new_field(port=0, keeps_data=True)
    workers = [field.worker(slots=4) for _ in range(2)]
    rng = random.Random(1)
    limit_s = 5 * FACTOR
    once: list[str] = []
    for cycle in range(cycles):
        through = field.tasks.nap.enqueue(6)
        started_at(field, [through], limit_s)
        if cycle % 2 == 0:
            away_s = 3.0
            kill_connections(field, away_s)
        else:
            away_s = rng.uniform(0.5, 2.0 if cycles < 10 else 20)
            field.stop_server(kill=cycle % 4 == 1)
            time.sleep(away_s)
            field.start_server()
        jobs = expect_obedience(field, limit_s)
        # A job that ran through an outage longer than its lease may have started again.
        once += [job.id for job in jobs] + ([through.id] if away_s < L - S else [])
        field.until_settled([through.id], L + 2 * S + 6 * FACTOR)
        # None of these can be cancelled by the fault, only by the test.
        assert through.state() is State.SUCCEEDED
        set_paused(field, "normal", paused=False)
    assert all(worker.is_running for worker in workers)
    field.assert_once(once)
    assert {entry.pid for entry in field.starts()} <= {worker.pid for worker in workers}


def test_fault_C1_so_it_does_over_tls_as_a_user_with_few_rights(tmp_path: Path) -> None:
    if shutil.which("redis-server") is None:
        pytest.skip("the embedded Valkey knows no TLS; redis-server does, and is not installed")
    for name in ("certificates", "field"):
        (tmp_path / name).mkdir()
    certificates = Certificates(tmp_path / "certificates")
    directives = certificates.directives()
    with Field(tmp_path / "field", engine="redis", port=0, config=directives) as field:
        user, password = (quote(word, safe="") for word in restricted(field))
        where = f"{user}:{password}@127.0.0.1:{directives['tls-port']}/0"
        url = f"rediss://{where}?ssl_ca_certs={certificates.ca}"
        field.app.override(url=url)
        worker = field.worker(slots=4, url=url)
        kill_connections(field, 2.0)
        jobs = expect_obedience(field, 5 * FACTOR)
        field.assert_once(job.id for job in jobs)
        assert worker.is_running
        # No dangerous command was needed to reconnect, and the password was told to nobody.
        assert password not in worker.text
        wrong = f"rediss://{where}?ssl_ca_certs={certificates.other_ca}"
        with (
            LaneQ(wrong, namespace=field.namespace) as app,
            pytest.raises(RedisUnavailable, match="certificate verify failed"),
        ):
            app.ref("nap").enqueue(0)
        field.end_workers()
        field.assert_in_order()


# --- C2 ------------------------------------------------------------------------------------


@two_sizes("silence_s", ci=(9.0,), full=(60.0,))
@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
@pytest.mark.timeout(200)
def test_fault_C2_a_silent_network_is_noticed_and_healed_from(
    new_field: NewField, silence_s: float, is_busy: bool
) -> None:
    field = new_field(port=0)
    with Proxy(field.url) as proxy:
        deaf = field.worker(slots=2, url=proxy.url, name="deaf")
        warm_up = field.tasks.nap.enqueue(0.01)
        assert warm_up.result(10) == "slept"
        wait_until(lambda: len(clients(field)) == PER_WORKER)
        before = len(clients(field)), threads_of(deaf)
        job = field.tasks.nap.enqueue(2, "from whom?") if is_busy else None
        if job is not None:
            started_at(field, [job], 5)
        proxy.blackhole()
        began = time.monotonic()
        # An idle worker blocks for 1 s at most.
        deaf.until("connection stale", within_s=(1 + 5) * FACTOR)
        other = field.worker(slots=2, name="other") if job is not None else None
        if job is not None:
            # Its lease runs out while the first worker cannot be heard.
            wait_until(lambda: len(field.starts(job.id)) == 2, (L + 2 * S + 5) * FACTOR)
            assert job.result(10) == "from whom?"
        if other is not None:
            other.term()
            assert other.wait() == 0
        time.sleep(max(0.0, began + silence_s - time.monotonic()))
        proxy.restore()
        after = field.tasks.nap.enqueue(0.01)
        started_at(field, [after], 5 * FACTOR)
        assert after.result(5) == "slept"
        assert field.starts(after.id)[0].pid == deaf.pid
        if job is not None:
            counts = field.laneq_json("lanes", "show", "normal")["counts"]
            assert (counts["stale"], counts["succeeded"]) == (1, 3)
            assert deaf.count(f"job {job.id}") >= 1
        wait_until(
            lambda: (len(clients(field)), threads_of(deaf)) == before,
            15,
            f"{before} connections and threads, as at the start",
        )


# --- C3 ------------------------------------------------------------------------------------

OPTIONS = {
    "socket_timeout": (None, "1"),
    "decode_responses": (None, "true"),
    "protocol": ("2", "3"),
}


def with_options(url: str, chosen: Sequence[str | None]) -> str:
    given = "&".join(
        f"{name}={value}" for name, value in zip(OPTIONS, chosen, strict=True) if value is not None
    )
    return f"{url}?{given}" if given else url


@two_sizes("idle_s, combinations", ci=(5.0, 3), full=(60.0, 8))
@pytest.mark.timeout(200)
def test_fault_C3_options_of_the_client_library_break_nothing(
    new_field: NewField, idle_s: float, combinations: int
) -> None:
    field = new_field(port=0, app=BYTES_APP)
    every = list(itertools.product(*OPTIONS.values()))
    chosen = [every[0], every[-1], *every[1:-1]][:combinations]
    urls = [with_options(field.url, each) for each in chosen]
    lanes = list(field.app.lanes)
    workers = [
        field.worker(slots=1, lanes=lane, url=url, is_ready=False)
        for url, lane in zip(urls, lanes, strict=False)
    ]
    for worker in workers:
        worker.until_ready()
    time.sleep(idle_s)
    pids = [worker.pid for worker in workers]
    for url, lane, worker in zip(urls, lanes, workers, strict=False):
        before_us = field.now_us()
        with LaneQ(url, namespace=field.namespace) as app:
            job = app.ref("echo").using(lane=lane).enqueue(b"\xff\x00")
            assert job.result(10) == b"\xff\x00"
        (start,) = field.starts(job.id)
        assert start.at_us - before_us <= 1e6 * FACTOR
        assert asyncio.run(echo_async(url, field.namespace, lane)) == b"\xff\x00"
        assert worker.is_running
        assert [line for line in worker.lines if "WARNING" in line or "ERROR" in line] == (
            [line for line in worker.lines if "persists nothing" in line]
        )
    assert pids == [worker.pid for worker in workers]


BYTES_APP = """
from laneq import Lane, LaneQ
from tests.faults.body import lanes, noted

app = LaneQ(lanes=[Lane(f"lane{n}", lease=4) for n in range(8)])


@app.task(name="echo", lane="lane0")
async def echo(value: bytes) -> bytes:
    with noted():
        return value
"""


async def echo_async(url: str, namespace: str, lane: str) -> Any:
    async with LaneQ(url, namespace=namespace) as app:
        job = await app.ref("echo").using(lane=lane).aenqueue(b"\xff\x00")
        return await job.aresult(10)


@pytest.mark.parametrize(
    ("option", "value"),
    [("retry", "1"), ("ssl_keyfile", "x"), ("single_connection_client", "true"), ("nonsense", "1")],
)
def test_fault_C3_an_option_that_has_no_meaning_here_is_named_at_construction(
    option: str, value: str
) -> None:
    with pytest.raises(ValueError, match=option):
        LaneQ(f"redis://127.0.0.1:1/0?{option}={value}")


def test_fault_C3_without_hiredis_the_import_says_so() -> None:
    code = "import sys; sys.modules['hiredis'] = None; from laneq import LaneQ"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "hiredis" in done.stderr.splitlines()[-1]


# --- C4 ------------------------------------------------------------------------------------


class Arrivals:
    """Notes when each client of the server first appears, by address; a thread of its own."""

    def __init__(self, field: Field) -> None:
        self._field = field
        self._is_over = threading.Event()
        self.first: dict[str, float] = {}
        self.most = 0
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(10)

    def _look(self) -> None:
        with redis.Redis.from_url(self._field.url) as client:
            while not self._is_over.wait(0.02):
                try:
                    found = client.client_list()
                except redis.ConnectionError:
                    continue
                now = time.monotonic()
                mine = [each for each in found if each["name"].startswith("laneq-")]
                self.most = max(self.most, len(mine))
                for each in mine:
                    self.first.setdefault(each["addr"], now)


@two_sizes("n, away_s", ci=(8, 8.0), full=(20, 60.0))
@pytest.mark.timeout(300)
def test_fault_C4_workers_without_redis_are_quiet_and_come_back_one_by_one(
    new_field: NewField, n: int, away_s: float
) -> None:
    field = new_field(port=0, keeps_data=True, app=FIVE_LANES_APP)
    workers = [field.worker(slots=2, is_ready=False) for _ in range(n)]
    for worker in workers:
        worker.until("is ready", within_s=90)
    wait_until(lambda: len(clients(field)) == n * PER_WORKER)
    before = [(worker.cpu_s(), len(worker.lines)) for worker in workers]
    field.stop_server()
    time.sleep(away_s)
    during = [(worker.cpu_s(), len(worker.lines)) for worker in workers]
    with Arrivals(field) as arrivals:
        field.start_server()
        wait_until(lambda: len(clients(field)) == n * PER_WORKER, 30, "all connections")
    for (cpu, lines), (cpu_after, lines_after) in zip(before, during, strict=True):
        assert cpu_after - cpu <= 1.0 * FACTOR
        assert lines_after - lines <= 30
    spread_s = max(arrivals.first.values()) - min(arrivals.first.values())
    # Pauses are drawn from 1.5 s: eight fall into a third of that once in 400 times.
    assert spread_s >= (1.0 if n >= 20 else 0.5)
    assert arrivals.most <= n * PER_WORKER
    jobs = [field.tasks.nap.enqueue(0.01) for _ in range(n)]
    for job in jobs:
        assert job.result(20) == "slept"


FIVE_LANES_APP = """
import asyncio

from laneq import Lane, LaneQ
from tests.faults.body import noted

app = LaneQ(lanes=[Lane(f"lane{n}", lease=4) for n in range(5)])


@app.task(name="nap", lane="lane0")
async def nap(seconds: float, value: str = "slept") -> str:
    with noted():
        await asyncio.sleep(seconds)
    return value
"""


@pytest.fixture
def proxied(new_field: NewField) -> Iterator[tuple[Field, Proxy]]:
    field = new_field()
    with Proxy(field.url) as proxy:
        yield field, proxy


@two_sizes("outages, jobs, coroutines", ci=(10, 2_000, 50), full=(50, 25_000, 200))
@pytest.mark.timeout(300)
async def test_fault_C4_outages_leave_no_connection_behind(
    proxied: tuple[Field, Proxy], outages: int, jobs: int, coroutines: int
) -> None:
    field, proxy = proxied
    app = LaneQ(proxy.url, namespace=field.namespace, connect_timeout=10)
    nap = app.ref("nap")
    ids: list[str] = []
    others = len(clients(field, "laneq"))

    through = [0] * coroutines
    share = jobs // coroutines

    async def enqueue(n: int, of: int = 0) -> None:
        for _ in range(n):
            job = await nap.aenqueue(0)
            ids.append(job.id)
            through[of] += 1

    def are_through(before: list[int]) -> bool:
        # A call is repeated once: each that was under way is to be through before the next
        # cut. The first that ends may have had its answer on the way, and only the next one
        # of the same producer have met the cut.
        each = zip(through, before, strict=True)
        return producers.done() or all(n > was + 1 or n >= share for n, was in each)

    await enqueue(1)
    await asyncio.to_thread(nap.enqueue, 0)
    start = len(clients(field, "laneq"))
    assert start - others == proxy.connections == 2
    through[0] = 0
    producers = asyncio.gather(*(enqueue(share, i) for i in range(coroutines)))
    for _ in range(outages):
        await asyncio.to_thread(proxy.cut)
        before = list(through)
        await asyncio.to_thread(nap.enqueue, 0)
        await await_until(partial(are_through, before), within_s=60)
    await producers
    # Both colours have connected again by then, whichever was last cut off.
    await enqueue(1)
    await asyncio.to_thread(nap.enqueue, 0)
    assert len(ids) == len(set(ids)) == share * coroutines + 2
    await asyncio.to_thread(wait_until, lambda: len(clients(field, "laneq")) == start)
    await app.aclose()
    await asyncio.to_thread(app.close)
    await asyncio.to_thread(wait_until, lambda: len(clients(field, "laneq")) == others)
    assert proxy.connections == 0
    assert field.states() == {State.WAITING: len(ids) + outages + 2}
