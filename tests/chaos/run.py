"""One chaos run from the first process to the last word."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import redis

from laneq import LaneQ
from laneq.bench import leash
from laneq.calls import jobs as job_calls
from laneq.calls.stats import Depths
from laneq.calls.stats import depths as depths_of
from laneq.drive import SyncDriver
from laneq.embedded import EmbeddedServer, Engine
from laneq.keys import PERMANENT, Keys
from tests.audit import problems_in
from tests.chaos import diary
from tests.chaos.books import Account, Books
from tests.chaos.fleet import GRACE_S, Fleet, Post
from tests.chaos.harvest import Harvest
from tests.chaos.havoc import Havoc, Network
from tests.chaos.ledger import Ledger
from tests.chaos.producers import Crowd
from tests.chaos.tasks import KEEP, LEASE, build
from tests.proxy import Proxy

NAMESPACE: Final = "chaos"

#: Seconds of the leases: not so short that a machine under load lets one run out by itself.
LEASE_S: Final = 4.0

#: Options of `laneq worker`, and the proxy that it goes through; None goes straight.
_FLEET: Final = (
    (("-c", "10"), 0),
    (("-c", "10", "--reserve", "urgent=2"), 1),
    (("-c", "3", "--processes", "2"), 1),
    (("-c", "4", "--lanes", "normal,batch"), None),
)

#: Seconds of a calm time, and of a storm; there are two of each at least.
_PHASE_S: Final = 20.0

_QUIET_S: Final = 120.0
_SETTLE_S: Final = 0.3

#: Of memory: what tables and buffers that have grown once may keep.
_MEMORY_SLACK: Final = 0.05
_MEMORY_BYTES: Final = 128 * 1024

#: Parts of the memory in use that have nothing to do with jobs.
_NOT_OF_JOBS: Final = ("mem_clients_normal", "mem_aof_buffer", "used_memory_scripts_eval")

#: Hashes and sets that are gone when no job is left.
_OF_JOBS: Final = frozenset(
    {"jobs", "runs", "outcomes", "history", "progress", "ended", "waiting", "scheduled", "leases"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run is to be.

    Attributes:
        minutes: how long everything breaks.
        seed: chooses what breaks when.
        rate: jobs per second that producers want, on average.
        pace: seconds between two faults, on average.
        engine: which server; None takes the first found.
        workers: how many places of the fleet are filled.
    """

    minutes: float
    seed: int
    rate: float = 250.0
    pace: float = 1.0
    engine: Engine | None = None
    workers: int = len(_FLEET)


@dataclass
class Report:
    """What became of a run."""

    plan: Plan
    account: Account
    faults: Counter[str]
    calls: Counter[str]
    events: Counter[str]
    exits: Counter[int]
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0
    readings: int = 0
    checks: int = 0
    memory: tuple[int, int, int] = (0, 0, 0)
    folder: Path | None = None

    @property
    def is_well(self) -> bool:
        """Whether nothing was lost, doubled or stuck."""
        return not self.problems


