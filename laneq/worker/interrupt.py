"""End a coroutine that keeps the event loop from turning although it is to end.

The loop cannot cancel what does not give way to it: ``time.sleep(60)`` or ``while True`` in a
coroutine. A signal can: its handler runs in the main thread between two bytecodes, also in the
middle of a blocking call of Python's own, and raises there what ends the job. Unlike an exception
that is set on a thread from outside, the handler sees what it interrupts. It raises only inside
the job's own code, so it never strikes the worker's.

The signal is SIGURG: nobody minds one, since by default it is ignored. A program that handles it
itself keeps it; jobs that block the loop are then told of, and no more. Native code that neither
returns nor looks for signals is not ended by this, nor is a job that passes over the exception
again and again: such a worker is hung, and its process had better end.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from types import FrameType
from typing import Final

from laneq.errors import JobTimeout
from laneq.worker.runner import BODY, Reason, Run

_SIGNAL: Final = signal.SIGURG
_NOBODYS: Final = (signal.SIG_DFL, signal.SIG_IGN)


class Interrupter:
    """Raises an exception in a job that blocks the loop of the main thread.

    Args:
        loop: runs in the main thread; in any other nothing is ever interrupted.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._target: tuple[Run, Reason] | None = None
        self._is_installed = False

    def install(self) -> None:
        """Take the signal, where this is the main thread and nobody else has it."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(_SIGNAL) in _NOBODYS:
            signal.signal(_SIGNAL, self._strike)
            self._is_installed = True

    def remove(self) -> None:
        """Give the signal back; in the main thread."""
        if self._is_installed:
            self._is_installed = False
            signal.signal(_SIGNAL, signal.SIG_DFL)

    def interrupt(self, run: Run, reason: Reason) -> None:
        """End this job if it still is what the loop runs; callable in any thread.

        At its time-out `JobTimeout` is raised in it, for any other reason ``CancelledError``.
        """
        if self._is_installed:
            self._target = (run, reason)
            # To this thread, so that a call that blocks there is interrupted.
            signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)

    def _strike(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  signal's
        target, self._target = self._target, None
        if target is None:
            return
        run, reason = target
        if run.is_over or asyncio.current_task(self._loop) is not run.handle:
            return
        if _is_in_job(frame):
            if run.reason in {None, "drain"}:
                run.reason = reason
            if reason == "timeout":
                raise JobTimeout(f"timed out after {run.plan.timeout_s:g} s")
            raise asyncio.CancelledError(reason)


def _is_in_job(frame: FrameType | None) -> bool:
    """Return whether a frame belongs to what the runner awaits, and not to the runner itself."""
    called = None
    while frame is not None and frame.f_code is not BODY:
        called, frame = frame, frame.f_back
    return (
        frame is not None and called is not None and called.f_code.co_filename != BODY.co_filename
    )
