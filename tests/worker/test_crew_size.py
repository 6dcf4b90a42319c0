"""A supervisor that sizes its crew by what its workers tell it; the workers here only talk."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from laneq.options import WorkerOptions
from laneq.worker import supervisor
from laneq.worker.supervisor import _Crew
from tests.patience import await_until

pytestmark = pytest.mark.slow

#: Says that it is ready, and from then on what is in a file, each time that changes: what is
#: wanted of all, of which each child tells its part by the number of live ones.
_CHILD = """
import os, signal, sys, time
folder, fd = sys.argv[1], int(os.environ["LANEQ_PARENT_FD"])
mine = os.path.join(folder, f"child-{os.getpid()}")
signal.signal(signal.SIGTERM, lambda *_: (os.unlink(mine), os._exit(0)))
open(mine, "w").close()
assert os.environ["LANEQ_IN_CREW"] == "1"
os.write(fd, b"ready\\n")
told = None
while True:
    crew = sum(name.startswith("child-") for name in os.listdir(folder))
    share = float(open(os.path.join(folder, "wanted")).read() or 0) / crew
    if share != told:
        told = share
        os.write(fd, b"wants %.2f\\n" % share)
    time.sleep(0.02)
"""


@dataclass
class Plant:
    """A crew and the file that says what is wanted of it."""

    crew: _Crew
    folder: Path

    def want(self, slots: float) -> None:
        new = self.folder / "new"
        new.write_text(str(slots))
        new.rename(self.folder / "wanted")

    @property
    def children(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("child-*"))

    async def until(self, children: int) -> None:
        await await_until(
            lambda: len(self.children) == self.crew.size == children, 20, f"{children} workers"
        )


@pytest.fixture
async def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Plant]:
    """One to four workers of eight slots each, in quick time."""
    monkeypatch.setattr(supervisor, "_SETTLE_S", 0.3)
    monkeypatch.setattr(supervisor, "STEP_DOWN_S", 0.5)
    (tmp_path / "child.py").write_text(_CHILD)
    options = WorkerOptions(concurrency=2, max_slots=8, processes=1, processes_max=4)
    command = [sys.executable, str(tmp_path / "child.py"), str(tmp_path)]
    made = Plant(_Crew(command, options), tmp_path)
    made.want(0)
    keeping = asyncio.ensure_future(made.crew.keep())
    try:
        await made.until(1)
        yield made
    finally:
        made.crew._take(signal.SIGTERM)
        assert await asyncio.wait_for(keeping, 20) == 0
        assert made.children == []


async def test_workers_come_at_once_as_many_as_are_wanted_and_no_more(
    plant: Plant, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="laneq"):
        plant.want(20)
        await plant.until(3)
    (line,) = [line for line in caplog.messages if line.startswith("workers ")]
    assert line == ("workers 1 → 3 (1 to 4): slots wanted of this crew are 20, and one has up to 8")
    plant.want(1000)
    await plant.until(4)


async def test_workers_go_a_third_of_the_surplus_at_a_time_when_the_others_are_enough_for_a_while(
    plant: Plant, caplog: pytest.LogCaptureFixture
) -> None:
    plant.want(32)
    await plant.until(4)
    kept = plant.children
    with caplog.at_level(logging.INFO, logger="laneq"):
        plant.want(1)
        await plant.until(1)
    lines = [line for line in caplog.messages if line.startswith("workers ")]
    assert [line[:13] for line in lines] == ["workers 4 → 3", "workers 3 → 2", "workers 2 → 1"]
    assert set(plant.children) <= set(kept)


async def test_a_crew_of_which_the_others_would_be_nearly_full_keeps_its_size(
    plant: Plant,
) -> None:
    plant.want(9)
    await plant.until(2)
    plant.want(7.9)  # one worker has eight
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(2):
            await plant.until(1)
    assert plant.crew.size == 2


async def test_a_worker_that_crashes_is_started_again_and_the_crew_keeps_its_size(
    plant: Plant,
) -> None:
    plant.want(12)
    await plant.until(2)
    before = plant.children
    victim = plant.folder / before[0]
    os.kill(int(victim.name.removeprefix("child-")), signal.SIGKILL)
    victim.unlink()
    await await_until(lambda: len(plant.children) == 2, within_s=20)
    assert plant.children != before
    assert plant.crew.size == 2
