"""``laneq dev``: a private server and a worker in one command, for development.

The server listens where the app looks for Redis, if that is on this machine and
the port is free: then nothing needs to be told where it is. Its data is kept in a
folder of the project. Ctrl-C reaches the worker from the terminal and from here;
a worker takes the two for one. The server is stopped when the worker has ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Final

import click

from laneq.app import LaneQ
from laneq.cli.group import where_options
from laneq.cli.report import note
from laneq.cli.settings import Settings
from laneq.cli.status import Status
from laneq.cli.target import load_app, named_app, project_folder
from laneq.drive import Address
from laneq.embedded import EmbeddedServer, running_at
from laneq.errors import RedisUnavailable
from laneq.worker.process import PARENT_FD

_LOCAL: Final = frozenset({"127.0.0.1", "localhost"})
_PORT_FILE: Final = "port"
_LOOK_S: Final = 0.1


@click.command()
@click.argument("app_name", required=False, metavar="[APP]")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the server's data; else .laneq in the project's folder.",
)
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the server.")
@click.option(
    "-c", "--concurrency", type=int, default=10, show_default=True, help="Jobs run at a time."
)
@where_options
@click.pass_obj
def dev(
    settings: Settings,
    *,
    app_name: str | None,
    data: Path | None,
    port: int | None,
    concurrency: int,
) -> int:
    """Start a private server and a worker, for development.

    What was enqueued is there again after a restart. Ctrl-C stops everything. Without an
    APP there is a server only.
    """
    named = named_app(settings, app_name)
    if named is None:
        loaded = LaneQ(settings.given.get("url"), namespace=settings.given.get("namespace"))
    else:
        loaded = load_app(settings, app_name)
    stop = _Stop()
    with stop.listening(), _server(data or project_folder() / ".laneq", loaded, port) as server:
        click.echo(_what_next(loaded, None if named is None else named.name, server))
        if named is None:
            while server.is_running and not stop.number:
                time.sleep(_LOOK_S)
            status = 0
        else:
            arguments = [named.name, "-c", str(concurrency)]
            status = _run_worker(loaded, arguments, server, stop)
        if not stop.number and not server.is_running:
            raise RedisUnavailable(f"the server at {server.address} has ended by itself")
    return stop.status if stop.number else status


class _Stop:
    """Whether INT or TERM has come; passes them on to the worker.

    Attributes:
        number: the first signal that came; 0 before one has.
        worker: gets each signal too.
    """

    def __init__(self) -> None:
        self.number = 0
        self.worker: subprocess.Popen[bytes] | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note signals in this block."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(number, self._note) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  its signature
        # No lock and no event: a handler may run while this very thread holds one.
        self.number = self.number or number
        if self.worker is not None:
            self.worker.send_signal(number)

    @property
    def status(self) -> Status:
        """The exit status that the signal asks for."""
        return Status.INTERRUPTED if self.number == signal.SIGINT else Status.DONE


# --- the server -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Server:
    """The server of a data folder.

    Attributes:
        address, url: where it is, with the app's database; read, and as text.
        data: its folder.
        own: None where another `laneq dev` has started it.
    """

    address: Address
    url: str
    data: Path
    own: EmbeddedServer | None

    @property
    def is_running(self) -> bool:
        """Whether our own server has not ended; another one's is its starter's business."""
        return self.own is None or self.own.is_running


@contextmanager
def _server(data: Path, app: LaneQ, port: int | None) -> Iterator[_Server]:
    data = data.resolve()
    db = app.address.db
    url = running_at(data)
    if url is not None:
        note(f"joining the server that uses {data}")
        yield _Server(_with_db(url, db), _url_with_db(url, db), data, None)
        return
    data.mkdir(parents=True, exist_ok=True)
    ignore = data / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", "utf-8")
    server = EmbeddedServer(data, port=_port(data, app.address, port))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        server.start()
    for warning in caught:
        note(f"warning: {warning.message}")
    try:
        started = Address.parse(server.url)
        (data / _PORT_FILE).write_text(f"{started.hosts[0][1]}\n", "utf-8")
        yield _Server(_with_db(server.url, db), _url_with_db(server.url, db), data, server)
    finally:
        server.stop()


def _url_with_db(url: str, db: int) -> str:
    return f"{url.rpartition('/')[0]}/{db}" if url.startswith("redis://") else url


def _with_db(url: str, db: int) -> Address:
    return replace(Address.parse(url), db=db)


def _port(data: Path, address: Address, asked: int | None) -> int:
    """Choose a port: the one asked for, the app's, that of the last time, any."""
    if asked is not None:
        return asked
    wanted = []
    if address.scheme == "redis" and address.hosts[0][0] in _LOCAL:
        wanted.append(address.hosts[0][1])
    with contextlib.suppress(FileNotFoundError, ValueError):
        wanted.append(int((data / _PORT_FILE).read_text("utf-8")))
    for port in wanted:
        if _is_free(port):
            return port
        note(f"port {port} is taken by another server: this one takes another port")
    return 0


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: a port in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


# --- the worker -------------------------------------------------------------


def _run_worker(app: LaneQ, arguments: Sequence[str], server: _Server, stop: _Stop) -> int:
    """Run a worker until it ends; return its exit status."""
    where = ["--url", server.url, "--namespace", app.namespace]
    # The worker stops when this pipe closes: it does not outlive us, whatever kills us.
    held_by_worker, held_here = os.pipe()
    worker = subprocess.Popen(  # noqa: S603  this very program
        [sys.executable, "-m", "laneq", "worker", *arguments, *where],
        stdin=subprocess.DEVNULL,
        env={**os.environ, PARENT_FD: str(held_by_worker)},
        pass_fds=(held_by_worker,),
    )
    os.close(held_by_worker)
    stop.worker = worker
    if stop.number:
        worker.send_signal(stop.number)
    try:
        while worker.poll() is None:
            if not server.is_running and not stop.number:
                worker.terminate()
                break
            time.sleep(_LOOK_S)
        status = worker.wait()
    finally:
        stop.worker = None
        os.close(held_here)
    if status and not stop.number:
        note(f"the worker has ended with status {status}")
    return status if status >= 0 else Status.BAD_NEWS


def _what_next(app: LaneQ, name: str | None, server: _Server) -> str:
    lines = [f"server  {server.address}", f"data    {server.data}", "", "In another terminal:"]
    where = _options_to_get_here(app, name, server)
    if name is None:
        lines.append(f"  laneq{where} worker shop.tasks:app    run the jobs of an app of yours")
    lines += [f"  laneq{where} enqueue {task} ..." for task in sorted(app.tasks)[:3]]
    lines += [f"  laneq{where} lanes", f"  laneq{where} jobs"]
    if str(app.address) != str(server.address):
        lines += [
            "",
            f"This app looks for Redis at {app.address}. For programs that enqueue to this server:",
            f"  export LANEQ_URL={server.url}",
            "which counts where the app's constructor names no url.",
        ]
    return "\n".join([*lines, "", "Ctrl-C stops everything; what was enqueued is kept."])


def _options_to_get_here(app: LaneQ, name: str | None, server: _Server) -> str:
    """Return the options with which the commands of another terminal look at this server."""
    if str(app.address) != str(server.address):
        return f" --url {server.url} --namespace {app.namespace}"
    plain = LaneQ()
    if (str(plain.address), plain.namespace) == (str(server.address), app.namespace):
        return ""
    if name is not None:
        return f" --app {name}"
    return f" --url {server.url} --namespace {app.namespace}"
