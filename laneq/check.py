"""Prove that the books of a namespace balance and that nothing in it is broken, while it is in use.

A check is a generator of calls, each bounded in work: a slice looks at up to some hundred entries
in a few ms. Between slices the namespace goes on, so what is compared is read in one call:

- **A job**: all that there is of it (places, record, run line, outcome, history, progress) is read
  and judged in the call that finds it. A walk by cursor finds every job that is there from its
  beginning to its end; one that comes or goes meanwhile may be seen or not, and is right if seen.
- **A lane**: its counts and the sizes of its sets are read in one call: exact at any load.
- **Tasks**: what all tasks count and what all lanes count is read in one call, and must be the
  same. How many open jobs one task has takes a walk. Between the books before it and those after
  it the task had so many arrivals and so many ends: the walk must find no more than were open
  before plus the arrivals, and no fewer than were open before less the ends. On a namespace at
  rest that is one number. A task that is off is walked once more, by id, before it is told.
- **Keys**: SCAN, outside of scripts, a page at a time; what looks stray is looked at again.

Nothing is told that was not so at one instant. What a check does not look at: the order of jobs
against an outside record, payloads, and keys outside of the namespace.

A repair mends what can be mended without loss. Each is a script that judges anew before it
writes, so it may run beside workers, and a second one finds nothing to do. Counts of events are
never changed to make a sum come out.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

from laneq.calls import checks
from laneq.calls import lanes as lane_calls
from laneq.calls.call import Call
from laneq.calls.checks import Books, Problem, Repair, Slice, Tidied
from laneq.calls.lanes import LanesInForce
from laneq.drive import SyncDriver
from laneq.errors import RedisRefused
from laneq.keys import PERMANENT, Keys
from laneq.model import ATTEMPT_ENDS, BALANCE, EVENTS

__all__ = [
    "KINDS", "Command", "Problem", "Repair", "Report", "Step", "Steps", "check", "run",
]  # fmt: skip

T = TypeVar("T")

#: Kind of problem → what must hold.
KINDS: Final = {
    "orphan": "whatever is kept of a job belongs to one that is in some place",
    "two places": "a job is in exactly one place",
    "no body": "a job that is to run, and a dead letter, has a readable record",
    "run line": "a running job has a run line under its fence; one between attempts has none or "
    "one without a fence",
    "outcome": "a job has an outcome if and only if it has ended, and one that says its place",
    "order": "no two jobs of a lane have one score, and none waits from the future",
    "hint": "no hint of when something is due is too late",
    "wake": "a lane has at most one wake-up token",
    "bound": "what is to be trimmed is trimmed",
    "worker": "each worker that is listed has a heartbeat",
    "fleet": "what the fleet has free for a reserve is the sum of what its workers have",
    "watcher": "nobody waits for the end of a job that has ended or is gone",
    "config": "the lanes in force are those that were declared",
    "key": "each key has an owner, or a time to live, and the type that laneq gives it",
    "balance of a lane": "enqueued is the sum of what is there and what has ended",
    "attempts of a lane": "started is the sum of what runs and how attempts ended",
    "balance of a task": "likewise per task",
    "attempts of a task": "likewise per task",
    "balance of tasks": "all tasks together count what all lanes together count",
}

#: The type of each permanent key.
TYPES: Final = {
    **dict.fromkeys(
        ("state", "lanes", "overrides", "tasks", "jobs", "runs", "history", "progress",
         "outcomes", "workers", "task_counts", "counts", "fleet", "sizing"), "hash",
    ),
    **dict.fromkeys(
        ("ended", "watchers", "beats", "parked", "waiting", "scheduled", "leases", "dead",
         "shares"), "zset",
    ),
    **dict.fromkeys(("wake", "rates"), "list"),
}  # fmt: skip

#: Problems and repairs that a report lists; more are counted.
MOST: Final = 10_000

#: Keys that one SCAN looks at.
_PAGE: Final = 1_000

#: How often a call is built anew because the lanes have changed.
_PATIENCE: Final = 100

#: Notes of its counts that a lane keeps, one every 5 s of an hour: what beat.lua trims to.
_RATES_MAX: Final = 721

#: The parts of both sums; all of them are counted per lane and per task alike.
_SUMMED: Final = tuple(
    dict.fromkeys(
        ("enqueued", "started", *(e for e in (*BALANCE, *ATTEMPT_ENDS) if e in EVENTS), "stopped")
    )
)

#: Sum → what it must be the sum of, and the state of the jobs that are part of it.
_PRESENT: Final = ("waiting", "scheduled", "running")
_SUMS: Final = {
    "balance": ("enqueued", tuple(e for e in BALANCE if e not in _PRESENT), _PRESENT),
    "attempts": ("started", ATTEMPT_ENDS, ("running",)),
}


@dataclass(frozen=True, slots=True)
class Command:
    """A plain command, and how its raw reply is read."""

    args: tuple[bytes | str | int, ...]
    read: Callable[[Any], Any]


Step: TypeAlias = Call[Any] | Command

#: Each step is answered with its value; a refusal of the server may be thrown in.
Steps: TypeAlias = Generator[Step, Any, T]

#: Told of progress: what is being looked at, how much of it is done, and how much there is.
Tell: TypeAlias = Callable[[str, int, int], None]


@dataclass(slots=True)
class Report:
    """What a check found.

    Attributes:
        problems: broken invariants, those that are left after a repair; `MOST` at most.
        repairs: what was repaired; `MOST` at most.
        counts: events of all lanes, and the present: waiting, scheduled, running.
        left_off: problems and repairs beyond `MOST`.
        notes: what could not be looked at, and why.
    """

    problems: list[Problem] = field(default_factory=list)
    repairs: list[Repair] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    left_off: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def is_ok(self) -> bool:
        """Whether every invariant holds."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``laneq check --json``."""
        return {
            "ok": self.is_ok,
            "problems": [problem._asdict() for problem in self.problems],
            "repairs": [repair._asdict() for repair in self.repairs],
            "counts": self.counts,
            "left_off": self.left_off,
            "notes": self.notes,
        }


