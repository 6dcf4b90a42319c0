"""The app: where Redis is, which lanes and tasks there are, and the ways to enqueue.

Making an app asks nothing of Redis. Producers connect at the first call, each in its own
colour: blocking callers share a pool of connections, coroutines one connection per event
loop. An app may be used from any number of threads and loops, and after a fork.

Lanes are made known to Redis by a worker that starts, and by the first enqueue into a lane
that Redis does not know and this app declares. An app that names no lanes and has no
tasks declares nothing where others have: it is a producer by name, and its default lanes
must not appear in somebody's namespace.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import time
import tomllib
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import wait
from pathlib import Path
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    Unpack,
    overload,
)
from weakref import WeakKeyDictionary

from laneq.calls import jobs, lanes
from laneq.calls.call import Call, Plan
from laneq.calls.jobs import NewJob
from laneq.calls.lanes import PublishedTask
from laneq.drive import Address, AsyncDriver, SyncDriver
from laneq.errors import ConfigError, OptionError, UnknownLane, UsageError, suggest
from laneq.job import Asking, Job
from laneq.keys import Keys, keys_of
from laneq.middleware import Middleware
from laneq.model import TASK_NAME
from laneq.options import DEFAULT_LANE, DEFAULT_LANES, AppOptions, Lane, Seconds, TaskOptions
from laneq.precedence import Rule, unsaid, unsaid_text
from laneq.running import running_here
from laneq.task import Task, TaskCall, TaskDecorator, TaskKwargs, TaskRef, enqueue_many

if TYPE_CHECKING:
    from laneq.testing import Testing

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")

#: Where Redis is looked for when nothing says.
DEFAULT_URL: Final = "redis://127.0.0.1:6379/0"
DEFAULT_NAMESPACE: Final = "default"

#: Settings that ``[tool.laneq]`` in pyproject.toml may have.
PROJECT_SETTINGS: Final = ("url", "namespace", "app")

#: Seconds that the lane published for a task is believed.
_LANE_OF_S: Final = 5.0
_MOST_LANES_OF: Final = 10_000


class StandIn(Protocol):
    """Carries out plans in place of the drivers, for ``app.testing()``."""

    def run(self, plan: Plan[T], /) -> T:
        """Carry out a plan, blocking."""
        ...

    async def arun(self, plan: Plan[T], /) -> T:
        """Carry out a plan in a coroutine."""
        ...


class LaneQ:
    """A queue system: its address, its lanes and its tasks.

    A context manager in both colours, which closes its connections at the end.

    Args:
        url: where Redis is; None for ``$LANEQ_URL``, else `url` under ``[tool.laneq]`` in the
            nearest ``pyproject.toml``, else ``redis://127.0.0.1:6379/0``.
        namespace: name of the queue system; None for ``$LANEQ_NAMESPACE``, else `namespace`
            under ``[tool.laneq]``, else ``default``.
        lanes: the lanes that the app declares; None for `laneq.options.DEFAULT_LANES`.
        max_payload: most bytes of a job's encoded arguments, and of its result.
        connect_timeout: seconds that making a connection may take, and that producers ride
            out an outage for.
        read_timeout: seconds that an answer of Redis may take.
        middleware: hooks of the workers of this app, in the order in which they are called.

    Attributes:
        namespace: name of the queue system.
        address: where Redis is; prints without the password.
        keys: the namespace's keys.
        lanes: the lanes declared, by name.
        tasks: the tasks registered, by name.
        middleware: hooks of the workers.
        max_payload: most bytes of a job's encoded arguments, and of its result.

    Raises:
        ConfigError: the address or a project file cannot be read.
        OptionError: an option has a wrong type or value, or a lane could wait for ever behind
            another and does not say `may_starve`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str | None = None,
        lanes: Iterable[Lane] | None = None,
        max_payload: int = 1024 * 1024,
        connect_timeout: Seconds = 2.0,
        read_timeout: Seconds = 5.0,
        middleware: Iterable[Middleware] = (),
    ) -> None:
        """Check the options; nothing is asked of Redis yet."""
        project = {} if url and namespace else project_settings()
        options = AppOptions(
            namespace=namespace
            or os.environ.get("LANEQ_NAMESPACE")
            or project.get("namespace")
            or DEFAULT_NAMESPACE,
            lanes=lanes,
            max_payload=max_payload,
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
        )
        self._options = options
        self._names_lanes = options.lanes is not None
        _refuse_starving(options.lanes or DEFAULT_LANES)
        self.lanes: MappingProxyType[str, Lane] = MappingProxyType(
            {lane.name: lane for lane in options.lanes or DEFAULT_LANES}
        )
        self.max_payload = options.max_payload
        self.middleware: list[Middleware] = _middleware(middleware)
        self._tasks: dict[str, Task[..., Any, Any]] = {}
        self.tasks: MappingProxyType[str, Task[..., Any, Any]] = MappingProxyType(self._tasks)
        self._stand_in: StandIn | None = None
        self._settle(
            self._parse(url or os.environ.get("LANEQ_URL") or project.get("url") or DEFAULT_URL),
            options.namespace,
        )

    def __repr__(self) -> str:
        return f"<LaneQ {self.namespace!r} at {self.address}>"

    def _parse(self, url: str) -> Address:
        options: Any = self._options  # whose times are seconds by now
        return Address.parse(
            url,
            connect_timeout_s=options.connect_timeout,
            read_timeout_s=options.read_timeout,
        )

    def _settle(self, address: Address, namespace: str) -> None:
        self.address = address
        self.namespace = namespace
        self.keys: Keys = keys_of(namespace)
        self.sync_driver = SyncDriver(
            address, prefix=self.keys.prefix, patience_s=address.connect_timeout_s
        )
        self._async_drivers: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncDriver] = (
            WeakKeyDictionary()
        )
        self._forget()

    def _forget(self) -> None:
        """Forget what was read from Redis."""
        self.known_lanes: tuple[str, ...] | None = None
        self._lanes_of: dict[str, tuple[str, float]] = {}

    def override(self, *, url: str | None = None, namespace: str | None = None) -> None:
        """Use another address or namespace than the constructor's, as the command line may.

        Call it before anything is enqueued: handles and tasks look where the app now is.

        Args:
            url: where Redis is; None leaves it.
            namespace: name of the queue system; None leaves it.

        Raises:
            ConfigError: the address cannot be read.
            OptionError: the namespace has characters that it cannot have.
        """
        name = self.namespace if namespace is None else AppOptions(namespace=namespace).namespace
        address = self.address if url is None else self._parse(url)
        self.close()
        self._settle(address, name)

    def move_to(self, address: Address, namespace: str) -> None:
        """Use another app's address and namespace: in a child process, those of its worker."""
        if (address, namespace) != (self.address, self.namespace):
            self.close()
            self._settle(address, namespace)

    # --- tasks ----------------------------------------------------------------------

    @overload
    def task(
        self, function: Callable[P, Coroutine[Any, Any, V]], /
    ) -> Task[P, Coroutine[Any, Any, V], V]: ...
    @overload
    def task(self, function: Callable[P, V], /) -> Task[P, V, V]: ...
    @overload
    def task(self, /, **options: Unpack[TaskKwargs]) -> TaskDecorator: ...

    def task(
        self, function: Callable[..., Any] | None = None, /, **options: Unpack[TaskKwargs]
    ) -> Any:
        """Make a function a task; a decorator, with and without options.

        The task's name is its module and qualified name unless `name` is given. It keeps the
        function's signature for type checkers and runs the function when it is called.

        Args:
            function: the function, where the decorator has no brackets.
            options: see `laneq.options.TaskOptions`.

        Raises:
            OptionError: an option is unknown (the known ones are listed), its value is wrong,
                or the function has no name to go by.
            UnknownLane: the app has no such lane; lists those that it has.
            UsageError: the name is taken, or the function cannot be a task.
        """
        wanted = TaskOptions.of(options)
        if function is None:
            return lambda function: self._register(function, wanted)
        return self._register(function, wanted)

    def _register(self, function: Any, options: TaskOptions) -> Task[..., Any, Any]:
        if isinstance(function, Task):
            raise UsageError(f"task {function.name} is a task already: put one @app.task on it")
        if not callable(function) or inspect.isclass(function):
            raise UsageError(f"@app.task makes a function a task, not {function!r}")
        name = options.name or _name_of(function)
        taken = self._tasks.get(name)
        if taken is not None:
            raise UsageError(
                f"task {name} is registered already, as {_place_of(taken.function)}; here comes "
                f"{_place_of(function)}. Give one of them another name: @app.task(name=...)."
            )
        task: Task[..., Any, Any] = Task(
            self, function, name=name, lane=self._lane_for(name, options.lane), options=options
        )
        self._tasks[name] = task
        return task

    def _lane_for(self, name: str, lane: str | None) -> str:
        if lane is not None:
            if lane not in self.lanes:
                raise UnknownLane(lane, self.lanes)
            return lane
        if DEFAULT_LANE in self.lanes:
            return DEFAULT_LANE
        if len(self.lanes) == 1:
            return next(iter(self.lanes))
        raise OptionError(
            "lane",
            f"task {name} names no lane, and the app has no lane {DEFAULT_LANE!r}. Name one of "
            f"{', '.join(self.lanes)}: @app.task(lane=...).",
        )

    # --- enqueue --------------------------------------------------------------------

    def enqueue(self, name: str, /, *args: Any, **kwargs: Any) -> Job[Any]:
        """Enqueue a call of a task by its name, for producers without its code.

        The arguments are the function's and nothing else; options go with `ref`. The lane is
        that of the task where it is registered here, else the one that a worker published
        for it, else ``normal``.

        Raises:
            UnknownLane: the task's lane does not exist; lists those that do.
            WrongArguments: the task is known here and does not take them.
            NotSerializable: an argument cannot make the trip; names the path to it.
            PayloadTooLarge: they are over `max_payload`.
            StoreError: Redis cannot be reached, or refuses.

        Redis:
            enqueue.lua, one round trip; one more, every few seconds, to ask for the lane of a
            task that is not registered here.
        """
        return self.ref(name).enqueue(*args, **kwargs)

    async def aenqueue(self, name: str, /, *args: Any, **kwargs: Any) -> Job[Any]:
        """Enqueue a call of a task by its name; the asynchronous twin of `enqueue`."""
        return await self.ref(name).aenqueue(*args, **kwargs)

    def enqueue_many(self, calls: Iterable[TaskCall[V]]) -> list[Job[V]]:
        """Enqueue many calls, in order; one round trip per 1,000 jobs or 4 MiB.

        Nothing is stored unless every item is a call. If Redis fails on the way, a note on the
        error says how many jobs were stored before.

        Args:
            calls: what ``task.call(...)`` returns, of one task or of several.

        Returns:
            The jobs' handles, in the same order.

        Raises:
            UsageError: an item is no call of a task.
            UnknownLane: a lane does not exist; lists those that do.
            StoreError: Redis cannot be reached, or refuses.

        Redis:
            enqueue.lua, once for each 1,000 jobs or 4 MiB.
        """
        return self.carry_out(enqueue_many(self, calls))

    async def aenqueue_many(self, calls: Iterable[TaskCall[V]]) -> list[Job[V]]:
        """Enqueue many calls, in order; the asynchronous twin of `enqueue_many`."""
        return await self.acarry_out(enqueue_many(self, calls))

    def ref(self, name: str) -> TaskRef:
        """Return a task by its name, to enqueue calls of it with options.

        Args:
            name: the task's name, as ``shop.tasks.reindex``.

        Raises:
            OptionError: no task can have such a name.
        """
        given: object = name
        if not isinstance(given, str) or not TASK_NAME.fullmatch(given):
            raise OptionError(
                "name", f"must be 1 to 200 characters without white space, not {name!r}"
            )
        return TaskRef(self, name)

    def job(self, id: str) -> Job[Any]:
        """Return the handle of a job from its id; nothing is asked of Redis.

        Raises:
            UsageError: the id is no text.
        """
        given: object = id
        if not isinstance(given, str) or not given:
            raise UsageError(f"the id of a job must be a str, not {id!r}")
        return Job(self, id)

    # --- what tasks and handles need ------------------------------------------------

    def store_after(
        self, new: Sequence[NewJob], error: UnknownLane
    ) -> Asking[frozenset[int] | None]:
        """Store jobs although a lane was unknown, if this app is to declare it.

        Raises:
            UnknownLane: it is not; lists those that exist.
        """
        known: tuple[str, ...] = (yield lanes.read_lanes(self.keys)).names
        declares = self._names_lanes or bool(self._tasks) or not known
        if not declares or error.lane not in self.lanes:
            raise UnknownLane(error.lane, known or self.lanes) from None
        yield self.publish_call()
        try:
            present: frozenset[int] | None = yield jobs.enqueue(self.keys, new)
            return present
        except UnknownLane as other:
            raise UnknownLane(other.lane, {*known, *self.lanes}) from None

    def lane_of(self, name: str) -> Asking[str]:
        """Find the lane of a task that is not registered here."""
        found = self._lanes_of.get(name)
        if found is not None and found[1] > time.monotonic():
            return found[0]
        in_force: lanes.LanesInForce = yield lanes.read_lanes(self.keys, task=name)
        if in_force.task_line:
            lane = PublishedTask.from_line(in_force.task_line).lane
            if len(self._lanes_of) >= _MOST_LANES_OF:
                self._lanes_of.clear()
            self._lanes_of[name] = (lane, time.monotonic() + _LANE_OF_S)
            return lane
        known = in_force.names or tuple(self.lanes)
        return known[0] if len(known) == 1 else DEFAULT_LANE

    def check_main(self, name: str) -> None:
        """Refuse to store a job of a task of ``__main__``, where no worker can find it.

        Raises:
            UsageError: always, but in `testing`, where this process runs the job.
        """
        if self._stand_in is not None:
            return
        main = sys.modules.get("__main__")
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec is not None else Path(file).stem if file else "shop"
        function = name.partition(".")[2]
        raise UsageError(
            f"task {name} has another name in a worker, for __main__ is whatever program was "
            f"started. Enqueue from a program that imports it (from {module} import {function}), "
            f"or give it a name: @app.task(name='{module}.{function}')."
        )

    def waiting_id(self) -> str | None:
        """Return the id of the job that runs here, which must not wait; or None."""
        job = running_here()
        return None if job is None else job.id

    def publish_call(self) -> Call[int]:
        """Return the call that makes this app's lanes and tasks known."""
        return lanes.publish(
            self.keys,
            lanes=[(name, lane.to_wire()) for name, lane in self.lanes.items()],
            tasks={name: task.published() for name, task in self._tasks.items()},
        )

    # --- connections ----------------------------------------------------------------

    def carry_out(self, plan: Plan[T], /) -> T:
        """Carry out a plan of `laneq.calls`, blocking the thread."""
        stand_in = self._stand_in
        return self.sync_driver.run(plan) if stand_in is None else stand_in.run(plan)

    async def acarry_out(self, plan: Plan[T], /) -> T:
        """Carry out a plan of `laneq.calls`; the asynchronous twin of `carry_out`."""
        stand_in = self._stand_in
        if stand_in is None:
            return await self.async_driver().run(plan)
        return await stand_in.arun(plan)

    def async_driver(self) -> AsyncDriver:
        """Return the driver of the running event loop.

        Raises:
            RuntimeError: no event loop runs in this thread.
        """
        loop = asyncio.get_running_loop()
        driver = self._async_drivers.get(loop)
        if driver is None:
            # A loop that did not end in the usual way left its driver, which holds it.
            for ended in [each for each in self._async_drivers if each.is_closed()]:
                self._async_drivers.pop(ended, None)
            driver = self._async_drivers[loop] = AsyncDriver(
                self.address, prefix=self.keys.prefix, patience_s=self.address.connect_timeout_s
            )
        return driver

    def close(self) -> None:
        """Close the connections; a later call opens new ones.

        In a coroutine use `aclose`: this cannot wait for the connection of its own loop,
        which is closed soon after.
        """
        self.sync_driver.close()
        here = running_loop()
        for loop, driver in list(self._async_drivers.items()):
            if loop.is_closed():
                continue
            if loop is here:
                self._closing = loop.create_task(driver.aclose())
            elif loop.is_running():
                done = asyncio.run_coroutine_threadsafe(driver.aclose(), loop)
                wait([done], timeout=self.address.connect_timeout_s)
            elif here is None:
                loop.run_until_complete(driver.aclose())
        self._async_drivers.clear()

    async def aclose(self) -> None:
        """Close the connections; the asynchronous twin of `close`."""
        driver = self._async_drivers.pop(asyncio.get_running_loop(), None)
        if driver is not None:
            await driver.aclose()
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # --- tests ----------------------------------------------------------------------

    def use_stand_in(self, stand_in: StandIn | None) -> None:
        """Have plans carried out by something else than the drivers; None ends that.

        Raises:
            UsageError: something else does already.
        """
        if stand_in is not None and self._stand_in is not None:
            raise UsageError(
                f"{self!r} is in app.testing() already: a block inside another one, or in "
                "another thread. Use the value of the first."
            )
        self._stand_in = stand_in
        self._forget()

    def testing(self) -> Testing:
        """Run everything in this process, on fakeredis, with no server; for tests.

        ::

            with app.testing() as t:
                job = reindex.enqueue("a.txt")
                t.run_all()
                assert job.result() == 1

        Needs the `testing` extra. `laneq.testing.Testing` says what it can do.

        Raises:
            ConfigError: the extra is not installed.
            UsageError: the app is in use by another `testing` block.
        """
        from laneq.testing import Testing  # noqa: PLC0415  an optional extra, of a layer above

        return Testing(self)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _refuse_starving(lanes: Iterable[Lane]) -> None:
    rules = [Rule.of(lane) for lane in lanes]
    starving = unsaid(rules)
    if starving:
        say = f"Lane({starving[0].lane!r}, …, may_starve=True)."
        raise OptionError("may_starve", unsaid_text(rules, starving, say=say))


