"""A process that is a worker: its loop, its signals, its exit."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from types import FrameType
from typing import Any, Final

from laneq.options import WorkerOptions
from laneq.worker.lines import log, log_to_stderr
from laneq.worker.notify import notify
from laneq.worker.probe import Probe, ProbeOptions
from laneq.worker.worker import Worker, WorkerApp

#: A second signal this soon after the first is the same one: a terminal, or a supervisor
#: beside it, often sends two.
DOUBLED_S: Final = 1.0

#: Where a supervisor tells its worker that it has gone: a pipe that closes then.
PARENT_FD: Final = "LANEQ_PARENT_FD"


#: Where a supervisor's worker is to show that it is well: a file. In place of what its
#: command line says, which is the supervisor's own.
HEALTH_FILE: Final = "LANEQ_CHILD_HEALTH_FILE"


#: What a worker tells its supervisor: that it is ready, and how many slots are wanted of it.
READY: Final = "ready"
WANTS: Final = "wants"

#: Set where a supervisor sizes its crew: its workers tell it what they want.
IN_CREW: Final = "LANEQ_IN_CREW"


def run_worker(app: WorkerApp, options: WorkerOptions, probe: ProbeOptions | None = None) -> int:
    """Run one worker until it is told to stop, or until a burst has ended.

    TERM and INT let running jobs end for the grace, then hand the rest back; a second one, a
    second or more after the first, hands them back at once.

    Args:
        app: its tasks are run.
        options: `processes` is left to `supervise`.
        probe: how it shows whether it is well; None for not at all.

    Returns:
        The exit status: 0, or 1 where the worker itself failed. Does not return if code of a
        job cannot be stopped: the process exits then, so that no second copy runs beside it,
        and with 1 where a job blocks the event loop for long after it was to end.

    Raises:
        UsageError: a lane does not exist, the namespace is of another schema, or what
            `probe` names cannot be used.
        RedisRefused: the server refuses for good.
    """
    log_to_stderr()
    wanted = probe or ProbeOptions()
    file = os.environ.pop(HEALTH_FILE, None)
    if file is not None:
        wanted = ProbeOptions(file=file, after=wanted.after)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        worker = _outlast(runner.get_loop(), _run(app, options, wanted))
        status = 1 if worker.has_failed else 0
        if not worker.is_clean:
            _exit_at_once(status)
    return status


def _outlast(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, Worker]) -> Worker:
    """Run `main` to its end, also when what a job began ends the event loop.

    SystemExit and KeyboardInterrupt in a task or a callback stop the loop that runs it. The job
    that waits for such a task gets the exception like any other; the loop is begun again.
    """
    task = loop.create_task(main)
    while True:
        try:
            return loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt) as error:
            # Before the worker takes signals, and after, they are what ends a program.
            is_signal = signal.getsignal(signal.SIGINT) is signal.default_int_handler
            if task.done() or (is_signal and isinstance(error, KeyboardInterrupt)):
                raise
            log.exception(
                "a task or callback that a job began raised %s; the worker goes on",
                type(error).__name__,
            )


async def _run(app: WorkerApp, options: WorkerOptions, wanted: ProbeOptions) -> Worker:
    to_parent = _ToParent(take_parent_fd())
    is_in_crew = os.environ.pop(IN_CREW, None) is not None
    worker = Worker(
        app,
        options,
        unwell_after_s=wanted.after,
        on_hung=_exit_hung,
        on_share=to_parent.tell_share if is_in_crew else None,
    )
    probe = Probe(wanted, worker.problems, worker.facts) if wanted.is_wanted else None
    asked = _Signals(worker, to_parent.fd)
    start = asyncio.ensure_future(worker.start())
    stop_asked = asyncio.ensure_future(worker.until_asked_to_stop())
    with asked.handled(), shown(probe):
        try:
            await asyncio.wait((start, stop_asked), return_when=asyncio.FIRST_COMPLETED)
            if not start.done():
                start.cancel()
                await asyncio.wait((start,))
                if start.cancelled():
                    return worker
            start.result()
            _say(worker.banner())
            _say(f"laneq worker {worker.id} is ready")
            log.info("ready: worker %s takes jobs", worker.id)
            notify("READY=1")
            to_parent.tell(READY)
            # What the program has by now lives as long as it does: not looked at again.
            gc.collect()
            gc.freeze()
            await stop_asked
            await worker.stop()
        finally:
            stop_asked.cancel()
    log.info("worker %s has stopped", worker.id)
    return worker


@contextlib.contextmanager
def shown(probe: Probe | None) -> Iterator[None]:
    """Show how things are, if there is somebody to show it to."""
    if probe is None:
        yield
        return
    probe.start()
    try:
        yield
    finally:
        probe.stop()


@contextlib.contextmanager
def ends_when_told() -> Iterator[None]:
    """Have INT and TERM end the process with status 0 while it has nothing to drain yet.

    For the import of an app, which may take long. Without it PID 1 of a container would pass
    over a TERM, come up, take jobs, and be killed with them. `run_worker` and `supervise` take
    the signals over.
    """
    stops = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, _end_told) for number in stops}
    try:
        yield
    except BaseException:
        for number, handler in before.items():
            signal.signal(number, handler)
        raise


def _end_told(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  signal's
    # No exception: the app that is being imported could catch it.
    os.write(2, f"{signal.Signals(number).name}: stopped before it was ready\n".encode())
    os._exit(0)


def take_parent_fd() -> int:
    """Return the descriptor that closes when a supervisor has gone; -1 without one.

    It is told to this process only: what a job starts has not inherited it.
    """
    return int(os.environ.pop(PARENT_FD, "-1"))


class _ToParent:
    """What a worker tells the supervisor that started it, if one did: a word to a line.

    Args:
        fd: where the supervisor listens; -1 for nowhere.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        if fd >= 0:
            os.set_blocking(fd, False)

    def tell(self, line: str) -> None:
        """Tell it, if it listens."""
        if self.fd >= 0:
            # A pipe, whose owner only lets it close; or one who is too slow to be waited for.
            with contextlib.suppress(OSError):
                os.write(self.fd, line.encode() + b"\n")

    def tell_share(self, share: float) -> None:
        """Tell what part of the fleet's slots this worker would have to give."""
        self.tell(f"{WANTS} {share:.2f}")