def check(keys: Keys, *, is_repair: bool = False, tell: Tell | None = None) -> Steps[Report]:
    """Check a namespace, and mend it first if that is asked for.

    Args:
        keys: the namespace.
        is_repair: mend what can be mended without loss; the problems of the report are those
            that are left then.
        tell: told of progress.
    """
    report = Report()
    if is_repair:
        mending = _Check(keys, tell, mends=report)
        yield from mending.steps()
        yield from mending.tidy()
    walked = _Check(keys, tell)
    yield from walked.steps()
    found = walked.report
    report.problems, report.counts = found.problems, found.counts
    report.notes = found.notes
    report.left_off += found.left_off
    return report


def run(
    driver: SyncDriver,
    keys: Keys,
    *,
    is_repair: bool = False,
    tell: Tell | None = None,
    rest: float = 1.0,
) -> Report:
    """Check a namespace, giving Redis time for others in between.

    Args:
        driver: carries out the calls.
        keys: the namespace.
        is_repair: mend what can be mended without loss.
        tell: told of progress.
        rest: after each call, wait this many times as long as it took.

    Raises:
        RedisUnavailable: no connection.
        RedisRefused: the server answered with an error.
    """
    steps = check(keys, is_repair=is_repair, tell=tell)
    try:
        step = next(steps)
        while True:
            began = time.monotonic()
            try:
                if isinstance(step, Command):
                    answer = step.read(driver.command(*step.args))
                else:
                    answer = driver.call(step)
            except RedisRefused as error:
                step = steps.throw(error)
            else:
                time.sleep((time.monotonic() - began) * rest)
                step = steps.send(answer)
    except StopIteration as end:
        report: Report = end.value
        return report


# --- one pass ---------------------------------------------------------------


