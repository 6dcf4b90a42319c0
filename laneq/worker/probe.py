"""A liveness probe: a port that answers, a file that is touched, systemd that is told.

One thread of its own does all three, so that a blocked event loop is told of and not merely
seen as silence. Native code that holds the GIL silences it too, and silence is an answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from laneq.errors import ConfigError, OptionError
from laneq.worker.lines import log
from laneq.worker.notify import is_watched, notify
from laneq.worker.wellness import LIMIT_S, SHORTEST_S

#: Seconds between looks, at most: the file is touched so often.
TICK_S: Final = 1.0

#: Seconds that a client gets for its request and for taking the answer.
_CLIENT_S: Final = 1.0

_MOST_BYTES: Final = 4096
_LAST_PORT: Final = 65_535

#: Where no host is named: all addresses of this machine, as probes come from outside.
ANY_HOST: Final = ""


#: A file that was not touched for so many seconds is not being touched: a few ticks.
_STALE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """What of a worker's health is shown to whoever started it.

    Args:
        port: a TCP port that answers HTTP, 200 while well and 503 otherwise; 0 for a free
            one; None for none.
        host: the address to listen on; empty for all.
        file: touched about every second while well; None for none.
        after: seconds without progress after which the worker is unwell.

    Raises:
        OptionError: a value is out of its range.
    """

    port: int | None = None
    host: str = ANY_HOST
    file: str | None = None
    after: float = LIMIT_S

    def __post_init__(self) -> None:
        """Check every option."""
        if self.port is not None and not 0 <= self.port <= _LAST_PORT:
            raise OptionError("health-port", f"must be from 0 to {_LAST_PORT}, not {self.port}")
        if self.file is not None and not self.file:
            raise OptionError("health-file", "must be the path of a file, and is empty")
        if not SHORTEST_S <= self.after <= 86_400:  # noqa: PLR2004  a day
            raise OptionError(
                "health-after", f"must be {SHORTEST_S:g} s to a day, not {self.after:g}"
            )

    @property
    def is_wanted(self) -> bool:
        """Whether there is anything to do."""
        return self.port is not None or self.file is not None or is_watched()


class Probe:
    """The thread that shows how a worker, or a supervisor's workers, are.

    Args:
        options: what is shown.
        problems: what is wrong now; called in the thread.
        facts: what an answer says besides.

    Raises:
        ConfigError: the port cannot be opened, or the file cannot be written.
    """

    def __init__(
        self,
        options: ProbeOptions,
        problems: Callable[[], Sequence[str]],
        facts: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._problems = problems
        self._facts = facts
        self._file = None if options.file is None else Path(options.file)
        self._tick_s = min(TICK_S, options.after / 4)
        self._is_watched = is_watched()
        self._has_been_well = self._is_told = False
        self._is_file_broken = False
        if self._file is not None:
            _start_file(self._file)
        self._listener = None if options.port is None else _listen(options.host, options.port)
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._main, name="laneq-probe", daemon=True)

    @property
    def port(self) -> int | None:
        """Return the port that answers; None where none does."""
        if self._listener is None:
            return None
        port: int = self._listener.getsockname()[1]
        return port

    def start(self) -> None:
        """Begin."""
        if self.port is not None:
            log.info("health: http on port %d", self.port)
        self._thread.start()

    def stop(self) -> None:
        """End: close the port and remove the file."""
        self._wake.close()
        self._thread.join()
        self._woken.close()
        if self._listener is not None:
            self._listener.close()
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    # --- in the thread ----------------------------------------------------------------

    def _main(self) -> None:
        try:
            self._keep_telling()
        except Exception:  # noqa: BLE001  whatever it is: from now on silence says "unwell"
            log.critical("the health probe failed, and is silent from now on", exc_info=True)

    def _keep_telling(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            if self._listener is not None:
                selector.register(self._listener, selectors.EVENT_READ)
            due = time.monotonic()
            while True:
                ready = {key.fileobj for key, _ in selector.select(due - time.monotonic())}
                if self._woken in ready:
                    return
                if time.monotonic() >= due:
                    due = time.monotonic() + self._tick_s
                    self._tell()
                if self._listener is not None and self._listener in ready:
                    # A client that has gone, or that neither sends nor takes in its time.
                    with contextlib.suppress(OSError):
                        self._answer(self._listener)

    def _tell(self) -> None:
        """Look, and say so where it is well."""
        problems = self._problems()
        is_well = not problems
        if is_well:
            if self._file is not None:
                self._touch(self._file)
            if self._is_watched:
                notify("WATCHDOG=1")
        if is_well and self._is_told:
            log.info("well again")
            self._is_told = False
        elif not is_well and self._has_been_well and not self._is_told:
            log.warning("unwell: %s", "; ".join(problems))
            self._is_told = True
        self._has_been_well |= is_well

    def _touch(self, path: Path) -> None:
        try:
            with path.open("ab"):
                os.utime(path)
        except OSError as error:
            if not self._is_file_broken:
                log.warning("the health file cannot be touched, and will seem old: %s", error)
            self._is_file_broken = True
        else:
            self._is_file_broken = False

    def _answer(self, listener: socket.socket) -> None:
        client, _ = listener.accept()
        give_up_at = time.monotonic() + _CLIENT_S
        with client:
            request = b""
            while b"\r\n\r\n" not in request and len(request) < _MOST_BYTES:
                client.settimeout(max(0.001, give_up_at - time.monotonic()))
                piece = client.recv(_MOST_BYTES)
                if not piece:
                    return
                request += piece
            client.settimeout(_CLIENT_S)
            client.sendall(self._response(is_head=request.startswith(b"HEAD ")))

    def _response(self, *, is_head: bool) -> bytes:
        problems = list(self._problems())
        body = json.dumps({"ok": not problems, "reasons": problems, **self._facts()}).encode()
        status = "503 Service Unavailable" if problems else "200 OK"
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        ).encode()
        return head if is_head else head + body


class Touched:
    """Whether the files are touched that several workers touch while they are well.

    Args:
        files: what each is called → its file.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files
        self._seen: dict[str, tuple[int, float]] = {}

    def watch(self, files: Mapping[str, Path]) -> None:
        """Look at these files from now on; safe to call in any thread."""
        self._files = files

    def problems(self) -> tuple[str, ...]:
        """Return what is wrong now; nothing where every file is touched."""
        return tuple(
            f"{name} {problem}"
            for name, path in self._files.items()
            if (problem := self._problem(name, path))
        )

    def _problem(self, name: str, path: Path) -> str:
        now = time.monotonic()
        try:
            changed_ns = path.stat().st_mtime_ns
        except FileNotFoundError:
            return "is not ready"
        # By our own clock: the wall clock may be put forward or back.
        before_ns, since = self._seen.get(name, (0, now))
        if changed_ns != before_ns:
            since = now
        self._seen[name] = (changed_ns, since)
        return "is unwell" if now - since > _STALE_S else ""


def _listen(host: str, port: int) -> socket.socket:
    try:
        if host == ANY_HOST and socket.has_dualstack_ipv6():
            with contextlib.suppress(OSError):  # a machine without IPv6 addresses
                return socket.create_server(
                    (host, port), family=socket.AF_INET6, dualstack_ipv6=True
                )
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(
            f"health port {port} of {host or 'all addresses'} cannot be opened: {error}. "
            "Choose another one with --health-port."
        ) from error


def _start_file(path: Path) -> None:
    """Take away what an earlier worker left, which would count as this one's."""
    try:
        path.unlink(missing_ok=True)
        if not path.parent.is_dir():
            raise ConfigError(
                f"health file {path}: there is no folder {path.parent}; make it first"
            )
    except OSError as error:
        raise ConfigError(f"health file {path} cannot be written: {error}") from error
