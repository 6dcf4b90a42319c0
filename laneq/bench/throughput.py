"""How many no-op jobs a second one worker process does, and what each costs Redis.

All jobs are enqueued before the worker starts. The rate is that between the ends of
the first and of the last job, as the jobs themselves wrote them down. Heartbeats,
leases, histograms and counts are on, as always.

The limit is that of a loop over one connection, the worker's number too, which takes
and ends as many jobs in a call as the worker did, in a script of the commands that
this needs, and runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from laneq.bench import bare, jobs
from laneq.bench.crew import Crew
from laneq.bench.figures import Progress, combine
from laneq.bench.rig import Rig

Row = dict[str, Any]

#: Seconds that the jobs of a run may take in all.
_PATIENCE_S: Final = 300.0

_DIGITS: Final = {
    "jobs_per_s": 0,
    "redis_us_per_job": 1,
    "limit_jobs_per_s": 0,
    "share_of_limit": 2,
    "commands_per_job": 2,
    "calls_per_job": 3,
    "worker_us_per_job": 1,
}


def measure(
    rig: Rig,
    *,
    slots: Sequence[int] = (1, 10, 100),
    results: Sequence[bool] = (False, True),
    count: int = 20_000,
    runs: int = 3,
    progress: Progress,
) -> Iterator[Row]:
    """Yield a row for each number of slots, with results off and on.

    Args:
        rig: the server.
        slots: slots of the one worker process.
        results: whether results are kept.
        count: jobs of a run, at least 2.
        runs: how often each is measured; the row has medians and ranges.
        progress: told what goes on.
    """
    for keeps in results:
        for n in slots:
            found = []
            for run in range(1, runs + 1):
                word = "on" if keeps else "off"
                progress(f"{n} slots, results {word}: run {run} of {runs}")
                found.append(run_once(rig, slots=n, keeps_results=keeps, count=count))
            yield {"slots": n, "results": keeps, "jobs": count} | combine(found, _DIGITS)


def run_once(rig: Rig, *, slots: int, keeps_results: bool, count: int) -> Row:
    """Measure one run, and the limit right after it."""
    with rig.space() as space, Crew(space) as crew:
        with jobs.build(url=space.url, namespace=space.namespace) as app:
            call = app.tasks["bench.noop_kept" if keeps_results else "bench.noop"].call
            for first in range(0, count, 10_000):
                app.enqueue_many([call() for _ in range(min(10_000, count - first))])
        before = rig.meter()
        worker = crew.start_worker("-c", str(slots), **{jobs.COUNT: str(count)})
        worker.wait_ready()
        first_ns = last_ns = cpu_ns = 0
        stamps = crew.book.wait_for(
            {jobs.FIRST: 1, jobs.LAST: 1}, timeout_s=_PATIENCE_S, check=crew.check
        )
        for stamp in stamps:
            if stamp.kind == jobs.FIRST:
                first_ns, cpu_ns = stamp.first, -stamp.second
            else:
                last_ns, cpu_ns = stamp.first, cpu_ns + stamp.second
        used = rig.meter().since(before)
        worker.stop()
        worker.wait()
        rate = (count - 1) / ((last_ns - first_ns) / 1e9)
        calls = used.script_calls / count
        limit = bare.turn_rate(
            space, jobs=count, jobs_per_call=1 / calls, keeps_results=keeps_results
        )
    return {
        "jobs_per_s": rate,
        "redis_us_per_job": used.cpu_s * 1e6 / count,
        "limit_jobs_per_s": limit,
        "share_of_limit": rate / limit,
        "commands_per_job": used.commands / count,
        "calls_per_job": calls,
        "worker_us_per_job": cpu_ns / 1e3 / count,
    }