class _Check:
    """One pass over a namespace.

    Args:
        keys: the namespace.
        tell: told of progress.
        mends: where repairs are noted; without, nothing is mended.
    """

    def __init__(self, keys: Keys, tell: Tell | None, mends: Report | None = None) -> None:
        self.keys = keys
        self.report = Report()
        self._tell = tell or (lambda *_: None)
        self._mends = mends
        self._lanes = LanesInForce(version=0, lanes=(), declared={}, overrides={})
        self._is_typed = False
        self._told: set[tuple[str, ...]] = set()
        self._workers: list[str] = []
        self._watchers: list[str] = []

    def steps(self) -> Steps[None]:
        """Look at everything."""
        yield from self._read_lanes()
        self._is_typed = yield from self._scan()
        if not self._is_typed:
            return  # a script would fail at a key of the wrong type
        if self._mends is not None and self._config_problems():
            # To publish nothing works out the lanes in force anew.
            yield lane_calls.publish(self.keys, lanes=(), tasks={})
            self._mends.repairs.append(Repair("config", "", "", "worked out the lanes anew"))
            yield from self._read_lanes()
        self._say_all(self._config_problems())
        before = yield from self._ask(checks.books)
        self._judge_books(before)
        seen, _ = yield from self._walk(before)
        after = yield from self._ask(checks.books)
        self._judge_books(after)
        yield from self._judge_tasks(before, after, seen)
        lanes = after.lanes.values()
        self.report.counts = {
            **{event: sum(lane.counts.get(event, 0) for lane in lanes) for event in EVENTS},
            **{state: sum(lane.present[state] for lane in lanes) for state in _PRESENT},
        }

    def tidy(self) -> Steps[None]:
        """Mend what is beside the jobs."""
        mends = self._mends
        if mends is None or not self._is_typed or not checks.names_of(self._lanes):
            return
        is_more = True
        workers, watchers = self._workers, self._watchers
        while is_more or workers or watchers:
            now_workers, workers = workers[: checks.MEND], workers[checks.MEND :]
            now_watchers, watchers = watchers[: checks.MEND], watchers[checks.MEND :]
            tidied: Tidied = yield from self._ask(
                checks.tidy, workers=now_workers, watchers=now_watchers
            )
            _add(mends, mends.repairs, tidied.done)
            is_more = tidied.is_more

    # --- calls ---

    def _read_lanes(self) -> Steps[None]:
        self._lanes = yield lane_calls.read_lanes(self.keys)

    def _ask(self, build: Callable[..., Call[T | None]], *args: Any, **options: Any) -> Steps[T]:
        """Carry out a call that depends on the lanes, with those that are in force."""
        for _ in range(_PATIENCE):
            answer: T | None = yield build(self.keys, self._lanes, *args, **options)
            if answer is not None:
                return answer
            yield from self._read_lanes()
        raise RedisRefused("BUSY", "the lanes change faster than they can be read: try again")

    def _walk(
        self, books: Books, wanted: Sequence[str] = ()
    ) -> Steps[tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]]:
        """Judge every job; the value is the open jobs by task and state, by number and by id."""
        place, done = checks.START, 0
        total = books.entries
        by_number: Counter[tuple[str, str]] = Counter()
        ids: dict[tuple[str, str], set[str]] = defaultdict(set)
        while place.source:
            found: Slice = yield from self._ask(checks.check, place, wanted=wanted)
            place = found.next
            if not wanted:
                done += found.seen
                self._tell("jobs", min(done, total), total)
                yield from self._take_in(found.problems)
            for task, state, n in found.open:
                by_number[task, state] += n
            for task, state, job_id in found.wanted:
                ids[task, state].add(job_id)
        return by_number, Counter({which: len(jobs) for which, jobs in ids.items()})

    def _take_in(self, problems: Sequence[Problem]) -> Steps[None]:
        self._say_all(problems)
        if self._mends is None or not problems:
            return
        of_jobs: dict[str, None] = {}
        for problem in sorted(problems, key=lambda problem: problem.id):
            if problem.kind == "worker":
                self._workers.append(problem.id)
            elif problem.kind == "watcher":
                self._watchers.append(problem.id)
            else:
                of_jobs[problem.id] = None
        ids = list(of_jobs)
        for start in range(0, len(ids), checks.MEND):
            page = ids[start : start + checks.MEND]
            mended = yield from self._ask(checks.mend, page)
            _add(self._mends, self._mends.repairs, mended.done)

    # --- what is said ---

    def _say(self, problem: Problem) -> None:
        # Seen again, as a walk by cursor may, or in the books before and after, it is no news.
        kind, job_id, lane, detail = problem
        which = (kind, job_id, lane) if job_id or lane else (kind, detail)
        if which not in self._told:
            if len(self._told) < MOST:
                self._told.add(which)
            _add(self.report, self.report.problems, [problem])

    def _say_all(self, problems: Iterable[Problem]) -> None:
        for problem in problems:
            self._say(problem)

    # --- keys ---

    def _scan(self) -> Steps[bool]:
        """Look for stray keys; the value is whether all have the right type."""
        total: int = yield Command(("DBSIZE",), int)
        is_typed, cursor, done = True, b"0", 0
        pattern = _literal(self.keys.prefix) + b"*"
        while True:
            try:
                cursor, found = yield Command(
                    ("SCAN", cursor, "MATCH", pattern, "COUNT", _PAGE), lambda reply: reply
                )
            except RedisRefused as error:
                if error.word != "NOPERM":
                    raise
                self.report.notes.append("stray keys were not looked for: this user may not SCAN")
                return is_typed
            done += _PAGE
            self._tell("keys", min(done, total), total)
            problems = yield from self._judge_keys(found)
            is_typed = is_typed and not any("wrong type" in problem.detail for problem in problems)
            if int(cursor) == 0:
                return is_typed

    def _judge_keys(self, found: Sequence[bytes]) -> Steps[list[Problem]]:
        suspects = yield from self._suspects(found)
        if any(self._lane_of(key) is not None for key in suspects):
            yield from self._read_lanes()  # one may have been published meanwhile
        if suspects:
            # A key that expires or is deleted meanwhile is no problem.
            suspects = yield from self._suspects(list(suspects))
        problems = [
            Problem("key", "", self._lane_of(key) or "", f"{_shown(key)} {why}")
            for key, why in suspects.items()
        ]
        self._say_all(problems)
        return problems

    def _suspects(self, found: Sequence[bytes]) -> Steps[dict[bytes, str]]:
        suspects = {}
        for start in range(0, len(found), _PAGE):
            page = found[start : start + _PAGE]
            lives: list[checks.Life] = yield checks.lives(page)
            for key, life in zip(page, lives, strict=True):
                why = self._fault_of(key, life)
                if why:
                    suspects[key] = why
        return suspects

    def _lane_of(self, key: bytes) -> str | None:
        word, colon, lane = key[len(self.keys.prefix) :].partition(b":")
        is_of_lane = colon and word.decode(errors="replace") in PERMANENT
        return lane.decode(errors="backslashreplace") if is_of_lane else None

    def _fault_of(self, key: bytes, life: checks.Life) -> str | None:
        if life.type == "none":
            return None
        name, colon, lane = key[len(self.keys.prefix) :].partition(b":")
        word = name.decode(errors="replace")
        is_of_namespace = word in PERMANENT and word in Keys.__slots__
        lanes = {lane.encode() for lane in checks.names_of(self._lanes)}
        is_owned = (is_of_namespace and not colon) or (
            word in PERMANENT and not is_of_namespace and lane in lanes
        )
        if not is_owned:
            return "has no owner and no time to live" if life.ttl_ms < 0 else None
        expected = TYPES.get(word, life.type)
        if life.type != expected:
            return f"has the wrong type: it is a {life.type}, not a {expected}"
        return f"will be gone in {life.ttl_ms} ms" if life.ttl_ms >= 0 else None

    # --- lanes ---

    def _config_problems(self) -> list[Problem]:
        lanes = self._lanes
        lost = sorted(set(lanes.declared) - set(lanes.names))
        strange = sorted(set(lanes.names) - set(lanes.declared))
        return [
            *(Problem("config", "", lane, "declared, and not in force") for lane in lost),
            *(Problem("config", "", lane, "in force, and not declared") for lane in strange),
        ]

    def _judge_books(self, books: Books) -> None:
        self._say_all(_lane_problems(books))
        self._say_all(_hint_problems(books))
        self._say_all(_task_sum_problems(books))
        if not books.lanes and books.entries:
            self._say(Problem("config", "", "", "there are jobs, and no lane is published"))
        for lane in books.unknown_overrides:
            self._say(Problem("config", "", lane, "overridden, and not declared"))

    # --- tasks ---

    def _judge_tasks(
        self, before: Books, after: Books, seen: Mapping[tuple[str, str], int]
    ) -> Steps[None]:
        suspects = {task for task, _ in _task_problems(before, after, seen)}
        if not suspects:
            return
        # A cursor may bring one job twice: the second look counts ids.
        names = {task for task, _ in seen} | suspects
        wanted = [task for task in names if _counted_as(task, after) in suspects]
        wanted.append("?")
        _, by_id = yield from self._walk(after, wanted)
        final = yield from self._ask(checks.books)
        for task, problem in _task_problems(after, final, by_id, only=suspects):
            if task in suspects:
                self._say(problem)


