"""Explain one job: where it stands, what holds it back, which slots may take it, when it starts.

`explain` is pure: it judges what was read of the job, its lane and the workers by the rules of
`laneq.order`. What workers say of themselves is as old as their last heartbeat (up to 5 s), and
does not tell of which lanes their jobs are: a slot is called closed only where it is so whichever
jobs these are.

An expected start is a guess from measured rates, and comes with what it was made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from laneq import order
from laneq.calls import jobs as job_calls
from laneq.calls import workers as worker_calls
from laneq.calls.jobs import JobPlace
from laneq.calls.lanes import read_lanes
from laneq.calls.workers import CATCH_UP_US
from laneq.drive import SyncDriver
from laneq.errors import JobNotFound, WrongState
from laneq.facts import WINDOW_S, LaneFacts, read_lane_facts, usable_slots
from laneq.health import serves
from laneq.keys import Keys
from laneq.model import JobView, State, WorkerView
from laneq.order import Head
from laneq.wording import duration

#: What stops a job wholly, until somebody does something.
STOPS: Final = frozenset({"paused", "no_worker", "unserved_lane", "unknown_task"})

#: Kind of hold → what it means.
HOLDS: Final = {
    "paused": "the lane is paused",
    "no_worker": "no worker lives",
    "unserved_lane": "no live worker serves the lane",
    "unknown_task": "no live worker that serves the lane knows the task",
    "max_running": "as many of the lane run as its max_running lets",
    "rate": "the lane's rate lets the next job start later",
    "task_max_running": "as many of the task run as its max_running lets",
    "fleet_reserve": "the slots that are free are kept for other lanes, over the fleet",
    "worker_reserve": "the slots that are free are kept for other lanes, by their workers",
    "slots_busy": "all slots that may take it are busy",
    "ahead": "other jobs of the lane come before it",
    "higher_lanes": "jobs of other lanes are worth more now",
}

#: Times that a job that moves meanwhile is looked at again.
_LOOKS: Final = 5


@dataclass(frozen=True, slots=True)
class Hold:
    """One thing that holds a job back.

    Attributes:
        kind: as `HOLDS` lists them.
        text: in words, with the figures.
    """

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Taker:
    """A worker that may take the job.

    Attributes:
        worker, host, pid: who.
        slots: its slots that the lane's jobs may ever start on.
        free: its slots that ran nothing at its last heartbeat, whichever they are kept for.
        may_start: whether the job may start on one of these now, as far as the worker goes.
        text: why, in words.
    """

    worker: str
    host: str
    pid: int
    slots: int
    free: int
    may_start: bool
    text: str


@dataclass(frozen=True, slots=True)
class Expected:
    """When a job is expected to start.

    Attributes:
        in_s: seconds from now; None where there is nothing to go by, or no end in sight.
        how: how it was worked out, or why it cannot be.
        inputs: the figures.
    """

    in_s: float | None
    how: str
    inputs: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a job is where it is. Instants are seconds since the epoch.

    Attributes:
        at: when it was looked at.
        text: the answer in one sentence.
        position: its place in its lane's line, from 1, of one that waits.
        waiting: jobs in that line.
        value: what it is worth now.
        due_at: when one that is scheduled is due.
        worker: who runs it, or ran it last.
        lease_left_s: of one that runs; below 0 once it has run out.
        holds: what holds back one that waits, or will once it is due: what stops it wholly first.
        takers: the workers that may take it.
        expected: when it is expected to start; None for one that runs or has ended.
        advice: a command that helps; None where none is needed.
    """

    id: str
    task: str
    lane: str
    state: State
    at: float
    text: str
    position: int | None = None
    waiting: int | None = None
    value: float | None = None
    due_at: float | None = None
    worker: str | None = None
    lease_left_s: float | None = None
    holds: tuple[Hold, ...] = ()
    takers: tuple[Taker, ...] = ()
    expected: Expected | None = None
    advice: str | None = None


