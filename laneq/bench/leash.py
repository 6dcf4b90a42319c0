"""Keep a process of a benchmark from outliving it."""

from __future__ import annotations

import os
import selectors
import threading
from typing import Final

#: Environment variable that tells a process to end when its standard input does.
VARIABLE: Final = "LANEQ_BENCH_LEASH"


def keep() -> None:
    """End this process when its standard input ends, if a benchmark started it."""
    if os.environ.get(VARIABLE):
        threading.Thread(target=_watch_input, name="bench-leash", daemon=True).start()


def _watch_input() -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.select()
    if not os.read(0, 1):
        os._exit(1)
