"""Which app, Redis and namespace a command works on."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from laneq.cli.find_app import find_app
from laneq.cli.settings import Settings
from laneq.cli.target import app_of, load_app
from laneq.errors import ConfigError, OptionError
from tests.cli.conftest import Commands, Processes

APP = """
from laneq import LaneQ
app = LaneQ({arguments})

@app.task
def work() -> None: ...
"""


@pytest.fixture(autouse=True)
def forget_modules(monkeypatch: pytest.MonkeyPatch):
    """Drop what a test imported from its own folder."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if not name.startswith("laneq"):
            del sys.modules[name]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def settings(**given: str) -> Settings:
    made = Settings()
    made.given.update(given)
    return made


# --- precedence ---


@pytest.mark.parametrize("setting", ["url", "namespace"])
def test_command_line_then_constructor_then_environment_then_project(
    at_home: Path, monkeypatch: pytest.MonkeyPatch, setting: str
):
    def value(n: int) -> str:
        return f"redis://127.0.0.1:{n}/0" if setting == "url" else f"space-{n}"

    def found(**given: str) -> str:
        app = app_of(settings(**given))
        return str(app.address) if setting == "url" else app.namespace

    defaults = {"url": "redis://127.0.0.1:6379/0", "namespace": "default"}
    assert found() == defaults[setting]
    write(at_home / "pyproject.toml", f"[tool.laneq]\n{setting} = '{value(1)}'\n")
    assert found() == value(1)
    monkeypatch.setenv(f"LANEQ_{setting.upper()}", value(2))
    assert found() == value(2)
    write(at_home / "mine_a.py", APP.format(arguments=f"{setting}='{value(3)}'"))
    monkeypatch.setenv("LANEQ_APP", "mine_a")
    assert found() == value(3)
    assert found(**{setting: value(4)}) == value(4)


def test_the_nearest_project_file_counts(at_home: Path, monkeypatch: pytest.MonkeyPatch):
    write(at_home / "pyproject.toml", "[tool.laneq]\nnamespace = 'outer'\n")
    inner = write(at_home / "a" / "pyproject.toml", "[project]\nname = 'x'\n").parent
    below = at_home / "b" / "c"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert app_of(settings()).namespace == "outer"
    monkeypatch.chdir(inner)
    assert app_of(settings()).namespace == "default"


def test_a_project_names_the_app_for_its_subfolders_too(
    at_home: Path, monkeypatch: pytest.MonkeyPatch
):
    write(at_home / "pyproject.toml", "[tool.laneq]\napp = 'mine_b:app'\n")
    write(at_home / "mine_b.py", APP.format(arguments="namespace='of-app'"))
    below = at_home / "below"
    below.mkdir()
    monkeypatch.chdir(below)
    assert load_app(settings()).namespace == "of-app"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[tool.laneq]\nulr = 'x'\n", "Did you mean 'url'?"),
        ("[tool.laneq]\nurl = 3\n", "must be a string"),
        ("[tool]\nlaneq = 3\n", "must be a table"),
        ("tool = 3\n", "must be a table"),
        ("[tool.laneq\n", "cannot be read"),
    ],
)
def test_a_wrong_project_file_is_wrong_usage(at_home: Path, text: str, told: str):
    write(at_home / "pyproject.toml", text)
    answer = Commands()("lanes")
    assert answer.status == 2
    assert told in answer.err
    assert "pyproject.toml" in answer.err


def test_looking_goes_on_without_an_app_that_only_the_environment_names(laneq: Commands):
    laneq.environment["LANEQ_APP"] = "not_here:app"
    answer = laneq("lanes", "--json")
    assert answer.status == 0
    assert json.loads(answer.out) == []
    assert "going on without the app 'not_here:app' of LANEQ_APP" in answer.err
    assert laneq("--app", "not_here:app", "lanes").status == 2


@pytest.mark.parametrize("option", ["--url", "--namespace", "--app"])
def test_an_empty_setting_is_refused_and_never_means_the_default(laneq: Commands, option: str):
    for args in ([option, "", "lanes"], ["lanes", option, ""]):
        answer = laneq(*args)
        assert answer.status == 2
        assert "is empty" in answer.err


def test_a_wrong_address_is_told_once_and_no_matter_of_the_app(laneq: Commands, at_home: Path):
    write(at_home / "shop.py", APP.format(arguments=""))
    answer = laneq("--app", "shop", "--url", "nonsense", "lanes")
    assert answer.status == 2
    laneq.environment["LANEQ_APP"] = "shop"
    assert laneq("--url", "nonsense", "lanes") == answer
    assert answer.err.count("must begin with") == 1


def test_a_command_that_needs_an_app_says_how_to_name_one(laneq: Commands):
    answer = laneq("worker")
    assert answer.status == 2
    assert "LANEQ_APP" in answer.err


# --- forms and layouts ---


