"""What must hold in a namespace at any instant, as a walk that only reads.

Each broken invariant is a `Problem`. The walk reads every key whole: it is for tests, whose
namespaces are small.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import redis

from laneq.keys import PERMANENT, keys_of
from laneq.model import ATTEMPT_ENDS, BALANCE, State

_RUN: Final = re.compile(rb"(\d+) (\S+) (\S+) (\d+) (\d+) (\d+) (\d+) (\d+) (\d) (.*)")
_LANE_WORDS: Final = ("waiting", "scheduled", "leases", "dead")


@dataclass(frozen=True, slots=True)
class Problem:
    """A broken invariant."""

    kind: str
    id: str
    lane: str
    detail: str


@dataclass
class _Walk:
    """All that a namespace has, read once."""

    lanes: list[str]
    state: dict[str, str]
    places: dict[tuple[str, str], dict[str, int]]
    ended: dict[str, int]
    hashes: dict[str, dict[str, bytes]]
    counts: dict[str, Counter[str]]
    task_counts: dict[str, Counter[str]]
    wake: dict[str, int]
    ownerless: list[str]
    where: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        for (word, lane), members in self.places.items():
            for job_id in members:
                self.where[job_id].append((word, lane))
        for job_id in self.ended:
            self.where[job_id].append(("ended", ""))

    def task_of(self, job_id: str) -> str:
        record = self.hashes["jobs"].get(job_id)
        if record is not None:
            return record.partition(b"\n")[0].split(b"\t")[0].decode(errors="replace")
        run = _RUN.fullmatch(self.hashes["runs"].get(job_id, b""))
        return run[10].decode() if run else "?"


def problems_in(raw: redis.Redis, namespace: str) -> list[Problem]:
    """Return every broken invariant of a namespace."""
    walk = _read(raw, namespace)
    found: list[Problem] = []
    for check in (_places, _runs, _traces, _scores, _hints, _balance, _owners):
        found.extend(check(walk))
    return found


def _read(client: Any, namespace: str) -> _Walk:
    keys = keys_of(namespace)

    def hash_of(key: bytes) -> dict[str, bytes]:
        return {name.decode(): value for name, value in client.hgetall(key).items()}

    def zset_of(key: bytes) -> dict[str, int]:
        rows = client.zrange(key, 0, -1, withscores=True)
        return {member.decode(): int(score) for member, score in rows}

    state = {name: value.decode() for name, value in hash_of(keys.state).items()}
    rows = json.loads(state.get("config", '{"lanes": []}'))["lanes"] or []
    lanes = [row[0] for row in rows]
    task_counts: dict[str, Counter[str]] = defaultdict(Counter)
    for name, n in hash_of(keys.task_counts).items():
        task, _, event = name.rpartition("\t")
        task_counts[task][event] += int(n)
    ownerless = []
    for key in client.scan_iter(match=keys.prefix + b"*", count=1000):
        word, _, lane = key[len(keys.prefix) :].decode().partition(":")
        is_owned = word in PERMANENT and (not lane or lane in lanes)
        if not is_owned and client.pttl(key) < 0:
            ownerless.append(key.decode())
    return _Walk(
        lanes=lanes,
        state=state,
        places={
            (word, lane): zset_of(keys.of_lane(word, lane))
            for word in _LANE_WORDS
            for lane in lanes
        },
        ended=zset_of(keys.ended),
        hashes={
            word: hash_of(getattr(keys, word))
            for word in ("jobs", "runs", "history", "progress", "outcomes")
        },
        counts={
            lane: Counter({e: int(n) for e, n in hash_of(keys.of_lane("counts", lane)).items()})
            for lane in lanes
        },
        task_counts=dict(task_counts),
        wake={lane: client.llen(keys.of_lane("wake", lane)) for lane in lanes},
        ownerless=ownerless,
    )


def _places(walk: _Walk) -> Iterator[Problem]:
    for job_id in walk.hashes["jobs"]:
        if job_id not in walk.where:
            yield Problem("orphan", job_id, "", "it has a record and is in no place")
    for job_id, places in walk.where.items():
        if len(places) > 1:
            yield Problem("two places", job_id, places[0][1], f"it is in {places}")
        if job_id not in walk.hashes["jobs"]:
            yield Problem("no body", job_id, places[0][1], f"it is in {places[0][0]}")


def _runs(walk: _Walk) -> Iterator[Problem]:
    for job_id, line in walk.hashes["runs"].items():
        run = _RUN.fullmatch(line)
        place, lane = walk.where.get(job_id, [("nowhere", "")])[0]
        if not run:
            yield Problem("run line", job_id, lane, f"it cannot be read: {line!r}")
            continue
        if place in {"dead", "ended", "nowhere"}:
            yield Problem("orphan", job_id, lane, f"a run line, while it is {place}")
        elif (place == "leases") != (run[1] != b"0"):
            yield Problem("run line", job_id, lane, f"{place} with fence {run[1].decode()}")
        elif place == "leases" and run[3].decode() != lane:
            yield Problem("run line", job_id, lane, f"it runs in {run[3].decode()}")
    for lane in walk.lanes:
        for job_id in walk.places["leases", lane]:
            if job_id not in walk.hashes["runs"]:
                yield Problem("run line", job_id, lane, "a lease without one")


def _traces(walk: _Walk) -> Iterator[Problem]:
    over = set(walk.ended)
    for lane in walk.lanes:
        over |= set(walk.places["dead", lane])
    for job_id in over ^ set(walk.hashes["outcomes"]):
        yield Problem("outcome", job_id, "", "an outcome of an open job, or none of an ended one")
    for word in ("history", "progress"):
        for job_id in set(walk.hashes[word]) - set(walk.where):
            yield Problem("orphan", job_id, "", f"{word} of a job that is nowhere")


def _scores(walk: _Walk) -> Iterator[Problem]:
    clock = int(walk.state.get("clock", "0"))
    for lane in walk.lanes:
        for word in ("waiting", "scheduled"):
            scores = walk.places[word, lane].values()
            for score, n in Counter(scores).items():
                if n > 1:
                    yield Problem("order", "", lane, f"{n} {word} jobs have the score {score}")
        for job_id, score in walk.places["waiting", lane].items():
            if score > clock:
                yield Problem("order", job_id, lane, f"it waits from {score}, after now, {clock}")
        if walk.wake[lane] > 1:
            yield Problem("wake", "", lane, f"{walk.wake[lane]} tokens")


def _hints(walk: _Walk) -> Iterator[Problem]:
    hint = int(walk.state.get("next_due", "0"))
    clock = int(walk.state.get("clock", "0"))
    for lane in walk.lanes:
        for job_id, due in walk.places["scheduled", lane].items():
            if hint == 0 or hint > max(due, clock):
                yield Problem("hint", job_id, lane, f"due at {due}, next_due is {hint}")


def _balance(walk: _Walk) -> Iterator[Problem]:
    present: dict[str, Counter[str]] = defaultdict(Counter)
    by_task: dict[str, Counter[str]] = defaultdict(Counter)
    names = {"waiting": "waiting", "scheduled": "scheduled", "leases": "running"}
    for (word, lane), members in walk.places.items():
        if word in names:
            present[lane][names[word]] = len(members)
            for job_id in members:
                by_task[walk.task_of(job_id)][names[word]] += 1
    rows = [("lane", lane, walk.counts[lane], present[lane]) for lane in walk.lanes]
    # Producers may make up task names without end: some are counted together, as `*`.
    if "*" not in walk.task_counts:
        tasks = set(walk.task_counts) | set(by_task)
        rows += [
            ("task", task, walk.task_counts.get(task, Counter()), by_task[task]) for task in tasks
        ]
    for kind, name, counts, now in rows:
        stated = {part: counts[part] + now[part] for part in BALANCE}
        if counts["enqueued"] != sum(stated.values()):
            detail = f"{counts['enqueued']} enqueued, but {stated}"
            yield Problem(f"balance of a {kind}", "", name, detail)
        ends = {end: counts[end] for end in ATTEMPT_ENDS}
        if counts["started"] != sum(ends.values()) + now[State.RUNNING]:
            detail = f"{counts['started']} started, but {ends} and {now[State.RUNNING]} running"
            yield Problem(f"attempts of a {kind}", "", name, detail)


def _owners(walk: _Walk) -> Iterator[Problem]:
    for key in walk.ownerless:
        yield Problem("key", "", "", f"{key} has no owner and no TTL")
