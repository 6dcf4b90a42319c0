"""Find and revive jobs in bounded pages: no call takes more than one, no command without end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from laneq.calls import jobs as job_calls
from laneq.cli.session import Session
from laneq.model import JobView, RemoteError, State

#: Ids in one call.
PAGE: Final = 100

#: Jobs read in one call for a list, and bytes of each part of them: no reply of Redis
#: is over 256 KiB (fault K5), whatever the jobs carry.
_ROWS: Final = 20
MOST_BYTES: Final = 1024

#: Jobs looked at in one place when only some are wanted.
MOST: Final = 10_000


@dataclass(slots=True)
class Filter:
    """Which jobs are wanted; None wants any.

    Attributes:
        was_cut: a place had more jobs than `MOST`, so that some were not looked at.
    """

    state: State | None = None
    task: str | None = None
    lane: str | None = None
    was_cut: bool = False

    def wants(self, job: JobView) -> bool:
        """Return whether a job is wanted."""
        return (
            self.state in {None, job.state}
            and self.task in {None, job.task}
            and self.lane in {None, job.lane}
        )


def look_at(session: Session, ids: Sequence[str]) -> list[JobView | None]:
    """Read jobs for a list, in pages; None for an id that is unknown.

    What is large of a job is left out: `laneq jobs show` has it.
    """
    found: list[JobView | None] = []
    for start in range(0, len(ids), _ROWS):
        page = ids[start : start + _ROWS]
        call = job_calls.look(session.keys, page, lanes=session.lanes.names, most=MOST_BYTES)
        views = session.call(call)
        found.extend(view and _brief(view) for view in views)
    return found


def _brief(view: JobView) -> JobView:
    """Return a job for a list: of an error's message, which may quote arguments, its beginning."""

    def cut(error: RemoteError | None) -> RemoteError | None:
        if error is None or len(error.message) <= MOST_BYTES:
            return error
        return replace(error, message=error.message[: MOST_BYTES - 1] + "…")

    history = tuple(replace(entry, error=cut(entry.error)) for entry in view.history)
    return replace(view, error=cut(view.error), history=history)


def revive(session: Session, ids: Sequence[str]) -> list[str]:
    """Give ended jobs a new life, in pages; a word for each, see `laneq.calls.jobs.revive`."""
    words: list[str] = []
    for start in range(0, len(ids), PAGE):
        page = ids[start : start + PAGE]
        call = job_calls.revive(session.keys, page, lanes=session.lanes.names)
        answers = session.call(call)
        words += answers
    return words


def wanted_in(
    session: Session, place: bytes, filter_: Filter, *, limit: int, newest_first: bool = False
) -> list[JobView]:
    """Return up to `limit` jobs of one sorted set that are wanted, in its order."""
    found: list[JobView] = []
    offset = 0
    while len(found) < limit:
        if offset >= MOST and offset >= limit:
            filter_.was_cut = True
            break
        page = session.call(
            job_calls.page(
                session.keys, place, offset=offset, limit=PAGE, newest_first=newest_first
            )
        )
        found += [job for job in look_at(session, page.ids) if job and filter_.wants(job)]
        offset += len(page.ids)
        if len(page.ids) < PAGE:
            break
    return found[:limit]


def list_jobs(
    session: Session, filter_: Filter, *, lanes: Sequence[str], limit: int
) -> list[JobView]:
    """Return jobs as people look for them.

    Running ones first, the longest first; then waiting ones, lane by lane in the order in
    which they will start; then scheduled ones, the soonest first; then those that have
    ended, the last first.
    """
    found: dict[str, JobView] = {}
    for places in (_running, _waiting, _scheduled, _ended):
        room = limit - len(found)
        if room <= 0:
            break
        for job in places(session, filter_, lanes, room):
            found.setdefault(job.id, job)
    return list(found.values())[:limit]


_Places = Callable[[Session, Filter, Sequence[str], int], list[JobView]]


def _is_asked_for(filter_: Filter, *states: State) -> bool:
    return filter_.state is None or filter_.state in states


def _of_lanes(
    session: Session,
    word: str,
    filter_: Filter,
    *,
    lanes: Sequence[str],
    limit: int,
    newest_first: bool = False,
) -> Iterator[JobView]:
    for lane in lanes:
        yield from wanted_in(
            session,
            session.keys.of_lane(word, lane),
            filter_,
            limit=limit,
            newest_first=newest_first,
        )


def _running(session: Session, filter_: Filter, lanes: Sequence[str], limit: int) -> list[JobView]:
    if not _is_asked_for(filter_, State.RUNNING):
        return []
    jobs = _of_lanes(session, "leases", filter_, lanes=lanes, limit=limit)
    return sorted(jobs, key=lambda job: job.started_at or 0.0)


def _waiting(session: Session, filter_: Filter, lanes: Sequence[str], limit: int) -> list[JobView]:
    if not _is_asked_for(filter_, State.WAITING):
        return []
    return list(_of_lanes(session, "waiting", filter_, lanes=lanes, limit=limit))


def _scheduled(
    session: Session, filter_: Filter, lanes: Sequence[str], limit: int
) -> list[JobView]:
    # Waiting too: the first ones may be due, and not taken in by a claim yet.
    if not _is_asked_for(filter_, State.SCHEDULED, State.WAITING):
        return []
    jobs = _of_lanes(session, "scheduled", filter_, lanes=lanes, limit=limit)
    return sorted(jobs, key=lambda job: job.ready_at or 0.0)


def _ended(session: Session, filter_: Filter, lanes: Sequence[str], limit: int) -> list[JobView]:
    jobs: list[JobView] = []
    if _is_asked_for(filter_, State.DEAD):
        jobs += _of_lanes(session, "dead", filter_, lanes=lanes, limit=limit, newest_first=True)
    if _is_asked_for(filter_, State.SUCCEEDED, State.CANCELLED, State.EXPIRED):
        jobs += wanted_in(session, session.keys.ended, filter_, limit=limit, newest_first=True)
    return sorted(jobs, key=lambda job: job.ended_at or 0.0, reverse=True)
