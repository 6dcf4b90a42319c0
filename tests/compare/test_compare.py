"""The comparison of two revisions: arithmetic, order, and one tiny run of the real thing."""

from __future__ import annotations

import json
import random
import subprocess

import pytest
from click.testing import CliRunner

from tests.compare import __main__ as command
from tests.compare.pairs import Pairs
from tests.compare.sides import CannotCompare, Side, measurements, of_revision

FIVE = [90.0, 100.0, 110.0, 95.0, 105.0]


def times(factor: float, values: list[float]) -> list[float]:
    return [factor * value for value in values]


# --- arithmetic -------------------------------------------------------------


def test_a_ratio_above_one_is_better_of_rates_and_of_times():
    assert Pairs(FIVE, times(1.25, FIVE), is_rate=True).ratio == pytest.approx(1.25)
    assert Pairs(FIVE, times(1.25, FIVE), is_rate=False).ratio == pytest.approx(0.8)
    assert Pairs([1, 2, 30], [2, 2, 2], is_rate=True).ratios == pytest.approx([2 / 30, 1, 2])


def test_the_ratio_is_that_of_medians_and_leaves_an_outlier_out():
    assert Pairs(FIVE, [90, 100, 110, 95, 1], is_rate=True).ratio == pytest.approx(0.95)


@pytest.mark.parametrize(
    ("factor", "tolerance", "verdict"),
    [(1.0, 0.03, "yes"), (0.98, 0.03, "yes"), (0.95, 0.03, "no"), (0.95, 0.06, "yes")],
)
def test_pairs_that_agree_leave_no_doubt(factor, tolerance, verdict):
    pairs = Pairs(FIVE, times(factor, FIVE), is_rate=True)
    assert pairs.interval() == pytest.approx((factor, factor))
    assert pairs.holds(tolerance) == verdict


def test_pairs_that_disagree_leave_it_open():
    pairs = Pairs(FIVE, [120, 70, 100, 90, 130], is_rate=True)
    interval = pairs.interval()
    assert interval is not None
    assert interval[0] < 0.97 < interval[1]
    assert interval == pairs.interval(), "the same pairs give the same interval"
    assert pairs.holds(0.03) == "open"


def test_few_pairs_have_no_interval():
    pairs = Pairs(FIVE[:4], FIVE[:4], is_rate=True)
    assert pairs.interval() is None
    assert pairs.holds(0.03) == "open"


def test_an_interval_has_the_true_ratio_in_about_nine_of_ten_cases():
    draw = random.Random(7)
    hits = 0
    for _ in range(60):
        base = [draw.gauss(100, 10) for _ in range(12)]
        this = [draw.gauss(90, 9) for _ in range(12)]
        interval = Pairs(base, this, is_rate=True).interval()
        assert interval is not None
        hits += interval[0] <= 0.9 <= interval[1]
    assert 48 <= hits < 60


# --- revisions --------------------------------------------------------------

FAKE = """
import json, sys
words = sys.argv[2:]
rows = {
    "throughput": [{"jobs_per_s": %(rate)d, "redis_us_per_job": 10}],
    "latency": [{"p50_ms": 1.5}],
    "enqueue": [{"way": "enqueue", "jobs_per_s": %(rate)d}, {"way": "aenqueue", "jobs_per_s": 7}],
}
print(json.dumps(rows[words[0]]))
"""


@pytest.fixture
def repository(tmp_path):
    """Two commits of a laneq whose benchmarks say 1,000 and 900, and 2,000 not yet committed."""
    folder = tmp_path / "repository"
    (folder / "laneq").mkdir(parents=True)
    (folder / "laneq" / "__init__.py").touch()
    main = folder / "laneq" / "__main__.py"

    def git(*words: str) -> None:
        who = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.com"]
        subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)

    git("init", "--quiet")
    for rate in (1_000, 900):
        main.write_text(FAKE % {"rate": rate}, "utf-8")
        git("add", ".")
        git("commit", "--quiet", "-m", str(rate))
    main.write_text(FAKE % {"rate": 2_000}, "utf-8")
    return folder


