"""Wall clocks that a test shifts, of single processes: workers, producers, servers.

A small C library is put before the C library of a process and adds an offset to what the wall
clock says; monotonic clocks go on. It is compiled once per run; a test that asks for it is
skipped where there is no C compiler.
"""

from __future__ import annotations

import functools
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import pytest

_SOURCE: Final = Path(__file__).with_name("shim.c")


@functools.cache
def shim() -> Path:
    """Return the compiled library; skips the test where it cannot be had."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("shifting a process's clock needs a C compiler on Linux")
    library = Path(tempfile.mkdtemp(prefix="laneq-clock-")) / "shim.so"
    command = [compiler, "-O2", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(library)]
    subprocess.run([*command, str(_SOURCE)], check=True)
    return library


class Clock:
    """The wall clock of the processes that are started with `env`; several may share one.

    Args:
        path: a file of its own, made here.
        offset_s: seconds that it is ahead of the true time; behind, where negative.
    """

    def __init__(self, path: Path, offset_s: float = 0.0) -> None:
        self._path = path
        self._library = shim()
        self._path.write_bytes(bytes(8))
        self.shift(offset_s)

    @property
    def env(self) -> dict[str, str]:
        """What the environment of such a process has."""
        return {"LD_PRELOAD": str(self._library), "LANEQ_CLOCK_FILE": str(self._path)}

    def shift(self, offset_s: float) -> None:
        """Put the clock so many seconds ahead, also of processes that run."""
        with self._path.open("r+b") as file:
            os.pwrite(file.fileno(), struct.pack("=q", round(offset_s * 1e6)), 0)
