"""Tasks for child processes and for `laneq worker`: a module that these can import."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from laneq import LaneQ, Retry, current_job

app = LaneQ()
ONCE = Retry(1)

if number := os.environ.get("LANEQ_TEST_SIGNAL_AT_EXIT"):
    # The last word of a terminal or a supervisor reaches a process that is on its way out.
    atexit.register(os.kill, os.getpid(), int(number))


@app.task(name="children.describe", executor="process", timeout=60)
def describe(*args: Any, **kwargs: Any) -> dict[str, Any]:
    job = current_job()
    return {
        "pid": os.getpid(),
        "args": list(args),
        "kwargs": kwargs,
        "id": job.id,
        "attempt": job.attempt,
        "lane": job.lane,
        "has_deadline": job.deadline is not None,
    }


@app.task(name="children.coroutine", executor="process")
async def coroutine(n: int) -> int:
    await asyncio.sleep(0)
    return n + 1


def _plain(n: int) -> int:
    return n * 2


bound_to_another_name = app.task(name="children.bound", executor="process")(_plain)


@app.task(name="children.poison", executor="process", retry=Retry(3, base=0.001))
def poison() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="children.exits", executor="process", retry=ONCE)
def exits() -> None:
    os._exit(7)


@app.task(name="children.fails", executor="process", retry=Retry(2, base=0.001))
def fails() -> None:
    raise ValueError("in a child")


@app.task(name="children.lambda", executor="process", retry=ONCE)
def returns_lambda() -> Any:
    return lambda: 0


@app.task(name="children.snoozes", executor="process", retry=ONCE)
def snoozes(path: str) -> str:
    if not Path(path).exists():
        Path(path).touch()
        current_job().snooze(0.001)
    return "up"


@app.task(name="children.parent", executor="process")
def parent() -> None:
    current_job().enqueue(coroutine.call(41))


@app.task(name="children.enqueues", executor="process")
def enqueues() -> str:
    return coroutine.enqueue(1).id


@app.task(name="children.reports", executor="process")
def reports(path: str) -> None:
    current_job().progress(1, 2, "half")
    while not Path(path).exists():
        time.sleep(0.01)


@app.task(name="children.long", executor="process", timeout=60, retry=ONCE)
def long(path: str, seconds: float = 60) -> str:
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    Path(path).with_suffix(".new").write_text(f"{os.getpid()} {helper.pid}")
    Path(path).with_suffix(".new").rename(path)
    time.sleep(seconds)
    return "slept"


@app.task(name="children.signals", executor="process", retry=ONCE)
def signals() -> str:
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    return "still here"


@app.task(name="children.add")
def add(a: int, b: int) -> int:
    return a + b


@app.task(name="children.asleep", retry=Retry(5, base=0.001))
async def asleep(path: str, seconds: float) -> str:
    with Path(path).open("a") as out:
        out.write(f"{os.getpid()} {current_job().attempt}\n")
    await asyncio.sleep(seconds)
    return "slept"


@app.task(name="children.thread_asleep")
def thread_asleep(path: str, seconds: float) -> str:
    with Path(path).open("a") as out:
        out.write(f"{os.getpid()} {current_job().attempt}\n")
    time.sleep(seconds)
    return "slept"


@app.task(name="children.blocks", retry=ONCE)
async def blocks(seconds: float) -> str:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass
    return "worked"


@app.task(name="children.kills_worker", retry=Retry(3, base=0.001))
async def kills_worker() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="children.holds_gil", retry=ONCE)
def holds_gil(milliseconds: int) -> None:
    ctypes.PyDLL(None).usleep(milliseconds * 1000)
