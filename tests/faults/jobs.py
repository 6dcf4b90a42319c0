"""Tasks for fault tests, run by workers that are processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from laneq import LaneQ, Retry, current_job
from tests.faults.body import lanes, noted

app = LaneQ(lanes=lanes())
ONCE = Retry(1)
LANE = "normal" if "normal" in app.lanes else next(iter(app.lanes))


@app.task(name="nap", lane=LANE)
async def nap(seconds: float, value: str = "slept") -> str:
    """Sleep, in the loop."""
    with noted():
        await asyncio.sleep(seconds)
    return value


@app.task(name="thread_nap", lane=LANE)
def thread_nap(seconds: float, value: str = "slept") -> str:
    """Sleep, in a thread."""
    with noted():
        time.sleep(seconds)
    return value


@app.task(name="process_nap", lane=LANE, executor="process")
def process_nap(seconds: float, value: str = "slept") -> str:
    """Sleep, in a child process."""
    with noted():
        time.sleep(seconds)
    return value


@app.task(name="fail", lane=LANE, retry=ONCE)
async def fail(text: str = "no") -> None:
    """Raise, at the only attempt."""
    with noted():
        raise ValueError(text)


@app.task(name="fail_until", lane=LANE, retry=Retry(10, base=0.05, jitter=False))
async def fail_until(attempt: int) -> int:
    """Raise until this attempt, which succeeds."""
    with noted():
        if current_job().attempt < attempt:
            raise ValueError("not yet")
    return attempt


def stall_at_first() -> int:
    """Hang in the first attempt, and end at once in any other."""
    with noted():
        attempt = current_job().attempt
        if attempt == 1:
            time.sleep(60)
    return attempt


short = app.task(name="short", lane=LANE, timeout=3)(stall_at_first)
long = app.task(name="long", lane=LANE, timeout=timedelta(hours=6))(stall_at_first)


@app.task(name="survive", lane=LANE, retry=Retry(50, base=0.01))
async def survive(seconds: float) -> None:
    """Sleep, in as many attempts as its workers need."""
    with noted():
        await asyncio.sleep(seconds)


@app.task(name="spin", lane=LANE)
async def spin(seconds: float) -> None:
    """Compute in Python for long, in the event loop."""
    with noted():
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pass


@app.task(name="block", lane=LANE)
async def block(seconds: float) -> None:
    """Sleep in the event loop, which stands still meanwhile."""
    with noted():
        time.sleep(seconds)  # noqa: ASYNC251  what it is for


def say_who(seconds: float, fails: str) -> str:
    """Take this long and return the name of the worker, or raise where it is that of `fails`."""
    with noted():
        name = os.environ["LANEQ_FAULT_WHO"]
        if name == "A":
            time.sleep(seconds)
        if name == fails:
            raise ValueError(name)
    return name


@app.task(name="who_async", lane=LANE)
async def who_async(seconds: float, fails: str) -> str:
    """As `say_who`, in the loop; returns although it is cancelled."""
    with noted():
        name = os.environ["LANEQ_FAULT_WHO"]
        if name == "A":
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(seconds)
        if name == fails:
            raise ValueError(name)
    return name


who_thread = app.task(name="who_thread", lane=LANE)(say_who)
who_process = app.task(name="who_process", lane=LANE, executor="process")(say_who)


@app.task(name="family_nap", lane=LANE, executor="process")
def family_nap(seconds: float) -> str:
    """Wait for a program that sleeps."""
    with noted():
        subprocess.run([sys.executable, "-c", f"import time; time.sleep({seconds})"], check=True)
    return "slept"


@app.task(name="parent", lane=LANE)
async def parent(seconds: float) -> list[str]:
    """Enqueue two jobs late, one with the outcome and one at once; return the ids."""
    with noted():
        await asyncio.sleep(seconds)
        return [current_job().enqueue(nap.call(0.01)).id, (await nap.aenqueue(0.01)).id]


def hold(path: str) -> None:
    """Run until this file is there."""
    with noted():
        while not Path(path).exists():
            time.sleep(0.02)


@app.task(name="hold_async", lane=LANE)
async def hold_async(path: str) -> None:
    """As `hold`, in the loop."""
    with noted():
        while not Path(path).exists():
            await asyncio.sleep(0.02)


hold_thread = app.task(name="hold_thread", lane=LANE)(hold)
hold_process = app.task(name="hold_process", lane=LANE, executor="process")(hold)


# --- bodies that their time-out has to end, each in its own way (fault J1) --------------------

LIMITED: Final[dict[str, Any]] = {"lane": LANE, "timeout": 2, "retry": ONCE}


@app.task(name="stuck_thread", **LIMITED)
def stuck_thread(seconds: float) -> str:
    """Sleep where no exception reaches it, and pass over the one that waits; returns late."""
    with noted(), contextlib.suppress(BaseException):
        time.sleep(seconds)
    return "late"


@app.task(name="spinning_thread", **LIMITED)
def spinning_thread(seconds: float) -> None:
    """Compute in Python without end."""
    with noted():
        while True:
            pass


@app.task(name="waiting", **LIMITED)
async def waiting(seconds: float) -> None:
    """Sleep in the loop."""
    with noted():
        await asyncio.sleep(seconds)


@app.task(name="stubborn", **LIMITED)
async def stubborn(seconds: float) -> str:
    """Pass over every cancel; returns late."""
    until = time.monotonic() + seconds
    with noted():
        while time.monotonic() < until:
            with contextlib.suppress(BaseException):
                await asyncio.sleep(until - time.monotonic())
    return "late"


@app.task(name="waiting_process", executor="process", **LIMITED)
def waiting_process(seconds: float) -> None:
    """Wait for a program."""
    with noted():
        subprocess.run([sys.executable, "-c", f"import time; time.sleep({seconds})"], check=True)


@app.task(name="deaf_process", executor="process", **LIMITED)
def deaf_process(seconds: float) -> None:
    """Sleep in native code that never lets go of the GIL."""
    with noted():
        ctypes.PyDLL(None).sleep(int(seconds))


@app.task(name="timed_spin", **LIMITED)
async def timed_spin() -> None:
    """Compute without end in the event loop."""
    with noted():
        while True:
            pass


@app.task(name="timed_block", **LIMITED)
async def timed_block() -> None:
    """Sleep for long in the event loop."""
    with noted():
        time.sleep(60)  # noqa: ASYNC251  what it is for


@app.task(name="hung", **LIMITED)
async def hung() -> None:
    """Block the event loop, and pass over all that should end it."""
    with noted():
        while True:
            with contextlib.suppress(BaseException):
                time.sleep(60)  # noqa: ASYNC251  what it is for