def read_why(driver: SyncDriver, keys: Keys, job_id: str) -> Explanation:
    """Look at a job and explain it.

    Raises:
        JobNotFound: no job has this id, or its record has run out.
        WrongState: it moved each time that it was looked at.
        StoreError: Redis is away, or refuses.

    Redis: lanes, workers, depths; spread for each lane; look and why, again if it moves meanwhile.
    """
    lanes = driver.call(read_lanes(keys))
    workers = driver.call(worker_calls.list_workers(keys))
    facts = read_lane_facts(driver, keys, lanes=lanes, workers=workers)
    for _ in range(_LOOKS):
        (job,) = driver.call(job_calls.look(keys, [job_id], lanes=lanes.names))
        if job is None:
            raise JobNotFound(job_id)
        place = driver.call(job_calls.why(keys, job_id, lanes=lanes.names))
        if _state(place) is (None if job.state.is_final else job.state):
            return explain(job, place, lanes=facts, workers=workers)
    raise WrongState(job_id, "moving all the time", "explain")


def _state(place: JobPlace) -> State | None:
    return None if place.place == "none" else State(place.place)


def explain(
    job: JobView, place: JobPlace, *, lanes: Sequence[LaneFacts], workers: Sequence[WorkerView]
) -> Explanation:
    """Explain a job.

    Args:
        job: what is known of it.
        place: where it stands.
        lanes: all lanes, most urgent first.
        workers: those that live.
    """
    if job.state.is_final:
        return _ended(job, place)
    scene = _Scene(job, place, tuple(lanes), tuple(workers))
    if job.state is State.RUNNING:
        return _running(scene)
    return _waiting(scene) if job.state is State.WAITING else _scheduled(scene)


@dataclass(frozen=True, slots=True)
class _Scene:
    job: JobView
    place: JobPlace
    lanes: tuple[LaneFacts, ...]
    workers: tuple[WorkerView, ...]

    @property
    def now(self) -> float:
        return self.place.now_us / 1e6

    @property
    def own(self) -> LaneFacts:
        return next(lane for lane in self.lanes if lane.name == self.job.lane)

    @property
    def serving(self) -> list[WorkerView]:
        """Return the workers that work and have a slot for the lane."""
        return [w for w in self.workers if not w.unwell and serves(w, self.own.name)]

    @property
    def able(self) -> list[WorkerView]:
        """Return those of them that know the task."""
        return [worker for worker in self.serving if self.job.task in worker.tasks]

    def running_of(self, lane: str) -> int:
        return self.place.lanes[lane].running

    def head(self, lane: LaneFacts, score_us: int) -> Head:
        rule = lane.rule
        return Head(lane.name, rule.priority, rule.aging, rule.aging_cap, score_us)

    @property
    def as_head(self) -> Head:
        """Return the job as if it were the first of its lane."""
        return self.head(self.own, self.place.score_us)

    def before(self) -> list[tuple[LaneFacts, Head]]:
        """Return the other lanes whose first job goes before this one now, the best first."""
        found = []
        for lane in self.lanes:
            score_us = self.place.lanes[lane.name].head_score_us
            if lane is self.own or score_us is None or lane.paused:
                continue
            head = self.head(lane, score_us)
            if order.best([self.as_head, head], self.place.now_us) is head:
                found.append((lane, head))
        return sorted(found, key=lambda one: -one[1].value_at(self.place.now_us))


def _plain(job: JobView, now: float, text: str) -> Explanation:
    """Return an explanation that says this of a job, and no more."""
    return Explanation(id=job.id, task=job.task, lane=job.lane, state=job.state, at=now, text=text)


# --- ended ------------------------------------------------------------------


