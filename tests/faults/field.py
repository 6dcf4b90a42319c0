"""What a fault test stands on: a server of its own, worker processes, the RUNLOG, the books.

A `Field` comes from the fixture `field`, or with options from `new_field`. At the end of the
test its workers are killed and its namespace must be in order.

The words of the list of faults: ONCE is `assert_once`, CONSERVE is `assert_conserved`, and
KILL9, TERM, INT, STOP and CONT are methods of a `WorkerProcess`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Self, TypeVar
from unittest import mock
from uuid import uuid4

import pytest
import redis

from laneq import Lane, LaneQ, State
from laneq.calls.jobs import read_outcome
from laneq.embedded import EmbeddedServer, Engine
from laneq.keys import Keys, keys_of
from laneq.options import DEFAULT_LANES
from tests import patience
from tests.audit import problems_in
from tests.faults import body
from tests.faults.body import Entry
from tests.processes import PATIENCE_S, WorkerProcess, start_worker

T = TypeVar("T")

ROOT: Final = Path(__file__).parents[2]
JOBS: Final = Path(__file__).with_name("jobs.py")

#: Lease and interval of the recovery sweep in seconds, as the list of faults has them, and
#: the factor in times that it grants to a loaded machine.
L: Final = 4.0
S: Final = 1.0
FACTOR: Final = 2.0

#: The keys of a lane that a job can be in, and what it is then.
_PLACES: Final = {
    "waiting": State.WAITING,
    "scheduled": State.SCHEDULED,
    "leases": State.RUNNING,
    "dead": State.DEAD,
}


def two_sizes(names: str, *, ci: tuple[Any, ...], full: tuple[Any, ...]) -> pytest.MarkDecorator:
    """Run a test in a size for CI, and in the size of its row, which is marked `long`.

    ::

        @two_sizes("jobs, workers", ci=(500, 3), full=(10_000, 8))
    """
    rows = [pytest.param(*ci, id="ci"), pytest.param(*full, id="full", marks=pytest.mark.long)]
    return pytest.mark.parametrize(names, rows)


def wait_until(condition: Callable[[], T], within_s: float = PATIENCE_S, what: str = "") -> T:
    """As `tests.patience.wait_until`, with the patience that whole fleets need."""
    return patience.wait_until(condition, within_s, what)


class Field:
    """A server, a namespace, an app and its workers; all of this test alone.

    Args:
        folder: an empty folder, for all that the test writes.
        engine: the server to start.
        lanes: the app's; None for the default ones.
        lease: of all lanes, in seconds; None leaves each lane its own.
        keeps_data: whether the server has an append-only file, so that `restart` loses nothing.
        port: the server's TCP port, 0 for a free one; None for a unix socket.
        config: further directives of the server.
        app: the file with the app and its tasks; see `write_app`.

    Attributes:
        tasks: the module `app`, imported here: ``field.tasks.nap.enqueue(2)``.
        app: the app of that module.
        raw: a plain client of the server; replies are bytes.
        workers: all that were started.
    """

    def __init__(
        self,
        folder: Path,
        *,
        engine: Engine,
        lanes: Sequence[Lane] | None = None,
        lease: float | None = L,
        keeps_data: bool = False,
        port: int | None = None,
        config: Mapping[str, str] | None = None,
        app: Path | str = JOBS,
    ) -> None:
        self.folder = folder
        self.namespace = f"fault-{uuid4().hex[:8]}"
        self.keys: Keys = keys_of(self.namespace)
        self.workers: list[WorkerProcess] = []
        self.server = EmbeddedServer(
            folder / "data" if keeps_data else None, engine=engine, port=port, config=config
        )
        self._lanes = [_row(lane, lease) for lane in lanes or DEFAULT_LANES]
        self._source = app
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.server)
            self.url = self.server.url
            self.raw: Any = stack.enter_context(redis.Redis.from_url(self.url))
            self.runlog_path = self.folder / "runlog"
            self.environment = {
                "LANEQ_URL": self.url,
                "LANEQ_NAMESPACE": self.namespace,
                "PYTHONPATH": str(ROOT),
                "PYTHONUNBUFFERED": "1",
                body.LANES: json.dumps(self._lanes),
                body.PATH: str(self.runlog_path),
                body.DISTANCE: str(self._distance_us()),
            }
            self._path = self._written(self._source)
            self.tasks: Any = self._imported(self._path)
            self.app: LaneQ = stack.enter_context(self.tasks.app)
            self.app.sync_driver.call(self.app.publish_call())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with self._stack:
            self.end_workers()

    def end_workers(self) -> None:
        """Kill all workers that still run."""
        for worker in self.workers:
            worker.end()

    def assert_in_order(self) -> None:
        """Every invariant of the namespace holds; skipped where the test left no server."""
        if self.server.is_running:
            self.resume_server()
            problems = problems_in(self.raw, self.namespace)
            assert not problems, f"laneq check finds {problems}"

    # --- the app ----------------------------------------------------------------------

    def _written(self, source: Path | str) -> Path:
        if isinstance(source, Path):
            return source
        path = self.folder / "fault_app.py"
        path.write_text(source)
        return path

    def _imported(self, path: Path) -> ModuleType:
        """Import the app's module under a name of its own: its lanes are this field's."""
        spec = importlib.util.spec_from_file_location(f"{path.stem}_{uuid4().hex[:8]}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        with mock.patch.dict(os.environ, self.environment):
            spec.loader.exec_module(module)
        return module

    # --- the server -------------------------------------------------------------------

    def _distance_us(self) -> int:
        """Return how far Redis's clock is ahead of the monotonic one, the best of a few looks."""
        looks = []
        for _ in range(5):
            before = time.monotonic_ns() // 1000
            redis_us = self.now_us()
            after = time.monotonic_ns() // 1000
            looks.append((after - before, redis_us - (before + after) // 2))
        return min(looks)[1]

    def now_us(self) -> int:
        """Return the time by the server's clock, in microseconds."""
        seconds, micros = self.raw.time()
        return int(seconds) * 1_000_000 + int(micros)

    def pause_server(self) -> None:
        """Stop the server in its tracks: its connections stay, nothing is answered."""
        os.kill(self.server.pid, signal.SIGSTOP)

    def resume_server(self) -> None:
        os.kill(self.server.pid, signal.SIGCONT)

    def stop_server(self, *, kill: bool = False) -> None:
        """End the server, in order or as the power does; `start_server` brings it back."""
        if kill:
            os.kill(self.server.pid, signal.SIGKILL)
            wait_until(lambda: not self.server.is_running, what="the server's end")
        self.server.stop()

    def start_server(self) -> None:
        """Start the server again: same address, and with `keeps_data` the same data."""
        self.server.start()

    # --- workers ----------------------------------------------------------------------

    def worker(
        self,
        *options: str,
        slots: int = 4,
        lanes: str | None = None,
        reserve: Mapping[str, int] | None = None,
        processes: int = 1,
        grace: float | None = None,
        name: str | None = None,
        url: str | None = None,
        is_ready: bool = True,
        before: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> WorkerProcess:
        """Start a worker.

        Args:
            options: further words of the command line.
            url: where it finds Redis, as a proxy's; None for the server itself.
            is_ready: return when it takes jobs, not before.
            before: a command that starts it, as ``("unshare", "--pid", "--fork")``.
            environment: further variables.
        """
        line = ["-c", str(slots), *options]
        if lanes is not None:
            line += ["--lanes", lanes]
        for lane, n in (reserve or {}).items():
            line += ["--reserve", f"{lane}={n}"]
        if processes != 1:
            line += ["--processes", str(processes)]
        if grace is not None:
            line += ["--grace", str(grace)]
        if name is not None:
            line += ["--name", name]
        worker = start_worker(
            f"{self._path}:app",
            *line,
            environment={
                **self.environment,
                **({"LANEQ_URL": url} if url else {}),
                **(environment or {}),
            },
            folder=self.folder,
            before=before,
        )
        self.workers.append(worker)
        if is_ready:
            worker.until("is ready", times=processes)
        return worker

    def laneq(self, *words: str, status: int | None = 0) -> str:
        """Run a command, check its exit status (None: any), and return what it prints."""
        done = subprocess.run(
            [sys.executable, "-m", "laneq", *words],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={**os.environ, **self.environment},
            timeout=60,
            check=False,
        )
        assert status in {None, done.returncode}, done.stdout + done.stderr
        return done.stdout

    def laneq_json(self, *words: str, status: int | None = 0) -> Any:
        """Run a command with ``--json`` and return its document."""
        return json.loads(self.laneq(*words, "--json", status=status))

    # --- the RUNLOG -------------------------------------------------------------------

    def runlog(self, word: str | None = None) -> list[Entry]:
        """Return the entries of the RUNLOG, or those with this word, in order."""
        found = body.entries(self.runlog_path)
        return [entry for entry in found if word in {None, entry.word}]

    def starts(self, job_id: str | None = None) -> list[Entry]:
        """Return the starts, of one job or of all."""
        return [entry for entry in self.runlog("start") if job_id in {None, entry.id}]

    def until_started(self, n: int = 1, *, within_s: float = PATIENCE_S) -> list[Entry]:
        """Wait until there have been at least `n` starts, and return them all."""
        return wait_until(
            lambda: found if len(found := self.starts()) >= n else [], within_s, f"{n} starts"
        )

    def assert_once(self, ids: Iterable[str] | None = None) -> None:
        """ONCE: each of these jobs, or each that was started at all, was started once."""
        starts = Counter(entry.id for entry in self.starts())
        wanted = starts if ids is None else list(ids)
        wrong = {job_id: starts[job_id] for job_id in wanted if starts[job_id] != 1}
        assert wrong == {}, f"{len(wrong)} jobs were not started once"

    # --- the books --------------------------------------------------------------------

    def places(self) -> dict[str, list[tuple[State, str]]]:
        """Return id → where it is, as state and lane, by a walk of all keys at one instant."""
        walk = self.raw.pipeline(transaction=True)
        places = [
            (state, row["name"], word) for row in self._lanes for word, state in _PLACES.items()
        ]
        for _, lane, word in places:
            walk.zrange(self.keys.of_lane(word, lane), 0, -1)
        walk.zrange(self.keys.ended, 0, -1)
        walk.hgetall(self.keys.outcomes)
        *members, ended, outcomes = walk.execute()
        found: dict[str, list[tuple[State, str]]] = {}
        for (state, lane, _), ids in zip(places, members, strict=True):
            for member in ids:
                found.setdefault(member.decode(), []).append((state, lane))
        for member in ended:
            outcome = read_outcome(outcomes[member])
            found.setdefault(member.decode(), []).append((outcome.state, outcome.lane))
        return found

    def states(self, ids: Iterable[str] | None = None) -> Counter[State]:
        """Return how many of these jobs, or of all, are in each state."""
        places = self.places()
        wanted = places if ids is None else ids
        return Counter(places[job_id][0][0] for job_id in wanted)

    def until_settled(self, ids: Iterable[str], within_s: float = PATIENCE_S) -> None:
        """Wait until each of these jobs has ended, in whatever way."""
        left = list(ids)

        def are_over() -> bool:
            lines = self.raw.hmget(self.keys.outcomes, left) if left else []
            left[:] = [job_id for job_id, line in zip(left, lines, strict=True) if line is None]
            return not left

        wait_until(are_over, within_s, f"the end of {len(left)} jobs")

    def assert_conserved(self, ids: Iterable[str]) -> Counter[State]:
        """CONSERVE: each id is in exactly one place, and the CLI counts what a walk counts.

        Call it after things have settled. Ended jobs are found while their record is kept.

        Returns:
            How many of these jobs are in each state.
        """
        places = self.places()
        wanted = list(ids)
        assert len(set(wanted)) == len(wanted), "enqueue returned an id twice"
        wrong = {
            job_id: places.get(job_id) for job_id in wanted if len(places.get(job_id, [])) != 1
        }
        assert wrong == {}, f"{len(wrong)} jobs are not in exactly one place"
        walked = Counter(place for found in places.values() for place in found)
        for row in self.laneq_json("lanes"):
            lane, counts = row["name"], row["counts"]
            shown = {
                State.WAITING: row["depth"],
                State.SCHEDULED: row["scheduled"],
                State.RUNNING: row["running"],
                State.DEAD: row["dead"],
                State.SUCCEEDED: counts["succeeded"],
                State.CANCELLED: counts["cancelled"],
                State.EXPIRED: counts["expired"],
            }
            assert shown == {state: walked[state, lane] for state in shown}, lane
        return Counter(places[job_id][0][0] for job_id in wanted)


def _row(lane: Lane, lease: float | None) -> dict[str, Any]:
    """Return a lane's options as JSON-able values."""
    row = {option.name: getattr(lane, option.name) for option in fields(lane)}
    return row if lease is None else {**row, "lease": lease}
