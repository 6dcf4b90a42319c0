"""The end of a chaos run: what producers were told, what bodies did and what Redis says agree.

Each job that an enqueue acknowledged has exactly one outcome, which is that of an attempt that
ran; each start beyond the first of an attempt has a blow that hit the worker of the one
before; each count is what diary and ledger add up to.
"""

from __future__ import annotations

import itertools
import sys
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.chaos import diary
from tests.chaos.diary import Entry
from tests.chaos.harvest import Seen
from tests.chaos.havoc import Blow
from tests.chaos.ledger import Ledger, Wanted
from tests.chaos.tasks import MANY, SCRAP

#: A report that is on its way when a worker is hit, and what comes of a claim after it.
_BEFORE_NS: Final = 1_000_000_000
_AFTER_NS: Final = 3_000_000_000

#: By how much Redis's clock, which fences come from, may lie ahead of this machine's.
_CLOCKS_NS: Final = 100_000_000

#: How tasks end, beside ``cancelled`` where somebody cancels: states, and whether a job
#: whose workers died too often may be dead all the same.
_ENDS: Final[Mapping[str, frozenset[str]]] = {
    "doomed": frozenset({"dead"}),
    "quits": frozenset({"dead"}),
    "too_long": frozenset({"dead"}),
    "expires": frozenset({"succeeded", "expired"}),
}
_MOST_ATTEMPTS: Final = {"once": 1, "doomed": 2, "too_long": 2}
_SHOWN: Final = 40


@dataclass(slots=True)
class Run:
    """One start of a job's body."""

    fence: int
    worker: str
    from_ns: int
    to_ns: int = 0
    end: str = ""


@dataclass
class Account:
    """What the books say.

    Attributes:
        problems: what does not agree, as sentences.
        jobs: how many of each kind and end.
        starts: starts of bodies.
        extra: starts that repeat one which had not ended as it was meant to.
        bound: runs that were under way in a worker when it was hit.
    """

    problems: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    jobs: int = 0
    unknown: int = 0
    children: int = 0
    starts: int = 0
    extra: int = 0
    bound: int = 0


