"""Calls, results, errors and records as bytes, and back.

A **payload** is one msgpack value. The payload of a call is the array of its
arguments; where there are keyword arguments it is their map, with the array under
the key 0, which no keyword can be. Any other first byte, and any unknown type
inside, is an `UnknownEnvelope`: a newer laneq wrote it, and an older worker leaves
the job to others. Later forms start with the byte 0xC1, which msgpack never uses.

A **record** is what Redis keeps of a waiting job: a head of text that scripts
read, a line feed, and the payload, which is opaque bytes to them (Lua's numbers
and JSON would change it, fault I2). The head is the task's name, then a tab, a letter,
``=`` and an integer for each option that is not the default. Scripts add two of
their own: ``q``, when a delayed job was enqueued (µs), and ``n``, that a job has come
back and so has a run line (``lua/lib/mark.lua``).

What decodes is equal to what was encoded and of the same type, with the
exceptions listed in docs/types.md; everything else is refused with the path to the
value. Nothing is ever unpickled.

The fast path hands values of plain types to one shared C packer. It has no hook,
so that it runs no Python code and no other thread can come between. Containers are
walked in Python, but one that holds plain values only is checked in C and passed on
as it is.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from struct import Struct
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import unquote
from uuid import UUID
from zoneinfo import ZoneInfo

import msgpack

from laneq.errors import NotSerializable, OptionError, UnknownEnvelope, UnreadablePayload
from laneq.model import TASK_NAME, RemoteError
from laneq.options import fair_text

#: Containers inside one another that a payload may have.
MAX_DEPTH: Final = 100

# A structure that refers to the same list twice at each of 40 levels is small in
# memory and endless when written out.
_MAX_CONTAINERS: Final = 5_000_000

# First byte of every later form of a payload; msgpack leaves it unused for ever.
_LATER: Final = 0xC1

# msgpack extension types. The numbers are stored: never use one again.
_BIG_INT: Final = 1
_DATETIME_UTC: Final = 2
_DATETIME_OFFSET: Final = 3
_DATETIME_ZONE: Final = 4
_DATE: Final = 5
_TIME: Final = 6
_TIMEDELTA: Final = 7
_DECIMAL: Final = 8
_UUID: Final = 9
_SET: Final = 10
_FROZENSET: Final = 11
_TUPLE: Final = 12

_PLAIN: Final = frozenset({int, str, float, bytes, bool, type(None)})
_all_plain: Final = _PLAIN.issuperset
_all_text: Final = frozenset({str}).issuperset

_MICROSECOND: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_WALL_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001  the origin of wall times, no instant

_LONG: Final = Struct(">q")
_TWO_LONGS: Final = Struct(">qq")

_ExtType: Any = msgpack.ExtType


def _shared_packer() -> Callable[[Any], bytes]:
    if msgpack.Packer.__module__.endswith("fallback"):
        # The pure Python packer keeps state between its steps: one for each call.
        return msgpack.packb  # type: ignore[no-any-return]
    return msgpack.Packer().pack  # type: ignore[no-any-return]


_pack = _shared_packer()

# The shared packer's buffer never shrinks: after a payload this long it is replaced.
_LONG_PAYLOAD: Final = 4 * 1024 * 1024


def _packed(value: object) -> bytes:
    global _pack  # noqa: PLW0603  replaced after a very long payload
    data = _pack(value)
    if len(data) > _LONG_PAYLOAD:
        _pack = _shared_packer()
    return data


# --- encoding ---------------------------------------------------------------


def encode_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
    """Encode the arguments of a call.

    Raises:
        NotSerializable: a value is of no type that survives; names the path to it.
    """
    for value in args:
        if type(value) not in _PLAIN:
            break
    else:
        try:
            if not kwargs:
                data = _pack(args)
                return data if len(data) < _LONG_PAYLOAD else _packed(args)
            if _all_text(map(type, kwargs)) and _all_plain(map(type, kwargs.values())):
                named: dict[Any, Any] = {0: args, **kwargs} if args else {**kwargs}
                return _packed(named)
        except (OverflowError, UnicodeEncodeError):
            pass  # walked below: a large integer is converted, a surrogate is found
    return _encode_slowly("args", lambda walk: _call_form(walk, args, kwargs))


def encode_value(value: Any, *, what: str = "result") -> bytes:
    """Encode one value; `what` is its name in an error's path.

    Raises:
        NotSerializable: it, or a value in it, is of no type that survives.
    """
    if type(value) in _PLAIN:
        try:
            return _packed(value)
        except (OverflowError, UnicodeEncodeError):
            pass  # as in encode_call
    return _encode_slowly(what, lambda walk: walk.at(what, value))


class _Unfit(Exception):
    """A value cannot be encoded; each level on the way out adds its step to the path."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str] = []

    def path(self) -> str:
        steps = self.steps[::-1]
        if len(steps) > 12:  # noqa: PLR2004  longer paths do not help anybody
            steps = [*steps[:10], "…"]
        return "".join(steps)


