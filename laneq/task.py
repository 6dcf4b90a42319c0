"""Tasks: functions registered with an app, and the ways to enqueue a call of one.

A `Recipe` is all that is the same for each job of one task and one set of options; it
is made once, so that a job costs little more than encoding its arguments. A `Task`, what
``task.using(...)`` returns and what ``app.ref(name)`` returns differ in where their
recipe comes from.

Arguments are compared with the function's signature before anything is stored: a wrong
call fails where it is written, not in a worker.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from typing import (
    Any,
    Final,
    Generic,
    NoReturn,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from laneq import ids
from laneq.calls import jobs
from laneq.calls.jobs import NewJob
from laneq.calls.lanes import PublishedTask
from laneq.codec import encode_call, encode_head, with_fair_key
from laneq.errors import (
    OptionError,
    PayloadTooLarge,
    UnknownLane,
    UsageError,
    WrongArguments,
)
from laneq.job import Asking, Host, Job
from laneq.options import (
    BACKOFF_NUMBERS,
    EXECUTOR_NUMBERS,
    CallOptions,
    Executor,
    Lane,
    Retry,
    Seconds,
    TaskOptions,
)

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
V_co = TypeVar("V_co", covariant=True)
V = TypeVar("V")

#: Most bytes of records in one enqueue call; more go in several calls.
BATCH_BYTES: Final = 4 * 1024 * 1024


class TaskKwargs(TypedDict, total=False):
    """Options of ``@app.task``; `laneq.options.TaskOptions` says what they mean."""

    name: str | None
    lane: str | None
    boost: Seconds
    timeout: Seconds | None
    retry: Retry
    expires: Seconds | datetime | None
    result_ttl: Seconds
    executor: Executor | None
    fair_key: str | None


class CallKwargs(TaskKwargs, total=False):
    """Options of ``.using``; `laneq.options.CallOptions` says what they mean."""

    delay: Seconds
    at: datetime | None


class TaskHost(Host, Protocol):
    """What a task needs of its app."""

    @property
    def max_payload(self) -> int:
        """Most bytes of encoded arguments."""
        ...

    @property
    def lanes(self) -> Mapping[str, Lane]:
        """The lanes that the app declares, by name."""
        ...

    @property
    def tasks(self) -> Mapping[str, Task[..., Any, Any]]:
        """The app's tasks by name."""
        ...

    def check_main(self, name: str) -> None:
        """Refuse to store a job of a task of ``__main__``, where no worker can find it."""
        ...

    def lane_of(self, name: str) -> Asking[str]:
        """Find the lane of a task that is not registered here."""
        ...

    def store_after(
        self, new: Sequence[NewJob], error: UnknownLane
    ) -> Asking[frozenset[int] | None]:
        """Make the app's lanes known and store jobs after all; or raise what is wrong."""
        ...


# --- arguments ----------------------------------------------------------------


def _takes_all(*args: Any, **kwargs: Any) -> None: ...


