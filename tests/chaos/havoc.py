"""What is done to workers, server and network: chosen by a seeded generator, undone in time.

There are two kinds of faults. Harmless ones (a cut connection, a lost reply, a flush of the
scripts) must not make any job start twice. The others may, but only jobs that were running
at that moment, in a worker that was hit. Calm times, with harmless faults alone, and storms
with all of them take turns, so that the books can tell the two apart.
"""

from __future__ import annotations

import heapq
import itertools
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import redis

from laneq.embedded import EmbeddedServer
from tests.chaos.fleet import GRACE_S, Fleet, Post
from tests.chaos.ledger import Ledger, now_ns
from tests.proxy import Proxy

Undo = Callable[[], None]


@dataclass(slots=True)
class Blow:
    """One fault that may make running jobs start again.

    Attributes:
        kind: what was done.
        workers: whom it hit; None for all.
        from_ns, to_ns: from when to when, by the monotonic clock; 0 while it lasts.
    """

    kind: str
    workers: frozenset[str] | None
    from_ns: int
    to_ns: int = 0


@dataclass(slots=True)
class Network:
    """The proxies: producers use the first one, and so do some of the workers."""

    proxies: list[Proxy]
    busy: set[int] = field(default_factory=set)


class Havoc:
    """Does what it does in a thread of its own, and keeps a list of it.

    Args:
        seed: the same seed chooses the same faults in the same order.
        fleet: the workers.
        server: the server; its data are on disk.
        network: the proxies before it.
        posts_of: the proxy → workers behind it.
        ledger: counts what is done.
        lease_s: of all lanes.
        pace_s: seconds between two faults, on average.
        phase_s: seconds of a calm time, and of a storm.

    Attributes:
        counts: kind of fault → how often.
        blows: the faults that may make running jobs start again.
    """

    def __init__(
        self,
        seed: int,
        *,
        fleet: Fleet,
        server: EmbeddedServer,
        network: Network,
        posts_of: dict[int, list[Post]],
        ledger: Ledger,
        lease_s: float,
        pace_s: float,
        phase_s: float,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.blows: list[Blow] = []
        self.exits: Counter[int] = Counter()
        self._rng = random.Random(seed)
        self._fleet = fleet
        self._server = server
        self._network = network
        self._posts_of = posts_of
        self._ledger = ledger
        self._lease_s = lease_s
        self._pace_s = pace_s
        self._phase_s = phase_s
        self._undos: list[tuple[float, int, Undo]] = []
        self._order = itertools.count()
        self._server_busy = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-havoc", daemon=True)
        self.failed: BaseException | None = None
        harmless = {
            self._cut: 4,
            self._lose_reply: 8,
            self._forge: 4,
            self._flush_scripts: 4,
            self._kill_clients: 3,
            self._delay: 2,
            self._fill_memory: 1,
            self._nap: 2,
            self._drain: 2,
        }
        harmful = {
            self._kill: 6,
            self._kill_child: 3,
            self._stop_worker: 3,
            self._hand_back: 2,
            self._kill_server: 1,
            self._restart_server: 1,
            self._stop_server: 1,
            self._blackhole: 2,
            self._refuse: 2,
        }
        self._calm = list(harmless), list(harmless.values())
        self._storm = (
            list(harmless | harmful),
            [
                *(weight / 2 for weight in harmless.values()),
                *harmful.values(),
            ],
        )

    # --- life -------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Stop, and undo all that is not undone yet: afterwards everything works."""
        self._stop.set()
        self._thread.join()
        while self._undos:
            heapq.heappop(self._undos)[2]()
        for post in self._fleet.posts:
            if not post.is_alive:
                self._fill(post)

    def _run(self) -> None:
        began = time.monotonic()
        due = began
        try:
            while not self._stop.wait(0.05):
                now = time.monotonic()
                while self._undos and self._undos[0][0] <= now:
                    heapq.heappop(self._undos)[2]()
                self._fill_places()
                if now >= due:
                    is_calm = int((now - began) / self._phase_s) % 2 == 0
                    actions, weights = self._calm if is_calm else self._storm
                    self._rng.choices(actions, weights)[0]()
                    due = now + self._rng.expovariate(1 / self._pace_s)
        except BaseException as error:  # noqa: BLE001  told by whoever waits for the end
            self.failed = error

    def _later(self, seconds: float, undo: Undo) -> None:
        heapq.heappush(self._undos, (time.monotonic() + seconds, next(self._order), undo))

    def _done(self, kind: str) -> None:
        self.counts[kind] += 1

    def _blow(self, kind: str, workers: frozenset[str] | None) -> Blow:
        blow = Blow(kind, workers, now_ns())
        self.blows.append(blow)
        self._done(kind)
        return blow

    # --- workers ----------------------------------------------------------------------

    def _fill_places(self) -> None:
        """Start a worker where one has ended; one that was told to has status 0."""
        for post in self._fleet.posts:
            if not post.is_alive and not post.is_leaving:
                status = post.reap()
                self.exits[status] += 1
                if status != 0:
                    self._ledger.complain(f"worker {post.worker} ended by itself: {status}")
                self._fill(post)

    def _fill(self, post: Post) -> None:
        post.reap()
        post.is_leaving = False
        post.start()
        self._done("worker started")

    def _victim(self) -> Post | None:
        posts = [
            post
            for post in self._fleet.posts
            if post.is_alive and not post.is_stopped and not post.is_leaving
        ]
        return self._rng.choice(posts) if posts else None

    def _kill(self) -> None:
        if (post := self._victim()) is None:
            return
        blow = self._blow("worker killed (kill -9)", frozenset({post.worker}))
        post.is_leaving = True
        post.kill()
        blow.to_ns = now_ns()
        self._later(self._rng.uniform(0, 2), lambda: self._fill(post))

    def _kill_child(self) -> None:
        """Kill one of the processes that a worker or a supervisor has started."""
        if (post := self._victim()) is None:
            return
        children = post.processes()[1:]
        if not children:
            return
        blow = self._blow("worker's child killed (kill -9)", frozenset({post.worker}))
        post.signal(signal.SIGKILL, [self._rng.choice(children)])
        blow.to_ns = now_ns()

    def _stop_worker(self) -> None:
        if (post := self._victim()) is None:
            return
        self._suspend(post, self._rng.uniform(1.2, 3) * self._lease_s, is_harmless=False)

    def _nap(self) -> None:
        """Stop a worker for less than its leases last."""
        if (post := self._victim()) is None:
            return
        self._suspend(post, self._rng.uniform(0.1, 0.3) * self._lease_s, is_harmless=True)

    def _suspend(self, post: Post, seconds: float, *, is_harmless: bool) -> None:
        kind = "worker stopped within its lease" if is_harmless else "worker stopped past its lease"
        blow = None
        if is_harmless:
            self._done(kind)
        else:
            blow = self._blow(kind, frozenset({post.worker}))
        processes = post.processes()
        post.is_stopped = True
        post.signal(signal.SIGSTOP, processes)

        def go_on() -> None:
            post.signal(signal.SIGCONT, processes)
            post.is_stopped = False
            if blow is not None:
                blow.to_ns = now_ns()

        self._later(seconds, go_on)

    def _drain(self) -> None:
        """Tell a worker to stop; its jobs are shorter than its grace."""
        if (post := self._victim()) is None:
            return
        self._done("worker restarted (TERM)")
        post.is_leaving = True
        post.term()
        self._await_end(post, GRACE_S + 15)

    def _hand_back(self) -> None:
        """Tell a worker to stop, and a second later that it is urgent."""
        if (post := self._victim()) is None:
            return
        blow = self._blow("worker restarted (TERM twice)", frozenset({post.worker}))
        post.is_leaving = True
        post.term()

        def hurry() -> None:
            post.term()
            self._await_end(post, 15, blow)

        self._later(1.2, hurry)

    def _await_end(self, post: Post, patience_s: float, blow: Blow | None = None) -> None:
        give_up_at = time.monotonic() + patience_s

        def look() -> None:
            if post.is_alive and time.monotonic() < give_up_at:
                self._later(0.1, look)
                return
            if post.is_alive:
                self._ledger.complain(f"worker {post.worker} did not end within {patience_s:g} s")
                post.kill()
            else:
                was_ready = post.is_ready
                status = post.reap()
                self.exits[status] += 1
                # Before it is ready it has no handlers yet, and ends as any program does.
                if status != 0 and (was_ready or status != -signal.SIGTERM):
                    self._ledger.complain(f"worker {post.worker}, told to stop, ended: {status}")
            if blow is not None:
                blow.to_ns = now_ns()
            self._fill(post)

        self._later(0.1, look)

    # --- server -----------------------------------------------------------------------

    def _away(self, kind: str, end: Callable[[], None], seconds: float) -> None:
        if self._server_busy:
            return
        self._server_busy = True
        blow = self._blow(kind, None)
        end()

        def come_back() -> None:
            self._server.start()
            blow.to_ns = now_ns()
            self._server_busy = False

        self._later(seconds, come_back)

    def _kill_server(self) -> None:
        self._away(
            "Redis killed (kill -9) and restarted",
            lambda: os.kill(self._server.pid, signal.SIGKILL),
            self._rng.uniform(0, 1.5) * self._lease_s,
        )

    def _restart_server(self) -> None:
        self._away(
            "Redis restarted (TERM)", self._server.stop, self._rng.uniform(0, 1.5) * self._lease_s
        )

    def _stop_server(self) -> None:
        if self._server_busy:
            return
        self._server_busy = True
        blow = self._blow("Redis stopped and continued", None)
        pid = self._server.pid
        os.kill(pid, signal.SIGSTOP)

        def go_on() -> None:
            os.kill(pid, signal.SIGCONT)
            blow.to_ns = now_ns()
            self._server_busy = False

        self._later(self._rng.uniform(0.2, 1.5) * self._lease_s, go_on)

    def _ask_server(self, kind: str, *command: str) -> None:
        if self._server_busy:
            return
        with redis.Redis.from_url(self._server.url, socket_timeout=5) as client:
            client.execute_command(*command)
        self._done(kind)

    def _flush_scripts(self) -> None:
        self._ask_server("SCRIPT FLUSH", "SCRIPT", "FLUSH")

    def _kill_clients(self) -> None:
        kind = self._rng.choice(("normal", "pubsub"))
        self._ask_server(f"CLIENT KILL TYPE {kind}", "CLIENT", "KILL", "TYPE", kind)

    def _fill_memory(self) -> None:
        """Have no memory for new jobs; what ends jobs goes on."""
        if self._server_busy:
            return
        self._ask_server("memory full for a while", "CONFIG", "SET", "maxmemory", "1")

        def empty() -> None:
            if self._server_busy:  # a server that restarts forgets the limit by itself
                self._later(0.5, empty)
                return
            with redis.Redis.from_url(self._server.url, socket_timeout=5) as client:
                client.config_set("maxmemory", 0)

        self._later(self._rng.uniform(0.2, 2), empty)

    # --- network ----------------------------------------------------------------------

    def _pick_proxy(self) -> tuple[int, Proxy] | None:
        n = self._rng.randrange(len(self._network.proxies))
        return None if n in self._network.busy else (n, self._network.proxies[n])

    def _workers_behind(self, n: int) -> frozenset[str]:
        return frozenset(post.worker for post in self._posts_of[n])

    def _cut(self) -> None:
        if found := self._pick_proxy():
            found[1].cut()
            self._done("connections cut")

    def _lose_reply(self) -> None:
        if found := self._pick_proxy():
            found[1].cut_before_next_reply("EVALSHA")
            self._done("reply of a script lost")

    def _forge(self) -> None:
        word = self._rng.choice(
            (
                "LOADING Redis is loading the dataset in memory",
                "READONLY You can't write against a read only replica.",
                "NOSCRIPT No matching script. Please use EVAL.",
                "BUSY Redis is busy running a script.",
            )
        )
        if found := self._pick_proxy():
            found[1].answer_next(word, "EVALSHA")
            self._done(f"a script answered with {word.split()[0]}")

    def _hold(self, kind: str, act: Callable[[Proxy], Any], seconds: float, *, harms: bool) -> None:
        found = self._pick_proxy()
        if found is None:
            return
        n, proxy = found
        self._network.busy.add(n)
        blow = self._blow(kind, self._workers_behind(n)) if harms else None
        if blow is None:
            self._done(kind)
        act(proxy)

        def restore() -> None:
            proxy.restore()
            self._network.busy.discard(n)
            if blow is not None:
                blow.to_ns = now_ns()

        self._later(seconds, restore)

    def _delay(self) -> None:
        delay_s = self._rng.uniform(0.001, 0.1)
        seconds = self._rng.uniform(0.5, 3)
        self._hold("packets delayed", lambda proxy: proxy.delay(delay_s), seconds, harms=False)

    def _blackhole(self) -> None:
        seconds = self._rng.uniform(0.2, 2) * self._lease_s
        self._hold("packets swallowed", Proxy.blackhole, seconds, harms=True)

    def _refuse(self) -> None:
        seconds = self._rng.uniform(0.2, 1.5) * self._lease_s
        self._hold("connections refused", Proxy.refuse, seconds, harms=True)
