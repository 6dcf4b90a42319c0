"""``laneq workers``: list the live workers."""

from __future__ import annotations

from dataclasses import asdict

import click

from laneq.calls import workers as worker_calls
from laneq.cli.group import NounGroup, data_options
from laneq.cli.output import Column, duration, print_table
from laneq.cli.report import note, print_json
from laneq.cli.session import opened
from laneq.cli.settings import Settings
from laneq.model import PoolView, WorkerView


@click.group(cls=NounGroup)
@data_options
def workers() -> None:
    """Look at live workers."""


@workers.command("list")
@data_options
@click.pass_obj
def list_(settings: Settings) -> None:
    """List live workers: one line for each process."""
    with opened(settings) as session:
        found = session.call(worker_calls.list_workers(session.keys))
        now = session.now()
    found.sort(key=lambda worker: (worker.name, worker.host, worker.pid))
    if settings.wants_json:
        print_json([asdict(worker) for worker in found])
        return
    if not found:
        note(f"no live worker in namespace {session.keys.namespace!r} at {session.address}")
        return
    print_table(
        [
            Column("name", may_cut=True),
            Column("host", may_cut=True),
            Column("pid", "right"),
            Column("running", "right"),
            Column("slots", "right"),
            Column("reserve", may_cut=True),
            Column("lanes", may_cut=True),
            Column("heartbeat", "right"),
        ],
        [
            [
                worker.name,
                worker.host,
                str(worker.pid),
                str(worker.running),
                _slots(worker),
                ",".join(f"{lane}={slots}" for lane, slots in worker.reserve.items()) or "-",
                ",".join(worker.lanes),
                "-"
                if worker.last_heartbeat_at is None
                else f"{duration(max(now - worker.last_heartbeat_at, 0.0))} ago"
                + (", unwell" if worker.unwell else ""),
            ]
            for worker in found
        ],
    )
    for worker in found:
        if worker.pool is not None:
            click.echo(f"\n{worker.name} (pid {worker.pid}): {_sizing(worker.pool, now)}")
    for worker in found:
        where = f"worker {worker.name} (pid {worker.pid})"
        if worker.unwell:
            note(f"{where} does not work: {worker.unwell}")
        if worker.stuck:
            note(
                f"{where}: {worker.stuck} jobs did not end when they were told to; they run on "
                "beside its slots"
            )


def _slots(worker: WorkerView) -> str:
    pool = worker.pool
    if pool is None or pool.min == pool.max:
        return str(worker.slots)
    return f"{worker.slots} of {pool.min}-{pool.max}"


def _sizing(pool: PoolView, now: float) -> str:
    """Say how a worker sized itself last, and why."""
    wanted = "" if pool.wanted is None else f"; the fleet is to have {pool.wanted} slots"
    if pool.changed_at is None:
        return (pool.reason or "has not changed its slots") + wanted
    ago = duration(max(now - pool.changed_at, 0.0))
    return f"{pool.slots_before} slots until {ago} ago: {pool.reason}{wanted}"
