"""The colours in which an API is tested: blocking, and awaited on either kind of event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

import uvloop

#: Name → maker of the loop, of the asynchronous colours.
LOOPS: Final[dict[str, Callable[[], asyncio.AbstractEventLoop]]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}

COLOURS: Final = ("sync", *LOOPS)


class Colour:
    """Carries out acts in one colour, from the test's thread.

    The asynchronous ones have a loop in a thread of its own.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_async = name != "sync"
        if self.is_async:
            self._loop = LOOPS[name]()
            self._thread = threading.Thread(target=self._loop.run_forever, name="colour")
            self._thread.start()

    def begin(self, act: Callable[[], Any]) -> Future[Any]:
        """Carry out an act, which in an asynchronous colour returns a coroutine; do not wait."""
        if self.is_async:
            return asyncio.run_coroutine_threadsafe(act(), self._loop)
        future: Future[Any] = Future()

        def work() -> None:
            try:
                future.set_result(act())
            except BaseException as error:  # noqa: BLE001  handed to who asks the future
                future.set_exception(error)

        threading.Thread(target=work, name="colour", daemon=True).start()
        return future

    def end(self) -> None:
        """Stop the loop; what stands on it has been closed before."""
        if self.is_async:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