def _ended(job: JobView, place: JobPlace) -> Explanation:
    now = place.now_us / 1e6
    ago = "" if job.ended_at is None else f" {duration(max(now - job.ended_at, 0))} ago"
    attempt = f"attempt {job.attempt} of {job.max_attempts}"
    advice: str | None = None
    match job.state:
        case State.SUCCEEDED:
            text = f"It succeeded{ago}, {attempt}"
            if job.started_at is not None and job.ended_at is not None:
                text += f", after {duration(job.ended_at - job.started_at)}"
        case State.DEAD:
            text = f"It was given up on{ago}, {attempt}"
            if job.error is not None:
                text += f": {job.error.type}: {job.error.message}".rstrip(": ")
            advice = f"laneq jobs show {job.id} has the traceback; laneq jobs retry {job.id}"
        case State.CANCELLED:
            text = f"It was cancelled{ago}" + (f", in {attempt}" if job.attempt else "")
            advice = f"laneq jobs retry {job.id}"
        case _:
            text = f"It expired{ago}: it had not started by then"
            advice = f"laneq jobs retry {job.id}"
    return replace(_plain(job, now, f"{text}."), worker=job.worker, advice=advice)


# --- running ----------------------------------------------------------------


def _running(scene: _Scene) -> Explanation:
    job, now = scene.job, scene.now
    ends_us = scene.place.lease_ends_us
    left_s = None if ends_us is None else ends_us / 1e6 - now
    worker = next((w for w in scene.workers if w.id == job.worker), None)
    who = f"worker {job.worker}"
    if worker is not None:
        who = f"worker {worker.name} (host {worker.host}, pid {worker.pid})"
    text = f"It runs on {who}"
    if job.started_at is not None:
        text += f" for {duration(max(now - job.started_at, 0))}"
        p99_s = scene.own.run_p99_s
        if p99_s is not None and now - job.started_at > p99_s:
            text += f" (99 % of its lane take up to {duration(p99_s)})"
    text += f", attempt {job.attempt} of {job.max_attempts}"
    advice: str | None = None
    if left_s is not None and left_s < 0:
        text += f"; its lease ran out {duration(-left_s)} ago: the next claim gives it to another"
        advice = None if scene.workers else "laneq worker MODULE:APP"
    elif worker is None and left_s is not None:
        text += f"; that worker is heard of no more: another gets it in {duration(left_s)}"
    elif worker is not None and worker.unwell:
        text += f"; that worker lives but does not work: {worker.unwell}"
        advice = f"on {worker.host}: kill {worker.pid}"
    if job.cancel_requested:
        text += "; its worker was told to cancel it"
    return replace(
        _plain(job, now, f"{text}."),
        worker=job.worker,
        lease_left_s=left_s,
        advice=advice,
    )


# --- scheduled --------------------------------------------------------------


def _scheduled(scene: _Scene) -> Explanation:
    job, place, now = scene.job, scene.place, scene.now
    if place.is_parked:
        return _parked(scene)
    due_at = place.score_us / 1e6
    if job.attempt and job.history:
        why = f"attempt {job.history[-1].attempt} of {job.max_attempts} "
        why += f"ended ({job.history[-1].outcome}), and its next is due then"
    elif job.attempt:
        why = f"attempt {job.attempt} put it off"
    else:
        why = "it was enqueued for later"
    holds = tuple(hold for hold in _holds(scene) if hold.kind in STOPS)
    expected = Expected(max(due_at - now, 0), "when it is due", {"due_in_s": due_at - now})
    if holds:
        expected = Expected(None, "not before somebody ends what will stop it then")
    return replace(
        _plain(job, now, f"It is due in {duration(max(due_at - now, 0))}: {why}."),
        due_at=due_at,
        holds=holds,
        takers=_takers(scene),
        expected=expected,
        advice=_advice(scene, holds),
    )


