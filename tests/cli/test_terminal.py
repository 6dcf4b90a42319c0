"""What commands do on a terminal: they fit it, and ask before data is lost."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping

import pytest

from tests.cli.conftest import Commands, Processes
from tests.stage import Stage

COLUMNS = 80


def on_terminal(
    environment: Mapping[str, str], *args: str, typed: str = ""
) -> tuple[int, list[str]]:
    """Run a command on a terminal of 80 columns; return its status and its lines."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    plain = {**environment, "NO_COLOR": "1", "TERM": "xterm"}
    # Opened by the leader of a session, it is the terminal whose Ctrl-C reaches the command.
    on_it = ["/bin/sh", "-c", 'exec "$@" <"$0" >"$0" 2>&1', os.ttyname(theirs)]
    command = [*on_it, sys.executable, "-m", "laneq", *args]
    process = subprocess.Popen(command, env=plain, start_new_session=True)
    shown = b""
    try:
        # The command has opened its end once it has written.
        while not shown or (typed and b"]: " not in shown):
            shown += os.read(ours, 65536)
        os.close(theirs)
        while True:
            # Again while nothing comes of it: Python's input() may miss a Ctrl-C that comes
            # just before it begins to read.
            os.write(ours, typed.encode())
            while select.select([ours], [], [], 1)[0]:
                shown += os.read(ours, 65536)
    except OSError:  # the command has closed the other end
        pass
    finally:
        os.close(ours)
        status = process.wait(10)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode().replace("\r", ""))
    return status, text.split("\n")


@pytest.fixture
def environment(processes: Processes) -> Mapping[str, str]:
    return processes.environment


@pytest.mark.parametrize("command", [["lanes"], ["jobs"], ["dead"], ["lanes", "show", "urgent"]])
def test_tables_fit_80_columns(environment: Mapping[str, str], stage: Stage, command: list[str]):
    worker = stage.worker(slots=3)
    stage.put("A8NptVWKYRVe10000299", task="shop.tasks.orders." + "x" * 60)
    worker.take()
    worker.finish("A8NptVWKYRVe10000299", "dead", body=b"!worker lost")
    stage.put("A8NptVWKYRVe10000300", task="shop.tasks.orders." + "x" * 60, lane="urgent")
    status, lines = on_terminal(environment, *command)
    assert status == 0
    assert all(len(line) <= COLUMNS for line in lines if not line.startswith(" ")), lines
    if command in (["jobs"], ["dead"]):
        assert any("A8NptVWKYRVe10000299" in line for line in lines), "ids are never cut"
        assert any("…" in line for line in lines)


@pytest.mark.parametrize(("typed", "status", "left"), [("n\n", 1, 1), ("\n", 1, 1), ("y\n", 0, 0)])
def test_purge_asks_a_person(
    environment: Mapping[str, str],
    stage: Stage,
    laneq: Commands,
    typed: str,
    status: int,
    left: int,
):
    stage.put("job")
    done, lines = on_terminal(environment, "lanes", "purge", "normal", typed=typed)
    assert done == status
    assert any("Drop the 1 waiting and 0 scheduled jobs of lane 'normal'" in n for n in lines)
    assert len(stage.order()) == left


def test_an_interrupt_at_the_question_is_status_130(environment: Mapping[str, str], stage: Stage):
    stage.put("job")
    status, lines = on_terminal(environment, "lanes", "purge", "normal", typed="\x03")
    assert status == 130, lines
    assert stage.order() == ["job"]


def test_a_check_shows_how_far_it_is_and_then_its_answer(
    environment: Mapping[str, str], stage: Stage
):
    for start in range(0, 3000, 500):
        stage.put(*(f"{n:04}" for n in range(start, start + 500)))
    status, lines = on_terminal(environment, "check")
    assert status == 0
    text = "\n".join(lines)
    assert "checking keys" in text
    assert "checking jobs" in text
    assert "in order: 3,000 enqueued = 3,000 waiting" in text
