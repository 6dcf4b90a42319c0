"""The claim loop: report outcomes, ask for jobs, listen for work when idle.

One coroutine owns the worker's side of the claim's protocol, so each of its rules is a line here:

- Claims are numbered and one at a time. Outcomes that come while one is in flight ride in the
  next. A claim whose reply was lost is sent again under the same number, with the same
  outcomes, until Redis answers; nothing is ever given up.
- A claim is sent from wherever it becomes due, and its reply acted upon where it arrives: what
  is in flight is `_sent`, and the loop sleeps meanwhile. Each turn of the event loop between a
  reply, its jobs, and the claim that reports them would cost as much as the job's own hand-over.
  What does not go straight (no connection, an error, lanes that have changed) is the loop's.
- A claim is due when outcomes are pending, or when a slot is free and there may be work for
  it: a token was popped, a look is due, or the last claim left something over.
- A blocking pop is begun only here, so never while a claim is in flight. A claim may be sent
  while a pop waits, and says for which lanes it does: the script ends the pop when it fills
  the slots that these lanes could use.
- A token is a hint. When the worker stops while it holds one, it puts it back.
- A worker that is wholly idle sends its next claim ahead, right behind the pop on the same
  connection: the server carries it out when it has ended the pop, so that a new job starts one
  round trip sooner. That claim is the one in flight. Whatever else needs a claim ends the pop.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from laneq.calls.call import Call
from laneq.calls.lanes import LanesInForce, read_lanes
from laneq.calls.workers import CLAIM_MAX, ClaimCalls, ClaimReply, Ended, pass_on
from laneq.drive import AsyncDriver, Begun, BlockingWire, backoff_s, is_trouble
from laneq.errors import RedisRefused, RedisUnavailable, StoreError
from laneq.keys import Keys
from laneq.worker.lines import Throttle, log
from laneq.worker.runner import Runner
from laneq.worker.slots import Slots

#: Most bytes of results and errors in one claim; more go in the next.
_MOST_BYTES: Final = 8 * 1024 * 1024

#: Most jobs that the outcomes of one claim may enqueue.
_MOST_CHILDREN: Final = 2_000

#: Shortest and longest part of the poll interval that an idle worker waits, so that a fleet
#: does not look in step.
_JITTER: Final = (0.75, 1.0)

_QUIET_S: Final = 10.0

#: Shortest timeout of a pop, in seconds; 0 would be none.
_SHORTEST_S: Final = 0.001


class _Sent:
    """A claim in flight.

    Attributes:
        asked: how many jobs it asked for.
        read: turns the raw reply into what it says; None for lanes that have changed.
        is_look: whether it looks for what is due and lost.
        begun: the call, and where it was sent; None for one that was sent ahead, behind a pop.
        reply: the raw reply, if it is one for the loop: an error, or lanes that have changed.
        error: why there is none to a claim that was sent ahead.
    """

    __slots__ = ("asked", "begun", "error", "is_look", "read", "reply")

    def __init__(
        self, asked: int, read: Callable[[Any], ClaimReply | None], *, is_look: bool
    ) -> None:
        self.asked = asked
        self.read = read
        self.is_look = is_look
        self.begun: Begun[ClaimReply | None] | None = None
        self.reply: Any = None
        self.error: StoreError | None = None


class ClaimLoop:
    """The claims and the waits of one worker.

    Args:
        driver: the worker's own.
        keys: the namespace.
        worker_id: the worker's incarnation.
        slots: the worker's.
        runner: gets the claimed jobs, has the outcomes.
        poll_s: seconds after which an idle worker looks although nothing woke it.
        is_burst: end when nothing is waiting and nothing runs.
        on_lanes: told the lanes in force, at first and each time they change.
        declared: lanes that the app declares.
        publish: makes them known again, where a flush has emptied the namespace.

    Attributes:
        lanes: the lanes in force; None before `run`.
        claims: claims that were answered.
        claimed: jobs that they brought.
    """

    def __init__(
        self,
        driver: AsyncDriver,
        keys: Keys,
        worker_id: str,
        *,
        slots: Slots,
        runner: Runner,
        poll_s: float,
        is_burst: bool,
        on_lanes: Callable[[LanesInForce], None],
        declared: Collection[str],
        publish: Callable[[], Call[int]],
    ) -> None:
        self._driver = driver
        self._keys = keys
        self._worker_id = worker_id
        self._slots = slots
        self._runner = runner
        self._poll_s = poll_s
        self._is_burst = is_burst
        self._on_lanes = on_lanes
        self._declared = frozenset(declared)
        self._publish = publish
        self._has_lost_lanes = False
        self._loop = asyncio.get_running_loop()
        self._blocking: BlockingWire = driver.blocking()
        self._doorbell = keys.doorbell(worker_id)
        self._calls: ClaimCalls | None = None
        self._rare = Throttle(_QUIET_S)
        self._seq = 0
        self._fence_floor = 0
        self._in_flight: list[Ended] = []
        self._closed: frozenset[str] = frozenset()
        self._is_due = self._is_look = True
        self._is_draining = self._is_finishing = self._is_woken = False
        self._look_at: float | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._pop: asyncio.Task[None] | None = None
        self._is_pop_over = False
        self._listened: tuple[str, ...] = ()
        self._sent: _Sent | None = None
        self._ahead: _Sent | None = None
        self._is_asleep = False
        self._crash: BaseException | None = None
        self._deaf_until = 0.0
        self._idle_seq = 0
        self._watchers: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self.lanes: LanesInForce | None = None
        self.claims = 0
        self.claimed = 0

    # --- what others ask of it --------------------------------------------------------

    def wake(self) -> None:
        """Have the loop look at what there is to do."""
        self._is_woken = True
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def report(self) -> None:
        """Take in that an outcome is to be reported, or that a slot is free."""
        # Where nothing else runs, nothing will come that could ride along.
        if (
            self._is_asleep
            and self._slots.running == 0
            and self._runner.ended
            and not self._is_draining
            and self._sent is None
            and self._ahead is None
            and self._send()
        ):
            return
        self.wake()

    def look(self) -> None:
        """Claim now, and look for what is due and lost as well."""
        self._is_due = self._is_look = True
        self.wake()

    def drain(self) -> None:
        """Claim no further jobs; go on to report outcomes."""
        self._is_draining = True
        self.wake()

    def finish(self) -> None:
        """End when all outcomes are reported."""
        self._is_draining = self._is_finishing = True
        self.wake()

    def unreported(self) -> list[Ended]:
        """Return outcomes that Redis has not confirmed; safe to call in any thread."""
        # In the order in which an outcome moves, so that none is missed on the way.
        return [*self._runner.ended, *self._in_flight]

    @property
    def is_reported(self) -> bool:
        """Return whether Redis has confirmed every outcome."""
        return not self._runner.ended and not self._in_flight

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until a condition holds; it is looked at whenever something has changed."""
        if is_so():
            return
        future: asyncio.Future[None] = self._loop.create_future()
        self._watchers.append((is_so, future))
        await future

    async def until_idle(self) -> None:
        """Wait until a claim sent from now on finds nothing to start and nothing runs."""
        asked = self._seq
        self.look()
        await self.until(lambda: self._idle_seq > asked)

    # --- the loop ---------------------------------------------------------------------

    async def run(self) -> None:
        """Claim and listen until told to finish."""
        while True:
            # What happens from here on is either seen below or ends the sleep.
            self._is_woken = False
            if self._crash is not None:
                raise self._crash
            if self._sent is not None:
                if self._sent.reply is None:
                    await self._sleep()
                else:
                    await self._carry_on()
            elif self._ahead is not None and (
                self._pop is None or self._must_claim() or self._is_draining
            ):
                await self._take_ahead()
            elif self._must_claim():
                if not self._send():
                    await self._claim()
            elif self._is_finishing:
                break
            else:
                await self._listen()
                await self._sleep()
        await self._end_pop()

    async def aclose(self) -> None:
        """Close the connection for pops."""
        if self._pop is not None:
            self._pop.cancel()
        await self._blocking.aclose()

    def _must_claim(self) -> bool:
        """Return whether there are outcomes to report, or work for a free slot."""
        return bool(self._runner.ended) or (
            self._is_due and self._slots.free > 0 and not self._is_draining
        )

    async def _sleep(self) -> None:
        """Wait until something has to be done."""
        if self._watchers:
            self._look_at_conditions()
        if self._is_woken:
            return
        self._waiter = self._loop.create_future()
        timer = None
        if self._look_at is not None and self._sent is None:
            timer = self._loop.call_at(self._look_at, self.look)
        self._is_asleep = True
        try:
            await self._waiter
        finally:
            self._is_asleep = False
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _look_at_conditions(self) -> None:
        for each in list(self._watchers):
            is_so, future = each
            if future.done() or is_so():
                self._watchers.remove(each)
                if not future.done():
                    future.set_result(None)

    # --- claims -----------------------------------------------------------------------

    def _send(self) -> bool:
        """Send the next claim at once; return False where only the loop can, and nothing was done.

        No claim may be in flight.
        """
        calls = self._calls
        if calls is None or self._has_lost_lanes or not self._driver.is_ready:
            return False
        self._seq += 1
        is_look, self._is_look, self._is_due = self._is_look, False, False
        asked, claim = self._next_claim(calls, self._take_outcomes(), is_look=is_look)
        sent = self._sent = _Sent(asked, claim.read, is_look=is_look)
        sent.begun = self._driver.begin(claim, self._answer)
        return True

    def _answer(self, reply: Any) -> None:
        """Act on the reply of the claim that was sent, or leave it to the loop."""
        sent = self._sent
        if sent is None:
            return
        try:
            read = None if is_trouble(reply) else sent.read(reply)
            if read is None:
                sent.reply = reply
                self.wake()
                return
            self._sent = None
            self._act_on(read, sent.asked, is_look=sent.is_look)
            if not self._is_settled():
                self.wake()
        except BaseException as error:  # noqa: BLE001  `run` raises it
            self._crash = error
            self.wake()

    def _is_settled(self) -> bool:
        """Return whether the loop may sleep on: a claim is in flight, or all slots are busy."""
        if self._watchers or self._is_draining:
            return False
        return self._sent is not None or (self._slots.free <= 0 and not self._runner.ended)

    async def _carry_on(self) -> None:
        """Go on with a claim that met trouble, or lanes that have changed."""
        sent, self._sent = self._sent, None
        if sent is None:
            return
        reply, asked = await self._ask(self._in_flight, is_look=sent.is_look, sent=sent)
        self._act_on(reply, asked, is_look=sent.is_look)

    async def _claim(self) -> None:
        """Send one claim, as often as it takes, and act on its reply."""
        self._seq += 1
        outcomes = self._take_outcomes()
        is_look, self._is_look, self._is_due = self._is_look, False, False
        reply, asked = await self._ask(outcomes, is_look=is_look)
        self._act_on(reply, asked, is_look=is_look)

    def _answer_ahead(self, reply: Any) -> None:
        """Act on the reply of the claim that was sent ahead, unless it is one for the loop."""
        ahead = self._ahead
        try:
            read = None if ahead is None else ahead.read(reply)
            if ahead is None or read is None:
                return
            self._ahead = None
            # Its pop is over, though its task has not heard of it yet.
            self._slots.listen(())
            self._listened = ()
            self._act_on(read, ahead.asked, is_look=ahead.is_look)
        except BaseException as error:  # noqa: BLE001  `run` raises it
            self._crash = error
            self.wake()

    async def _take_ahead(self) -> None:
        """End the pop, and see to the claim that was sent ahead if that met trouble."""
        await self._end_pop()
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return
        if isinstance(ahead.error, RedisUnavailable):
            # Whether it was applied is not known: the same number tells.
            self._tell_trouble(ahead.error)
            reply, asked = await self._ask([], is_look=True, is_repeat=True)
            self._act_on(reply, asked, is_look=ahead.is_look)
            return
        # Refused, or for lanes that have changed since: nothing was done.
        if ahead.error is None:
            self._calls = None
        self._is_due = self._is_look = True

    def _act_on(self, reply: ClaimReply, asked: int, *, is_look: bool) -> None:
        """Take in the reply of a claim."""
        self._in_flight = []
        self.claims += 1
        self._closed = reply.closed
        for job_id in reply.stale:
            log.warning(
                "job %s: lease lost, its outcome here is discarded; another attempt has it", job_id
            )
        if reply.jobs:
            self.claimed += len(reply.jobs)
            self._fence_floor = max(self._fence_floor, *(job.fence for job in reply.jobs))
            if self._is_draining:
                self._runner.refuse(reply)
            else:
                self._runner.take(reply)
        # A claim that was filled has most likely left something over.
        if reply.is_more or 0 < asked <= len(reply.jobs):
            self._is_due = True
        self._look_at = None
        if reply.wake_after_us >= 0:
            self._look_at = self._loop.time() + reply.wake_after_us / 1e6
        if reply.jobs and not self._is_draining:
            if self._must_claim():
                # First the next claim, then these jobs while it is on its way.
                self._send()
            self._runner.start(reply)
        elif not reply.jobs and not reply.is_more and self._slots.running == 0:
            self._is_idle(asked, is_look=is_look)

    def _is_idle(self, asked: int, *, is_look: bool) -> None:
        """Take in that a claim found nothing to do."""
        if self._runner.ended or asked == 0:
            return
        self._idle_seq = self._seq
        if self._is_burst:
            if is_look:
                self.finish()
            else:
                self.look()

    def _take_outcomes(self) -> list[Ended]:
        """Move outcomes that are pending in flight, as many as one claim should carry."""
        ended = self._runner.ended
        n, size, children = 0, 0, 0
        for each in ended:
            size += len(each.body)
            children += len(each.children)
            if n and (n >= CLAIM_MAX or size > _MOST_BYTES or children > _MOST_CHILDREN):
                break
            n += 1
        # First put there, then taken away here: see `unreported`.
        self._in_flight = ended[:n]
        del ended[:n]
        return self._in_flight

    async def _ask(
        self,
        outcomes: list[Ended],
        *,
        is_look: bool,
        is_repeat: bool = False,
        sent: _Sent | None = None,
    ) -> tuple[ClaimReply, int]:
        """Return the reply of a claim, and how many jobs it asked for.

        Args:
            outcomes: what it reports.
            is_look: whether it looks for what is due and lost.
            is_repeat: whether it may have been applied already.
            sent: its first try, if that was made.
        """
        tries, away_since = 0, 0.0
        readings = 0
        while True:
            try:
                if sent is not None:
                    first, sent = sent, None
                    asked, reply = first.asked, await self._go_on_with(first)
                else:
                    if self._calls is None:
                        readings += 1
                        if readings > 1:  # somebody changes the lanes again and again
                            await asyncio.sleep(backoff_s(readings - 2))
                    calls = self._calls or await self._read_lanes()
                    if self._has_lost_lanes:
                        outcomes = self._of_known_lanes(outcomes, calls.lanes.names)
                    asked, claim = self._next_claim(
                        calls, outcomes, is_repeat=is_repeat, is_look=is_look
                    )
                    reply = await self._driver.call(claim)
            except StoreError as error:
                # Whether it was applied is not known from here on; the same number tells.
                is_repeat = is_repeat or isinstance(error, RedisUnavailable)
                away_since = away_since or time.monotonic()
                self._tell_trouble(error)
                await asyncio.sleep(backoff_s(tries))
                tries += 1
                continue
            if reply is not None:
                if away_since:
                    log.warning("Redis answers again after %.1f s", time.monotonic() - away_since)
                return reply, asked
            self._calls = None

    async def _go_on_with(self, sent: _Sent) -> ClaimReply | None:
        """Return the reply of a claim that met trouble; None where the lanes have changed."""
        if sent.begun is None or not is_trouble(sent.reply):
            return None
        return await self._driver.carry_on(sent.begun, sent.reply)

    def _next_claim(
        self,
        calls: ClaimCalls,
        outcomes: Sequence[Ended],
        *,
        is_look: bool,
        is_repeat: bool = False,
    ) -> tuple[int, Call[ClaimReply | None]]:
        """Return how many jobs a claim for all free slots asks for, and the claim."""
        free = 0 if self._is_draining else max(0, self._slots.free)
        claim = calls.claim(
            seq=self._seq,
            slots=self._slots.total,
            free=free,
            seats=self._slots.seats,
            outcomes=outcomes,
            is_repeat=is_repeat,
            is_look=is_look,
            fence_floor=self._fence_floor,
        )
        return min(free, CLAIM_MAX), claim

    def _tell_trouble(self, error: StoreError) -> None:
        if self._rare.allows(type(error).__name__):
            what = "refuses" if isinstance(error, RedisRefused) else "is away"
            log.warning("Redis %s; jobs go on, outcomes are kept: %s", what, error)

    async def know_lanes(self) -> None:
        """Read the lanes in force, before `run`.

        Raises:
            StoreError: Redis is away, or refuses.
        """
        await self._read_lanes()

    def _of_known_lanes(self, outcomes: list[Ended], known: Sequence[str]) -> list[Ended]:
        """Leave out outcomes of lanes, or with jobs for lanes, that a flush has taken away."""
        kept = []
        for each in outcomes:
            if each.lane in known and all(child.lane in known for child in each.children):
                kept.append(each)
            else:
                log.warning(
                    "job %s: its lane is gone from Redis, so its outcome is discarded", each.id
                )
        if len(kept) < len(outcomes):
            self._in_flight = kept
        return kept

    async def _read_lanes(self) -> ClaimCalls:
        lanes = await self._driver.call(read_lanes(self._keys))
        if not self._declared <= set(lanes.names):
            # FLUSHALL, or a restart of a server that persists nothing.
            log.warning(
                "Redis has lost lanes of namespace %s and what waited in them; they are "
                "published again",
                self._keys.namespace,
            )
            await self._driver.call(self._publish())
            lanes = await self._driver.call(read_lanes(self._keys))
        elif lanes.is_partial:
            # An older laneq published its lanes, and with them the options that it knows only.
            await self._driver.call(self._publish())
            lanes = await self._driver.call(read_lanes(self._keys))
        if self.lanes is not None and not set(self.lanes.names) <= set(lanes.names):
            self._has_lost_lanes = True
        self.lanes = lanes
        self._on_lanes(lanes)
        self._runner.lanes = lanes.names
        self._calls = ClaimCalls(self._keys, self._worker_id, lanes)
        return self._calls

    # --- listening --------------------------------------------------------------------

    async def _listen(self) -> None:
        """Wait for tokens of the lanes that a free slot may take; of no others."""
        usable = () if self._is_draining else self._slots.usable_lanes(self._closed)
        if self._pop is not None:
            if self._is_draining or not set(usable) <= set(self._listened):
                # A pop for lanes that became of no use is ended by the claim that made
                # them so. One for too few lanes is ended here, and begun anew.
                await self._end_pop()
            else:
                return
        now = self._loop.time()
        if usable and now >= self._deaf_until:
            wait_s = self._poll_s * random.uniform(*_JITTER)
            claim = None
            if self._slots.running == 0 and self._calls is not None and not self._is_burst:
                wait_s, claim = self._send_ahead(self._calls, wait_s)
            self._listened = usable
            self._slots.listen(usable)
            self._pop = self._loop.create_task(self._wait_for_token(usable, wait_s, claim))
        elif self._slots.free > 0 and not self._is_draining:
            # Nothing to listen for: what changes is seen by looking.
            look_at = now + self._poll_s * random.uniform(*_JITTER)
            self._look_at = look_at if self._look_at is None else min(look_at, self._look_at)

    def _send_ahead(
        self, calls: ClaimCalls, wait_s: float
    ) -> tuple[float, Call[ClaimReply | None]]:
        """Return how long to wait for a token, and the claim to send behind the pop."""
        is_look = False
        if self._look_at is not None:
            # The end of the pop is the look at what is due then.
            is_look = self._look_at - self._loop.time() < wait_s
            wait_s = max(min(wait_s, self._look_at - self._loop.time()), _SHORTEST_S)
            self._look_at = None
        self._seq += 1
        asked, claim = self._next_claim(calls, (), is_look=is_look)
        self._ahead = _Sent(asked, claim.read, is_look=is_look)
        return wait_s, claim

    async def _wait_for_token(
        self, lanes: tuple[str, ...], wait_s: float, claim: Call[ClaimReply | None] | None
    ) -> None:
        keys = (self._doorbell, *(self._keys.wake(lane) for lane in lanes))
        ahead = self._ahead
        try:
            if self._is_pop_over:
                # It was ended before it began: nothing was sent, no claim either.
                self._ahead = None
                self._is_look |= claim is not None
                return
            if claim is not None and ahead is not None:
                try:
                    await self._blocking.pop_then(keys, wait_s, claim, self._answer_ahead)
                except StoreError as error:
                    ahead.error = error
                if self._blocking.pop_error is not None:
                    raise self._blocking.pop_error
                return
            key = await self._blocking.pop(keys, wait_s)
        except StoreError as error:
            self._tell_trouble(error)
            # A claim follows, which waits until Redis answers; a refusal of this very
            # command must not make a hot loop of the two.
            self._deaf_until = self._loop.time() + self._poll_s
            self._is_due = self._is_look = True
        else:
            if key is None:
                self._is_due = self._is_look = True
            elif key != self._doorbell:
                self._is_due = True
                if self._is_draining:
                    await self._put_back(key)
        finally:
            self._slots.listen(())
            self._listened = ()
            self._pop = None
            self._is_pop_over = False
            self.wake()

    async def _put_back(self, key: bytes) -> None:
        """Give a token that this worker cannot use to another."""
        try:
            lane = key.rpartition(b":")[2].decode()
            await self._driver.call(pass_on(self._keys, [lane]))
        except StoreError as error:
            # The others look by themselves within their poll interval.
            log.debug("a wake-up was not passed on: %s", error)

    async def _end_pop(self) -> None:
        pop = self._pop
        if pop is not None:
            # The task of the pop may not have run yet: then there is nothing to interrupt.
            self._is_pop_over = True
            await self._blocking.interrupt()
            await asyncio.wait((pop,))


def shortest_lease_us(lanes: LanesInForce) -> int:
    """Return the shortest lease of all lanes, in microseconds."""
    return min((lane.lease_us for lane in lanes.lanes), default=15_000_000)