class Arguments:
    """Which calls a function takes: what Python itself would say, in half a microsecond.

    Args:
        function: the function.
        task: the task's name, for errors.
    """

    __slots__ = ("_may", "_most", "_must", "_must_not", "_signature", "_task")

    def __init__(self, function: Callable[..., Any], task: str) -> None:
        """Work the signature into tables by number of positional arguments."""
        self._task = task
        try:
            self._signature = inspect.signature(function)
        except ValueError:  # some functions written in C have none: they take what they take
            self._signature = inspect.signature(_takes_all)
        of_kind: dict[Any, list[inspect.Parameter]] = {}
        for parameter in self._signature.parameters.values():
            of_kind.setdefault(parameter.kind, []).append(parameter)
        first = of_kind.get(inspect.Parameter.POSITIONAL_ONLY, [])
        positional = first + of_kind.get(inspect.Parameter.POSITIONAL_OR_KEYWORD, [])
        named = of_kind.get(inspect.Parameter.KEYWORD_ONLY, [])
        takes_any_name = inspect.Parameter.VAR_KEYWORD in of_kind
        #: The most positional arguments; None for any number.
        self._most = None if inspect.Parameter.VAR_POSITIONAL in of_kind else len(positional)
        # By number of positional arguments: the names that must follow, that may (None:
        # any), and that must not since they have their value. A position-only parameter that
        # lacks its value must follow under a name that is never given.
        self._must: list[frozenset[str]] = []
        self._may: list[frozenset[str] | None] = []
        self._must_not: list[frozenset[str]] = []
        for n in range(len(positional) + 1):
            rest = positional[n:]
            self._must.append(
                frozenset(
                    f"{p.name}/" if p in first else p.name
                    for p in rest + named
                    if p.default is p.empty
                )
            )
            names = frozenset(p.name for p in rest + named if p not in first)
            self._may.append(None if takes_any_name else names)
            self._must_not.append(frozenset(p.name for p in positional[:n] if p not in first))

    def value_of(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the value of one argument of a call that fits; None where it has none."""
        if name in kwargs:
            return kwargs[name]
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments.get(name)

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Refuse arguments that the function does not take.

        Raises:
            WrongArguments: they do not fit the signature.
        """
        n = len(args)
        last = len(self._must) - 1
        if n > last:
            if self._most is not None:
                self._refuse(args, kwargs)
            n = last
        if not kwargs:
            if self._must[n]:
                self._refuse(args, kwargs)
            return
        names, may = kwargs.keys(), self._may[n]
        if not (
            self._must[n] <= names
            and (may is None or names <= may)
            and names.isdisjoint(self._must_not[n])
        ):
            self._refuse(args, kwargs)

    def _refuse(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> NoReturn:
        problem = "the arguments do not fit"
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            problem = str(error)  # says which
        signature = self._signature.replace(return_annotation=inspect.Signature.empty)
        raise WrongArguments(self._task, problem, str(signature))


# --- recipes --------------------------------------------------------------------


def _record_options(
    call: CallOptions, own: TaskOptions | None, given: Collection[str]
) -> dict[str, Any]:
    """Return what a record says of its job.

    That is what scripts read (boost, expiry, life of the result), and of the rest what the
    call overrides: a worker knows the task's own options, and newer ones may have been
    deployed since. Without `own`, the task is not known here and all that is given counts.
    """
    found: dict[str, Any] = {}
    if call.boost_us:
        found["boost_us"] = call.boost_us
    if call.fair_key is not None:
        found["fair_key"] = call.fair_key
    if call.expires_us is not None:
        found["expires_us"] = call.expires_us
    if call.expires_at_us is not None:
        found["expires_at_us"] = call.expires_at_us

    def is_changed(option: str) -> bool:
        return option in given and (own is None or getattr(call, option) != getattr(own, option))

    if call.result_ttl_us != _DEFAULTS.result_ttl_us or is_changed("result_ttl"):
        found["ttl_us"] = call.result_ttl_us
    if is_changed("timeout"):
        found["timeout_us"] = call.timeout_us or 0
    if is_changed("executor") and call.executor is not None:
        found["executor"] = EXECUTOR_NUMBERS[call.executor]
    if is_changed("retry"):
        found |= _retry_options(call.retry, None if own is None else own.retry)
    return found


_DEFAULTS: Final = TaskOptions()


def _retry_options(wanted: Retry, own: Retry | None) -> dict[str, int]:
    found: dict[str, int] = {}
    if own is None or wanted.max_attempts != own.max_attempts:
        found["max_attempts"] = wanted.max_attempts
    if own is None or wanted.base_us != own.base_us:
        found["base_us"] = wanted.base_us
    if own is None or wanted.cap_us != own.cap_us:
        found["cap_us"] = wanted.cap_us
    is_own = own is not None and (wanted.backoff, wanted.schedule) == (own.backoff, own.schedule)
    if not is_own and not callable(wanted.backoff):
        found["backoff"] = BACKOFF_NUMBERS[wanted.backoff]
    if own is None or wanted.jitter != own.jitter:
        found["jitter"] = int(wanted.jitter)
    return found


def _when(call: CallOptions) -> str:
    if call.at_us is not None:
        return f"@{call.at_us}"
    if call.delay_us:
        return f"+{call.delay_us}"
    return f"-{call.boost_us}" if call.boost_us else ""


class Recipe:
    """How jobs of one task and one set of options are made.

    Args:
        host: the app.
        task: name of the task.
        lane: where the jobs wait; None where only Redis knows.
        call: their options.
        own: the task's own options; None where the task is not known here.
        given: names of the options that were given for the call.
        arguments: which calls the function takes; None where that is not known here.
    """

    __slots__ = ("_arguments", "_fair_by", "_head", "_is_of_main", "_when", "host", "lane", "task")

    def __init__(
        self,
        host: TaskHost,
        task: str,
        *,
        lane: str | None,
        call: CallOptions,
        own: TaskOptions | None = None,
        given: Collection[str] = (),
        arguments: Arguments | None = None,
    ) -> None:
        """Encode what is the same for every job."""
        self.host = host
        self.task = task
        self.lane = lane
        options: dict[str, Any] = _record_options(call, own, given)
        self._head = encode_head(task, **options)
        self._is_of_main = task.startswith(("__main__.", "__mp_main__."))
        self._when = _when(call)
        self._arguments = arguments
        declared = host.lanes.get(lane or "")
        is_fair = declared is not None and call.fair_key is None
        self._fair_by = declared.fair_by if is_fair and declared is not None else None

    def fair_key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """Return whom a call counts for in a lane that is shared by an argument's value."""
        if self._fair_by is None:
            return None
        if self._arguments is not None:
            value = self._arguments.value_of(self._fair_by, args, kwargs)
        else:
            value = kwargs.get(self._fair_by)
        return None if value is None else str(value)

    def payload(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """Check and encode the arguments of a call.

        Raises:
            WrongArguments: the function does not take them.
            NotSerializable: one of them cannot make the trip; names the path to it.
            PayloadTooLarge: they are over the app's `max_payload`.
        """
        if self._arguments is not None:
            self._arguments.check(args, kwargs)
        payload = encode_call(args, kwargs)
        if len(payload) > self.host.max_payload:
            raise PayloadTooLarge(
                f"the arguments of task {self.task}", len(payload), self.host.max_payload
            )
        return payload

    def job(self, job_id: str, payload: bytes, lane: str, fair_key: str | None = None) -> NewJob:
        """Return a job about to be stored.

        Raises:
            UsageError: the task is of ``__main__``.
        """
        if self._is_of_main:
            self.host.check_main(self.task)
        head = self._head if fair_key is None else with_fair_key(self._head, fair_key)
        return NewJob(lane, job_id, head + payload, self._when)

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> TaskCall[Any]:
        """Return a call that is not enqueued yet."""
        return TaskCall(self, self.payload(args, kwargs), self.fair_key(args, kwargs))

    def enqueue(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Asking[Job[Any]]:
        """Enqueue one call."""
        payload = self.payload(args, kwargs)
        host = self.host
        lane = self.lane or (yield from host.lane_of(self.task))
        new = self.job(ids.new_id(), payload, lane, self.fair_key(args, kwargs))
        try:
            present = yield jobs.enqueue(host.keys, (new,))
        except UnknownLane as error:
            present = yield from host.store_after((new,), error)
        return Job(host, new.id, bool(present))


class TaskCall(Generic[V_co]):
    """One call of a task that is not enqueued yet; its arguments are encoded already.

    Hand it to ``app.enqueue_many`` or to ``current_job().enqueue``. Enqueued twice, it is
    two jobs.
    """

    __slots__ = ("fair_key", "payload", "recipe")

    def __init__(self, recipe: Recipe, payload: bytes, fair_key: str | None = None) -> None:
        """Keep the encoded call; ``task.call(...)`` is the way to make one."""
        self.recipe = recipe
        self.payload = payload
        self.fair_key = fair_key

    def __repr__(self) -> str:
        return f"<TaskCall {self.recipe.task} ({len(self.payload):,} bytes)>"

    def new_job(self, lane: str | None = None) -> NewJob:
        """Return a job about to be stored, with an id of its own.

        Args:
            lane: the lane for a call that does not say; such is one made by name only.

        Raises:
            UsageError: neither says a lane.
        """
        recipe = self.recipe
        lane = recipe.lane or lane
        if lane is None:
            raise UsageError(
                f"task {recipe.task} is not registered here, so its lane is not known. "
                f"Name one: app.ref({recipe.task!r}).using(lane=...)."
            )
        return recipe.job(ids.new_id(), self.payload, lane, self.fair_key)

    def handle(self, job_id: str) -> Job[V_co]:
        """Return the handle of the job with this id."""
        return Job(self.recipe.host, job_id)


def enqueue_many(host: TaskHost, calls: Iterable[TaskCall[V]]) -> Asking[list[Job[V]]]:
    """Enqueue calls in order, in as few round trips as the limits of one allow."""
    wanted = list(calls)
    if not {TaskCall}.issuperset(map(type, wanted)):
        n, odd = next((n, call) for n, call in enumerate(wanted) if type(call) is not TaskCall)
        raise UsageError(
            f"calls[{n}] is {odd!r}, which is no call of a task. Pass task.call(...) for each job."
        )
    lanes: dict[str, str] = {}
    for name in {call.recipe.task for call in wanted if call.recipe.lane is None}:
        lanes[name] = yield from host.lane_of(name)
    made = ids.new_ids(len(wanted))
    done: list[Job[V]] = []
    while len(done) < len(wanted):
        batch: list[NewJob] = []
        size = 0
        first = len(done)
        for call, job_id in zip(
            wanted[first : first + jobs.BATCH], made[first : first + jobs.BATCH], strict=True
        ):
            recipe = call.recipe
            new = recipe.job(job_id, call.payload, recipe.lane or lanes[recipe.task], call.fair_key)
            size += len(new.record)
            if size > BATCH_BYTES and batch:
                break
            batch.append(new)
        try:
            try:
                present = yield jobs.enqueue(host.keys, batch)
            except UnknownLane as error:
                present = yield from host.store_after(batch, error)
        except Exception as error:
            if done:
                error.add_note(f"{len(done):,} of {len(wanted):,} jobs had been stored before.")
            raise
        if present:
            done += [Job(host, new.id, n in present) for n, new in enumerate(batch)]
        else:
            done += [Job(host, new.id) for new in batch]
    return done


# --- what users hold --------------------------------------------------------------


class PreparedTask(Generic[P, V_co]):
    """A task with the options of a call, as ``task.using(...)`` returns it; may be kept."""

    __slots__ = ("_recipe",)

    def __init__(self, recipe: Recipe) -> None:
        """Keep the recipe; ``task.using(...)`` is the way to make one."""
        self._recipe = recipe

    def __repr__(self) -> str:
        return f"<PreparedTask {self._recipe.task} in {self._recipe.lane}>"

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[V_co]:
        """Enqueue a call with these options; see `Task.enqueue`."""
        return self._recipe.host.carry_out(self._recipe.enqueue(args, kwargs))

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[V_co]:
        """Enqueue a call with these options; the asynchronous twin of `enqueue`."""
        return await self._recipe.host.acarry_out(self._recipe.enqueue(args, kwargs))

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskCall[V_co]:
        """Return a call with these options that is not enqueued yet; see `Task.call`."""
        return self._recipe.call(args, kwargs)


class TaskRef:
    """A task by its name, for producers without its code, as ``app.ref(name)`` returns it.

    Where the app has the task, its options hold and arguments are checked; where it has not, the
    lane is the one that a worker published for the task, else ``normal``.
    """

    __slots__ = ("_given", "_host", "name")

    def __init__(self, host: TaskHost, name: str, given: CallKwargs | None = None) -> None:
        """Keep the name; ``app.ref(name)`` is the way to make one."""
        self._host = host
        self.name = name
        self._given: CallKwargs = given or {}

    def __repr__(self) -> str:
        return f"<TaskRef {self.name}>"

    def using(self, **options: Unpack[CallKwargs]) -> TaskRef:
        """Return this with options of a call; see `Task.using`.

        Raises:
            OptionError: an option is unknown or its value is wrong.
        """
        given: CallKwargs = {**self._given, **options}
        _DEFAULTS.using(**given)
        return TaskRef(self._host, self.name, given)

    def enqueue(self, /, *args: Any, **kwargs: Any) -> Job[Any]:
        """Enqueue a call of the task; the arguments are the function's and nothing else.

        Raises:
            UnknownLane: the task's lane does not exist; lists those that do.
            WrongArguments: the task is known here and does not take them.
            NotSerializable: an argument cannot make the trip; names the path to it.
            PayloadTooLarge: they are over the app's `max_payload`.
            StoreError: Redis cannot be reached, or refuses.

        Redis:
            enqueue.lua, one round trip; one more, every few seconds, to ask for the lane of a
            task that is not registered here.
        """
        return self._host.carry_out(self._recipe().enqueue(args, kwargs))

    async def aenqueue(self, /, *args: Any, **kwargs: Any) -> Job[Any]:
        """Enqueue a call of the task; the asynchronous twin of `enqueue`."""
        return await self._host.acarry_out(self._recipe().enqueue(args, kwargs))

    def call(self, /, *args: Any, **kwargs: Any) -> TaskCall[Any]:
        """Return a call that is not enqueued yet; see `Task.call`."""
        recipe = self._recipe()
        return recipe.call(args, kwargs)

    def _recipe(self) -> Recipe:
        task = self._host.tasks.get(self.name)
        if task is not None:
            return task.recipe(self._given)
        call = _DEFAULTS.using(**self._given)
        return Recipe(
            self._host, call.name or self.name, lane=call.lane, call=call, given=self._given
        )


class Task(Generic[P, R_co, V_co]):
    """A function registered with an app, as ``@app.task`` returns it.

    Calling it runs the function here. Type parameters: the function's parameters, what calling
    it returns, and the value of a job (what it returns, awaited where it is asynchronous).

    Args:
        host: the app.
        function: the function.
        name: the task's name.
        lane: the lane of its jobs.
        options: its options.

    Attributes:
        name: the task's name: what is stored, and what workers look up.
        lane: the lane of its jobs.
        options: its options.
        function: the function.
        is_async: whether the function is asynchronous.

    Raises:
        OptionError: the function cannot be run as its options say.
        UsageError: it is no function whose value could be a result.
    """

    __name__: str
    __qualname__: str

    def __init__(
        self,
        host: TaskHost,
        function: Callable[P, R_co],
        *,
        name: str,
        lane: str,
        options: TaskOptions,
    ) -> None:
        """Make the recipe of its plain calls."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise UsageError(
                f"task {name}: a generator function has no result to keep. Return a list, or "
                "enqueue a job for each item."
            )
        self.name = name
        self.lane = lane
        self.options = options
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        self._host = host
        self._arguments = Arguments(function, name)
        self._recipe = self._make(options.using(), ())
        functools.update_wrapper(self, function)

    def __repr__(self) -> str:
        return f"<Task {self.name} in {self.lane}>"

    def __reduce__(self) -> str:
        # By reference, as functions are: a copy would be a task that no app knows.
        return self.function.__qualname__

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the function here."""
        return self.function(*args, **kwargs)

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[V_co]:
        """Enqueue a call of the function; takes what the function takes.

        An enqueue that is repeated after a broken connection makes one job.

        Raises:
            WrongArguments: the function does not take these arguments.
            NotSerializable: an argument cannot make the trip; names the path to it.
            PayloadTooLarge: they are over the app's `max_payload`.
            UnknownLane: the lane does not exist; lists those that do.
            UsageError: the task's module is ``__main__``, which no worker can import.
            StoreError: Redis cannot be reached, or refuses.

        Redis:
            enqueue.lua, one round trip; two more for the first one in a namespace, which makes
            the lanes known.
        """
        return self._host.carry_out(self._recipe.enqueue(args, kwargs))

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[V_co]:
        """Enqueue a call of the function; the asynchronous twin of `enqueue`."""
        return await self._host.acarry_out(self._recipe.enqueue(args, kwargs))

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskCall[V_co]:
        """Return a call that is not enqueued yet, for `enqueue_many` and `current_job`.

        Raises:
            WrongArguments: the function does not take these arguments.
            NotSerializable: an argument cannot make the trip; names the path to it.
            PayloadTooLarge: they are over the app's `max_payload`.
        """
        return self._recipe.call(args, kwargs)

    def using(self, **options: Unpack[CallKwargs]) -> PreparedTask[P, V_co]:
        """Return this task with other options, for one call or many.

        Args:
            options: any of ``@app.task``'s, in place of the task's own, and `delay` (seconds
                or a timedelta) or `at` (an aware datetime).

        Raises:
            OptionError: an option is unknown (the known ones are listed) or its value is wrong.
        """
        return PreparedTask(self.recipe(options))

    def recipe(self, given: CallKwargs) -> Recipe:
        """Return how jobs with these options of a call are made."""
        return self._make(self.options.using(**given), given) if given else self._recipe

    def _make(self, call: CallOptions, given: Collection[str]) -> Recipe:
        if call.executor == "async" and not self.is_async:
            raise OptionError(
                "executor",
                f"task {self.name} is no async function: it would block the worker's event loop. "
                "Use 'thread' or 'process', or leave it out.",
            )
        return Recipe(
            self._host,
            (call.name if "name" in given else None) or self.name,
            lane=(call.lane if "lane" in given else None) or self.lane,
            call=call,
            own=self.options,
            given=given,
            arguments=self._arguments,
        )

    @property
    def executor(self) -> Executor:
        """Where the function runs unless a call says otherwise."""
        return self.options.executor or ("async" if self.is_async else "thread")

    def published(self) -> PublishedTask:
        """Return what scripts and producers without the code need to know of it.

        Of a backoff that is a function or a schedule, scripts know nothing: after a crash they
        use an exponential one.
        """
        retry = self.options.retry
        kind = "exponential" if callable(retry.backoff) else retry.backoff
        return PublishedTask(
            lane=self.lane,
            max_attempts=retry.max_attempts,
            kind=BACKOFF_NUMBERS[kind],
            base_us=retry.base_us,
            cap_us=retry.cap_us,
            jitter=int(retry.jitter),
        )


class TaskDecorator(Protocol):
    """What ``app.task(...)`` returns: it makes a function a task."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, V]], /
    ) -> Task[P, Coroutine[Any, Any, V], V]: ...
    @overload
    def __call__(self, function: Callable[P, V], /) -> Task[P, V, V]: ...