def _parked(scene: _Scene) -> Explanation:
    job, place = scene.job, scene.place
    most, running = place.task_most or 0, place.task_running
    run_s = scene.own.run_s
    inputs: dict[str, float] = {"max_running": most, "parked": place.task_parked}
    expected = Expected(None, "its place in the line of its task is not known", inputs)
    if place.parked_before is not None and run_s is not None and most:
        inputs |= {"before": place.parked_before, "run_s": run_s}
        expected = Expected(
            (place.parked_before + 1) * run_s / most,
            f"{place.parked_before} of the task before it and one that ends, "
            f"{duration(run_s)} each, {most} at a time",
            inputs,
        )
    hold = Hold(
        "task_max_running",
        f"{running} of task {job.task} run, and {most} may (its max_running); "
        f"{place.task_parked} step aside",
    )
    holds = (*(one for one in _holds(scene) if one.kind in STOPS), hold)
    if holds[0] is not hold:
        expected = Expected(None, "not before somebody ends what stops it", inputs)
    text = (
        f"It steps aside, since its task is at its max_running of {most}; it comes back to its "
        "old place when one of the task ends."
    )
    return replace(
        _plain(job, scene.now, text),
        holds=holds,
        takers=_takers(scene),
        expected=expected,
        advice=_advice(scene, holds),
    )


# --- waiting ----------------------------------------------------------------


def _waiting(scene: _Scene) -> Explanation:
    job, place = scene.job, scene.place
    holds = tuple(_holds(scene))
    position = place.ahead + 1
    waiting = max(place.lanes[scene.own.name].waiting, position)
    if holds:
        text = f"It waits at place {position:,} of {waiting:,} in {job.lane}: {holds[0].text}."
    else:
        text = "Nothing holds it back: it starts with the next claim."
    return replace(
        _plain(job, scene.now, text),
        position=position,
        waiting=waiting,
        value=round(scene.as_head.value_at(place.now_us), 3),
        holds=holds,
        takers=_takers(scene),
        expected=_expected(scene, holds),
        advice=_advice(scene, holds),
    )


def _holds(scene: _Scene) -> Iterator[Hold]:
    """Find what holds the job back, what stops it wholly first."""
    yield from _stops(scene)
    yield from _limits(scene)
    yield from _slots(scene)
    if scene.place.ahead:
        jobs = f"{scene.place.ahead:,} jobs" if scene.place.ahead > 1 else "1 job"
        yield Hold("ahead", f"{jobs} of the lane before it")
    before = scene.before()
    if before:
        now_us = scene.place.now_us
        told = [
            f"{lane.name} ({scene.place.lanes[lane.name].waiting:,} waiting, its first worth "
            f"{head.value_at(now_us):,.4g})"
            for lane, head in before
        ]
        own = scene.as_head.value_at(now_us)
        yield Hold("higher_lanes", f"worth {own:,.4g} now, it goes after {' and '.join(told)}")


def _stops(scene: _Scene) -> Iterator[Hold]:
    own = scene.own
    if own.paused:
        yield Hold("paused", f"lane {own.name} is paused")
    if not scene.workers:
        yield Hold("no_worker", "no worker lives")
    elif not scene.serving:
        yield Hold(
            "unserved_lane", f"none of the {len(scene.workers)} live workers serves {own.name}"
        )
    elif not scene.able:
        yield Hold(
            "unknown_task",
            f"none of the {len(scene.serving)} live workers that serve {own.name} knows task "
            f"{scene.job.task}",
        )


def _limits(scene: _Scene) -> Iterator[Hold]:
    own, place = scene.own, scene.place
    running = scene.running_of(own.name)
    if own.max_running is not None and running >= own.max_running:
        yield Hold("max_running", f"{running} of {own.name} run, and {own.max_running} may")
    opens_s = _rate_opens_s(scene)
    if opens_s > 0:
        yield Hold(
            "rate",
            f"{own.name} starts {own.starts_per_s or 0:.3g} a second at most: the next in "
            f"{duration(opens_s)}",
        )
    if place.task_most is not None and place.task_running >= place.task_most:
        yield Hold(
            "task_max_running",
            f"{place.task_running} of task {scene.job.task} run, and {place.task_most} may",
        )