def _add(report: Report, to: list[T], items: Sequence[T]) -> None:
    room = max(MOST - len(to), 0)
    to.extend(items[:room])
    report.left_off += len(items[room:])


def _literal(prefix: bytes) -> bytes:
    """Return the pattern that matches only this text."""
    return b"".join(
        b"\\" + bytes([byte]) if byte in rb"*?[]^-\\" else bytes([byte]) for byte in prefix
    )


def _shown(key: bytes) -> str:
    return key.decode(errors="backslashreplace")


# --- what must hold of the books ----------------------------------------------


def _lane_problems(books: Books) -> Iterator[Problem]:
    for name, lane in books.lanes.items():
        for kind, (whole, ends, states) in _SUMS.items():
            parts = {event: lane.counts.get(event, 0) for event in ends}
            parts |= {state: lane.present[state] for state in states}
            if lane.counts.get(whole, 0) != sum(parts.values()):
                yield Problem(f"{kind} of a lane", "", name, _sum_text(whole, lane.counts, parts))
        for event, n in lane.counts.items():
            if n < 0:
                yield Problem("balance of a lane", "", name, f"{event} is {n}")
        if lane.wake > 1:
            yield Problem("wake", "", name, f"{lane.wake} tokens")
        if lane.rates > _RATES_MAX:
            yield Problem("bound", "", name, f"{lane.rates} notes of its counts")


