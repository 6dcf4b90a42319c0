"""Lanes: publish what an app declares, read what is in force, steer them live."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from laneq.calls.call import Call
from laneq.errors import ConfigError, UnknownLane
from laneq.keys import Keys
from laneq.precedence import Rule
from laneq.scripts import load

#: Number of the key scheme and scripts; a namespace made by another is refused.
SCHEMA: Final = 1

Reply = list[Any]


@dataclass(frozen=True, slots=True)
class LaneInForce:
    """A lane's effective settings, declaration and overrides taken together.

    Attributes:
        aging_per_us: points per microsecond of wait.
        lease_us: microseconds of a lease.
        reserve: slots, or ``auto``.
        max_running, max_depth: -1 for no limit.
        start_every_us: microseconds from one start to the next at the lane's rate; -1 for none.
        is_fair: whether its jobs share it by key.
        reserve_slots: the reserve in force, over the fleet; what was decided, if it is ``auto``.
    """

    name: str
    priority: float
    aging_per_us: float
    aging_cap: float
    is_paused: bool
    lease_us: int
    dead_max: int
    dead_age_us: int
    reserve: int | str
    max_running: int
    start_every_us: float = -1
    max_depth: int = -1
    is_fair: bool = False
    reserve_slots: int = 0


@dataclass(frozen=True, slots=True)
class LanesInForce:
    """All lanes of a namespace, most urgent first, and the version of this list.

    Scripts that take lanes by index take them in this order.

    Attributes:
        is_partial: whether an older laneq worked them out: options that it does not know are
            not in force until a newer one publishes again.
        decisions: lane → the last decision on its automatic reserve, as it is stored; it stays
            when the reserve is no longer automatic.
    """

    version: int
    lanes: tuple[LaneInForce, ...]
    declared: Mapping[str, Mapping[str, Any]]
    overrides: Mapping[str, Mapping[str, Any]]
    task_line: str = ""
    decisions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    is_partial: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Return the lanes' names in order."""
        return tuple(lane.name for lane in self.lanes)

    def lane(self, name: str) -> LaneInForce:
        """Return one lane.

        Raises:
            UnknownLane: no lane of the namespace has this name.
        """
        for lane in self.lanes:
            if lane.name == name:
                return lane
        raise UnknownLane(name, self.names)

    def wire(self, name: str) -> dict[str, Any]:
        """Return a lane's settings in force, in the form of `Lane.to_wire`.

        Raises:
            UnknownLane: no lane of the namespace has this name.
        """
        lane = self.lane(name).name
        return {**self.declared[lane], **self.overrides.get(lane, {})}

    def rules(self) -> list[Rule]:
        """Return what decides of the order of lanes, for `precedence`."""
        return [
            Rule(
                lane=lane.name,
                priority=lane.priority,
                # As it was declared: a millionth, a million times, is not quite the same.
                aging=float(f"{lane.aging_per_us * 1e6:.12g}"),
                aging_cap=lane.aging_cap,
                reserve=lane.reserve,
                max_running=None if lane.max_running < 0 else lane.max_running,
                may_starve=self.wire(lane.name).get("may_starve") is True,
            )
            for lane in self.lanes
        ]


def _number(text: str) -> float:
    # Lua writes a large whole number, such as ten years in µs, as 3.1536e+14.
    value = float(text)
    return int(value) if value.is_integer() and "e" in text else value


@dataclass(frozen=True, slots=True)
class PublishedTask:
    """What is known of a task without its code: its lane and its rule for crashes.

    `kind` is 0 for fixed, 1 for linear and 2 for exponential backoff; `jitter` is 0 or 1;
    `max_running` is None for no limit.
    """

    lane: str
    max_attempts: int
    kind: int
    base_us: int
    cap_us: int
    jitter: int = 1
    max_running: int | None = None

    def to_line(self) -> str:
        """Return the form that the claim script reads."""
        numbers = (self.max_attempts, self.kind, self.base_us, self.cap_us, self.jitter)
        limit = () if self.max_running is None else (self.max_running,)
        return " ".join((self.lane, *map(str, (*numbers, *limit))))

    @classmethod
    def from_line(cls, line: str) -> PublishedTask:
        """Read the form that `to_line` writes."""
        lane, *numbers = line.split(" ")
        # Later versions may say more.
        return cls(lane, *(int(number) for number in numbers[:6]))