class Books:
    """Weighs everything against everything.

    Args:
        ledger: what producers were told.
        entries: what bodies did.
        outcomes: what Redis said of how jobs ended.
        counts: events of all lanes, added up.
        blows: what may have made jobs start again.
        numbers: job → number, of jobs that ended without a body.
    """

    def __init__(
        self,
        ledger: Ledger,
        entries: Sequence[Entry],
        outcomes: Mapping[str, set[Seen]],
        counts: Counter[str],
        blows: Sequence[Blow],
        numbers: Mapping[str, str],
    ) -> None:
        self._ledger = ledger
        self._outcomes = outcomes
        self._counts = counts
        self._blows = blows
        self._hits = Hits(blows)
        # Fences are instants by Redis's clock, which is that of this machine.
        self._clocks_ns = time.time_ns() - time.monotonic_ns()
        self._runs: defaultdict[str, list[Run]] = defaultdict(list)
        self._number = dict(numbers)
        self._children: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
        self._problems: list[str] = []
        self._read(entries)

    def _read(self, entries: Sequence[Entry]) -> None:
        under: dict[tuple[str, int], Run] = {}
        for entry in entries:
            self._number[entry.id] = entry.number
            key = (entry.id, entry.fence)
            if entry.word == diary.START:
                if key in under:
                    self._say(f"{entry.id}: its body ran twice under one claim, {entry.fence}")
                run = under[key] = Run(entry.fence, entry.worker, entry.at_ns)
                self._runs[entry.id].append(run)
            elif entry.word == diary.CHILD:
                self._children[key].append(entry.extra)
            else:
                under[key].to_ns, under[key].end = entry.at_ns, entry.word

    def _say(self, problem: str) -> None:
        self._problems.append(problem)

    def close(self) -> Account:
        """Return what the books say."""
        account = Account()
        jobs = self._jobs(account)
        self._account_for_children(jobs, account)
        for job_id, wanted in jobs.items():
            self._weigh_outcomes(job_id, wanted, account)
            self._weigh_runs(job_id, wanted, account)
        for job_id in (self._runs.keys() | self._outcomes.keys()) - jobs.keys():
            self._say(f"{job_id}: nobody enqueued it, or what would have has not ended so")
        self._weigh_counts(jobs, account)
        account.bound = self._bound()
        if account.extra > account.bound:
            self._say(f"{account.extra} extra starts, {account.bound} runs were hit")
        account.starts = sum(map(len, self._runs.values()))
        account.problems = self._problems
        return account

    def _jobs(self, account: Account) -> dict[str, Wanted]:
        """Return all jobs that exist because a producer wanted them."""
        jobs = {wanted.id: wanted for wanted in self._ledger.acknowledged() if wanted.id}
        account.jobs = len(jobs)
        by_number = self._ledger.wanted
        seen_of: defaultdict[str, set[str]] = defaultdict(set)
        for job_id, number in self._number.items():
            wanted = by_number.get(number)
            if wanted is None:
                continue  # a child, or made up
            seen_of[number].add(job_id)
            if wanted.id is None:
                # The enqueue failed, and yet the job exists: nobody was promised otherwise.
                jobs[job_id] = wanted
        account.unknown = sum(wanted.id is None for wanted in by_number.values())
        for number, ids in seen_of.items():
            own = by_number[number].id
            if len(ids | ({own} if own else set())) > 1:
                self._say(f"number {number} became several jobs: {sorted(ids)}, told {own}")
        return jobs

    def _account_for_children(self, jobs: dict[str, Wanted], account: Account) -> None:
        """Add the children of attempts whose outcome counts; no other may exist."""
        real: dict[str, Wanted] = {}
        for (parent, fence), children in self._children.items():
            ends = self._outcomes.get(parent, set())
            if any(end.state == "succeeded" and end.fence == fence for end in ends):
                lane = "normal"
                real |= {child: Wanted(f"{parent}'s", "quick", lane, child) for child in children}
        account.children = len(real)
        jobs |= real

    # --- one job ----------------------------------------------------------------------

    def _weigh_outcomes(self, job_id: str, wanted: Wanted, account: Account) -> None:
        seen = sorted(self._outcomes.get(job_id, ()), key=lambda end: end.ended_us)
        account.kinds[wanted.kind] += 1
        lives = 1 + len(wanted.revived_ns)
        if not seen and wanted.lane == SCRAP:
            account.ends["purged"] += 1
        elif not seen:
            self._say(f"{job_id} ({wanted.kind} {wanted.number}): no outcome")
        if len(seen) > lives + wanted.unsure_revivals:
            self._say(f"{job_id} ({wanted.kind}): {len(seen)} outcomes in {lives} lives: {seen}")
        for end in seen:
            account.ends[end.state] += 1
            self._weigh_end(job_id, wanted, end)

    def _weigh_end(self, job_id: str, wanted: Wanted, end: Seen) -> None:
        what = f"{job_id} ({wanted.kind} {wanted.number})"
        runs = self._runs.get(job_id, [])
        if end.state == "cancelled":
            if not wanted.may_be_cancelled:
                self._say(f"{what}: cancelled by nobody")
            return
        if wanted.cancel_ns and not wanted.was_revived:
            self._say(f"{what}: its cancel was confirmed, and it is {end}")
        most = _MOST_ATTEMPTS.get(wanted.kind, MANY)
        allowed = _ENDS.get(wanted.kind, frozenset({"succeeded"}))
        is_worn_out = end.state == "dead" and end.attempt >= most
        if end.state not in allowed and not is_worn_out:
            self._say(f"{what}: {end}")
        if end.state == "dead" and end.error == "WorkerLost" and end.attempt < most:
            self._say(f"{what}: given up after {end.attempt} of {most} attempts: {end}")
        if end.state == "succeeded":
            if end.result != end.fence:
                self._say(f"{what}: attempt {end.fence} succeeded with the result of another {end}")
            if not any(run.fence == end.fence and run.end == diary.OK for run in runs):
                self._say(f"{what}: attempt {end.fence} succeeded, and its body did not: {runs}")

    def _weigh_runs(self, job_id: str, wanted: Wanted, account: Account) -> None:
        what = f"{job_id} ({wanted.kind} {wanted.number})"
        runs = sorted(self._runs.get(job_id, ()), key=lambda run: run.fence)
        # Starts of one job are not always written in the order of their claims: a claim may
        # reach a worker that was stopped long after the next one reached another.
        extra = 0
        for before, after in itertools.pairwise(runs):
            if self._is_meant(wanted, before) or self._was_revived(wanted, before, after):
                continue
            extra += 1
            if not self._was_hit(before, after):
                self._say(f"{what}: started again though nothing hit {before}; then {after}")
        account.extra += extra
        if wanted.kind == "once" and not wanted.was_revived:
            handed_back = sum(self._was_handed_back(run) for run in runs)
            if len(runs) > 1 + handed_back:
                self._say(f"{what}: at most one attempt, and yet {runs}")
        if wanted.cancel_ns and not wanted.was_revived:
            for run in runs:
                claimed_ns = run.fence * 1_000 - self._clocks_ns
                if claimed_ns > wanted.cancel_ns + _CLOCKS_NS:
                    self._say(f"{what}: claimed after its cancel was confirmed: {run}")

    @staticmethod
    def _is_meant(wanted: Wanted, run: Run) -> bool:
        if wanted.kind == "too_long" and run.end == diary.STOPPED:
            return True
        return run.end in {diary.FAILED, diary.PUT_OFF}

    @staticmethod
    def _was_revived(wanted: Wanted, before: Run, after: Run) -> bool:
        return wanted.unsure_revivals > 0 or any(
            before.from_ns < at_ns < after.from_ns for at_ns in wanted.revived_ns
        )

    def _was_hit(self, before: Run, after: Run) -> bool:
        to_ns = before.to_ns or max(before.from_ns, after.from_ns)
        return self._hits.overlap(before.worker, before.from_ns, to_ns)

    def _was_handed_back(self, run: Run) -> bool:
        return run.end == diary.STOPPED and any(
            "TERM" in blow.kind and blow.workers is not None and run.worker in blow.workers
            for blow in self._blows
        )

    # --- all of them ------------------------------------------------------------------

    def _bound(self) -> int:
        """Return how many runs were under way when something hit their worker."""
        return sum(
            not run.to_ns or self._hits.overlap(run.worker, run.from_ns, run.to_ns)
            for runs in self._runs.values()
            for run in runs
        )

    def _weigh_counts(self, jobs: Mapping[str, Wanted], account: Account) -> None:
        counts, ends = self._counts, account.ends
        for state in ("succeeded", "dead", "cancelled", "expired"):
            if counts[state] != ends[state]:
                self._say(f"{counts[state]} {state} by the counts, {ends[state]} seen")
        # Of an enqueue or a revival that failed it is not known whether it was carried out; a
        # job of the one that was purged has left no trace but in the counts.
        seen = set(self._number.values())
        most_unseen = sum(
            wanted.id is None and wanted.lane == SCRAP and wanted.number not in seen
            for wanted in self._ledger.wanted.values()
        )
        unseen = counts["purged"] - ends["purged"]
        if not 0 <= unseen <= most_unseen:
            self._say(f"{counts['purged']} purged by the counts, {ends['purged']} by the books")
        revived = sum(len(wanted.revived_ns) for wanted in jobs.values())
        unsure = sum(wanted.unsure_revivals for wanted in jobs.values())
        known = len(jobs) + revived + unseen
        if not known <= counts["enqueued"] <= known + unsure:
            self._say(f"{counts['enqueued']} enqueued by the counts, {known} by the books")
        bodies = sum(map(len, self._runs.values()))
        if counts["started"] < bodies:
            self._say(f"{counts['started']} started by the counts, {bodies} bodies ran")


class Hits:
    """When each worker was hit, with some time around it."""

    def __init__(self, blows: Sequence[Blow]) -> None:
        spans: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for blow in blows:
            to_ns = blow.to_ns + _AFTER_NS if blow.to_ns else sys.maxsize
            for worker in ("",) if blow.workers is None else blow.workers:
                spans[worker].append((blow.from_ns - _BEFORE_NS, to_ns))
        self._spans = {worker: _merged(found) for worker, found in spans.items()}

    def overlap(self, worker: str, from_ns: int, to_ns: int) -> bool:
        """Return whether the worker, or everything, was hit in this time."""
        for name in ("", worker):
            spans = self._spans.get(name, [])
            n = bisect_right(spans, (to_ns, sys.maxsize))
            if n and spans[n - 1][1] >= from_ns:
                return True
        return False


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for from_ns, to_ns in sorted(spans):
        if found and from_ns <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], to_ns)
        else:
            found.append((from_ns, to_ns))
    return found


def shown(problems: Sequence[str]) -> Iterator[str]:
    """Yield the first problems, each on a line of bounded length."""
    for problem in problems[:_SHOWN]:
        yield problem[:1_000]
    if len(problems) > _SHOWN:
        yield f"and {len(problems) - _SHOWN} more"
