"""``laneq enqueue``: enqueue a task by its name, with or without its code."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import click

from laneq.calls import jobs as job_calls
from laneq.calls import workers as worker_calls
from laneq.calls.jobs import Outcome
from laneq.cli.group import data_options
from laneq.cli.output import progress
from laneq.cli.report import note, print_json
from laneq.cli.session import Session, opened
from laneq.cli.settings import Settings
from laneq.cli.status import Status
from laneq.errors import JobEnded, UnknownLane, suggest
from laneq.model import State
from laneq.options import seconds_from_text
from laneq.task import CallKwargs, enqueue_many

#: What may stand without ``--`` before it, although it begins with a dash.
_NEGATIVE: Final = re.compile(r"-(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")

_AFTER: Final = "laneq.after_dashes"


class _WithNegatives(click.Command):
    """A command whose arguments may be negative numbers."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Note how many arguments come after ``--``, which click drops."""
        after = args[args.index("--") + 1 :] if "--" in args else []
        ctx.meta[_AFTER] = len(after)
        return super().parse_args(ctx, args)


def _read_args(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> list[Any]:  # noqa: ARG001
    before = len(given) - ctx.meta[_AFTER]
    for text in given[:before]:
        if text.startswith("-") and text != "-" and not _NEGATIVE.fullmatch(text):
            options = [name for option in ctx.command.params for name in option.opts]
            raise click.UsageError(
                f"no option {text!r}. {suggest(text, [o for o in options if o.startswith('-')])} "
                "An argument that begins with a dash goes after --.",
                ctx,
            )
    return [_json_or_text(text) for text in given]


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _json_or_text(text: str) -> Any:
    try:
        # NaN and Infinity are no JSON, whatever Python's parser says.
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text


def _read_kwargs(ctx: click.Context, param: click.Parameter, text: str | None) -> dict[str, Any]:  # noqa: ARG001
    if text is None:
        return {}
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"{text!r} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise click.BadParameter(f"{text!r} is no JSON object, such as '{{\"size\": 3}}'")
    return value


def _read_delay(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:  # noqa: ARG001
    return None if text is None else seconds_from_text("delay", text)


@click.command(cls=_WithNegatives, context_settings={"ignore_unknown_options": True})
@click.argument("task")
@click.argument("args", metavar="[ARG]...", nargs=-1, callback=_read_args)
@click.option("--kwargs", metavar="JSON", callback=_read_kwargs, help="Keyword arguments.")
@click.option("--lane", help="The lane; else the task's own.")
@click.option(
    "--delay", metavar="SECONDS", callback=_read_delay, help="Start it after this; also 5m, 2h."
)
@click.option(
    "--count",
    type=click.IntRange(1, 10_000_000),
    default=1,
    show_default=True,
    help="Enqueue so many of the same.",
)
@click.option("--wait", is_flag=True, help="Wait for the end and print the result.")
@data_options
@click.pass_obj
def enqueue(
    settings: Settings,
    *,
    task: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    lane: str | None,
    delay: float | None,
    count: int,
    wait: bool,
) -> Status:
    """Enqueue a job by the name of its task.

    Each ARG is read as JSON; one that is no JSON is a string. Exit status 1 with --wait
    if the job does not succeed.

    \b
    laneq enqueue shop.tasks.charge 17
    laneq enqueue shop.tasks.reindex a.txt --lane batch --delay 5m
    laneq enqueue shop.tasks.resize '[640, 480]' --kwargs '{"crop": true}' --wait
    """  # noqa: D301  \b is click's mark for lines to keep
    with opened(settings, wants_code=True) as session:
        options: CallKwargs = {}
        if lane is not None:
            options["lane"] = lane
        if delay is not None:
            options["delay"] = delay
        call = session.app.ref(task).using(**options).call(*args, **kwargs)
        try:
            ids = _store(session, call, count)
        except UnknownLane:
            if lane is None:
                note(f"no worker has published task {task!r}: name its lane with --lane")
            raise
        try:
            _warn_if_unknown(session, task)
            if wait:
                return _wait(session, settings, task, ids)
        except KeyboardInterrupt:
            note(f"not cancelled: {_named(ids)}")
            raise
    _say_ids(settings, task, ids)
    return Status.DONE


def _store(session: Session, call: Any, count: int) -> list[str]:
    ids: list[str] = []
    with progress("enqueuing", count) as advance:
        while len(ids) < count:
            n = min(job_calls.BATCH, count - len(ids))
            ids += [job.id for job in session.run(enqueue_many(session.app, [call] * n))]
            advance(n)
    return ids


def _warn_if_unknown(session: Session, task: str) -> None:
    """Tell the operator of a job that nobody will run as things are: a typo, mostly."""
    live = session.call(worker_calls.list_workers(session.keys))
    known = {name for worker in live for name in worker.tasks}
    if not live:
        note("no worker is live: the job waits until one starts")
    elif task not in known:
        note(f"no live worker knows task {task!r}: the job waits. {suggest(task, known)}")


def _say_ids(settings: Settings, task: str, ids: list[str]) -> None:
    if settings.wants_json:
        print_json({"id": ids[0], "ids": ids, "task": task, "count": len(ids)})
    elif len(ids) == 1:
        click.echo(ids[0])
    else:
        click.echo(f"enqueued {len(ids):,} jobs of {task}: {_named(ids)}")


def _named(ids: Sequence[str]) -> str:
    return ids[0] if len(ids) == 1 else f"{ids[0]} to {ids[-1]}"


# --- wait -------------------------------------------------------------------


def _wait(session: Session, settings: Settings, task: str, ids: list[str]) -> Status:
    outcomes: list[Outcome] = []
    with progress("waiting", len(ids)) as advance:
        for job_id in ids:
            until = job_calls.until_ended(session.keys, job_id, timeout_s=None)
            outcomes.append(session.wait(until))
            advance(1)
    ended = list(zip(ids, outcomes, strict=True))
    if settings.wants_json:
        results = [_outcome_json(job_id, outcome) for job_id, outcome in ended]
        print_json({"id": ids[0], "ids": ids, "task": task, "count": len(ids), "results": results})
    else:
        for job_id, outcome in ended:
            _print_outcome(job_id, outcome)
    is_good = all(outcome.state is State.SUCCEEDED for outcome in outcomes)
    return Status.DONE if is_good else Status.BAD_NEWS


def _outcome_json(job_id: str, outcome: Outcome) -> dict[str, Any]:
    error = outcome.error()
    is_good = outcome.state is State.SUCCEEDED
    return {
        "id": job_id,
        "state": outcome.state.value,
        "result": job_calls.as_json(outcome.value(job_id)) if is_good else None,
        "error": job_calls.error_json(error),
    }


def _print_outcome(job_id: str, outcome: Outcome) -> None:
    try:
        value = outcome.value(job_id)
    except JobEnded as error:
        note(str(error))
    else:
        click.echo(json.dumps(job_calls.as_json(value), ensure_ascii=False))