def test_a_revision_is_measured_as_it_was_committed(repository, tmp_path):
    old = of_revision(repository, "HEAD~1", tmp_path / "old")
    old.check()
    (throughput, *_) = measurements(["throughput"])
    assert throughput.run(old, engine=None, scale=1)[0] == 1_000
    checkout = Side("checkout", repository)
    assert throughput.run(checkout, engine=None, scale=1)[0] == 2_000


def test_a_revision_that_is_not_there_is_refused_by_name(repository, tmp_path):
    with pytest.raises(CannotCompare, match=r"'nowhere'.*no such revision"):
        of_revision(repository, "nowhere", tmp_path / "old")


def test_files_of_another_place_are_not_taken_for_those_of_the_revision(tmp_path):
    with pytest.raises(CannotCompare, match="was imported from"):
        Side("empty", tmp_path).check()


def test_a_benchmark_that_fails_is_reported_with_its_words(repository, tmp_path):
    (repository / "laneq" / "__main__.py").write_text("raise SystemExit('no Redis')", "utf-8")
    (latency,) = measurements(["latency"])
    with pytest.raises(CannotCompare, match=r"(?s)checkout: .*latency.*no Redis"):
        latency.run(Side("checkout", repository), engine=None, scale=1)


def test_rounds_alternate_which_revision_goes_first(monkeypatch, tmp_path):
    base, this = Side("base", tmp_path / "base"), Side("this", tmp_path / "this")
    order = []

    def answer(side: Side, *words: str) -> str:
        if words[0] == "-c":
            return str(side.folder / "laneq" / "__init__.py")
        order.append(side.name)
        return json.dumps([{"p50_ms": len(order)}])

    monkeypatch.setattr(Side, "python", answer)
    found = command.measure(
        base, this, only=["latency"], rounds=3, engine=None, scale=1, progress=lambda _: None
    )
    assert order == ["base", "this", "this", "base", "base", "this"]
    (pairs,) = found.values()
    assert (pairs.base, pairs.this) == ([1, 4, 5], [2, 3, 6])


# --- the command ------------------------------------------------------------


def test_the_command_compares_two_revisions(repository, monkeypatch):
    monkeypatch.setattr(command, "ROOT", repository)
    done = CliRunner().invoke(
        command.main, ["HEAD~1", "HEAD", "--rounds", "5", "--only", "enqueue", "--json"]
    )
    assert done.exit_code == 0, done.output
    single, gathered = json.loads(done.stdout)["figures"]
    assert single["figure"] == "enqueue/s, one by one"
    assert single["base"] == [1_000] * 5
    assert single["this"] == [900] * 5
    assert (single["ratio"], single["interval_90"], single["holds"]) == (0.9, [0.9, 0.9], "no")
    assert (gathered["ratio"], gathered["holds"]) == (1, "yes")


def test_the_command_compares_the_checkout_as_it_is_and_prints_a_table(repository, monkeypatch):
    monkeypatch.setattr(command, "ROOT", repository)
    done = CliRunner().invoke(command.main, ["HEAD", "--rounds", "1", "--only", "throughput"])
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["jobs/s,", "10", "slots", "900", "2,000", "2.222", "-", "2.222–2.222", "open"] in rows
    assert "5 rounds or more" in done.stdout


def test_the_command_names_what_it_cannot_do(repository, monkeypatch):
    monkeypatch.setattr(command, "ROOT", repository)
    done = CliRunner().invoke(command.main, ["nowhere"])
    assert done.exit_code == 1
    assert "nowhere" in done.stderr
    done = CliRunner().invoke(command.main, ["HEAD", "--only", "memory"])
    assert done.exit_code == 2
    assert "'memory'" in done.stderr


@pytest.mark.bench
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_what_the_benchmarks_of_this_checkout_say_can_be_compared():
    one, other = Side("one", command.ROOT), Side("other", command.ROOT)
    found = command.measure(
        one,
        other,
        only=command.BENCHMARKS,
        rounds=1,
        engine=None,
        scale=0.01,
        progress=lambda _: None,
    )
    assert len(found) == 9
    assert all(pairs.ratio > 0 for pairs in found.values())
