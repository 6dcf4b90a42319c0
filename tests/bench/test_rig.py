from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from laneq.bench.crew import Child, Crew
from laneq.bench.rig import Rig
from laneq.bench.stamps import Book, Pen
from laneq.errors import BenchFailed, ConfigError
from tests.patience import wait_until


@pytest.fixture
def rig(url):
    with Rig(url) as entered:
        yield entered


def test_a_namespace_that_holds_anything_is_refused_and_left_alone(url, raw, namespace):
    raw.set(f"{{laneq:{namespace}}}:anything", "1", ex=60)
    with (
        Rig(url, namespace=namespace) as rig,
        pytest.raises(ConfigError, match="not empty"),
        rig.space(),
    ):
        pass
    assert raw.get(f"{{laneq:{namespace}}}:anything") == b"1"


def test_the_namespace_is_deleted_and_no_other(url, raw):
    names = ("bench-[a]*", "bench-[a]*b")
    other = f"{{laneq:{names[1]}}}:jobs"
    raw.set(other, "1", ex=60)
    with Rig(url, namespace=names[0]) as rig, rig.space() as space:
        for i in range(1500):
            raw.set(space.keys.prefix + b"key%d" % i, "1", ex=60)
    assert list(raw.scan_iter(match="*bench-\\[a\\]\\*}*", count=1000)) == []
    assert raw.get(other) == b"1"
    raw.delete(other)


def test_each_space_has_a_name_of_its_own(rig):
    with rig.space() as one, rig.space() as other:
        assert one.namespace != other.namespace


def test_a_private_server_is_gone_afterwards():
    with Rig() as rig:
        assert rig.command("PING") in {b"PONG", "PONG"}
        assert rig.server_name.split()[0] in {"Redis", "Valkey"}
        address = rig.address
    with pytest.raises(Exception, match="refused"), Rig(f"redis://{address.where}/0"):
        pass


def test_a_meter_counts_commands_and_time(rig):
    before = rig.meter()
    for _ in range(100):
        rig.command("ECHO", "x" * 1000)
    used = rig.meter().since(before)
    assert used.calls["echo"] == 100
    assert used.commands >= 100
    assert used.script_calls == used.script_us == 0
    assert used.cpu_s > 0


def test_a_meter_has_the_time_of_scripts(rig):
    before = rig.meter()
    rig.command("EVAL", "for i = 1, 20000 do redis.call('ECHO', 'x') end", 0)
    used = rig.meter().since(before)
    assert used.script_calls == 1
    assert 1_000 < used.script_us < 1e7
    assert used.script_us > used.us["echo"] > 0


def test_namespaces_that_are_lent_at_once_differ_by_a_suffix(url, raw, namespace):
    with Rig(url, namespace=namespace) as rig, rig.space() as one, rig.space("-1") as other:
        assert (one.namespace, other.namespace) == (namespace, f"{namespace}-1")
        raw.set(other.keys.prefix + b"key", "1", ex=60)
    assert list(raw.scan_iter(match=f"{{laneq:{namespace}*", count=1000)) == []


def test_stamps_are_read_once_and_whole(tmp_path):
    path = tmp_path / "stamps"
    book = Book(path)
    assert book.read_new() == []
    pen = Pen(str(path))
    pen.write("work", 1, 2, 3)
    with path.open("ab") as file:
        file.write(b"work 4 5")
    assert book.read_new() == [("work", 1, 2, 3)]
    with path.open("ab") as file:
        file.write(b" 6\n")
    assert book.read_new() == [("work", 4, 5, 6)]


def test_a_wait_for_stamps_says_what_did_not_come(tmp_path):
    path = tmp_path / "stamps"
    Pen(str(path)).write("line", 1)
    with pytest.raises(BenchFailed, match=r"1 of 2 'line'"):
        Book(path).wait_for({"line": 2}, timeout_s=0.05, check=lambda: None)


def test_a_process_that_ends_while_starting_is_reported_with_its_words():
    child = Child(["-c", "print('no such app'); raise SystemExit(4)"], environment={}, what="it")
    with pytest.raises(BenchFailed, match=r"(?s)it ended while starting \(exit 4\).*no such app"):
        child.wait_ready()
    child.wait()


def test_no_process_outlives_a_benchmark_that_is_killed(tmp_path):
    """A crew whose starter gets kill -9 ends by itself."""
    program = (
        "import os, sys, time\n"
        "from laneq.bench.crew import Child\n"
        "child = Child(['-c', 'from laneq.bench import leash; import time; leash.keep();"
        " print(\"ready\", flush=True); time.sleep(60)'], environment={}, what='it')\n"
        "child.wait_ready()\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    starter = Child(["-c", program], environment={}, what="starter")
    try:
        pid = _wait_for_number(starter)
        os.kill(starter.pid, signal.SIGKILL)
        wait_until(lambda: not _lives(pid), what="the end of the orphan")
    finally:
        starter.stop(signal.SIGKILL)
        starter.wait()


def test_a_crew_stops_what_it_started(rig):
    with rig.space() as space, Crew(space) as crew:
        child = crew.start(
            ["-c", "import time; print('ready', flush=True); time.sleep(60)"], what="it"
        )
        child.wait_ready()
        folder = crew.book.path.parent
        assert folder.is_dir()
    assert not _lives(child.pid)
    assert not folder.exists()


def _wait_for_number(child: Child) -> int:
    def is_there() -> bool:
        child.check()
        return child.tail.strip().isdecimal()

    wait_until(is_there, 20, "a number")
    return int(child.tail)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    if sys.platform == "linux":
        with Path(f"/proc/{pid}/stat").open(encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    return True
