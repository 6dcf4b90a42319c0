"""A lane shared fairly by key, with real worker processes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from laneq import Lane, LaneQ
from laneq.bench.figures import percentile
from laneq.bench.stamps import VARIABLE, Book, Stamp
from tests.patience import await_until
from tests.processes import start_worker

_APP = """
import asyncio, json, os, time
from laneq import Lane, LaneQ
from laneq.bench.stamps import Pen

weights = json.loads(os.environ["WEIGHTS"])
app = LaneQ(lanes=[Lane("shared", fair_by="tenant", fair_weights=weights)])
pen = Pen.from_environment()


@app.task(name="t", lane="shared", result_ttl=0)
async def t(tenant, submitted_ns, seconds):
    pen.write(tenant, submitted_ns, time.monotonic_ns())
    await asyncio.sleep(seconds)
"""


@contextlib.contextmanager
def workers(
    tmp_path: Path, url: str, namespace: str, weights: str, *, n: int, slots: int
) -> Iterator[None]:
    """Run worker processes, which must end in order."""
    (tmp_path / "app.py").write_text(_APP)
    environment = {
        "LANEQ_URL": url,
        "LANEQ_NAMESPACE": namespace,
        "WEIGHTS": weights,
        VARIABLE: str(tmp_path / "stamps"),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(
                start_worker("app:app", "-c", str(slots), environment=environment, folder=tmp_path)
            )
            for _ in range(n)
        ]
        for worker in running:
            worker.until_ready()
        yield
        for worker in running:
            worker.term()
        codes = [worker.wait(60) for worker in running]
        assert codes == [0] * n, [worker.text for worker in running]


async def until_started(book: Book, tenants: set[str], n: int, within_s: float) -> list[Stamp]:
    """Return all stamps, as soon as so many are of jobs of these tenants."""
    stamps: list[Stamp] = []

    def are_enough() -> bool:
        stamps.extend(book.read_new())
        return sum(one.kind in tenants for one in stamps) >= n

    await await_until(are_enough, within_s, f"{n} starts")
    return stamps


def producer(url: str, namespace: str, weights: Mapping[str, float] | None = None) -> LaneQ:
    return LaneQ(
        url, namespace=namespace, lanes=[Lane("shared", fair_by="tenant", fair_weights=weights)]
    )


@dataclass(frozen=True)
class Flood:
    """Tenant a has jobs waiting, tenant b gets one now and then."""

    waiting: int
    run_s: float
    slots: int
    newcomers: int
    every_s: float


@pytest.mark.parametrize(
    "flood",
    [
        pytest.param(Flood(1_000, 0.25, 4, 15, 0.3), id="small", marks=pytest.mark.slow),
        pytest.param(
            Flood(10_000, 0.1, 8, 100, 1.0),
            id="documented",
            marks=[pytest.mark.long, pytest.mark.timeout(600)],
        ),
    ],
)
async def test_a_tenant_with_thousands_of_jobs_delays_anothers_by_two_at_most(
    tmp_path: Path, url: str, namespace: str, flood: Flood
) -> None:
    async with producer(url, namespace) as app:
        task = app.ref("t").using(lane="shared")
        await app.aenqueue_many(
            [task.using(fair_key="a").call("a", 0, flood.run_s) for _ in range(flood.waiting)]
        )
        with workers(tmp_path, url, namespace, "{}", n=1, slots=flood.slots):
            began_s = time.monotonic()
            for i in range(flood.newcomers):
                await asyncio.sleep(max(0.0, began_s + i * flood.every_s - time.monotonic()))
                await task.using(fair_key="b").aenqueue("b", time.monotonic_ns(), flood.run_s)
            stamps = await until_started(Book(tmp_path / "stamps"), {"b"}, flood.newcomers, 60)
            took_s = time.monotonic() - began_s
    waits_s = [(one.second - one.first) / 1e9 for one in stamps if one.kind == "b"]
    of_a = len(stamps) - len(waits_s)
    p99_s = percentile(waits_s, 0.99)
    print(f"b waited: p99 {p99_s}, longest {max(waits_s)}; a did {of_a} in {took_s} s")  # noqa: T201
    assert p99_s is not None
    assert p99_s <= 2 * flood.run_s
    # The flood went on all the time, and had what b left.
    assert of_a < flood.waiting
    assert of_a >= 0.5 * took_s * flood.slots / flood.run_s


@pytest.mark.parametrize(
    "n",
    [
        pytest.param(1_000, id="small", marks=pytest.mark.slow),
        pytest.param(10_000, id="documented", marks=pytest.mark.long),
    ],
)
async def test_shares_of_what_real_workers_start_follow_the_weights(
    tmp_path: Path, url: str, namespace: str, n: int
) -> None:
    weights = {"a": 4.0, "b": 1.0, "c": 0.5}
    total = sum(weights.values())
    async with producer(url, namespace, weights) as app:
        task = app.ref("t").using(lane="shared")
        for tenant, weight in weights.items():
            # One after the other, and a fifth more than its share, so that none runs out.
            jobs = int(1.2 * n * weight / total)
            await app.aenqueue_many(
                [task.using(fair_key=tenant).call(tenant, 0, 0) for _ in range(jobs)]
            )
        text = '{"a": 4.0, "b": 1.0, "c": 0.5}'
        with workers(tmp_path, url, namespace, text, n=2, slots=4):
            stamps = await until_started(Book(tmp_path / "stamps"), set(weights), n, 50)
    stamps.sort(key=lambda one: one.second)
    started = Counter(one.kind for one in itertools.islice(stamps, n))
    print(started)  # noqa: T201
    for tenant, weight in weights.items():
        assert started[tenant] / n == pytest.approx(weight / total, rel=0.05)
