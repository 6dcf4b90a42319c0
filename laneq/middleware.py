"""All extension points of a worker: hooks for its life and for each job's.

Derive from `Middleware`, write the methods that you need and add an instance to the app,
``LaneQ(middleware=[...])`` or ``app.middleware.append(...)``. Each method may be ``async def``;
one that is not runs on the worker's event loop and must not block. They are called in the
order of the list, those of the end of something (`worker_stopping`, `after_job`) in reverse.

An error in a hook is logged with the hook's name and changes nothing for the job: what
happens to jobs is decided by their functions alone.
"""

from __future__ import annotations

from collections.abc import Awaitable

from laneq.running import RunningJob

#: What a hook returns: nothing, or what is to be awaited.
Hook = Awaitable[None] | None


class Middleware:
    """Hooks, all of which do nothing here."""

    def worker_started(self, worker_id: str) -> Hook:
        """React to a worker that is about to take its first job.

        Args:
            worker_id: id of this start of the process.
        """

    def worker_stopping(self, worker_id: str) -> Hook:
        """React to a worker that has ended its last job and is about to leave.

        Args:
            worker_id: id of this start of the process.
        """

    def before_job(self, job: RunningJob) -> Hook:
        """React to an attempt that is about to begin.

        Args:
            job: the job; `current_job()` returns it here too.
        """

    def after_job(self, job: RunningJob, outcome: str) -> Hook:
        """React to an attempt that is over, before its outcome is reported.

        Args:
            job: the job.
            outcome: ``succeeded``, ``cancelled``, ``retried``, ``dead``, ``handed_back`` or
                ``snoozed``.
        """

    def on_failure(self, job: RunningJob, error: BaseException) -> Hook:
        """React to an attempt that failed, whether it is retried or was the last.

        Args:
            job: the job.
            error: what was raised.
        """

    def on_retry(self, job: RunningJob, error: BaseException, delay_s: float) -> Hook:
        """React to a failed attempt that will be followed by another.

        Args:
            job: the job.
            error: what was raised.
            delay_s: seconds until the job is ready again.
        """

    def on_dead(self, job: RunningJob, error: BaseException) -> Hook:
        """React to a job that becomes a dead letter.

        A job that dies because its last worker was lost has no process that could call this.

        Args:
            job: the job.
            error: what was raised last.
        """
