"""Every benchmark once, tiny: does it still run, and has its rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from laneq.bench import backlog, claim, enqueue, lanes, latency, memory, recovery, throughput
from laneq.bench.rig import Rig
from laneq.errors import BenchFailed, ConfigError, OptionError

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"

pytestmark = [pytest.mark.bench, pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
def rig(url):
    with Rig(url) as entered:
        yield entered


@pytest.fixture
def told():
    """What a benchmark said of its progress."""
    return []


@pytest.fixture(autouse=True)
def nothing_left(raw):
    yield
    assert list(raw.scan_iter(match="{laneq:bench-*", count=1000)) == []


@pytest.mark.parametrize("workers", ["split", "one", "ten"])
def test_lanes(rig, workers):
    plan = lanes.Plan(
        seconds=1,
        warm_up=0.2,
        rates=[30],
        only=["strict", "reserved"],
        batch=200,
        workers=workers,
    )
    states = list(lanes.measure(rig, plan))
    rows = [state.row for state in states if state.is_final]
    assert [row["arrangement"] for row in rows] == ["strict", "reserved"]
    for row in rows:
        assert row["urgent_per_s"] == 30
        assert row["arrivals"] == "even"
        assert row["urgent_sent"] == 30
        assert row["run_p50_ms"] >= 20
        assert 1 <= row["urgent_done"] <= 30
        assert 20 <= row["p50_ms"] <= row["p99_ms"]
        assert 5 <= row["batch_per_s"] <= 60
        assert set(row["published"]) == {"p50_ms", "p99_ms", "batch_per_s"}
    assert len(states) > len(rows), "there is something to show while it runs"


def test_lanes_with_one_lane_let_no_urgent_job_through(rig):
    plan = lanes.Plan(
        seconds=1, rates=[50], only=["fifo"], batch=500, warm_up=0, arrivals="poisson"
    )
    row = list(lanes.measure(rig, plan))[-1].row
    assert row["urgent_done"] == 0
    assert row["p50_ms"] is None
    assert row["published"] is None


def test_lanes_with_reserves_over_the_fleet(rig):
    plan = lanes.Plan(
        seconds=2,
        warm_up=0.2,
        settle_s=3,
        rates=[50],
        only=["auto", "fixed"],
        reserves=[0, 3],
        slo_s=0.2,
        arrivals="poisson",
    )
    rows = [state.row for state in lanes.measure(rig, plan) if state.is_final]
    assert [row["arrangement"] for row in rows] == ["auto", "fixed 0", "fixed 3"]
    auto, none, three = rows
    assert (none["reserve_min"], none["reserve_max"]) == (0, 0)
    assert (three["reserve_min"], three["reserve_max"]) == (3, 3)
    assert 1 <= auto["reserve_min"] <= auto["reserve_max"] <= 9
    for row in rows:
        assert 0 <= row["late_share"] <= 1
        assert row["holds"] == (row["late_share"] <= 0.01)
        assert 50 < row["urgent_sent"] < 150
        assert 1 <= row["urgent_done"] <= row["urgent_sent"]
        assert row["published"] is None


def test_fixed_reserves_end_with_the_first_that_holds(rig):
    plan = lanes.Plan(seconds=3, warm_up=0, settle_s=0, rates=[20], only=["fixed"], slo_s=1.5)
    rows = [state.row for state in lanes.measure(rig, plan) if state.is_final]
    assert [(row["arrangement"], row["holds"]) for row in rows] == [("fixed 1", True)]


def test_a_step_of_the_rate_is_shown_second_by_second(rig):
    plan = lanes.Plan(
        seconds=6,
        warm_up=0.2,
        settle_s=2,
        rates=[10, 100],
        only=["auto"],
        arrivals="poisson",
        has_step=True,
    )
    (row,) = [state.row for state in lanes.measure(rig, plan) if state.is_final]
    step = row["step"]
    assert (step["from_per_s"], step["to_per_s"]) == (10, 100)
    assert [one["second"] for one in step["seconds"]] == [-3, -2, -1, 0, 1, 2]
    done = [one["done"] for one in step["seconds"]]
    assert sum(done) == row["urgent_done"]
    assert sum(done[3:]) > 2 * sum(done[:3])
    assert step["reserve_after"] == step["seconds"][-1]["reserve"]
    assert 1 <= step["reserve_before"] <= 9


def test_throughput(rig, told):
    rows = list(throughput.measure(rig, slots=[1, 10], count=500, runs=1, progress=told.append))
    assert [(row["slots"], row["results"]) for row in rows] == [
        (1, False), (10, False), (1, True), (10, True),
    ]  # fmt: skip
    for row in rows:
        assert row["jobs_per_s"] > 0
        assert row["limit_jobs_per_s"] > 0
        assert row["share_of_limit"] == pytest.approx(
            row["jobs_per_s"] / row["limit_jobs_per_s"], abs=0.01
        )
        assert row["redis_us_per_job"] > 0
        assert row["commands_per_job"] > row["calls_per_job"] > 0
    assert told


def test_latency(rig, told):
    row = latency.measure(rig, count=20, runs=1, progress=told.append)
    assert 0 < row["p50_ms"] <= row["p99_ms"]
    assert 0 < row["ping_p50_ms"] <= row["ping_p99_ms"]
    assert 0 < row["handover_p50_ms"] <= row["handover_p99_ms"]


def test_enqueue(rig, told):
    rows = list(enqueue.measure(rig, count=1_000, runs=1, progress=told.append))
    assert [row["way"] for row in rows] == [
        "enqueue", "aenqueue", "aenqueue ×50", "enqueue_many", "aenqueue_many",
    ]  # fmt: skip
    assert all(row["jobs_per_s"] > 0 < row["limit_jobs_per_s"] for row in rows)


def test_claim(rig, told):
    rows = claim.measure(rig, slots=[1, 4], claims=20, runs=2, progress=told.append)
    assert [(row["waiting"], row["slots"], row["lanes"], row["limits"]) for row in rows] == [
        (where, slots, lanes, has_limits)
        for where in ("all", "one")
        for slots in (1, 4)
        for lanes, has_limits in ((2, False), (20, False), (20, True))
    ]
    for row in rows:
        assert row["claim_us"] > row["redis_us"] > 0
        assert row["commands"] > 5
        if row["lanes"] == 2:
            assert (row["ratio"], row["redis_ratio"], row["asked_ratio"]) == (1, 1, None)
    cost = {(row["waiting"], row["slots"], row["limits"]): row["commands"] for row in rows}
    assert cost["all", 4, False] > cost["one", 4, False], "there are heads to compare"
    assert cost["one", 4, True] > cost["one", 4, False], "limits are looked at"
    assert any("round 2 of 2" in text for text in told)


def test_claim_leaves_all_of_its_namespaces_empty_and_refuses_one_that_is_not(url, raw, namespace):
    small: dict[str, Any] = {
        "slots": [1],
        "waiting": ["one"],
        "claims": 10,
        "runs": 1,
        "progress": lambda _: None,
    }
    with Rig(url, namespace=namespace) as named:
        claim.measure(named, **small)
        assert list(raw.scan_iter(match=f"{{laneq:{namespace}*", count=1000)) == []
        full = f"{{laneq:{namespace}-2}}:anything"
        raw.set(full, "1", ex=60)
        with pytest.raises(ConfigError, match=f"{namespace}-2.*not empty"):
            claim.measure(named, **small)
    assert list(raw.scan_iter(match=f"{{laneq:{namespace}*", count=1000)) == [full.encode()]
    raw.delete(full)


def test_claim_refuses_more_slots_than_a_claim_fills(rig, told):
    with pytest.raises(OptionError, match="256 at most"):
        claim.measure(rig, slots=[257], progress=told.append)


def test_claim_refuses_to_compare_claims_that_brought_too_little(rig, told, monkeypatch):
    monkeypatch.setattr(claim, "_DEPTH", 2)
    monkeypatch.setattr(claim, "_DEPTH_CLAIMS", 2)
    with pytest.raises(BenchFailed, match="a claim brought 0 of 1 jobs"):
        claim.measure(rig, slots=[1], waiting=["one"], runs=1, progress=told.append)


def test_memory(told):
    with Rig() as alone:
        rows = memory.measure(alone, count=2_000, progress=told.append)
    size = {row["state"]: row["bytes_per_job"] for row in rows}
    assert 100 < size["waiting"] < 600
    assert size["waiting"] < size["running"]
    assert 100 < size["finished, result kept"] < 1_500
    assert size["finished, no result kept"] < 50


def test_backlog(rig, told):
    rows = list(backlog.measure(rig, depths=[10, 1_000], count=100, runs=1, progress=told.append))
    assert [row["waiting"] for row in rows] == [10, 1_000]
    assert all(row["claims_per_s"] > 0 for row in rows)


def test_recovery(rig, told):
    (row,) = recovery.measure(rig, leases=[1.0], progress=told.append)
    assert row["lease_s"] == 1
    assert 0 < row["ranges"]["seconds"][0] <= row["ranges"]["seconds"][1]
    assert row["promised_s"] == 2


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "laneq", "bench", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["lanes", "--seconds", "0.5", "--only", "reserved", "--rates", "30", "--batch", "50"],
        ["throughput", "--slots", "10", "--results", "off", "--jobs", "100", "--runs", "1"],
        ["latency", "--jobs", "10", "--runs", "1"],
        ["enqueue", "--jobs", "1000", "--runs", "1"],
        ["claim", "--slots", "1", "--waiting", "one", "--claims", "10", "--runs", "1"],
        ["backlog", "--depths", "100", "--jobs", "100", "--runs", "1"],
        ["memory", "--jobs", "1000"],
        ["recovery", "--leases", "1"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_every_command_prints_one_document_or_a_table(url, arguments):
    as_json = _run(*arguments, "--url", url, "--json")
    assert as_json.returncode == 0, as_json.stderr
    rows: list[Any] = json.loads(as_json.stdout)
    assert rows
    schema = json.loads((SCHEMAS / f"bench-{arguments[0]}.json").read_text("utf-8"))
    Draft202012Validator(schema).validate(rows)
    if arguments[0] in {"latency", "enqueue", "claim"}:
        as_table = _run(*arguments, "--url", url)
        assert as_table.returncode == 0, as_table.stderr
        assert any(word in as_table.stdout for word in ("p99", "jobs/s", "20 with limits"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--only", "auto,fixed", "--reserve", "1,3", "--rates", "30"],
        ["--step", "--rates", "20,60"],
    ],
    ids=["beside", "step"],
)
def test_reserves_over_the_fleet_are_shown_as_the_schema_says(url, arguments):
    small = ["--seconds", "2", "--settle", "2", "--warm-up", "0.2", "--slo", "500ms"]
    as_json = _run("lanes", *small, *arguments, "--url", url, "--json")
    assert as_json.returncode == 0, as_json.stderr
    rows = json.loads(as_json.stdout)
    schema = json.loads((SCHEMAS / "bench-lanes.json").read_text("utf-8"))
    Draft202012Validator(schema).validate(rows)
    as_table = _run("lanes", *small, *arguments, "--url", url)
    assert as_table.returncode == 0, as_table.stderr
    if "--step" in arguments:
        assert "reached" in as_table.stdout
        assert [row["arrangement"] for row in rows] == ["auto"]
    else:
        assert "fixed reserve" in as_table.stdout
        assert [row["arrangement"] for row in rows] == ["auto", "fixed 1", "fixed 3"]