def _rate_opens_s(scene: _Scene) -> float:
    """Return the seconds until the lane's rate lets a job start; 0 for now."""
    next_us = scene.place.lanes[scene.own.name].next_start_us
    if scene.own.starts_per_s is None or next_us is None:
        return 0.0
    return max(0.0, (next_us - CATCH_UP_US - scene.place.now_us) / 1e6)


def _slots(scene: _Scene) -> Iterator[Hold]:
    takers = _takers(scene)
    if not takers:
        return
    slots = sum(taker.slots for taker in takers)
    if not any(taker.free for taker in takers):
        yield Hold("slots_busy", f"all {slots} slots that may take it are busy")
        return
    if not any(taker.may_start for taker in takers):
        free = sum(taker.free for taker in takers)
        are = "slot that is free is" if free == 1 else "slots that are free are"
        yield Hold("worker_reserve", f"the {free} {are} kept for other lanes")
        return
    kept = _fleet_keeps(scene)
    if kept:
        yield Hold("fleet_reserve", kept)


def _fleet_keeps(scene: _Scene) -> str | None:
    """Return what the fleet's reserves keep from the job, if they leave it nothing."""
    reserve = {
        lane.name: lane.reserve_slots
        for lane in scene.lanes
        if lane.reserve_slots and lane.workers and not lane.paused
    }
    counted = [scene.place.lanes[name] for name in reserve]
    slots = [beside.slots for beside in counted if beside.slots is not None]
    free = [beside.free for beside in counted if beside.free is not None]
    if not slots or not free:
        return None
    # A start on a worker that serves no lane with a reserve takes no slot from one.
    if not all(any(name in worker.lanes for name in reserve) for worker in scene.able):
        return None
    running = {lane.name: scene.running_of(lane.name) for lane in scene.lanes}
    granted = order.fleet_reserve(reserve, slots=min(slots), free=min(free), running=running)
    if order.may_start(scene.own.name, free=min(free), running=running, reserve=granted):
        return None
    lacking = order.shortfall(running, granted)
    lacking.pop(scene.own.name, None)
    told = " and ".join(f"{n} for {name}" for name, n in lacking.items())
    if not told:
        return f"none of the {min(slots)} slots of the fleet is free"
    n = max(min(free), 0)
    are = "1 slot of the fleet is free" if n == 1 else f"{n} slots of the fleet are free"
    return f"{are}, and reserves keep {told}"


def _takers(scene: _Scene) -> tuple[Taker, ...]:
    return tuple(_taker(scene, worker) for worker in scene.able)


def _taker(scene: _Scene, worker: WorkerView) -> Taker:
    own = scene.own.name
    free = max(0, worker.slots - worker.running)
    # Its jobs may be of any lane: a reserve lacks at least what not all jobs of its lane can fill.
    reserve = {name: n for name, n in worker.reserve.items() if name in scene.place.lanes}
    filled = {name: min(scene.running_of(name), worker.running) for name in reserve}
    may_start = order.may_start(own, free=free, running=filled, reserve=reserve)
    usable = usable_slots(worker, own)
    kept = sum(n for name, n in worker.reserve.items() if name != own)
    parts = [f"{usable} of {worker.slots} slots"]
    if worker.reserve.get(own):
        parts.append(f"{worker.reserve[own]} of them kept for {own}")
    if kept:
        parts.append(f"{kept} kept for other lanes")
    parts.append(f"{free} free" if free else "none free")
    return Taker(
        worker.name, worker.host, worker.pid, usable, free, may_start and free > 0, ", ".join(parts)
    )


# --- when -------------------------------------------------------------------


