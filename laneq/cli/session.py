"""One command's calls to Redis, bounded in time."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Final, TypeVar

from laneq.app import LaneQ
from laneq.calls import lanes as lane_calls
from laneq.calls.call import Call, Plan, Until
from laneq.calls.lanes import LanesInForce
from laneq.cli.report import note
from laneq.cli.settings import Settings
from laneq.cli.target import app_of
from laneq.drive import Address, SyncDriver
from laneq.errors import RedisUnavailable, UnknownLane
from laneq.wording import NOTHING_PUBLISHED

T = TypeVar("T")

#: Seconds for a connection and for a reply, so that a command that cannot reach
#: Redis ends within three seconds, its own start included.
PATIENCE_S: Final = 1.0


class Session:
    """Calls to the namespace that a command looks at.

    Args:
        app: names the Redis and the namespace.
        patience_s: seconds of an outage that calls ride out.

    Attributes:
        app: names the Redis and the namespace.
        keys: the namespace.
        address: where Redis is.
        driver: carries out calls.
    """

    def __init__(self, app: LaneQ, *, patience_s: float = PATIENCE_S) -> None:
        """Note where Redis is; the first call connects."""
        self.app = app
        self.keys = app.keys
        self.address = replace(app.address, connect_timeout_s=PATIENCE_S, read_timeout_s=PATIENCE_S)
        self.driver = SyncDriver(
            self.address, prefix=self.keys.prefix, client_name="laneq-cli", patience_s=patience_s
        )

    def call(self, call: Call[T]) -> T:
        """Carry out one call."""
        return self.driver.call(call)

    def run(self, plan: Plan[T]) -> T:
        """Carry out a plan."""
        return self.driver.run(plan)

    def wait(self, until: Until[T]) -> T:
        """Carry out one wait."""

        def plan() -> Plan[T]:
            answer: T = yield until
            return answer

        return self.run(plan())

    def now(self) -> float:
        """Return Redis's clock, in seconds since the epoch."""
        seconds, microseconds = self.driver.command("TIME")
        return int(seconds) + int(microseconds) / 1e6

    @cached_property
    def lanes(self) -> LanesInForce:
        """All lanes of the namespace, read once."""
        return self.call(lane_calls.read_lanes(self.keys))

    def known_lanes(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the lanes to look at: those named, or all where none is.

        Raises:
            UnknownLane: one does not exist; lists the known ones.
        """
        for name in names:
            if name not in self.lanes.names:
                raise UnknownLane(name, self.lanes.names)
        return names or self.lanes.names

    def say_if_empty(self) -> None:
        """Tell the operator of a namespace without lanes that this may be the wrong one."""
        if not self.lanes.names:
            note(
                f"namespace {self.keys.namespace!r} at {self.address} has no lanes: "
                f"{NOTHING_PUBLISHED}"
            )


@contextmanager
def opened(settings: Settings, *, wants_code: bool = False) -> Iterator[Session]:
    """Open a session with what the settings name, and close it.

    Args:
        settings: may name the app, the address and the namespace.
        wants_code: import the app also where address and namespace are known without.

    Raises:
        ConfigError: see `laneq.cli.target.app_of`.
        RedisUnavailable: the host's name cannot be resolved.
    """
    app = app_of(settings, wants_code=wants_code)
    resolve(app.address)
    session = Session(app)
    try:
        yield session
    finally:
        session.driver.close()


def resolve(address: Address) -> None:
    """Look the host up within our patience: the system's own resolver may take far longer.

    Raises:
        RedisUnavailable: it has no answer, or says that there is none.
    """
    if address.has_sentinels or not address.hosts:
        return
    host, port = address.hosts[0]
    errors: list[OSError] = []

    def look_up() -> None:
        try:
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            errors.append(error)

    # A daemon: one that hangs does not keep the process from ending.
    thread = threading.Thread(target=look_up, daemon=True, name="laneq-resolve")
    thread.start()
    thread.join(PATIENCE_S)
    if errors or thread.is_alive():
        reason = str(errors[0]) if errors else f"no answer to its name within {PATIENCE_S:g} s"
        raise RedisUnavailable(f"Redis at {address.where} cannot be reached: {reason}")