def give_signals_back(*, was_told: bool) -> None:
    """Handle INT and TERM no longer.

    A process that was told to stop is on its way out: one more signal, as impatient people and
    supervisors send, must not turn its clean exit into a death by signal.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.remove_signal_handler(number)
        if was_told:
            signal.signal(number, signal.SIG_IGN)


class _Signals:
    """INT, TERM and the end of a supervisor, as the worker's stop."""

    def __init__(self, worker: Worker, parent_fd: int) -> None:
        self._worker = worker
        self._first: float | None = None
        self._is_begun = self._is_hurried = self._is_handing_back = False
        self._parent_fd = parent_fd

    @contextlib.contextmanager
    def handled(self) -> Any:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._take, number)
            # The loop's own handler tells the loop, which a job may block; ours goes first.
            signal.signal(number, partial(self._note, signal.getsignal(number)))
        fd = self._parent_fd
        if fd >= 0:
            loop.add_reader(fd, self._parent_gone, fd)
        try:
            yield
        finally:
            if fd >= 0:
                loop.remove_reader(fd)
            give_signals_back(was_told=self._first is not None)

    def _note(self, following: Any, number: int, frame: FrameType | None) -> None:
        """Note when a signal came; between two bytecodes, whatever runs."""
        now = time.monotonic()
        if self._first is None:
            self._first = now
            self._worker.note_stop()
        elif now - self._first >= DOUBLED_S and not self._is_hurried:
            self._is_hurried = True
            self._worker.note_hurry()
        following(number, frame)

    def _take(self, number: int) -> None:
        name = signal.Signals(number).name
        if not self._is_begun:
            self._is_begun = True
            log.info("%s: no further jobs; %d run", name, self._worker.slots.running)
            self._worker.begin_stop()
        if self._is_hurried and not self._is_handing_back:
            self._is_handing_back = True
            log.info("%s again: handing back", name)
            self._worker.hurry()

    def _parent_gone(self, fd: int) -> None:
        asyncio.get_running_loop().remove_reader(fd)
        log.warning("the supervisor has gone; the worker stops")
        self._first = self._first or time.monotonic()
        self._worker.begin_stop()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415  an optional extra
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201  the banner is for whoever started the worker


def _exit_hung() -> None:
    # Whoever keeps the process starts a new one, and what ran here runs again when its leases
    # end. Nothing is flushed: the thread that is hung may hold a lock of it.
    os._exit(1)


def _exit_at_once(status: int) -> None:
    log.warning("jobs that could not be stopped were handed back; the process exits now")
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