def _expected(scene: _Scene, holds: Sequence[Hold]) -> Expected:
    """Guess when the job starts."""
    if any(hold.kind in STOPS for hold in holds):
        return Expected(None, "not before somebody ends what stops it")
    if not holds:
        return Expected(0.0, "a slot is free and nothing is before it")
    own, ahead = scene.own, scene.place.ahead
    guess = _by_starts(own, ahead) or _by_work(scene)
    opens_s = _rate_opens_s(scene)
    if guess.in_s is not None and own.starts_per_s:
        at_rate_s = opens_s + ahead / own.starts_per_s
        if at_rate_s > guess.in_s:
            inputs = {"ahead": ahead, "rate_per_s": own.starts_per_s, "opens_in_s": opens_s}
            return Expected(
                at_rate_s,
                f"{ahead:,} before it at the lane's rate of {own.starts_per_s:.3g}/s",
                inputs,
            )
    return guess


def _by_starts(own: LaneFacts, ahead: int) -> Expected | None:
    rate = own.started_per_s
    if not rate or not own.measured_s:
        return None
    starts = f"{ahead + 1:,} starts" if ahead else "1 start"
    return Expected(
        (ahead + 1) / rate,
        f"{starts} of {own.name} at {rate:.3g}/s, as in the last {duration(own.measured_s)}",
        {"starts": ahead + 1, "starts_per_s": rate, "measured_s": own.measured_s},
    )


def _by_work(scene: _Scene) -> Expected:
    """Guess by the run time of what goes first, where no start of the lane was measured."""
    own, ahead = scene.own, scene.place.ahead
    first = [(lane, scene.place.lanes[lane.name].waiting) for lane, _ in scene.before()]
    slots = float(own.slots if own.max_running is None else min(own.slots, own.max_running))
    if own.run_s is None and (ahead or not first):
        within = duration(WINDOW_S)
        return Expected(None, f"nothing of {own.name} was started or ended in the last {within}")
    if any(lane.run_s is None for lane, _ in first):
        return Expected(None, "the run time of what goes before it was not measured")
    work_s = ahead * (own.run_s or 0.0) + sum(n * (lane.run_s or 0.0) for lane, n in first)
    busy = sum((lane.arrivals_per_s or 0.0) * (lane.run_s or 0.0) for lane, _ in first)
    inputs = {"ahead": ahead, "work_s": work_s, "slots": slots, "busy_slots": busy}
    if busy >= slots:
        names = " and ".join(lane.name for lane, _ in first)
        return Expected(
            None,
            f"the jobs of {names} alone keep {busy:.3g} slots busy, and there are {slots:g}: no "
            "end in sight",
            inputs,
        )
    return Expected(
        work_s / (slots - busy),
        f"{duration(work_s)} of work before it on {slots - busy:.3g} slots",
        inputs,
    )


#: Kind of hold → what ends it.
_ADVICE: Final = {
    "paused": "laneq lanes resume {lane}",
    "no_worker": "laneq worker MODULE:APP",
    "unserved_lane": "laneq worker MODULE:APP --lanes {lane}",
    "unknown_task": "start a worker of the app that has the task {task}",
    "max_running": "laneq lanes set {lane} max_running={max_running}, if that can be borne",
    "rate": "laneq lanes set {lane} rate={rate:.3g}/s, if that can be borne",
    "task_max_running": "raise max_running of the task {task} in the app",
    "slots_busy": "laneq doctor says whether to keep slots for {lane}, or to have more",
    "fleet_reserve": "laneq doctor says whether the reserves are too large",
    "worker_reserve": "laneq doctor says whether the reserves are too large",
}


def _advice(scene: _Scene, holds: Sequence[Hold]) -> str | None:
    """Return what ends the first thing that holds the job back."""
    own = scene.own
    text = _ADVICE.get(holds[0].kind) if holds else None
    return text and text.format(
        lane=own.name,
        task=scene.job.task,
        max_running=2 * (own.max_running or 1),
        rate=2 * (own.starts_per_s or 1),
    )
