"""The far end of a bare hand-over: pop, look at the clock, write down both instants.

Started as ``python -m laneq.bench.popper KEY COUNT`` by a `Crew`. What is pushed is
the instant of the push, in ns of the monotonic clock.
"""

from __future__ import annotations

import os
import sys
import time

from laneq.bench import leash
from laneq.bench.bare import Bare
from laneq.bench.stamps import Pen
from laneq.drive.address import Address
from laneq.drive.persist import pack

#: Kind of the stamps: pushed, popped, 0.
POPPED = "popped"


def main(key: str, count: int) -> None:
    """Do what the module says."""
    leash.keep()
    pen = Pen.from_environment()
    with Bare(Address.parse(os.environ["LANEQ_URL"])) as bare:
        packed = pack((b"BLPOP", key, 0))
        print("ready", flush=True)  # noqa: T201  the benchmark waits for it
        for _ in range(count):
            _, pushed = bare.ask(packed)
            pen.write(POPPED, int(pushed), time.monotonic_ns())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
