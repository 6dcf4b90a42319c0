from __future__ import annotations

from pathlib import Path

import pytest

from laneq import DEFAULT_LANES, ConfigError, Lane, LaneQ, Middleware, OptionError

PROJECT = """
[tool.laneq]
url = "redis://of-the-project:1/3"
namespace = "project"
app = "shop:app"
"""


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LANEQ_URL", raising=False)
    monkeypatch.delenv("LANEQ_NAMESPACE", raising=False)
    monkeypatch.chdir(tmp_path)


def of(app: LaneQ) -> tuple[str, str]:
    return app.address.where, app.namespace


def test_nothing_said_means_redis_on_this_machine_and_the_namespace_default():
    app = LaneQ()
    assert (of(app), app.address.db) == (("127.0.0.1:6379", "default"), 0)
    assert [lane.name for lane in app.lanes.values()] == [lane.name for lane in DEFAULT_LANES]


def test_the_argument_comes_before_the_environment_before_the_project(monkeypatch, tmp_path):
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    deep = tmp_path / "src" / "shop"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    assert of(LaneQ()) == ("of-the-project:1", "project")
    monkeypatch.setenv("LANEQ_URL", "redis://of-the-environment:2")
    assert of(LaneQ()) == ("of-the-environment:2", "project")
    monkeypatch.setenv("LANEQ_NAMESPACE", "environment")
    assert of(LaneQ()) == ("of-the-environment:2", "environment")
    assert of(LaneQ("redis://argument", namespace="mine")) == ("argument:6379", "mine")
    monkeypatch.setenv("LANEQ_URL", "")  # as in an .env file that leaves it open
    assert of(LaneQ()) == ("of-the-project:1", "environment")


def test_only_the_nearest_project_file_counts(monkeypatch, tmp_path):
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "pyproject.toml").write_text("[tool.other]\n")
    monkeypatch.chdir(tmp_path / "inner")
    assert of(LaneQ()) == ("127.0.0.1:6379", "default")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.laneq", r"pyproject\.toml cannot be read"),
        ("[tool]\nlaneq = 3", "tool.laneq must be a table"),
        ("[tool.laneq]\nulr = 'x'", r"ulr: unknown setting.*Did you mean 'url'"),
        ("[tool.laneq]\nnamespace = 3", "namespace: must be a string"),
    ],
)
def test_a_project_file_that_cannot_be_used_is_named(tmp_path, text, message):
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises((ConfigError, OptionError)) as error:
        LaneQ()
    assert error.match(message)
    assert error.match("pyproject")
    LaneQ("redis://here", namespace="given")  # which has no need of it


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"namespace": "a b"}, "namespace: .*not 'a b'"),
        ({"namespace": "a{b"}, "braces"),
        ({"lanes": []}, "lanes: must have at least one"),
        ({"lanes": ["urgent"]}, r"must be a list of Lane"),
        ({"lanes": [Lane("x"), Lane("x")]}, "'x' is declared twice"),
        ({"max_payload": 0}, "max_payload: must be between 1"),
        ({"max_payload": True}, "max_payload: must be a whole number"),
        ({"connect_timeout": 0}, "connect_timeout: must be between"),
        ({"middleware": [Middleware]}, "must be instances of Middleware"),
    ],
)
def test_an_option_that_cannot_be_used_is_an_error_at_once(options, message):
    with pytest.raises(OptionError, match=message):
        LaneQ(**options)


def test_lanes_of_which_one_can_wait_for_ever_are_refused_unless_it_says_so():
    high = Lane("high", priority=5000)
    with pytest.raises(OptionError) as error:
        LaneQ(lanes=[high, Lane("low", priority=10)])
    assert error.value.option == "may_starve"
    for told in ("'low' can wait for ever behind 'high'", "810", "5,000", "4,990", "reserve=1"):
        assert told in str(error.value)
    assert str(error.value).endswith("Lane('low', …, may_starve=True).")
    for low in (
        Lane("low", priority=10, may_starve=True),
        Lane("low", priority=10, aging=0),
        Lane("low", priority=10, reserve=1),
        Lane("low", priority=10, aging_cap=5000),
        Lane("low", priority=4500),
    ):
        assert list(LaneQ(lanes=[high, low]).lanes) == ["high", "low"]


def test_the_page_on_priorities_shows_the_refusal_as_it_is():
    with pytest.raises(OptionError) as error:
        LaneQ(lanes=[Lane("mail", priority=5000), Lane("reports", priority=10)])
    page = (Path(__file__).parents[2] / "docs" / "sizing.md").read_text("utf-8")
    assert f"laneq.errors.OptionError: {error.value}" in " ".join(page.split())


def test_the_default_lanes_say_so_and_lanes_in_their_manner_need_not():
    assert [lane.name for lane in LaneQ().lanes.values() if not lane.may_starve] == ["critical"]
    LaneQ(lanes=[Lane("urgent", priority=1000, reserve=2, slo=0.25), Lane("batch", priority=10)])
    LaneQ(lanes=[Lane("critical", priority=10_000), Lane("reports", target="1h"), Lane("normal")])


def test_an_app_never_shows_its_password():
    app = LaneQ("redis://me:se%2Fcret@host:1/0", namespace="n")
    assert "***" in repr(app)
    assert "cret" not in repr(app) + str(app.address) + repr(vars(app))


def test_making_an_app_connects_to_nothing():
    app = LaneQ("redis://127.0.0.1:1/0")  # nobody listens on port 1
    app.task(name="t")(print)
    app.job("x")
    app.close()


def test_an_address_can_be_overridden_before_use():
    app = LaneQ("redis://one", namespace="a", connect_timeout=0.5)
    app.override(url="redis://two")
    assert of(app) == ("two:6379", "a")
    app.override(namespace="b")
    assert of(app) == ("two:6379", "b")
    assert app.keys.namespace == "b"
    assert app.address.connect_timeout_s == 0.5
    with pytest.raises(OptionError, match="namespace"):
        app.override(namespace="no braces {}")