def _encode_slowly(what: str, form: Callable[[_Walk], Any]) -> bytes:
    try:
        try:
            return _packed(form(_Walk()))
        except (OverflowError, UnicodeEncodeError):
            return _packed(form(_Walk(is_careful=True)))
    except _Unfit as unfit:
        raise NotSerializable(unfit.path(), unfit.reason) from None
    except RecursionError:
        # Called from deep inside a recursion, a walk within MAX_DEPTH can still end so.
        raise NotSerializable(what, "nested too deep for the stack that is left") from None


def _call_form(walk: _Walk, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    positional = [walk.at(f"args[{n}]", value) for n, value in enumerate(args)]
    if not kwargs:
        return positional
    named: dict[Any, Any] = {0: positional} if positional else {}
    for name, value in kwargs.items():
        if type(name) is not str:
            raise NotSerializable("kwargs", f"the name {name!r} of an argument must be a str")
        step = f"kwargs[{name!r}]"
        named[walk.at(step, name)] = walk.at(step, value)
    return named


class _Walk:
    """One pass over a value, which returns a form that the packer takes as it is.

    A careful pass looks at every single integer and string; the first pass leaves
    these to the packer, which raises.
    """

    __slots__ = ("containers", "is_careful")

    def __init__(self, *, is_careful: bool = False) -> None:
        self.is_careful = is_careful
        self.containers = 0

    def at(self, step: str, value: Any, depth: int = 0) -> Any:
        try:
            return self.convert(value, depth)
        except _Unfit as unfit:
            unfit.steps.append(step)
            raise

    def convert(self, value: Any, depth: int) -> Any:  # noqa: PLR0911  one per kind of value
        kind = type(value)
        if kind in _PLAIN:
            return self._plain(value) if self.is_careful else value
        if kind is dict:
            return self._dict(value, self._deeper(depth))
        if kind is list or kind is tuple:
            return self._items(value, self._deeper(depth))
        to_ext = _TO_EXT.get(kind)
        if to_ext is not None:
            return to_ext(value)
        if kind is set:
            return self._members(_SET, value, self._deeper(depth))
        if kind is frozenset:
            return self._members(_FROZENSET, value, self._deeper(depth))
        return self._other(value, depth)

    def _deeper(self, depth: int) -> int:
        if depth >= MAX_DEPTH:
            raise _Unfit(f"nested deeper than {MAX_DEPTH} levels, or it contains itself")
        self.containers += 1
        if self.containers > _MAX_CONTAINERS:
            raise _Unfit(f"more than {_MAX_CONTAINERS:,} containers, or it repeats itself")
        return depth + 1

    def _plain(self, value: Any) -> Any:
        if type(value) is int:
            if not -(2**63) <= value < 2**64:
                return _ExtType(_BIG_INT, _int_bytes(value))
        elif type(value) is str:
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise _Unfit(
                    f"a lone surrogate at index {error.start} is no text. Pass bytes, or decode "
                    "with errors='replace'."
                ) from None
        return value

    def _items(self, items: Iterable[Any], depth: int) -> list[Any]:
        if not self.is_careful and _all_plain(map(type, items)):
            return items if type(items) is list else list(items)
        converted = []
        try:
            for item in items:
                converted.append(self.convert(item, depth))  # noqa: PERF401  its length is the path
        except _Unfit as unfit:
            unfit.steps.append(f"[{len(converted)}]")
            raise
        return converted

    def _dict(self, items: dict[Any, Any], depth: int) -> dict[Any, Any]:
        if (
            not self.is_careful
            and _all_text(map(type, items))
            and _all_plain(map(type, items.values()))
        ):
            return items
        converted = {}
        for key, value in items.items():
            kept = self._key(key)
            try:
                converted[kept] = self.convert(value, depth)
            except _Unfit as unfit:
                unfit.steps.append(f"[{_shown(key)}]")
                raise
        if len(converted) != len(items):
            raise _Unfit("two keys become the same one: a str, int or bytes of a subclass")
        return converted

    def _key(self, key: Any) -> Any:
        if type(key) in {str, int, bytes}:
            return self._plain(key) if self.is_careful else key
        if isinstance(key, str | int | bytes) and not isinstance(key, bool):
            kept = self._other(key, 0)
            if type(kept) in {str, int, bytes, _ExtType}:
                return kept
        raise _Unfit(f"the key {_shown(key)} is a {_name(key)}; keys must be str, int or bytes")

    def _members(self, code: int, members: Iterable[Any], depth: int) -> Any:
        converted = []
        for member in members:
            try:
                converted.append(self._hashable(member, depth))
            except _Unfit as unfit:
                unfit.steps.append(f"{{{_shown(member)}}}")
                raise
        if len(set(converted)) != len(converted) and code != _TUPLE:
            raise _Unfit("two members become the same one: an Enum beside its value")
        return _ExtType(code, _packed(converted))

    def _hashable(self, member: Any, depth: int) -> Any:
        # Lists, dicts and sets cannot be in a set, so a tuple has to stay one.
        if isinstance(member, tuple):
            return self._members(_TUPLE, member, self._deeper(depth))
        converted = self.convert(member, depth)
        if isinstance(converted, dict | list):
            raise _Unfit(f"a {_name(member)} arrives as a {_name(converted)}, which no set takes")
        return converted

    def _other(self, value: Any, depth: int) -> Any:
        if isinstance(value, Enum):
            return self.convert(value.value, depth)
        if is_dataclass(value) and not isinstance(value, type):
            return self._dataclass(value, self._deeper(depth))
        for base, plain in _BASES:
            if isinstance(value, base):
                return self.convert(_as_plain(value, plain), depth)
        raise _Unfit(f"cannot serialise a {_name(value)}{_advice(value)}")

    def _dataclass(self, value: Any, depth: int) -> dict[str, Any]:
        converted = {}
        for one in fields(value):
            if not hasattr(value, one.name):
                raise _Unfit(f"its field {one.name!r} has no value")
            converted[one.name] = self.at(f".{one.name}", getattr(value, one.name), depth)
        return converted


def _as_plain(value: Any, plain: Callable[[Any], Any]) -> Any:
    if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):
        raise _Unfit(f"{_shown(value)} has nanoseconds; times are kept to the microsecond")
    try:
        return plain(value)
    except Exception as error:  # noqa: BLE001  a subclass may do anything
        raise _Unfit(f"cannot make plain data of a {_name(value)}: {error!r}") from None


