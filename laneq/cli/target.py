"""Which app, and so which Redis and which namespace, a command works on.

Each setting is taken from the first place that has it: the command line, the
app's constructor, the environment, ``[tool.laneq]`` in the nearest
``pyproject.toml``. The last two are read by `LaneQ` itself. An app is imported
only where one is named; without, a plain `LaneQ` stands for the namespace.

A command that only looks at Redis goes on without an app that cannot be
imported, and says so, unless that app was named on the command line: then the
wrong Redis might be looked at.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from laneq.app import LaneQ, project_settings
from laneq.cli.find_app import find_app
from laneq.cli.report import note
from laneq.cli.settings import Settings
from laneq.errors import ConfigError, LaneqError


@dataclass(frozen=True, slots=True)
class Named:
    """The name of an app, and where it was found."""

    name: str
    place: str


def project_folder() -> Path:
    """Return the folder of the nearest ``pyproject.toml``, else the working folder."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "pyproject.toml").is_file():
            return folder
    return here


def named_app(settings: Settings, argument: str | None = None) -> Named | None:
    """Return which app is named: by a command's own argument, else by the settings."""
    if argument:
        return Named(argument, "the command line")
    if "app" in settings.given:
        return Named(settings.given["app"], "--app")
    if os.environ.get("LANEQ_APP"):
        return Named(os.environ["LANEQ_APP"], "LANEQ_APP")
    name = project_settings().get("app")
    return Named(name, "pyproject.toml") if name else None


def load_app(settings: Settings, argument: str | None = None) -> LaneQ:
    """Import the app that a command needs.

    Args:
        settings: may name it, and the address and namespace that it is to use.
        argument: its name, where the command itself was given it.

    Raises:
        ConfigError: none is named, or it cannot be imported.
    """
    named = named_app(settings, argument)
    if named is None:
        raise ConfigError(
            "no app is named. Give one as MODULE:ATTR (laneq worker shop.tasks:app), with --app, "
            "in LANEQ_APP, or as app in [tool.laneq] of pyproject.toml."
        )
    return _placed(settings, _imported(named))


def app_of(settings: Settings, *, wants_code: bool = False) -> LaneQ:
    """Return the named app, or a plain one that stands for the namespace.

    Args:
        settings: may name the app, the address and the namespace.
        wants_code: import the app also where address and namespace are known without.

    Raises:
        ConfigError: the address cannot be read, or the app that the command line names
            cannot be imported.
    """
    is_placed = {"url", "namespace"} <= settings.given.keys()
    named = named_app(settings) if wants_code or not is_placed else None
    if named is None:
        return _plain(settings)
    try:
        app = _imported(named)
    except LaneqError as error:
        if "app" in settings.given:
            raise
        first_line = str(error).partition("\n")[0]
        note(f"going on without the app {named.name!r} of {named.place}: {first_line}")
        return _plain(settings)
    return _placed(settings, app)


def _plain(settings: Settings) -> LaneQ:
    return LaneQ(settings.given.get("url"), namespace=settings.given.get("namespace"))


def _imported(named: Named) -> LaneQ:
    folders = [Path.cwd()]
    if named.place == "pyproject.toml":
        folders.append(project_folder())
    return find_app(named.name, folders=folders)


def _placed(settings: Settings, app: LaneQ) -> LaneQ:
    if settings.given.keys() & {"url", "namespace"}:
        app.override(url=settings.given.get("url"), namespace=settings.given.get("namespace"))
    return app