def test_flat_package_src_and_namespace_layouts_work_from_the_project_folder(at_home: Path):
    text = APP.format(arguments="")
    write(at_home / "flat_c.py", text)
    write(at_home / "package_c" / "tasks.py", text)
    write(at_home / "package_c" / "__init__.py", "")
    write(at_home / "src" / "source_c" / "tasks.py", text)
    write(at_home / "src" / "source_c" / "__init__.py", "")
    write(at_home / "namespace_c" / "tasks.py", text)
    for name in ("flat_c", "package_c.tasks", "source_c.tasks", "namespace_c.tasks"):
        for form in (name, f"{name}:app"):
            assert list(find_app(form, folders=[at_home]).tasks) == [f"{name}.work"]


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("flat_d.py", "flat_d"),
        ("package_d/tasks.py", "package_d.tasks"),
        ("namespace_d/tasks.py", "namespace_d.tasks"),
        ("src/source_d/tasks.py", "source_d.tasks"),
        ("package_d/__init__.py", "package_d"),
    ],
)
def test_a_file_has_the_name_that_an_import_gives_it(at_home: Path, path: str, module: str):
    write(at_home / "package_d" / "__init__.py", "")
    write(at_home / path, APP.format(arguments=""))
    for form in (path, f"{path}:app", f"./{path}", str(at_home / path)):
        app = find_app(form, folders=[at_home])
        assert list(app.tasks) == [f"{module}.work"]


def test_a_file_elsewhere_is_found_by_its_package(at_home: Path, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    write(elsewhere / "away_e" / "__init__.py", "")
    file = write(elsewhere / "away_e" / "tasks.py", APP.format(arguments=""))
    assert list(find_app(str(file), folders=[at_home]).tasks) == ["away_e.tasks.work"]


def test_a_module_with_one_app_under_two_names_has_one(at_home: Path):
    write(at_home / "two_f.py", APP.format(arguments="") + "\nalias = app\n")
    assert find_app("two_f", folders=[at_home]).tasks


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("shop_g.taks", ["no module named 'shop_g.taks'", "Did you mean 'shop_g.tasks'?"]),
        ("shpo_g.tasks", ["no module named 'shpo_g'", "Did you mean 'shop_g'?"]),
        ("shop_g.tasks:ap", ["has no 'ap'", "Did you mean 'app'?"]),
        ("shop_g.tasks:work", ["is a Task, not a LaneQ app", "Apps in this module: app, other"]),
        ("shop_g.tasks", ["has 2 apps", "shop_g.tasks:app, shop_g.tasks:other"]),
        ("shop_g", ["has no LaneQ app", "app = LaneQ()"]),
        ("shop_g/none.py", ["there is no file shop_g/none.py"]),
        ("shop_g.tasks:", ["cannot be read", "MODULE:ATTR"]),
        (":app", ["cannot be read"]),
    ],
)
def test_an_app_that_is_not_there_is_told_with_the_nearest(
    at_home: Path, name: str, told: list[str]
):
    write(at_home / "shop_g" / "__init__.py", "")
    write(at_home / "shop_g" / "tasks.py", APP.format(arguments="") + "\nother = LaneQ()\n")
    with pytest.raises(ConfigError) as caught:
        find_app(name, folders=[at_home])
    for words in told:
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import not_installed_h\n", "ModuleNotFoundError: No module named 'not_installed_h'"),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
        ("def broken(:\n", "SyntaxError"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
    ],
)
def test_a_module_that_fails_shows_folder_path_and_its_own_traceback(
    at_home: Path, text: str, told: str
):
    file = write(at_home / "broken_h.py", text)
    with pytest.raises(ConfigError) as caught:
        find_app("broken_h", folders=[at_home])
    message = str(caught.value)
    assert "'broken_h' fails while it is imported" in message
    assert told in message
    assert f"Working folder: {at_home}" in message
    assert f"Search path:\n  {at_home}\n" in message
    assert str(file) in message
    assert "importlib" not in message
    assert "find_app.py" not in message


def test_an_option_error_in_the_app_keeps_its_place(at_home: Path):
    write(at_home / "wrong_i.py", "from laneq import LaneQ\napp = LaneQ(max_payload=-1)\n")
    with pytest.raises(ConfigError, match=r"wrong_i.*OptionError") as caught:
        find_app("wrong_i", folders=[at_home])
    assert isinstance(caught.value.__cause__, OptionError)


# --- as a user starts it ---


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "no module named 'mine_j'"),
        ("1 / 0\n", "ZeroDivisionError"),
        ("from laneq import LaneQ\napp = LaneQ()\n", "has no task"),
    ],
)
def test_a_worker_without_tasks_ends_with_status_2(
    processes: Processes, at_home: Path, text: str | None, told: str
):
    if text is not None:
        write(at_home / "mine_j.py", text)
    answer = processes.run("worker", "mine_j:app")
    assert answer.status == 2, answer
    assert told in answer.err