def _name(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  a __repr__ may raise anything
        return f"<{_name(value)}>"
    return text if len(text) <= 60 else f"{text[:59]}…"  # noqa: PLR2004  it is part of a path


def _advice(value: object) -> str:
    if isinstance(value, bytearray | memoryview):
        return ". Pass bytes(...) of it."
    if hasattr(type(value), "model_dump"):
        return ". Pass its model_dump()."
    if hasattr(type(value), "__next__") or isinstance(value, range):
        return ". Pass list(...) of it."
    return ". Pass plain data; docs/types.md lists the types."


def _int_bytes(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def _datetime_ext(value: datetime) -> Any:
    zone = value.tzinfo
    if zone is UTC:
        return _ExtType(_DATETIME_UTC, _LONG.pack((value - _EPOCH) // _MICROSECOND))
    wall = (value.replace(tzinfo=None, fold=0) - _WALL_EPOCH) // _MICROSECOND
    if isinstance(zone, timezone):
        offset = zone.utcoffset(None) // _MICROSECOND
        return _ExtType(_DATETIME_OFFSET, _TWO_LONGS.pack(wall, offset))
    if isinstance(zone, ZoneInfo) and zone.key:
        # The wall time, not the instant: what was written is what arrives, also
        # in the hour that a change of clocks doubles or skips.
        return _ExtType(_DATETIME_ZONE, _LONG.pack(2 * wall + value.fold) + zone.key.encode())
    if value.utcoffset() is None:
        raise _Unfit(
            f"{_shown(value)} has no time zone: it names another instant on every host. "
            "Use datetime.now(UTC), or .astimezone() for the local zone."
        )
    raise _Unfit(
        f"a time zone of type {_name(zone)} does not survive. Use a zoneinfo.ZoneInfo, "
        "or .astimezone(UTC)."
    )


def _time_ext(value: time) -> Any:
    if value.tzinfo is not None:
        raise _Unfit("a time of day with a zone is no instant. Pass a datetime, or drop the zone.")
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return _ExtType(_TIME, _LONG.pack(2 * (seconds * 1_000_000 + value.microsecond) + value.fold))


_TO_EXT: Final[dict[type, Callable[[Any], Any]]] = {
    datetime: _datetime_ext,
    date: lambda value: _ExtType(_DATE, _LONG.pack(value.toordinal())),
    time: _time_ext,
    timedelta: lambda value: _ExtType(_TIMEDELTA, _int_bytes(value // _MICROSECOND)),
    Decimal: lambda value: _ExtType(_DECIMAL, str(value).encode()),
    UUID: lambda value: _ExtType(_UUID, value.bytes),
}


def _plain_datetime(value: datetime) -> datetime:
    return datetime.combine(
        date(value.year, value.month, value.day),
        time(value.hour, value.minute, value.second, value.microsecond, fold=value.fold),
        tzinfo=value.tzinfo,
    )


# Values of a subclass arrive as the plain type. The order matters: a datetime is a date.
_BASES: Final[tuple[tuple[type, Callable[[Any], Any]], ...]] = (
    (int, int.__pos__),
    (float, float.__pos__),
    (str, str.__str__),
    (bytes, lambda value: bytes(memoryview(value))),
    (dict, dict),
    (list, list),
    (tuple, lambda value: tuple(iter(value))),
    (set, lambda value: set(iter(value))),
    (frozenset, lambda value: frozenset(iter(value))),
    (datetime, _plain_datetime),
    (date, lambda value: date(value.year, value.month, value.day)),
    (
        time,
        lambda value: time(
            value.hour,
            value.minute,
            value.second,
            value.microsecond,
            tzinfo=value.tzinfo,
            fold=value.fold,
        ),
    ),
    (timedelta, lambda value: timedelta(value.days, value.seconds, value.microseconds)),
    (Decimal, lambda value: Decimal(str(value))),
    (UUID, lambda value: UUID(int=value.int)),
)


# --- decoding ---------------------------------------------------------------


def decode_call(payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Decode the arguments of a call: the positional ones and those by keyword.

    Raises:
        UnknownEnvelope: a newer laneq wrote it; the job is to be left to others.
        UnreadablePayload: the bytes are no payload.
    """
    form = _decode("the payload of a call", payload)
    if type(form) is list:
        return tuple(form), {}
    if type(form) is dict:
        args = form.pop(0, [])
        if type(args) is list and _all_text(map(type, form)):
            return tuple(args), form
    raise UnknownEnvelope("the payload of a call", f"a {_name(form)} at its top")


def decode_value(data: bytes, *, what: str = "result") -> Any:
    """Decode one value; `what` is its name in an error.

    Raises:
        UnknownEnvelope: a newer laneq wrote it.
        UnreadablePayload: the bytes are no value.
    """
    return _decode(what, data)


class _UnknownType(Exception):
    """An extension type that only a newer laneq knows."""


def _decode(what: str, data: bytes) -> Any:
    try:
        return msgpack.unpackb(data, ext_hook=_from_ext, strict_map_key=False, timestamp=3)
    except _UnknownType as unknown:
        raise UnknownEnvelope(what, f"a value of type {unknown}") from None
    except Exception as error:
        if data[:1] == bytes((_LATER,)):
            raise UnknownEnvelope(what, f"the form {_version(data)}") from None
        reason = str(error) or type(error).__name__
        raise UnreadablePayload(what, f"{reason} ({len(data):,} bytes)") from error


def _version(data: bytes) -> str:
    try:
        unpacker = msgpack.Unpacker()
        unpacker.feed(data[1:20])
        return repr(unpacker.unpack())
    except Exception:  # noqa: BLE001  whatever it is, it is unknown
        return data[1:20].hex()


def _members_of(data: bytes) -> list[Any]:
    # An Unpacker keeps its stack on the heap; unpackb, called from inside its own
    # hook, takes 40 KB of the C stack each time, and nested sets would end the process.
    unpacker = msgpack.Unpacker(
        max_buffer_size=len(data), ext_hook=_from_ext, strict_map_key=False, timestamp=3
    )
    unpacker.feed(data)
    members = unpacker.unpack()
    if type(members) is not list or unpacker.tell() != len(data):
        raise ValueError("the members of a set or tuple are no array")
    return members


def _from_int(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def _from_wall(microseconds: int) -> datetime:
    return _WALL_EPOCH + timedelta(microseconds=microseconds)


def _from_offset(data: bytes) -> datetime:
    wall, offset = _TWO_LONGS.unpack(data)
    return _from_wall(wall).replace(tzinfo=timezone(timedelta(microseconds=offset)))


def _from_zone(data: bytes) -> datetime:
    wall, fold = divmod(_LONG.unpack(data[:8])[0], 2)
    try:
        zone = ZoneInfo(data[8:].decode())
    except LookupError as error:
        raise ValueError(f"{error.args[0]}. Install the package tzdata.") from None
    return _from_wall(wall).replace(tzinfo=zone, fold=fold)


def _from_time(data: bytes) -> time:
    microseconds, fold = divmod(_LONG.unpack(data)[0], 2)
    return _from_wall(microseconds).time().replace(fold=fold)


_FROM_EXT: Final[dict[int, Callable[[bytes], Any]]] = {
    _BIG_INT: _from_int,
    _DATETIME_UTC: lambda data: _EPOCH + timedelta(microseconds=_LONG.unpack(data)[0]),
    _DATETIME_OFFSET: _from_offset,
    _DATETIME_ZONE: _from_zone,
    _DATE: lambda data: date.fromordinal(_LONG.unpack(data)[0]),
    _TIME: _from_time,
    _TIMEDELTA: lambda data: timedelta(microseconds=_from_int(data)),
    _DECIMAL: lambda data: Decimal(data.decode()),
    _UUID: lambda data: UUID(bytes=data),
    _SET: lambda data: set(_members_of(data)),
    _FROZENSET: lambda data: frozenset(_members_of(data)),
    _TUPLE: lambda data: tuple(_members_of(data)),
}


def _from_ext(code: int, data: bytes) -> Any:
    decode = _FROM_EXT.get(code)
    if decode is None:
        raise _UnknownType(code)
    return decode(data)


# --- errors -----------------------------------------------------------------

#: Most characters of an error's type, most bytes of its message and traceback.
MAX_ERROR_TYPE: Final = 200
MAX_ERROR_MESSAGE: Final = 8 * 1024
MAX_ERROR_TRACEBACK: Final = 48 * 1024


def describe_exception(error: BaseException) -> RemoteError:
    """Return an exception as text, cut to the limits; never raises.

    It stands whatever the exception does: a ``__str__`` that raises, a message of
    10 MB, groups, a chain of 1,000 causes (fault I3).
    """
    return _cut(RemoteError(type(error).__name__, _text_of(error), _traceback_of(error)))


def encode_error(error: RemoteError) -> bytes:
    """Encode an error, cut to the limits: at most 64 KiB."""
    kept = _cut(error)
    return _packed([kept.type, kept.message, kept.traceback])


def decode_error(data: bytes) -> RemoteError:
    """Decode an error.

    Raises:
        UnreadablePayload: the bytes are no error.
    """
    form = _decode("an error", data)
    if type(form) is list and len(form) >= 3 and _all_text(map(type, form[:3])):  # noqa: PLR2004
        return RemoteError(*form[:3])
    raise UnreadablePayload("an error", "it is not three texts")


def decode_cut_error(data: bytes) -> RemoteError:
    """Decode what is left of an error whose bytes were cut short: its type, and some text.

    Raises:
        UnreadablePayload: the bytes are no beginning of an error.
    """
    unpacker = msgpack.Unpacker()
    unpacker.feed(data)
    texts: list[str] = []
    try:
        for _ in range(unpacker.read_array_header()):
            at = unpacker.tell()
            texts.append(unpacker.unpack())
    except msgpack.OutOfData:
        # The text that was cut: its bytes stand behind a header of 1, 2, 3 or 5 bytes.
        header = {0xD9: 2, 0xDA: 3, 0xDB: 5}.get(data[at], 1) if texts and at < len(data) else 0
        texts.append(data[at + header :].decode("utf-8", "ignore") if texts else "")
    except Exception as problem:
        raise UnreadablePayload("an error", f"{problem}") from problem
    if len(texts) < 2 or not _all_text(map(type, texts)):  # noqa: PLR2004
        raise UnreadablePayload("an error", "it is not the beginning of three texts")
    return RemoteError(*texts[:3])


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as problem:  # noqa: BLE001  a __str__ may raise anything
        return f"<its text cannot be shown: {type(problem).__name__}>"


def _traceback_of(error: BaseException) -> str:
    try:
        return "".join(traceback.TracebackException.from_exception(error, compact=True).format())
    except BaseException as problem:  # noqa: BLE001  it runs code of the exception's classes
        return f"<its traceback cannot be shown: {type(problem).__name__}>"


def _cut(error: RemoteError) -> RemoteError:
    return RemoteError(
        _shortened(error.type, 4 * MAX_ERROR_TYPE)[:MAX_ERROR_TYPE],
        _shortened(error.message, MAX_ERROR_MESSAGE),
        # The last frames say most; the first ones say where it began.
        _shortened(error.traceback, MAX_ERROR_TRACEBACK, head=MAX_ERROR_TRACEBACK // 4),
    )


def _shortened(text: str, limit: int, *, head: int | None = None) -> str:
    if len(text) <= limit and text.isascii():
        return text
    # Only what can be kept is encoded: a message may have hundreds of megabytes.
    if len(text) > 2 * limit:
        data = text[:limit].encode(errors="backslashreplace")
        end = text[-limit:].encode(errors="backslashreplace")
    else:
        data = end = text.encode(errors="backslashreplace")
        if len(data) <= limit:
            return data.decode()
    mark = f"\n… cut: {len(text):,} characters in all …\n"
    room = limit - len(mark.encode())
    first = room if head is None else head
    kept = data[:first].decode(errors="ignore") + mark
    last = room - first
    return kept + end[-last:].decode(errors="ignore") if last else kept


# --- records ----------------------------------------------------------------

_LETTERS: Final[dict[str, str]] = {
    "boost_us": "b",
    "expires_us": "x",
    "expires_at_us": "X",
    "timeout_us": "t",
    "ttl_us": "r",
    "max_attempts": "m",
    "base_us": "f",
    "cap_us": "c",
    "backoff": "k",
    "jitter": "j",
    "executor": "e",
    "enqueued_us": "q",
    "ready_us": "y",
}
_NAMES: Final = {letter: name for name, letter in _LETTERS.items()}
_FREE_TEXT: Final = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,200}")
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")


class Record(NamedTuple):
    """What Redis keeps of a waiting job. None is an option that the call does not give.

    A named tuple, not a dataclass: a worker makes one for each job that it claims.

    Attributes:
        task: the task's name.
        payload: the encoded call.
        boost_us: head start in the lane.
        expires_us: expiry, from the enqueue.
        expires_at_us: expiry, since the epoch.
        timeout_us: most run time of an attempt.
        ttl_us: life of the result; 0 keeps none.
        max_attempts, base_us, cap_us, backoff, jitter: the retry; see `Retry.with_record`.
        executor: 0 async, 1 thread, 2 process.
        enqueued_us: instant of the enqueue, of a job that was delayed.
        ready_us: instant at which it became ready, of a job in a fair lane.
        fair_key: whom it counts for in a fair lane.
        origin: who enqueued it, as free text.
    """

    task: str
    payload: bytes
    boost_us: int = 0
    expires_us: int | None = None
    expires_at_us: int | None = None
    timeout_us: int | None = None
    ttl_us: int | None = None
    max_attempts: int | None = None
    base_us: int | None = None
    cap_us: int | None = None
    backoff: int | None = None
    jitter: int | None = None
    executor: int | None = None
    enqueued_us: int | None = None
    ready_us: int | None = None
    fair_key: str | None = None
    origin: str | None = None


def encode_head(
    task: str,
    *,
    boost_us: int = 0,
    expires_us: int | None = None,
    expires_at_us: int | None = None,
    timeout_us: int | None = None,
    ttl_us: int | None = None,
    max_attempts: int | None = None,
    base_us: int | None = None,
    cap_us: int | None = None,
    backoff: int | None = None,
    jitter: int | None = None,
    executor: int | None = None,
    enqueued_us: int | None = None,
    ready_us: int | None = None,
    fair_key: str | None = None,
    origin: str | None = None,
) -> bytes:
    """Encode the head of a record, with the line feed that ends it.

    A record is the head and a payload: a producer that enqueues a task often keeps the head.
    The arguments are `Record`'s.

    Raises:
        OptionError: the task's name or the origin has characters that cannot be stored.
    """
    if not TASK_NAME.fullmatch(task):
        raise OptionError("task", f"must be 1 to 200 characters without white space, not {task!r}")
    parts = [task]
    numbers = (
        ("b", boost_us or None),
        ("x", expires_us),
        ("X", expires_at_us),
        ("t", timeout_us),
        ("r", ttl_us),
        ("m", max_attempts),
        ("f", base_us),
        ("c", cap_us),
        ("k", backoff),
        ("j", jitter),
        ("e", executor),
        ("q", enqueued_us),
        ("y", ready_us),
    )
    parts += [f"{letter}={number:d}" for letter, number in numbers if number is not None]
    if fair_key is not None:
        parts.append(f"g={fair_text(fair_key)}")
    if origin is not None:
        if not _FREE_TEXT.fullmatch(origin):
            raise OptionError("origin", f"must be 1 to 200 printable characters, not {origin!r}")
        parts.append(f"p={origin}")
    return ("\t".join(parts) + "\n").encode()


def with_fair_key(head: bytes, key: str) -> bytes:
    """Return a head, as `encode_head` makes it, with another fair key."""
    plain = re.sub(rb"\tg=[^\t\n]*", b"", head, count=1)
    return plain[:-1] + b"\tg=" + fair_text(key).encode() + b"\n"


# A task without options has one head for all its jobs.
_plain_head = lru_cache(maxsize=4096)(encode_head)


def encode_record(task: str, payload: bytes, **options: Any) -> bytes:
    """Encode a record: `encode_head` of the task and options, then the payload.

    Raises:
        OptionError: the task's name or the origin has characters that cannot be stored.
    """
    return (encode_head(task, **options) if options else _plain_head(task)) + payload


def decode_record(data: bytes) -> Record:
    """Decode a record; letters that a newer laneq wrote are passed over.

    Raises:
        UnreadablePayload: the bytes are no record.
    """
    head, line_feed, payload = data.partition(b"\n")
    if not line_feed:
        raise UnreadablePayload("the record of a job", "its head does not end")
    task, options = _parse_head(head)
    return Record._make((task, payload, *options))


# Jobs of one task mostly have the same head.
@lru_cache(maxsize=1024)
def _parse_head(head: bytes) -> tuple[str, tuple[Any, ...]]:
    try:
        task, *options = head.decode().split("\t")
    except UnicodeDecodeError as error:
        raise UnreadablePayload("the record of a job", f"its head is no text: {error}") from error
    if not task:
        raise UnreadablePayload("the record of a job", "it names no task")
    found: dict[str, Any] = {}
    for option in options:
        letter, _, text = option.partition("=")
        name = _NAMES.get(letter)
        if name is not None:
            if not _INTEGER.fullmatch(text):
                raise UnreadablePayload("the record of a job", f"{option!r} is no integer")
            found[name] = int(text)
        elif letter == "p":
            found["origin"] = text
        elif letter == "g":
            found["fair_key"] = unquote(text, errors="surrogatepass")
    return task, Record(task, b"", **found)[2:]


RetryOption = Literal["max_attempts", "base_us", "cap_us", "backoff", "jitter"]


def retry_options(record: Record) -> dict[RetryOption, int]:
    """Return what the record says of retries, as `Retry.with_record` takes it."""
    given: dict[RetryOption, int | None] = {
        "max_attempts": record.max_attempts,
        "base_us": record.base_us,
        "cap_us": record.cap_us,
        "backoff": record.backoff,
        "jitter": record.jitter,
    }
    return {name: value for name, value in given.items() if value is not None}