#: Columns of a row of the first version, and what stands for later ones where that made it.
_FIRST_COLUMNS: Final = 10
_UNSAID: Final = (-1, -1, 0, 0)


def _rows(config: bytes) -> tuple[LaneInForce, ...]:
    rows = [(*row, *_UNSAID[len(row) - _FIRST_COLUMNS :]) for row in _raw_rows(config)]
    return tuple(
        LaneInForce(
            name=row[0],
            priority=row[1],
            aging_per_us=row[2],
            aging_cap=row[3],
            is_paused=row[4] == 1,
            lease_us=int(row[5]),
            dead_max=int(row[6]),
            dead_age_us=int(row[7]),
            reserve=row[8] if isinstance(row[8], str) else int(row[8]),
            max_running=int(row[9]),
            start_every_us=row[10],
            max_depth=int(row[11]),
            is_fair=row[12] == 1,
            reserve_slots=int(row[13]),
        )
        for row in rows
    )


def _raw_rows(config: bytes) -> list[list[Any]]:
    return json.loads(config)["lanes"] or []


def publish(
    keys: Keys,
    *,
    lanes: Iterable[tuple[str, Mapping[str, Any]]],
    tasks: Mapping[str, PublishedTask],
) -> Call[int]:
    """Make lanes and tasks known; the value is the version in force.

    Raises (on reading):
        ConfigError: the namespace was made by another schema of laneq.
    """
    script = load("publish")

    def read(reply: Reply) -> int:
        if reply[0] == b"schema":
            raise ConfigError(
                f"namespace {keys.namespace!r} was made by schema {reply[1].decode()} of laneq, "
                f"this is schema {SCHEMA}: use a laneq of that schema, or another namespace"
            )
        return int(reply[1])

    return Call(
        script,
        script.bind_keys(keys),
        script.bind_args(
            {"schema": SCHEMA},
            lane=[(name, json.dumps(wire)) for name, wire in lanes],
            task=[(name, task.to_line()) for name, task in tasks.items()],
        ),
        read,
    )


def read_lanes(keys: Keys, *, task: str = "") -> Call[LanesInForce]:
    """Read all lanes in force, and the published line of `task` if one is named."""
    script = load("lanes")

    def pairs(flat: Sequence[bytes]) -> dict[str, dict[str, Any]]:
        return {
            flat[i].decode(): json.loads(flat[i + 1], parse_float=_number)
            for i in range(0, len(flat), 2)
        }

    def read(reply: Reply) -> LanesInForce:
        return LanesInForce(
            version=int(reply[1]),
            lanes=_rows(reply[2]),
            declared=pairs(reply[3]),
            overrides=pairs(reply[4]),
            task_line=reply[5].decode(),
            decisions=pairs(reply[6]),
            is_partial=any(len(row) < _FIRST_COLUMNS + len(_UNSAID) for row in _raw_rows(reply[2])),
        )

    return Call(script, script.bind_keys(keys), script.bind_args({"task": task}), read)


def set_lane(keys: Keys, name: str, changes: Mapping[str, Any] | None) -> Call[int]:
    """Override some of a lane's settings; None takes all overrides back.

    Args:
        keys: the namespace.
        name: the lane.
        changes: wire form of the options to override, as of `Lane.to_wire`.

    Raises (on reading):
        UnknownLane: no lane of the namespace has this name.
    """
    script = load("set_lane")

    def read(reply: Reply) -> int:
        if reply[0] == b"unknown_lane":
            raise UnknownLane(name, ())
        return int(reply[1])

    return Call(
        script,
        script.bind_keys(keys, [name]),
        script.bind_args(
            {"name": name, "changes": "" if changes is None else json.dumps(dict(changes))}
        ),
        read,
    )


def purge(keys: Keys, lane: str, *, limit: int = 500) -> Call[int]:
    """Drop up to `limit` waiting and scheduled jobs; the value says how many.

    Ask again until the value is 0.
    """
    script = load("purge")
    return Call(
        script,
        script.bind_keys(keys, [lane]),
        script.bind_args({"limit": limit}),
        lambda reply: int(reply[1]),
    )