def _middleware(given: Iterable[Middleware]) -> list[Middleware]:
    found = list(given)
    for one in found:
        if not isinstance(one, Middleware):
            raise OptionError("middleware", f"must be instances of Middleware, not {one!r}")
    return found


def _name_of(function: Callable[..., Any]) -> str:
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    if not module or not name or "<lambda>" in name:
        raise OptionError(
            "name", f"{function!r} has no name of its own. Give it one: @app.task(name=...)."
        )
    # Where a function is made inside another one, that one's name is enough of a place.
    return f"{module}.{name.replace('<locals>.', '')}"


def _place_of(function: Callable[..., Any]) -> str:
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(function)


def project_settings() -> dict[str, str]:
    """Return ``[tool.laneq]`` of the nearest ``pyproject.toml``, at or above the working folder.

    Raises:
        ConfigError: the file cannot be read.
        OptionError: it has a setting that is unknown, or no text.
    """
    here = Path.cwd()
    for folder in (here, *here.parents):
        path = folder / "pyproject.toml"
        if path.is_file():
            break
    else:
        return {}
    try:
        tools = tomllib.loads(path.read_text("utf-8")).get("tool", {})
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    section = tools.get("laneq", {}) if isinstance(tools, dict) else None
    if not isinstance(section, dict):
        raise ConfigError(f"{path}: tool.laneq must be a table")
    for name, value in section.items():
        if name not in PROJECT_SETTINGS:
            raise OptionError(
                name,
                f"unknown setting of [tool.laneq] in {path}. {suggest(name, PROJECT_SETTINGS)}",
            )
        if not isinstance(value, str):
            raise OptionError(name, f"must be a string in [tool.laneq] of {path}")
    return dict(section)