class Stage:
    """The server, the proxies and the workers of a run; a context manager."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.folder = Path(tempfile.mkdtemp(prefix="laneq-chaos-"))
        self.diary = self.folder / "diary"
        #: Records live for several looks of the harvest.
        self.keep_s = min(120.0, max(60.0, plan.minutes * 6))
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            # Whatever was acknowledged is on disk: the promise that a server with this
            # setting makes, and what the books count on when it is killed.
            self.server = starting.enter_context(
                EmbeddedServer(
                    self.folder / "data",
                    port=0,
                    engine=self.plan.engine,
                    # A histogram for each command that was ever used would be taken for a leak.
                    config={"appendfsync": "always", "latency-tracking": "no"},
                )
            )
            self.proxies = [starting.enter_context(Proxy(self.server.url)) for _ in range(2)]
            self.app = starting.enter_context(self.make_app(self.server.url))
            self.direct = starting.enter_context(
                SyncDriver(self.app.address, prefix=self.app.keys.prefix, patience_s=0.5)
            )
            self.raw = starting.enter_context(
                redis.Redis.from_url(self.server.url, socket_timeout=10)
            )
            self.diary.touch()
            self.fleet = starting.enter_context(Fleet(self._posts()))
            for post in self.fleet.posts:
                post.wait_ready()
            self._exit = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def make_app(self, url: str) -> LaneQ:
        return build(url=url, namespace=NAMESPACE, keep_s=self.keep_s, lease_s=LEASE_S)

    def _posts(self) -> list[Post]:
        self.posts_of: dict[int, list[Post]] = {n: [] for n in range(len(self.proxies))}
        posts = []
        for n, (options, proxy) in enumerate(_FLEET[: self.plan.workers]):
            url = self.server.url if proxy is None else self.proxies[proxy].url
            environment = {
                "LANEQ_URL": url,
                "LANEQ_NAMESPACE": NAMESPACE,
                diary.PATH: str(self.diary),
                KEEP: str(self.keep_s),
                LEASE: str(LEASE_S),
                leash.VARIABLE: "1",
            }
            name = f"w{n + 1}"
            given = (*options, "--grace", f"{GRACE_S:g}", "--name", name)
            post = Post(name, given, environment=environment, folder=self.folder)
            posts.append(post)
            if proxy is not None:
                self.posts_of[proxy].append(post)
        return posts

    # --- rest -------------------------------------------------------------------------

    def depths(self) -> list[Depths]:
        """Read the counts of all lanes."""
        found: list[Depths] = self.direct.call(depths_of(self.app.keys, list(self.app.lanes)))
        return found

    def until_quiet(self, ledger: Ledger, read: Callable[[], list[Depths]]) -> None:
        """Wait until no job is open."""
        give_up_at = time.monotonic() + _QUIET_S
        while True:
            depths = read()
            left = sum(d.waiting + d.scheduled + d.running for d in depths)
            if not left:
                return
            if time.monotonic() > give_up_at:
                rows = ", ".join(f"{d.waiting}+{d.scheduled}+{d.running}" for d in depths)
                ledger.complain(
                    f"{left} jobs are open {_QUIET_S:g} s after all was well again: {rows} "
                    "waiting, scheduled and running by lane"
                )
                return
            time.sleep(0.1)

    def clear(self, ledger: Ledger) -> None:
        """Have the time of all records run out, and wait until workers have dropped them."""
        keys = self.app.keys
        for lane in self.app.lanes:
            while self.direct.call(job_calls.purge_dead(keys, lanes=[lane])):
                pass
        ids: Any = self.raw.zrange(keys.ended, 0, -1)
        for first in range(0, len(ids), 5_000):
            self.raw.zadd(keys.ended, dict.fromkeys(ids[first : first + 5_000], 1), xx=True)
        give_up_at = time.monotonic() + _QUIET_S
        while left := self._left(keys):
            if time.monotonic() > give_up_at:
                ledger.complain(f"keys of jobs are left although no job is: {left}")
                return
            time.sleep(0.2)

    def _left(self, keys: Keys) -> list[str]:
        names = (key[len(keys.prefix) :].decode() for key in self.raw.scan_iter(count=1000))
        return [name for name in names if name.split(":")[0] in _OF_JOBS]

    def ownerless(self) -> list[str]:
        """Return keys that nobody owns and that never expire."""
        keys = self.app.keys
        found = []
        for key in self.raw.scan_iter(count=1000):
            word = key[len(keys.prefix) :].decode().split(":")[0]
            if word not in PERMANENT and self.raw.pttl(key) == -1:
                found.append(key.decode())
        return found

    def memory(self) -> int:
        """Return the bytes that keys take, but for those of measurements, once it has settled.

        Measurements grow with time, and run out. What the server has for its connections, for
        the texts of scripts and for its own notes is not what jobs leave behind.
        """
        keys = self.app.keys
        self.raw.slowlog_reset()
        measured = 0
        for key in self.raw.scan_iter(count=1000):
            if key[len(keys.prefix) :].split(b":")[0] in {b"hist", b"rates"}:
                size: Any = self.raw.memory_usage(key, samples=0)
                measured += size or 0
        before = -1
        while True:
            info: Any = self.raw.info("memory")
            now = int(info["used_memory"]) - sum(int(info.get(part, 0)) for part in _NOT_OF_JOBS)
            if abs(now - before) < 16_384:
                return now - measured
            before = now
            time.sleep(_SETTLE_S)


def carry_out(plan: Plan, *, progress: Callable[[str], None]) -> Report:
    """Break everything for a while, let it come to rest, and look what is left.

    Args:
        plan: what is to be done.
        progress: told what goes on.
    """
    ledger = Ledger()
    began = time.monotonic()
    stage = Stage(plan)
    with stage, stage_guard(stage):
        progress("all workers are ready; a first look at memory")
        before = _baseline(stage)
        with Harvest(
            stage.app, stage.server.url, every_s=stage.keep_s / 6, ledger=ledger
        ) as harvest:
            crowd = Crowd(
                lambda: stage.make_app(stage.proxies[0].url),
                stage.direct,
                harvest.look_at,
                ledger=ledger,
                seed=plan.seed,
                rate=plan.rate,
            )
            havoc = Havoc(
                plan.seed,
                fleet=stage.fleet,
                server=stage.server,
                network=Network(stage.proxies),
                posts_of=stage.posts_of,
                ledger=ledger,
                lease_s=LEASE_S,
                pace_s=plan.pace,
                phase_s=min(_PHASE_S, plan.minutes * 60 / 4),
            )
            crowd.start()
            havoc.start()
            _last(plan, ledger, havoc, progress)
            progress("no more faults; everything comes to rest")
            havoc.end()
            crowd.end()
            for post in stage.fleet.posts:
                post.wait_ready()
            stage.until_quiet(ledger, harvest.depths)
            harvest.call(lambda _: harvest.look())
            events = _events(harvest)
        problems = _checked(stage)
        progress("closing the books")
        entries = diary.read(stage.diary)
        account = Books(
            ledger, entries, harvest.outcomes, events, havoc.blows, harvest.numbers
        ).close()
        stage.clear(ledger)
        problems += [f"no owner and no end of life: {key}" for key in stage.ownerless()]
        after = stage.memory()
        limit = int(before * (1 + _MEMORY_SLACK)) + _MEMORY_BYTES
        if after > limit:
            problems.append(f"memory: {before:,} bytes before, {after:,} after")
        if havoc.failed is not None:
            problems.append(f"the chaos itself failed: {havoc.failed!r}")
        problems += stage.fleet.alarms()
    report = Report(
        plan=plan,
        account=account,
        faults=havoc.counts,
        calls=ledger.calls,
        events=events,
        exits=havoc.exits,
        problems=[*ledger.wrong, *account.problems, *problems],
        seconds=time.monotonic() - began,
        readings=harvest.readings,
        checks=harvest.checks,
        memory=(before, after, limit),
    )
    if report.is_well:
        shutil.rmtree(stage.folder, ignore_errors=True)
    else:
        report.folder = stage.folder
    return report


@contextmanager
def stage_guard(stage: Stage) -> Iterator[None]:
    """Leave the folder where a run could not be finished; say where it is."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"logs and data are in {stage.folder}")
        raise


