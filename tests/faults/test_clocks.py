"""Kind F: hosts whose clocks drift, and the server's own in another age."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from laneq import State
from tests.faults.clocks import Clock
from tests.faults.conftest import NewField
from tests.faults.field import FACTOR, two_sizes

ODD_JOBS: Final = Path(__file__).with_name("odd_jobs.py")


@two_sizes(
    "jobs, scheduled, run_s, delay_s, lease",
    ci=(40, 20, 3.0, 4.0, 2.0),
    full=(300, 100, 6.0, 10.0, 4.0),
)
def test_fault_F5_hosts_whose_clocks_are_off_run_every_job_once_and_on_time(
    new_field: NewField,
    tmp_path: Path,
    jobs: int,
    scheduled: int,
    run_s: float,
    delay_s: float,
    lease: float,
) -> None:
    field = new_field(app=ODD_JOBS, lease=lease)
    offsets = {"behind": -120.0, "right": 0.0, "ahead": 120.0, "jumps": 0.0}
    clocks = {name: Clock(tmp_path / name, offset) for name, offset in offsets.items()}
    workers = {
        name: field.worker(slots=jobs // 4 + 4, environment=clock.env, is_ready=False)
        for name, clock in clocks.items()
    }
    for worker in workers.values():
        worker.until_ready()
    tasks = field.tasks
    timed = [tasks.overrun.enqueue() for _ in range(8)]
    long_ones = field.app.enqueue_many(tasks.nap.call(run_s) for _ in range(jobs))
    later = field.app.enqueue_many(tasks.nap.using(delay=delay_s).call(0) for _ in range(scheduled))
    field.until_started(jobs)
    clocks["jumps"].shift(-3600)

    every = [job.id for job in [*timed, *long_ones, *later]]
    field.until_settled(every)
    field.assert_once(every)
    states = field.assert_conserved(every)
    assert states == {State.SUCCEEDED: jobs + scheduled, State.DEAD: len(timed)}
    for job in later:
        (start,) = field.starts(job.id)
        enqueued_at = job.info().enqueued_at
        assert enqueued_at is not None
        late_s = start.at_us / 1e6 - enqueued_at - delay_s
        assert 0 <= late_s <= FACTOR, f"started {late_s:.3f} s after it was due"
    for job in timed:
        first, last = (entry.at_us for entry in field.runlog() if entry.id == job.id)
        assert 1.9 <= (last - first) / 1e6 <= 2.0 + FACTOR  # the limit runs from before the body
    assert {start.pid for start in field.starts()} == {worker.pid for worker in workers.values()}

    said = {"behind": r"1\d\d\.\d s behind", "ahead": r"1\d\d\.\d s ahead of"}
    said["jumps"] = r"3[56]\d\d\.\d s behind"
    for name, worker in workers.items():
        if name in said:
            worker.until("the clock of this host is")
            assert re.search(f"of this host is {said[name]} that of Redis", worker.text)
        worker.term()
        assert worker.wait() == 0
        assert worker.count("the clock of this host is") == (name in said), worker.text
