"""``laneq health``: can work be enqueued, claimed and acknowledged."""

from __future__ import annotations

import threading
from dataclasses import asdict
from typing import Final

import click

from laneq import health as health_layer
from laneq.app import LaneQ
from laneq.cli.group import data_options
from laneq.cli.output import duration, print_fields
from laneq.cli.report import print_json
from laneq.cli.session import Session, resolve
from laneq.cli.settings import Settings
from laneq.cli.status import Status
from laneq.cli.target import app_of
from laneq.errors import RedisUnavailable
from laneq.health import Health
from laneq.ids import new_id

#: Seconds for the whole look, so that the command, its own start included, ends within three.
_WITHIN_S: Final = 2.0

_WORDS: Final = {True: "works", False: "does not work"}


@click.command()
@data_options
@click.pass_obj
def health(settings: Settings) -> int:
    """Tell whether work can be enqueued, claimed and acknowledged.

    And whether each lane is served by a live worker, and no job has waited for over 10 times
    its lane's slo. Nothing is enqueued or started for it. Exit status: 0 well, 1 unwell with
    the reasons, 3 Redis cannot be reached; within 3 s.
    """
    found = _look(app_of(settings))
    if settings.wants_json:
        print_json(_document(found))
    else:
        _print(found)
    return Status.DONE if found.is_well else Status.BAD_NEWS


def _look(app: LaneQ) -> Health:
    """Examine the namespace, within the time that a probe has.

    Raises:
        RedisUnavailable: Redis cannot be reached, or answers too slowly.
        RedisRefused: not even the lanes can be read.
    """
    answers: list[Health | Exception] = []

    def look() -> None:
        try:
            resolve(app.address)
            session = Session(app, patience_s=0.0)
            try:
                answers.append(session.run(health_layer.examine(app.keys, new_id())))
            finally:
                session.driver.close()
        except Exception as error:  # noqa: BLE001  raised below, in the command's own thread
            answers.append(error)

    # A server that answers each call late may take long in all. A daemon: it ends with us.
    thread = threading.Thread(target=look, daemon=True, name="laneq-health")
    thread.start()
    thread.join(_WITHIN_S)
    if not answers:
        raise RedisUnavailable(
            f"Redis at {app.address.where} cannot be reached: "
            f"not all answers within {_WITHIN_S:g} s"
        )
    if isinstance(answers[0], Exception):
        raise answers[0]
    return answers[0]


def _document(found: Health) -> dict[str, object]:
    return {"ok": found.is_well, **asdict(found)}


def _print(found: Health) -> None:
    click.echo("well" if found.is_well else "unwell")
    for reason in found.reasons:
        click.echo(f"- {reason.detail}")
    waits = [lane.oldest_wait_s for lane in found.lanes if lane.oldest_wait_s is not None]
    served = sum(lane.workers > 0 for lane in found.lanes)
    paused = sum(lane.paused for lane in found.lanes)
    print_fields(
        [
            ("enqueue", _WORDS[found.can_enqueue]),
            ("claim", _WORDS[found.can_claim]),
            ("acknowledge", _WORDS[found.can_acknowledge]),
            ("workers", f"{found.workers} live"),
            ("lanes", f"{served} of {len(found.lanes)} served, {paused} paused"),
            ("oldest wait", duration(max(waits, default=None))),
        ]
    )