def _sum_text(whole: str, counts: Mapping[str, int], parts: Mapping[str, int]) -> str:
    shown = " + ".join(f"{n} {part}" for part, n in parts.items() if n) or "0"
    return f"{counts.get(whole, 0)} {whole}, but {shown}"


def _hint_problems(books: Books) -> Iterator[Problem]:
    hint = books.next_due_us
    for name, lane in books.lanes.items():
        due = lane.first_due_us
        if due is not None and (hint is None or hint > max(due, books.now_us)):
            yield Problem("hint", "", name, f"a job is due at {due}, and next_due is {hint}")
    for name, sums in books.fleet.items():
        if sums[:2] != sums[2:]:
            detail = (
                f"{sums.slots} slots and {sums.free} free, but its workers have "
                f"{sums.slots_of_lines} and {sums.free_of_lines}"
            )
            yield Problem("fleet", "", name, detail)
    if books.watched_until_us > max(books.now_us, books.watched_us or 0):
        detail = f"a watcher is there until {books.watched_until_us}, watched is {books.watched_us}"
        yield Problem("hint", "", "", detail)


def _task_sum_problems(books: Books) -> Iterator[Problem]:
    for event in _SUMMED:
        of_lanes = sum(lane.counts.get(event, 0) for lane in books.lanes.values())
        of_tasks = sum(counts.get(event, 0) for counts in books.tasks.values())
        if of_lanes != of_tasks:
            detail = f"{event}: lanes have {of_lanes}, tasks {of_tasks}"
            yield Problem("balance of tasks", "", "", detail)


def _counted_as(task: str, books: Books) -> str:
    """Return the task under which a task's events are counted: past a bound it is ``*``."""
    if task == "?" or "*" not in books.tasks or books.tasks.get(task, {}).get("enqueued"):
        return task
    return "*"


@dataclass(frozen=True, slots=True)
class _Span:
    """How many jobs a task may have had in some states during a walk, and how many were seen.

    Attributes:
        low, high: the bounds.
        seen: what the walk found.
        is_negative: more have ended than ever began.
    """

    low: int
    high: int
    seen: int
    is_negative: bool

    @property
    def surplus(self) -> int:
        return max(self.seen - self.high, 1 if self.is_negative else 0)

    @property
    def deficit(self) -> int:
        return max(self.low - self.seen, 0)


def _span(
    before: Mapping[str, int], after: Mapping[str, int], seen: int, sum_: tuple[str, Sequence[str]]
) -> _Span:
    whole, ends = sum_
    open_before = before.get(whole, 0) - sum(before.get(event, 0) for event in ends)
    came = after.get(whole, 0) - before.get(whole, 0)
    went = sum(after.get(event, 0) - before.get(event, 0) for event in ends)
    is_negative = min(open_before, open_before + came - went) < 0
    return _Span(open_before - went, open_before + came, seen, is_negative)


def _task_problems(
    before: Books,
    after: Books,
    seen: Mapping[tuple[str, str], int],
    *,
    only: set[str] | None = None,
) -> list[tuple[str, Problem]]:
    """Return the tasks whose counts do not allow what a walk between two books has seen.

    What is told of a job without a body is told of the task ``?``: so many jobs may be missing
    of other tasks.
    """
    found: list[tuple[str, Problem]] = []
    for kind, (whole, ends, states) in _SUMS.items():
        present: Counter[str] = Counter()
        for (task, state), n in seen.items():
            if state in states:
                present[_counted_as(task, after)] += n
        spans = {
            task: _span(
                before.tasks.get(task, {}), after.tasks.get(task, {}), present[task], (whole, ends)
            )
            for task in {*after.tasks, *before.tasks, *present}
            if only is None or task in only or task == "?"
        }
        nameless = spans.pop("?", None)
        excuse = max(nameless.seen - nameless.low, 0) if nameless else 0
        missing = sum(span.deficit for span in spans.values())
        for task, span in sorted(spans.items()):
            if span.surplus or (span.deficit and missing > excuse):
                counts = after.tasks.get(task, {})
                parts = {event: counts.get(event, 0) for event in ends} | {"open": span.seen}
                detail = f"task {task}: {_sum_text(whole, counts, parts)}"
                found.append((task, Problem(f"{kind} of a task", "", "", detail)))
    return found
