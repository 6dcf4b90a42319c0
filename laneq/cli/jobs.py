"""``laneq jobs``: list jobs, show one, cancel and retry them."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Final

import click

from laneq.calls import jobs as job_calls
from laneq.cli.group import NounGroup, data_options
from laneq.cli.look import MOST, Filter, list_jobs, revive
from laneq.cli.output import (
    Column,
    compact,
    duration,
    instant,
    print_fields,
    print_table,
    shortened,
)
from laneq.cli.report import note, print_json
from laneq.cli.session import Session, opened
from laneq.cli.settings import Settings
from laneq.cli.status import Status
from laneq.errors import JobNotFound
from laneq.model import JobView, RemoteError, State
from laneq.why import Explanation, read_why

#: Workers that `why` names.
_TAKERS: Final = 10


@click.group(cls=NounGroup)
@data_options
def jobs() -> None:
    """Look at and steer jobs."""


# --- list -------------------------------------------------------------------


@jobs.command("list")
@click.option("--lane", help="Only jobs of this lane.")
@click.option("--state", type=click.Choice([state.value for state in State]), help="Only these.")
@click.option("--task", help="Only jobs of this task.")
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="At most."
)
@data_options
@click.pass_obj
def list_(
    settings: Settings, *, lane: str | None, state: str | None, task: str | None, limit: int
) -> None:
    """List open jobs, and ended ones while their record is kept.

    Running ones come first, then waiting ones in the order in which each lane starts
    them, then scheduled ones, then those that have ended, the last one first. What is
    over 1 KB of a job's arguments or result is left out here: `show` has it.
    """
    wanted = Filter(state=None if state is None else State(state), task=task, lane=lane)
    with opened(settings) as session:
        lanes = session.known_lanes((lane,) if lane else ())
        found = list_jobs(session, wanted, lanes=lanes, limit=limit + 1)
        now = session.now()
    has_more, found = len(found) > limit, found[:limit]
    if settings.wants_json:
        print_json([job_calls.job_json(job) for job in found])
    else:
        _print_jobs(found, now)
        if has_more:
            note(f"there are more than these {limit:,}: see --limit, --lane, --state and --task")
        elif not found:
            note("no such job")
    if wanted.was_cut:
        note(f"only the first {MOST:,} jobs of each lane and state were looked at")


def _print_jobs(found: list[JobView], now: float) -> None:
    if not found:
        return
    print_table(
        [
            Column("id"),
            Column("task", may_cut=True),
            Column("lane", may_cut=True),
            Column("state"),
            Column("attempt", "right"),
            Column("when", "right"),
        ],
        [
            [
                job.id,
                job.task,
                job.lane,
                job.state.value,
                f"{job.attempt}/{job.max_attempts}",
                _when(job, now),
            ]
            for job in found
        ],
    )


def _when(job: JobView, now: float) -> str:
    match job.state:
        case State.RUNNING:
            at, words = job.started_at, "for {}"
        case State.WAITING:
            at, words = job.ready_at, "for {}"
        case State.SCHEDULED:
            at, words = job.ready_at, "in {}"
        case _:
            at, words = job.ended_at, "{} ago"
    return "-" if at is None else words.format(duration(abs(now - at)))


# --- show -------------------------------------------------------------------


@jobs.command()
@click.argument("job_id", metavar="ID")
@data_options
@click.pass_obj
def show(settings: Settings, job_id: str) -> None:
    """Show all that is known of one job: arguments, attempts, error, result."""
    with opened(settings) as session:
        (job,) = session.call(job_calls.look(session.keys, [job_id], lanes=session.lanes.names))
    if job is None:
        raise JobNotFound(job_id)
    if settings.wants_json:
        print_json(job_calls.job_json(job))
    else:
        _print_job(job)


def _print_job(job: JobView) -> None:
    shown = job_calls.job_json(job)
    state = job.state.value
    if job.cancel_requested and job.state is State.RUNNING:
        state += ", cancel requested"
    fields = [
        ("id", job.id),
        ("task", job.task),
        ("lane", job.lane),
        ("state", state),
        ("args", _value(shown["args"])),
        ("kwargs", _value(shown["kwargs"])),
        ("attempt", f"{job.attempt} of {job.max_attempts}"),
        ("enqueued", instant(job.enqueued_at)),
        ("ready", instant(job.ready_at)),
        ("started", instant(job.started_at)),
        ("ended", instant(job.ended_at)),
        ("worker", job.worker or "-"),
    ]
    if job.progress is not None:
        fields.append(("progress", _value(shown["progress"])))
    if job.has_result:
        fields.append(("result", _value(shown["result"])))
    if job.error is not None:
        fields.append(("error", _error(job.error)))
    print_fields(fields)
    for entry in job.history:
        took = None
        if entry.started_at is not None and entry.ended_at is not None:
            took = entry.ended_at - entry.started_at
        click.echo(f"\nattempt {entry.attempt}: {entry.outcome}")
        lines = [
            ("  started", instant(entry.started_at)),
            ("  took", duration(took)),
            ("  worker", entry.worker or "-"),
        ]
        if entry.error is not None:
            lines.append(("  error", _error(entry.error)))
        print_fields(lines)


def _value(value: Any) -> str:
    return shortened(json.dumps(value, ensure_ascii=False))


def _error(error: RemoteError) -> str:
    first = f"{error.type}: {error.message}" if error.message else error.type
    return f"{first}\n{error.traceback.rstrip()}" if error.traceback else first


# --- why --------------------------------------------------------------------


@jobs.command()
@click.argument("job_id", metavar="ID")
@data_options
@click.pass_obj
def why(settings: Settings, job_id: str) -> None:
    """Say why a job is where it is, what holds it back, and when it starts.

    Of one that waits: its place in its lane, what it is worth now, the slots that may take
    it, and a guess from measured rates. What workers say is as old as their last heartbeat.
    """
    with opened(settings) as session:
        found = read_why(session.driver, session.keys, job_id)
    if settings.wants_json:
        print_json(asdict(found))
    else:
        print_why(found)


def print_why(found: Explanation) -> None:
    """Print why a job is where it is."""
    fields = [
        ("job", f"{found.id}, task {found.task}, lane {found.lane}"),
        ("state", found.state.value),
        ("why", found.text),
    ]
    if found.position is not None:
        fields.append(("place", f"{found.position:,} of {found.waiting or 0:,} in its lane"))
    if found.value is not None:
        fields.append(("value now", compact(found.value)))
    if found.due_at is not None:
        fields.append(("due", instant(found.due_at)))
    if found.lease_left_s is not None:
        left = found.lease_left_s
        ended = f"ran out {duration(-left)} ago"
        fields.append(("lease left", duration(left) if left >= 0 else ended))
    if found.holds:
        told = [f"{hold.kind}: {hold.text}" for hold in found.holds]
        fields.append(("holds", "\n".join(told)))
    if found.takers:
        told = [
            f"{one.worker} (host {one.host}, pid {one.pid}): {one.text}"
            for one in found.takers[:_TAKERS]
        ]
        if len(found.takers) > _TAKERS:
            told.append(f"and {len(found.takers) - _TAKERS:,} workers more")
        fields.append(("slots", "\n".join(told)))
    if found.expected is not None:
        in_s = found.expected.in_s
        when = "no guess" if in_s is None else "now" if in_s == 0 else f"in about {duration(in_s)}"
        fields.append(("starts", f"{when}: {found.expected.how}"))
    if found.advice is not None:
        fields.append(("do", found.advice))
    print_fields(fields)


# --- steer ------------------------------------------------------------------


@jobs.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@data_options
@click.pass_obj
def cancel(settings: Settings, ids: tuple[str, ...]) -> Status:
    """Cancel jobs: one that has not started never will; one that runs is asked to end."""
    with opened(settings) as session:
        answers = [{"id": job_id, **_cancel(session, job_id)} for job_id in dict.fromkeys(ids)]
    for answer in answers:
        _tell(settings, answer)
    if settings.wants_json:
        print_json(answers)
    is_done = all(answer["outcome"] in {"cancelled", "requested"} for answer in answers)
    return Status.DONE if is_done else Status.BAD_NEWS


def _cancel(session: Session, job_id: str) -> dict[str, Any]:
    call = job_calls.cancel(
        session.keys, job_id, lanes=session.lanes.names, keep_us=job_calls.KEEP_US
    )
    try:
        done = session.call(call)
    except JobNotFound:
        return {"outcome": "unknown", "state": None, "message": _SAYS["unknown"]}
    match done.word:
        case "cancelled":
            return {"outcome": "cancelled", "state": "cancelled", "message": "cancelled"}
        case "requested":
            message = "it runs: its worker was told to end it"
            return {"outcome": "requested", "state": "running", "message": message}
        case _:
            state = None if done.state is None else done.state.value
            message = f"too late: it has ended, {state}"
            return {"outcome": "ended", "state": state, "message": message}


@jobs.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@data_options
@click.pass_obj
def retry(settings: Settings, ids: tuple[str, ...]) -> Status:
    """Give ended jobs a new life: they wait again, and their attempts start from 1."""
    with opened(settings) as session:
        named = list(dict.fromkeys(ids))
        answers = [
            {"id": job_id, "outcome": word, "message": _SAYS.get(word, word)}
            for job_id, word in zip(named, revive(session, named), strict=True)
        ]
    for answer in answers:
        _tell(settings, answer)
    if settings.wants_json:
        print_json(answers)
    is_done = all(answer["outcome"] == "revived" for answer in answers)
    return Status.DONE if is_done else Status.BAD_NEWS


_SAYS = {
    "revived": "waits again",
    "no_body": "its body is gone: it cannot run again",
    "unknown": "not found, or its record has run out",
    "open": "it has not ended: there is nothing to retry",
}


def _tell(settings: Settings, answer: dict[str, Any]) -> None:
    is_good = answer["outcome"] in {"cancelled", "requested", "revived"}
    if is_good and settings.wants_json:
        return
    line = f"{answer['id']}: {answer['message']}"
    click.echo(line if is_good else f"laneq: job {line}", err=not is_good)
