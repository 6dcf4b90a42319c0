"""Tasks that end in odd ways: what they raise, return and ask for; see the tests that use them."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from laneq import LaneQ, Retry, WaitRefused, current_job
from tests.faults.body import lanes, noted
from tests.faults.odd_ends import DOES

app = LaneQ(lanes=lanes())
ONCE = Retry(1)
LANE = "normal" if "normal" in app.lanes else next(iter(app.lanes))


@app.task(name="nap", lane=LANE)
async def nap(seconds: float) -> str:
    """Sleep."""
    with noted():
        await asyncio.sleep(seconds)
    return "slept"


@app.task(name="overrun", lane=LANE, timeout=2, retry=ONCE)
async def overrun() -> None:
    """Sleep longer than it may."""
    with noted():
        await asyncio.sleep(60)


@app.task(name="touch", lane=LANE)
async def touch() -> None:
    """Note that it has run."""
    with noted():
        pass


# --- attempts -------------------------------------------------------------------------


@app.task(name="poison", lane=LANE)
async def poison() -> None:
    """Kill the worker that runs it."""
    with noted():
        os.kill(os.getpid(), signal.SIGKILL)


async def _hog() -> None:
    with noted():
        held = []
        while True:
            held.append(bytes(random.randbytes(1_000_000) * 20))
            await asyncio.sleep(0.02)


@app.task(name="hog", lane=LANE)
async def hog() -> None:
    """Take more and more memory."""
    await _hog()


@app.task(name="process_hog", lane=LANE, executor="process")
async def process_hog() -> None:
    """Take more and more memory, in a child process."""
    await _hog()


@app.task(name="errand", lane=LANE, retry=Retry(10, base=0.1))
async def errand() -> str:
    """Do some good; bear to be beside what kills the worker."""
    with noted():
        await asyncio.sleep(0.01)
    return "done"


SCRIPTED = Retry(5, backoff="fixed", base=1.0, jitter=False)


def _play(steps: list[str]) -> str:
    step = steps[current_job().attempt - 1]
    if step == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if step == "raise":
        raise ValueError("as the script says")
    return step


@app.task(name="scripted", lane=LANE, retry=SCRIPTED, timeout=1)
async def scripted(steps: list[str]) -> str:
    """Do in each attempt what the script says, in the loop."""
    with noted():
        step = _play(steps)
        if step == "timeout":
            await asyncio.sleep(60)
    return step


@app.task(name="process_scripted", lane=LANE, retry=SCRIPTED, timeout=1, executor="process")
def process_scripted(steps: list[str]) -> str:
    """Do in each attempt what the script says, in a child process."""
    with noted():
        step = _play(steps)
        if step == "timeout":
            time.sleep(60)
    return step


@app.task(name="stubborn", lane=LANE, retry=Retry(200, base=0.001, cap=0.01))
async def stubborn() -> None:
    """Fail at each of 200 attempts."""
    with noted():
        raise ValueError("no")


def _interrupt(attempt: int) -> NoReturn:
    raise KeyboardInterrupt(attempt)


BACKOFFS: dict[str, Any] = {
    "raises": lambda _: 1 / 0,
    "exits": lambda _: sys.exit(3),
    "interrupts": _interrupt,
    "nan": lambda _: float("nan"),
    "negative": lambda _: -1,
    "text": lambda _: "x",
    "overflows": lambda attempt: 10.0 ** (400 * attempt),
}


def _with_backoff(name: str) -> None:
    retry = Retry(2, backoff=BACKOFFS[name], base=0.01)

    @app.task(name=f"backoff_{name}", lane=LANE, retry=retry)
    async def fails() -> None:
        with noted():
            raise ValueError("no")

    @app.task(name=f"thread_backoff_{name}", lane=LANE, retry=retry)
    def fails_in_thread() -> None:
        with noted():
            raise ValueError("no")


for _name in BACKOFFS:
    _with_backoff(_name)


@app.task(name="process_backoff", lane=LANE, executor="process", retry=Retry(2, backoff=_interrupt))
def process_backoff() -> None:
    """Fail in a child process, with a backoff function that raises no Exception."""
    with noted():
        raise ValueError("no")


@app.task(name="dies_unless", lane=LANE, retry=ONCE)
async def dies_unless(path: str, number: int) -> int:
    """Fail until a file is there."""
    if not os.path.exists(path):  # noqa: PTH110  5,000 of them are to die soon
        raise LookupError(f"number {number} finds nothing")
    return number


# --- cancels --------------------------------------------------------------------------


@app.task(name="thread_heeds", lane=LANE)
def thread_heeds() -> str:
    """Go on until somebody asks for the end."""
    with noted():
        job = current_job()
        while not job.is_cancelled:
            time.sleep(0.01)
    return "returned"


@app.task(name="thread_deaf", lane=LANE)
def thread_deaf(path: str) -> str:
    """Go on until a file is there, whatever is asked."""
    with noted():
        while not os.path.exists(path):  # noqa: PTH110
            time.sleep(0.01)
    return "returned"


@app.task(name="process_sleeps", lane=LANE, executor="process")
def process_sleeps(seconds: float) -> str:
    """Sleep in a child process."""
    with noted():
        time.sleep(seconds)
    return "slept"


@app.task(name="fails_first", lane=LANE, retry=Retry(5, backoff="fixed", base=3600, jitter=False))
async def fails_first() -> None:
    """Fail, and be tried again in an hour."""
    with noted():
        raise ValueError("no")


# --- what a job raises and returns ----------------------------------------------------


#: What ends an event loop, or nearly.
LOOPS = ["task", "gathered task", "callback", "thread"]


@app.task(name="does", lane=LANE, retry=ONCE)
async def does(name: str) -> Any:
    """Do what has this name, in the loop."""
    with noted():
        return DOES[name]()


@app.task(name="thread_does", lane=LANE, retry=ONCE)
def thread_does(name: str) -> Any:
    """Do what has this name, in a thread."""
    with noted():
        return DOES[name]()


@app.task(name="process_does", lane=LANE, retry=ONCE, executor="process")
def process_does(name: str) -> Any:
    """Do what has this name, in a child process."""
    with noted():
        return DOES[name]()


async def _exits_later() -> None:
    await asyncio.sleep(0)
    sys.exit(3)


@app.task(name="ends_the_loop", lane=LANE, retry=ONCE)
async def ends_the_loop(how: str) -> str:
    """Raise SystemExit beside the job: in a task, a callback or a thread that it began."""
    with noted():
        match how:
            case "task":
                task = asyncio.get_running_loop().create_task(_exits_later())
                await task
            case "gathered task":
                await asyncio.gather(_exits_later(), asyncio.sleep(0.01))
            case "callback":
                asyncio.get_running_loop().call_soon(sys.exit, 3)
                await asyncio.sleep(0.01)
            case _:
                await asyncio.to_thread(sys.exit, 3)
    return "went on"


@app.task(name="fine", lane=LANE, retry=ONCE)
async def fine() -> str:
    """End well."""
    return "fine"


@app.task(name="returns_large", lane=LANE, retry=Retry(5, base=0.01))
async def returns_large(size: int) -> bytes:
    """Return so many bytes; may be tried again."""
    with noted():
        return bytes(size)


#: What a script's JSON would change on the way.
DELICATE: list[Any] = [
    2**53 + 1, 2**63, 2**80, -(2**63) - 1, 0.1 + 0.2, [], {}, [[]], {"": []},
    "é\u0000\n\t", b"\xff\n",
]  # fmt: skip


@app.task(name="echoes", lane=LANE, retry=Retry(2, backoff="fixed", base=4, jitter=False))
async def echoes(path: str, *values: Any, **named: Any) -> list[Any]:
    """Return what it is given, once a file is there; fail before."""
    with noted():
        assert list(values) == DELICATE
        assert named == {"é": DELICATE}
        assert list(map(type, values)) == list(map(type, DELICATE))
        if not os.path.exists(path):  # noqa: PTH110  no other thread for a look
            raise LookupError("not there")
    return list(values)


@app.task(name="takes", lane=LANE)
async def takes(body: bytes) -> int:
    """Return the length of what it is given."""
    return len(body)


@app.task(name="process_returns_large", lane=LANE, retry=Retry(5, base=0.01), executor="process")
def process_returns_large(size: int) -> bytes:
    """Return so many bytes from a child process; may be tried again."""
    with noted():
        return bytes(size)


@app.task(name="dies_of", lane=LANE, retry=ONCE)
async def dies_of(text: str) -> None:
    """Fail with all of its argument in the error."""
    raise ValueError(text)


@app.task(name="returns_text", lane=LANE, retry=ONCE)
async def returns_text(text: str) -> str:
    """Return its argument."""
    return text


# --- waiting --------------------------------------------------------------------------


@app.task(name="parent_waits", lane=LANE, retry=ONCE)
async def parent_waits() -> str:
    """Wait for a child, in the loop; return its id when that is refused."""
    with noted():
        child = await fine.using(delay=0.5).aenqueue()
        try:
            await child.aresult()
        except WaitRefused as refused:
            error = refused
        return _named(error, child.id)


def _waits() -> str:
    with noted():
        child = fine.using(delay=0.5).enqueue()
        try:
            child.result()
        except WaitRefused as refused:
            error = refused
        return _named(error, child.id)


def _named(error: WaitRefused, child_id: str) -> str:
    assert (error.job_id, error.waiting_id) == (child_id, current_job().id)
    return child_id


thread_parent_waits = app.task(name="thread_parent_waits", lane=LANE, retry=ONCE)(_waits)
process_parent_waits = app.task(
    name="process_parent_waits", lane=LANE, retry=ONCE, executor="process"
)(_waits)


@app.task(name="parent_comes_back", lane=LANE, retry=ONCE)
async def parent_comes_back(path: str) -> str:
    """Enqueue a child and come back for its result, as the documents say."""
    job = current_job()
    note = Path(path) / job.id
    if not note.exists():
        child = await fine.aenqueue()
        note.write_text(child.id)
    child = app.job(note.read_text())
    if await child.astate() != "succeeded":
        job.snooze(0.1)
    return await child.aresult(0)


@app.task(name="waits_in_own_thread", lane=LANE, retry=ONCE)
def waits_in_own_thread(seconds: float) -> str:
    """Wait for a job that nobody runs, in a thread that is not the job's."""
    told: list[str] = []

    def wait() -> None:
        try:
            fine.using(delay=3600).enqueue().result(seconds)
        except TimeoutError:
            told.append("timeout")

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    return told[0]