def _baseline(stage: Stage) -> int:
    """Run a few jobs of each kind, so that all is there once; return the memory then."""
    tasks = [stage.app.ref(name) for name in ("quick", "in_thread", "in_process")]
    stage.app.enqueue_many([task.call(f"warm-{n}", 0.0) for n in range(40) for task in tasks])
    ledger = Ledger()
    stage.until_quiet(ledger, stage.depths)
    stage.clear(ledger)
    if ledger.wrong:
        raise RuntimeError(f"even before anything was broken: {ledger.wrong}")
    stage.diary.write_text("")
    # The books begin here: what the first jobs left in the counts is not theirs.
    for key in stage.raw.scan_iter(match="*counts*", count=1000):
        stage.raw.delete(key)
    return stage.memory()


def _last(plan: Plan, ledger: Ledger, havoc: Havoc, progress: Callable[[str], None]) -> None:
    ends_at = time.monotonic() + plan.minutes * 60
    due = 0.0
    while (now := time.monotonic()) < ends_at and havoc.failed is None:
        if now >= due:
            due = now + 10
            progress(
                f"{(ends_at - now) / 60:.1f} min to go: {ledger.calls['enqueued']:,} jobs "
                f"enqueued, {ledger.open_jobs:,} open, {havoc.counts.total():,} faults, "
                f"{len(ledger.wrong)} things wrong"
            )
        time.sleep(0.1)


def _events(harvest: Harvest) -> Counter[str]:
    events: Counter[str] = Counter()
    for depth in harvest.depths():
        events.update(depth.counts)
    return events


def _checked(stage: Stage) -> list[str]:
    return [
        f"check: {problem.kind} {problem.id} {problem.lane}: {problem.detail}"
        for problem in problems_in(stage.raw, NAMESPACE)
    ]


def seed_of(text: int | None) -> int:
    """Return the seed that was asked for, or a new one."""
    return random.SystemRandom().randrange(1_000_000) if text is None else text
