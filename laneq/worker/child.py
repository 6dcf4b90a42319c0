"""What runs in a child process of a worker: one job at a time, asked for over a socket.

Started with the number of the socket. Messages are msgpack arrays, one after the other. From
the worker: ``["begin", sys.path, home...]`` once, then ``["run", job...]``. To the worker:
``["begun"]`` when a job's function is called, ``["progress", bytes]``, and
``["ended", kind, number, body, error, problem, children]``.

The child leads a process group of its own, so that what it started ends with it. It takes no
order to stop but the worker's: INT and TERM are passed over, and when the worker is gone,
however it went, the socket closes and the child kills its group.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict
from types import FrameType
from typing import Any, Final, NamedTuple

import msgpack

from laneq import codec
from laneq.calls.jobs import NewJob
from laneq.drive import Address
from laneq.errors import LaneqError, UnknownEnvelope
from laneq.model import RemoteError
from laneq.running import RunningJob, running
from laneq.worker.outcomes import Verdict, raised, returned
from laneq.worker.plans import Plan, RunnableTask, run_coroutine

_READ_BYTES: Final = 65536


class Order(NamedTuple):
    """A job for a child: what it is to run, and what the job may know of itself.

    Attributes:
        module, qualname: where the task's function is defined.
        task: the task's name.
        record: the job's record.
        lanes: lanes that it may enqueue jobs in.
    """

    module: str
    qualname: str
    task: str
    record: bytes
    id: str
    lane: str
    attempt: int
    enqueued_us: int
    fence: int
    deadline_us: int | None
    lanes: list[str]
    max_payload: int


class Home(NamedTuple):
    """Where the worker's app is; the child's own may have been made for another place.

    Attributes:
        address: where Redis is.
        namespace: the queue system.
    """

    address: Address
    namespace: str

    def packed(self) -> list[Any]:
        """Return what `unpacked` takes, for a message."""
        return [asdict(self.address), self.namespace]

    @classmethod
    def unpacked(cls, address: dict[str, Any], namespace: str) -> Home:
        """Read what `packed` returns."""
        for name in ("hosts", "tls"):
            address[name] = tuple(tuple(pair) for pair in address[name])
        return cls(Address(**address), namespace)


class TaskNotFound(LaneqError):
    """The child cannot find the task's function."""


def find_task(module: str, qualname: str, name: str) -> RunnableTask:
    """Import the module of a task's function and return the task.

    The attribute of the function's name usually is the task; where the decorated
    name was bound to something else, an app in the module knows it.

    Raises:
        TaskNotFound: neither has it.
    """
    if module == "__main__":
        raise TaskNotFound(
            f"task {name}: its function is defined in __main__, which a child process cannot "
            "import. Move it to a module, or use executor='thread'."
        )
    imported = importlib.import_module(module)
    found: Any = imported
    for part in qualname.split("."):
        found = getattr(found, part, None)
    candidates = [found]
    for value in vars(imported).values():
        tasks = getattr(value, "tasks", None)
        if isinstance(tasks, Mapping):
            candidates.append(tasks.get(name))
    for candidate in candidates:
        if getattr(candidate, "name", None) == name and hasattr(candidate, "options"):
            task: RunnableTask = candidate
            return task
    raise TaskNotFound(
        f"task {name}: {module}.{qualname} is not found in a child process. Define the function "
        "at the top level of a module, or use executor='thread'."
    )


class Line:
    """The child's end of the socket; sending is safe in threads."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()

    def send(self, *message: Any) -> None:
        """Send a message."""
        data = msgpack.packb(message)
        with self._lock:
            self._sock.sendall(data)

    def receive_all(self, inbox: queue.SimpleQueue[list[Any]]) -> None:
        """Put what comes into the inbox; when the worker is gone, end this process group."""
        unpacker = msgpack.Unpacker(max_buffer_size=0)
        with contextlib.suppress(OSError):
            while data := self._sock.recv(_READ_BYTES):
                unpacker.feed(data)
                for message in unpacker:
                    inbox.put(message)
        os.killpg(os.getpgid(0), signal.SIGKILL)


def run(order: Order, line: Line, home: Home | None) -> Verdict:
    """Run one job and return its outcome.

    Args:
        order: the job.
        line: where progress is reported.
        home: where the app of the task belongs.
    """
    record = codec.decode_record(order.record)
    try:
        task = find_task(order.module, order.qualname, order.task)
        app: Any = getattr(task, "_host", None)
        if home is not None and hasattr(app, "move_to"):
            app.move_to(home.address, home.namespace)
    except BaseException as error:  # noqa: BLE001  an import runs any code
        # The worker found the task, so this is no task of a newer version.
        told = codec.describe_exception(error)
        return Verdict("dead", 0, codec.encode_error(told), told)
    plan = Plan(task, record)
    job = RunningJob(
        id=order.id,
        task=order.task,
        lane=order.lane,
        attempt=order.attempt,
        max_attempts=plan.retry.max_attempts,
        enqueued_us=order.enqueued_us,
        fence=order.fence,
        deadline_us=order.deadline_us,
        lanes=order.lanes,
        on_progress=lambda value: line.send("progress", value),
    )
    try:
        args, kwargs = codec.decode_call(record.payload)
        # The start of the process and its imports are none of the job's time.
        line.send("begun")
        with running(job):
            if plan.is_coroutine:
                value = run_coroutine(plan.function, *args, **kwargs)
            else:
                value = plan.function(*args, **kwargs)
        verdict = returned(value, keep_us=plan.keep_us, max_payload=order.max_payload)
    except UnknownEnvelope as error:
        told = RemoteError("UnknownEnvelope", str(error))
        verdict = Verdict("unknown_envelope", 0, b"", told)
    except BaseException as error:  # noqa: BLE001  all that a job raises is its outcome
        verdict = raised(error, retry=plan.retry, attempt=order.attempt)
    return verdict._replace(children=[_row(child) for child in job.children])


def _row(child: NewJob) -> tuple[str, str, bytes, str]:
    return child.lane, child.id, child.record, child.when


def _pass_over(number: int, frame: FrameType | None) -> None:
    """Leave the signal to the worker. A handler, since an ignored signal stays so in children."""


def main(fd: int) -> None:
    """Run jobs until the worker is gone."""
    signal.signal(signal.SIGINT, _pass_over)
    signal.signal(signal.SIGTERM, _pass_over)
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    line = Line(sock)
    inbox: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()
    home: Home | None = None
    threading.Thread(target=line.receive_all, args=(inbox,), daemon=True).start()
    while True:
        kind, *rest = inbox.get()
        if kind == "begin":
            path, *place = rest
            sys.path[:] = path
            home = Home.unpacked(*place)
            continue
        verdict = run(Order(*rest), line, home)
        error = verdict.error
        line.send(
            "ended",
            verdict.kind,
            verdict.number,
            verdict.body,
            [error.type, error.message, error.traceback] if error else None,
            verdict.problem,
            verdict.children,
        )
