"""The two revisions: where their files are, and what their benchmarks say."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class CannotCompare(Exception):
    """There is nothing to compare: git or a benchmark refused."""


@dataclass(frozen=True, slots=True)
class Side:
    """A revision.

    Attributes:
        name: as it is shown.
        folder: its files.
    """

    name: str
    folder: Path

    def python(self, *arguments: str) -> str:
        """Run Python of this environment on the files of the revision; return what it prints."""
        runner = shlex.split(os.environ.get("LANEQ_RUNNER", ""))
        done = subprocess.run(
            [*runner, sys.executable, *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise CannotCompare(
                f"{self.name}: python {shlex.join(arguments)} ended with {done.returncode}:\n"
                f"{done.stderr.strip()}"
            )
        return done.stdout

    def check(self) -> None:
        """See that it is its own files that are run."""
        where = self.python("-c", "import laneq; print(laneq.__file__)").strip()
        if not Path(where).resolve().is_relative_to(self.folder.resolve()):
            raise CannotCompare(f"{self.name}: laneq was imported from {where}, not {self.folder}")


def of_revision(repository: Path, revision: str, folder: Path) -> Side:
    """Put the files of a revision into a folder that does not exist yet."""
    commit = _git(
        repository, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}", of=revision
    )
    _git(repository, "clone", "--quiet", "--shared", "--no-checkout", ".", str(folder), of=revision)
    _git(folder, "checkout", "--quiet", "--detach", commit, of=revision)
    return Side(commit[:7], folder)


def _git(folder: Path, *words: str, of: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip() or "there is no such revision"
        raise CannotCompare(f"git {words[0]} failed for {of!r}: {said}")
    return done.stdout.strip()


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a benchmark's rows."""

    title: str
    read: Callable[[Sequence[Row]], float]
    is_rate: bool


@dataclass(frozen=True, slots=True)
class Measurement:
    """A run of ``laneq bench`` and what is taken from it.

    Attributes:
        jobs: at full size.
        least_jobs: fewest that the benchmark takes.
    """

    command: Sequence[str]
    jobs: int
    least_jobs: int
    figures: Sequence[Figure]

    def run(self, side: Side, *, engine: str | None, scale: float) -> list[float]:
        """Return the figures of one run."""
        jobs = max(self.least_jobs, round(self.jobs * scale))
        arguments = [*self.command, "--jobs", str(jobs), "--runs", "1", "--json"]
        if engine is not None:
            arguments += ["--engine", engine]
        rows = json.loads(side.python("-m", "laneq", "bench", *arguments))
        return [figure.read(rows) for figure in self.figures]


def measurements(only: Sequence[str]) -> Iterator[Measurement]:
    """Return what is measured of some benchmarks."""
    if "throughput" in only:
        for slots, jobs in ((1, 3_000), (10, 12_000), (100, 20_000)):
            where = f"{slots} slot{'s' if slots > 1 else ''}"
            yield Measurement(
                ["throughput", "--slots", str(slots), "--results", "off"],
                jobs,
                10,
                [
                    Figure(f"jobs/s, {where}", lambda rows: rows[0]["jobs_per_s"], is_rate=True),
                    Figure(
                        f"Redis µs per job, {where}",
                        lambda rows: rows[0]["redis_us_per_job"],
                        is_rate=False,
                    ),
                ],
            )
    if "latency" in only:
        yield Measurement(
            ["latency"],
            100,
            10,
            [Figure("idle latency p50, ms", lambda rows: rows[0]["p50_ms"], is_rate=False)],
        )
    if "enqueue" in only:
        yield Measurement(
            ["enqueue"],
            20_000,
            100,
            [_of_way("enqueue"), _of_way("aenqueue")],
        )


def _of_way(way: str) -> Figure:
    def read(rows: Sequence[Row]) -> float:
        (row,) = [row for row in rows if row["way"] == way]
        return float(row["jobs_per_s"])

    return Figure(f"{way}/s, one by one", read, is_rate=True)
