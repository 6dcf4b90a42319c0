"""Find the app that a command line names: ``module:attr``, ``module`` or ``path/file.py``.

The working folder comes first on the import path, and ``src`` in it second, so
that what a producer started there imports is what a worker imports. A file is
imported under the dotted name that it has from there: its tasks are then called
the same in every process.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final

from laneq.app import LaneQ
from laneq.errors import ConfigError, suggest

_FORMS: Final = "MODULE:ATTR, MODULE or path/file.py[:ATTR]"


def find_app(name: str, *, folders: Sequence[Path]) -> LaneQ:
    """Import an app.

    Args:
        name: in one of the forms that this module names.
        folders: put first on the import path, each with its ``src``.

    Raises:
        ConfigError: there is no such module, it fails while it is imported (the
            original traceback is in the message), or it has no such app.
    """
    _put_first(folders)
    module_name, attr = _split(name)
    if _is_file(module_name):
        module_name = _module_of(Path(module_name))
    module = _import(module_name)
    return _named(module, attr) if attr else _only(module)


def _put_first(folders: Sequence[Path]) -> None:
    wanted: list[str] = []
    for folder in folders:
        wanted.append(str(folder))
        source = folder / "src"
        if source.is_dir() and not (source / "__init__.py").exists():
            wanted.append(str(source))
    # "" is the working folder of `python -m`: it stays, but does not come first.
    sys.path[:] = [*wanted, *(entry for entry in sys.path if entry not in wanted)]


def _split(name: str) -> tuple[str, str]:
    # A drive letter's colon is no separator.
    module, colon, attr = name.rpartition(":")
    if not colon or "/" in attr or "\\" in attr:
        module, attr = name, ""
    if not module or (colon and not attr.replace(".", "").isidentifier() and module != name):
        raise ConfigError(f"app {name!r} cannot be read. It is one of {_FORMS}.")
    return module, attr


def _is_file(name: str) -> bool:
    return name.endswith(".py") or "/" in name


def _module_of(path: Path) -> str:
    """Return the dotted name of a file, from the folder that it is imported from."""
    full = path.resolve()
    if full.is_dir():
        full = full / "__init__.py"
    if not full.is_file():
        raise ConfigError(f"there is no file {path} in {Path.cwd()}. The app is one of {_FORMS}.")
    for root in sorted((Path(p).resolve() for p in sys.path if p), key=_depth, reverse=True):
        # The deepest folder of the path that is not itself a package.
        if root in full.parents and not (root / "__init__.py").exists():
            parts = _dotted(full, root)
            if parts:
                return parts
    root = full.parent
    while (root / "__init__.py").exists() and root != root.parent:
        root = root.parent
    sys.path.insert(0, str(root))
    found = _dotted(full, root)
    if not found:
        raise ConfigError(f"{path} cannot be imported: its name is no name of a Python module")
    return found


def _depth(path: Path) -> int:
    return len(path.parts)


def _dotted(file: Path, root: Path) -> str:
    parts = list(file.relative_to(root).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts) if parts and all(part.isidentifier() for part in parts) else ""


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise ConfigError(_no_module(name, error)) from error
        raise ConfigError(_fails(name, error)) from error
    except (Exception, SystemExit) as error:
        # SystemExit: a script that calls sys.exit() when it is imported.
        raise ConfigError(_fails(name, error)) from error


def _no_module(name: str, error: ModuleNotFoundError) -> str:
    missing = error.name or name
    return (
        f"no module named {missing!r}, for the app {name!r}. "
        f"{suggest(missing, _modules_beside(missing))}\n{_where()}\n{_traceback(error)}"
    )


def _fails(name: str, error: BaseException) -> str:
    lines = str(error).splitlines() or [""]
    return (
        f"module {name!r} fails while it is imported: {type(error).__name__}: {lines[0]}\n"
        f"{_where()}\n{_traceback(error)}"
    )


def _modules_beside(missing: str) -> Iterable[str]:
    """Yield what could have been meant: the modules where `missing` was looked for."""
    parent, _, _ = missing.rpartition(".")
    for entry in sys.path[:2]:
        folder = Path(entry, *parent.split(".")) if parent else Path(entry)
        prefix = f"{parent}." if parent else ""
        if not folder.is_dir():
            continue
        for item in folder.iterdir():
            is_module = item.suffix == ".py" and item.stem.isidentifier()
            if is_module and item.stem != "__init__":
                yield prefix + item.stem
            elif item.is_dir() and item.name.isidentifier() and any(item.glob("*.py")):
                yield prefix + item.name


def _where() -> str:
    path = "\n".join(f"  {entry or Path.cwd()}" for entry in sys.path)
    return f"Working folder: {Path.cwd()}\nSearch path:\n{path}"


def _traceback(error: BaseException) -> str:
    """Return the traceback from the app's own code on; ours and importlib's frames say nothing."""
    found = error.__traceback__
    while found is not None and _is_machinery(found):
        found = found.tb_next
    return "".join(traceback.format_exception(type(error), error, found)).rstrip()


def _is_machinery(frame: TracebackType) -> bool:
    file = frame.tb_frame.f_code.co_filename
    return file == __file__ or file.startswith("<frozen importlib") or file == importlib.__file__


def _apps_in(module: ModuleType) -> dict[str, LaneQ]:
    """Return the apps of a module by name, each once."""
    seen: dict[int, str] = {}
    for name, value in vars(module).items():
        if isinstance(value, LaneQ):
            seen.setdefault(id(value), name)
    return {name: getattr(module, name) for name in seen.values()}


def _named(module: ModuleType, attr: str) -> LaneQ:
    value: Any = module
    for step in attr.split("."):
        if not hasattr(value, step):
            known = _apps_in(module) or [n for n in vars(module) if not n.startswith("_")]
            raise ConfigError(
                f"module {module.__name__!r} has no {attr!r}, at {_file(module)}. "
                f"{suggest(attr, known)}"
            )
        value = getattr(value, step)
    if not isinstance(value, LaneQ):
        apps = ", ".join(_apps_in(module)) or "none"
        raise ConfigError(
            f"{module.__name__}:{attr} is a {type(value).__name__}, not a LaneQ app. "
            f"Apps in this module: {apps}."
        )
    return value


def _only(module: ModuleType) -> LaneQ:
    apps = _apps_in(module)
    if len(apps) == 1:
        return next(iter(apps.values()))
    name = module.__name__
    if apps:
        forms = ", ".join(f"{name}:{attr}" for attr in apps)
        raise ConfigError(f"module {name!r} has {len(apps)} apps. Name one of {forms}.")
    raise ConfigError(
        f"module {name!r} has no LaneQ app, at {_file(module)}. Make one there (app = LaneQ()), or "
        "name another module."
    )


def _file(module: ModuleType) -> str:
    return str(getattr(module, "__file__", None) or "a namespace package")
