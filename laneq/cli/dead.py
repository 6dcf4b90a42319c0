"""``laneq dead``: list dead letters, give them a new life, purge them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import click

from laneq.calls import jobs as job_calls
from laneq.calls import stats
from laneq.cli.confirm import ask_before
from laneq.cli.group import NounGroup, data_options
from laneq.cli.look import MOST, PAGE, Filter, list_jobs, look_at, revive
from laneq.cli.output import Column, duration, print_table, progress
from laneq.cli.report import note, print_json
from laneq.cli.session import Session, opened
from laneq.cli.settings import Settings
from laneq.cli.status import Status
from laneq.model import State


@click.group(cls=NounGroup)
@data_options
def dead() -> None:
    """Look at, retry and purge jobs that were given up on."""


@dead.command("list")
@click.option("--lane", help="Only letters of this lane.")
@click.option("--task", help="Only letters of this task.")
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="At most."
)
@data_options
@click.pass_obj
def list_(settings: Settings, *, lane: str | None, task: str | None, limit: int) -> None:
    """List dead letters, the last one first."""
    wanted = Filter(state=State.DEAD, task=task, lane=lane)
    with opened(settings) as session:
        lanes = session.known_lanes((lane,) if lane else ())
        found = list_jobs(session, wanted, lanes=lanes, limit=limit + 1)
        present = session.call(stats.depths(session.keys, lanes))
        now = session.now()
    has_more, found = len(found) > limit, found[:limit]
    if settings.wants_json:
        print_json([job_calls.job_json(job) for job in found])
    elif not found:
        note("no dead letters")
    else:
        print_table(
            [
                Column("id"),
                Column("task", may_cut=True),
                Column("lane", may_cut=True),
                Column("died", "right"),
                Column("error", may_cut=True),
            ],
            [
                [
                    job.id,
                    job.task,
                    job.lane,
                    "-" if job.ended_at is None else f"{duration(now - job.ended_at)} ago",
                    f"{job.error.type}: {job.error.message}" if job.error else "-",
                ]
                for job in found
            ],
        )
        if has_more:
            note(f"there are more than these {limit:,}: see --limit, --lane and --task")
    for name, depth in zip(lanes, present, strict=True):
        dropped = depth.counts.get("dropped", 0)
        if dropped:
            note(f"{dropped:,} older letters of lane {name} were dropped (dead_max, dead_age)")
    if wanted.was_cut:
        note(f"only the first {MOST:,} letters of each lane were looked at")


# --- retry ------------------------------------------------------------------


@dead.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Retry all letters.")
@click.option("--lane", help="Only letters of this lane.")
@click.option("--task", help="Only letters of this task.")
@data_options
@click.pass_obj
def retry(
    settings: Settings,
    *,
    ids: tuple[str, ...],
    everything: bool,
    lane: str | None,
    task: str | None,
) -> Status:
    """Give dead letters a new life: they wait again, and their attempts start from 1.

    Letters whose body is gone are counted and left.
    """
    if bool(ids) == everything:
        raise click.UsageError("name the letters to retry, or give --all")
    wanted = Filter(state=State.DEAD, task=task, lane=lane)
    counts = {"revived": 0, "no_body": 0, "skipped": 0}
    with opened(settings) as session:
        lanes = session.known_lanes((lane,) if lane else ())
        if ids:
            counts |= _retry_named(session, list(dict.fromkeys(ids)), wanted)
        else:
            counts |= _retry_all(session, lanes, wanted)
    if settings.wants_json:
        print_json(counts)
    else:
        click.echo(
            f"revived {counts['revived']:,}, without a body {counts['no_body']:,}, "
            f"skipped {counts['skipped']:,}"
        )
    is_done = everything or counts["revived"] == len(dict.fromkeys(ids))
    return Status.DONE if is_done else Status.BAD_NEWS


def _counted(words: Sequence[str]) -> Counter[str]:
    return Counter(word if word in {"revived", "no_body"} else "skipped" for word in words)


def _retry_named(session: Session, ids: list[str], wanted: Filter) -> Counter[str]:
    letters: list[str] = []
    counts: Counter[str] = Counter()
    for job_id, job in zip(ids, look_at(session, ids), strict=True):
        if job is not None and wanted.wants(job):
            letters.append(job_id)
            continue
        counts["skipped"] += 1
        if job is None:
            why = "not found, or its record has run out"
        elif job.state is not State.DEAD:
            why = f"no dead letter, it is {job.state.value}"
        else:
            why = f"of task {job.task} in lane {job.lane}: not asked for"
        note(f"job {job_id}: {why}")
    words = revive(session, letters)
    for job_id, word in zip(letters, words, strict=True):
        if word == "no_body":
            note(f"job {job_id}: its body is gone, so it cannot run again")
    return counts + _counted(words)


def _retry_all(session: Session, lanes: Sequence[str], wanted: Filter) -> Counter[str]:
    counts: Counter[str] = Counter()

    def act(lane: str, ids: Sequence[str]) -> int:  # noqa: ARG001  the outcome names the lane
        words = revive(session, _of_task(session, ids, wanted))
        counts.update(_counted(words))
        return words.count("revived")

    _sweep(session, lanes, "retrying", act)
    return counts


def _of_task(session: Session, ids: Sequence[str], wanted: Filter) -> list[str]:
    if wanted.task is None:
        return list(ids)
    return [job.id for job in look_at(session, ids) if job and job.task == wanted.task]


def _sweep(
    session: Session, lanes: Sequence[str], title: str, act: Callable[[str, Sequence[str]], int]
) -> None:
    """Act on all letters that lanes have now, a page at a time.

    Args:
        session: the namespace.
        lanes: whose letters.
        title: shown beside the progress bar.
        act: gets a lane and a page of ids, and returns how many of them left the lane's
            letters; those that stay are not given to it again.
    """
    places = {lane: session.keys.of_lane("dead", lane) for lane in lanes}
    pages = {
        lane: session.call(job_calls.page(session.keys, place, offset=0, limit=1))
        for lane, place in places.items()
    }
    with progress(title, sum(page.total for page in pages.values())) as advance:
        for lane, place in places.items():
            # Letters that die meanwhile come last: they are not for this run.
            todo, stay = pages[lane].total, 0
            while todo > 0:
                page = session.call(
                    job_calls.page(session.keys, place, offset=stay, limit=min(PAGE, todo))
                )
                if not page.ids:
                    break
                stay += len(page.ids) - act(lane, page.ids)
                todo -= len(page.ids)
                advance(len(page.ids))


# --- purge ------------------------------------------------------------------


@dead.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--lane", help="Only letters of this lane.")
@click.option("--task", help="Only letters of this task.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@data_options
@click.pass_obj
def purge(
    settings: Settings,
    *,
    ids: tuple[str, ...],
    lane: str | None,
    task: str | None,
    yes: bool,
) -> Status:
    """Drop dead letters for good: those named, else all."""
    wanted = Filter(state=State.DEAD, task=task, lane=lane)
    with opened(settings) as session:
        lanes = session.known_lanes((lane,) if lane else ())
        named = list(dict.fromkeys(ids))
        total = len(named) or _letters(session, lanes)
        if total and not ask_before(_question(session, total, wanted), yes=yes):
            note("nothing was purged")
            return Status.BAD_NEWS
        purged = _purge(session, lanes, named, wanted)
    if settings.wants_json:
        print_json({"purged": purged})
    else:
        click.echo(f"purged {purged:,} dead letters")
    return Status.DONE if not named or purged == len(named) else Status.BAD_NEWS


def _letters(session: Session, lanes: Sequence[str]) -> int:
    return sum(d.dead_letters for d in session.call(stats.depths(session.keys, lanes)))


def _question(session: Session, total: int, wanted: Filter) -> str:
    what = f"the {total:,} dead letters"
    if wanted.task:
        what = f"those of task {wanted.task!r} among {what}"
    where = f"lane {wanted.lane!r}" if wanted.lane else "all lanes"
    return f"Drop {what} of {where} in namespace {session.keys.namespace!r}?"


def _purge(session: Session, lanes: Sequence[str], ids: Sequence[str], wanted: Filter) -> int:
    purged = 0

    def act(lane: str, page: Sequence[str]) -> int:
        nonlocal purged
        letters = _of_task(session, page, wanted)
        dropped = 0
        if letters:
            dropped = session.call(job_calls.purge_dead(session.keys, lanes=[lane], ids=letters))
        purged += dropped
        return dropped

    if not ids:
        _sweep(session, lanes, "purging", act)
        return purged
    for job_id, job in zip(ids, look_at(session, ids), strict=True):
        if job is not None and wanted.wants(job):
            act(job.lane, [job_id])
        else:
            note(f"job {job_id}: no such dead letter")
    return purged
