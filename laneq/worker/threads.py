"""Run plain functions in threads, and stop them as far as a thread can be stopped.

A thread that a time-out was raised in is not used again: the exception is seen between two
bytecodes, so it may arrive late, in code that is not the job's. A thread that does not end
in time is abandoned: its slot gets another thread, and what it returns is discarded.
The threads are daemons, so that one that is stuck does not keep the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from laneq.errors import JobTimeout

_set_async_exc: Final = ctypes.pythonapi.PyThreadState_SetAsyncExc


class Work(NamedTuple):
    """One call to be made in a thread.

    Attributes:
        token: what the caller knows it by.
        context: the context variables that the function sees.
    """

    token: Any
    context: contextvars.Context
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class JobThread:
    """One thread and the call that it makes."""

    def __init__(self, pool: Threads, number: int) -> None:
        self._pool = pool
        self._inbox: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._work: Work | None = None
        self.is_tainted = False
        self.thread = threading.Thread(target=self._main, name=f"laneq-job-{number}", daemon=True)
        self.thread.start()

    def give(self, work: Work | None) -> None:
        """Have it make a call; None ends the thread."""
        self._inbox.put(work)

    def interrupt(self, token: Any) -> bool:
        """Raise `JobTimeout` in the call of this token; false where it has ended."""
        with self._lock:
            if self._work is None or self._work.token is not token or self.is_tainted:
                return False
            self.is_tainted = True
            # The identifier is that of a live thread, since it has work.
            _set_async_exc(ctypes.c_ulong(self.thread.ident or 0), ctypes.py_object(JobTimeout))
            return True

    def _main(self) -> None:
        # A time-out may arrive so late that nothing of the job is left to be ended by it.
        with contextlib.suppress(JobTimeout):
            self._serve()

    def _serve(self) -> None:
        while not self.is_tainted:
            work = self._inbox.get()
            if work is None:
                return
            value: Any = None
            error: BaseException | None = None
            try:
                value, error = self._run(work)
            except BaseException as late:  # noqa: BLE001  the time-out arrived after the job's end
                error = late
            while True:
                try:
                    self._pool.ended(self, work, value, error)
                    break
                except JobTimeout:
                    # It arrived even later; it is raised once, and telling twice does no harm.
                    continue
            # Nothing of the job is kept alive while the thread is idle.
            del work, value, error

    def _run(self, work: Work) -> tuple[Any, BaseException | None]:
        with self._lock:
            self._work = work
        work.token.began = time.monotonic()
        value: Any = None
        error: BaseException | None = None
        try:
            value = work.context.run(work.function, *work.args, **work.kwargs)
        except BaseException as raised:  # noqa: BLE001  all that a job raises is its outcome
            error = raised
        with self._lock:
            self._work = None
        return value, error


class Threads:
    """The threads of one worker: made when needed, reused, replaced when stuck.

    Args:
        loop: where calls are started and told.
        deliver: told token, value and error of each call, in the loop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        deliver: Callable[[Any, Any, BaseException | None], None],
    ) -> None:
        self._loop = loop
        self._deliver = deliver
        self._idle: list[JobThread] = []
        self._busy: dict[int, JobThread] = {}
        self._ended: deque[tuple[JobThread, Work, Any, BaseException | None]] = deque()
        self._made = 0

    def start(self, work: Work) -> None:
        """Make a call in a thread."""
        if self._idle:
            thread = self._idle.pop()
        else:
            self._made += 1
            thread = JobThread(self, self._made)
        self._busy[id(work.token)] = thread
        thread.give(work)

    def interrupt(self, token: Any) -> bool:
        """Raise `JobTimeout` in the call of this token; false where it has ended."""
        thread = self._busy.get(id(token))
        return thread is not None and thread.interrupt(token)

    @property
    def alive(self) -> int:
        """Return how many threads there are, those that are stuck too."""
        return len(self._idle) + len(self._busy)

    def ended(self, thread: JobThread, work: Work, value: Any, error: BaseException | None) -> None:
        """Take in a call that ended; called in its thread."""
        self._ended.append((thread, work, value, error))
        try:
            self._loop.call_soon_threadsafe(self._tell)
        except RuntimeError:
            # The loop is closed: the worker has gone, and nobody is to be told.
            return

    def _tell(self) -> None:
        while self._ended:
            thread, work, value, error = self._ended.popleft()
            if self._busy.pop(id(work.token), None) is not None and not thread.is_tainted:
                self._idle.append(thread)
            self._deliver(work.token, value, error)

    def fit(self, most: int) -> None:
        """End idle threads while there are more than `most` in all."""
        while self._idle and self.alive > most:
            self._idle.pop().give(None)

    def close(self) -> None:
        """End the threads that are idle; the others end with their call."""
        self.fit(0)
