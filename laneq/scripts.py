"""Load the Lua operations: read headers, splice fragments, bind by name.

The header of a script is its interface. ``lua/NAME.lua`` opens with comment
lines, of which this module reads:

``FLAGS a b``
    script flags for real servers (``allow-oom``, ``no-writes``).
``KEYS a b | c* d*``
    fixed keys, then keys that repeat per lane. In the script ``a`` is written
    ``a_key`` and ``c*`` is written ``c_key(i)``, lane i counted from 1; both are
    replaced by their place in KEYS. ``lanes_n`` is the number of lanes.
``ARGV a:str b:int``
    fixed arguments, bound as locals ``a`` and ``b``.
``EACH job id record``
    a repeating group of arguments. The script has ``job_n`` (how many),
    ``job_at`` (offset), ``job_w`` (width) and the field offsets ``JOB_ID`` and
    ``JOB_RECORD``, so that field ID of the i-th is
    ``ARGV[job_at + (i - 1) * job_w + JOB_ID]``.
``@include name``
    splice ``lua/lib/name.lua`` in place of the line, once: an indented one once in its block
    (up to the next line that is not indented), where nothing at the margin includes it.

Everything here is text work at import; nothing talks to a server.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

from laneq.keys import Keys

Arg = bytes | str | int

_HEADER: Final = re.compile(r"^-- (FLAGS|KEYS|ARGV|EACH)\s+(.*)$")
_INCLUDE: Final = re.compile(r"^\s*-- @include (\w+)\s*$")
_NO_LANES: Final = ()


@dataclass(frozen=True, slots=True)
class Group:
    """A repeating group of arguments, from an EACH line."""

    name: str
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Script:
    """One operation, ready to be sent.

    Attributes:
        text: source for real servers, with its ``#!lua`` line.
        plain: source without that line, for fakeredis.
        sha: hex digest under which real servers know `text`.
        keys: fixed key words in header order.
        lane_keys: key words that repeat per lane.
        args: fixed argument names in header order.
        groups: repeating argument groups in header order.
    """

    name: str
    text: bytes
    plain: bytes
    sha: bytes
    flags: tuple[str, ...]
    keys: tuple[str, ...]
    lane_keys: tuple[str, ...]
    args: tuple[str, ...]
    groups: tuple[Group, ...]

    def bind_keys(
        self, keys: Keys, lanes: Iterable[str] = _NO_LANES, **extra: bytes
    ) -> tuple[bytes, ...]:
        """Return the KEYS of a call in header order.

        Args:
            keys: the namespace.
            lanes: the lanes that the starred keys repeat for.
            extra: keys that are not attributes of `keys`, by header word.
        """
        fixed = [extra[word] if word in extra else getattr(keys, word) for word in self.keys]
        fixed.extend(keys.of_lane(word, lane) for lane in lanes for word in self.lane_keys)
        return tuple(fixed)

    def bind_args(
        self,
        values: Mapping[str, Arg] | None = None,
        **groups: Sequence[Sequence[Arg]],
    ) -> tuple[Arg, ...]:
        """Return the ARGV of a call in header order.

        Args:
            values: the fixed arguments by name.
            groups: rows of each EACH group by its name; a group left out is empty.
        """
        given = values or {}
        out: list[Arg] = [given[name] for name in self.args]
        for group in self.groups:
            rows = groups.pop(group.name, ())
            out.append(len(rows))
            for row in rows:
                if len(row) != len(group.fields):
                    message = f"{self.name}: {group.name} takes {group.fields}, got {len(row)}"
                    raise TypeError(message)
                out.extend(row)
        if groups:
            raise TypeError(f"{self.name}: no group {', '.join(groups)}")
        return tuple(out)


def lua_folder() -> Path:
    """Return the folder of the Lua sources, in an install or a checkout."""
    packaged = Path(str(resources.files("laneq"))) / "lua"
    if packaged.is_dir():
        return packaged
    return Path(__file__).resolve().parent.parent / "lua"


def _splice(folder: Path, source: str) -> str:
    out: list[str] = []
    everywhere: set[str] = set()
    of_block: set[str] = set()
    for line in source.splitlines():
        found = _INCLUDE.match(line)
        if found and line[0].isspace():
            out += _fragment(folder, found[1], of_block, everywhere)
        elif found:
            out += _fragment(folder, found[1], everywhere)
        else:
            out.append(line)
            if line and not line[0].isspace():
                of_block = set()
    return "\n".join(out)


def _fragment(
    folder: Path, name: str, seen: set[str], outside: AbstractSet[str] = frozenset()
) -> list[str]:
    """Return the lines of a fragment, its own fragments spliced in; none where it was seen."""
    if name in seen or name in outside:
        return []
    seen.add(name)
    out: list[str] = []
    for line in (folder / "lib" / f"{name}.lua").read_text("utf-8").splitlines():
        found = _INCLUDE.match(line)
        out += _fragment(folder, found[1], seen, outside) if found else [line]
    return out


def _expand(
    source: str, keys: Sequence[str], lane_keys: Sequence[str], groups: Sequence[Group]
) -> str:
    """Write out what the header names: keys, lane keys and field offsets.

    Locals for them would cost: a call makes each anew, and every function that
    uses one holds it, at about the price of a command for each function.
    """
    constants = {f"{word}_key": f"KEYS[{i}]" for i, word in enumerate(keys, 1)}
    for group in groups:
        constants[f"{group.name}_w"] = str(len(group.fields))
        for i, field in enumerate(_names(group.fields), 1):
            constants[f"{group.name}_{field}".upper()] = str(i)
    source = re.sub(r"\b\w+\b(?!\()", lambda found: constants.get(found[0], found[0]), source)
    width = len(lane_keys)
    for i, word in enumerate(lane_keys, 1):
        base, call = len(keys) + i - width, f"{word}_key("
        while call in source:
            before, _, rest = source.partition(call)
            depth, end = 1, 0
            while depth:
                depth += {"(": 1, ")": -1}.get(rest[end], 0)
                end += 1
            lane = rest[: end - 1]
            factor = lane if lane.isidentifier() else f"({lane})"
            source = f"{before}KEYS[{base} + {factor} * {width}]{rest[end:]}"
    return source


def _strip(source: str) -> str:
    """Drop comment and blank lines: servers keep every loaded text in memory."""
    lines = (line for line in source.splitlines() if line.strip())
    return "\n".join(line for line in lines if not line.lstrip().startswith("--"))


def _prelude(
    keys: Sequence[str], lane_keys: Sequence[str], args: Sequence[str], groups: Sequence[Group]
) -> str:
    out: list[str] = []
    if lane_keys:
        out.append(f"local lanes_n = (#KEYS - {len(keys)}) / {len(lane_keys)}")
    for i, word in enumerate(args, 1):
        name, _, kind = word.partition(":")
        out.append(f"local {name} = " + (f"ARGV[{i}] + 0" if kind == "int" else f"ARGV[{i}]"))
    at = str(len(args) + 1)
    for group in groups:
        name = group.name
        out.append(f"local {name}_at = {at}")
        out.append(f"local {name}_n = ARGV[{name}_at] + 0")
        at = f"{name}_at + {name}_n * {len(group.fields)} + 1"
    return "\n".join(out)


def _names(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(word.partition(":")[0] for word in words)


def build(folder: Path, name: str) -> Script:
    """Read one operation and splice it into a script ready to be sent."""
    source = (folder / f"{name}.lua").read_text("utf-8")
    flags: tuple[str, ...] = ()
    keys: list[str] = []
    lane_keys: list[str] = []
    args: list[str] = []
    groups: list[Group] = []
    for line in source.splitlines():
        if not line.startswith("--"):
            break
        found = _HEADER.match(line)
        if not found:
            continue
        words = found[2].split()
        match found[1]:
            case "FLAGS":
                flags = tuple(words)
            case "KEYS":
                keys += [word for word in words if not word.endswith("*") and word != "|"]
                lane_keys += [word[:-1] for word in words if word.endswith("*")]
            case "ARGV":
                args += words
            case _:
                groups.append(Group(words[0], tuple(words[1:])))
    main = _expand(_strip(_splice(folder, source)), keys, lane_keys, groups)
    body = f"{_prelude(keys, lane_keys, args, groups)}\n{main}\n"
    text = f"#!lua flags={','.join(flags)}\n{body}" if flags else f"#!lua\n{body}"
    return Script(
        name=name,
        text=text.encode(),
        plain=body.encode(),
        sha=hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest().encode(),
        flags=flags,
        keys=tuple(keys),
        lane_keys=tuple(lane_keys),
        args=_names(args),
        groups=tuple(Group(g.name, _names(g.fields)) for g in groups),
    )


@cache
def load(name: str) -> Script:
    """Return the operation ``lua/NAME.lua``, read and spliced once per process."""
    return build(lua_folder(), name)


def names() -> list[str]:
    """Return the names of all operations."""
    return sorted(path.stem for path in lua_folder().glob("*.lua"))


def dump(target: Path) -> None:
    """Write every spliced script to a folder, for luacheck and for reading."""
    target.mkdir(parents=True, exist_ok=True)
    for name in names():
        (target / f"{name}.lua").write_bytes(load(name).plain)


if __name__ == "__main__":
    import sys

    dump(Path(sys.argv[1]))
