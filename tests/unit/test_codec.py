"""What is sent arrives equal and of the same type, or is refused with the path to it."""

from __future__ import annotations

import enum
import inspect
import math
import sys
import threading
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laneq import codec
from laneq.errors import NotSerializable, OptionError, UnknownEnvelope, UnreadablePayload
from laneq.model import RemoteError
from laneq.options import Retry

PARIS = ZoneInfo("Europe/Paris")
LONE_SURROGATE = "\ud800"


class Colour(enum.Enum):
    """A plain enumeration."""

    RED = "red"
    PAIR = (1, 2)


class Level(enum.IntEnum):
    """An enumeration whose members are integers."""

    LOW = 1


class Word(enum.StrEnum):
    """An enumeration whose members are text."""

    YES = "yes"


class Permission(enum.Flag):
    """A set of flags."""

    READ = 1
    WRITE = 2


@dataclass(frozen=True)
class Point:
    """A dataclass."""

    x: int
    y: Any = None


@dataclass(slots=True)
class Unset:
    """A dataclass with a field that has no value."""

    missing: int = field(init=False)


class Text(str):
    """A subclass of str."""

    __slots__ = ()


class Number(int):
    """A subclass of int."""


class Zone(tzinfo):
    """A time zone of one's own."""

    def utcoffset(self, _at: datetime | None) -> timedelta:
        """Return an hour."""
        return timedelta(hours=1)


Pair = namedtuple("Pair", ["a", "b"])  # noqa: PYI024  the plain kind is the case


SURVIVES = [
    None,
    True,
    False,
    0,
    -1,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
    -(2**63),
    -(2**63) - 1,
    2**80,
    -(2**80),
    2**13_000,
    0.1 + 0.2,
    -0.0,
    math.inf,
    -math.inf,
    5e-324,
    "",
    "é\0\n\t",
    "\U0001f600",
    b"",
    b"\xff\x00",
    [],
    {},
    [[]],
    [1, [2, [3, "x"]], {"a": [None]}],
    {"a": 1, "b": {"c": [1.5]}},
    {1: 2, "1": 3, b"1": 4},
    {0: "zero", -5: "x", 2**64: "big"},
    datetime(2026, 11, 30, 12, 0, 0, 123456, tzinfo=UTC),
    datetime.min.replace(tzinfo=UTC),
    datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))),
    datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=45))),
    datetime(1900, 1, 1, tzinfo=timezone(timedelta(seconds=-561, microseconds=7))),
    datetime(2026, 7, 1, 9, 30, tzinfo=PARIS),
    datetime(2026, 10, 25, 2, 30, tzinfo=PARIS),
    datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=PARIS),
    datetime(2026, 3, 29, 2, 30, tzinfo=PARIS),
    datetime.min.replace(tzinfo=PARIS),
    date(2026, 11, 30),
    date.min,
    date.max,
    time(23, 59, 59, 999_999),
    time(0),
    time(1, 30, fold=1),
    timedelta(0),
    timedelta(days=-3, microseconds=1),
    timedelta.min,
    timedelta.max,
    Decimal("0.10"),
    Decimal("-0"),
    Decimal("Infinity"),
    Decimal("1E+1000000"),
    UUID("12345678123456781234567812345678"),
    set(),
    {1, "a", b"b", None, 2.5},
    {2**80, Decimal("1.50"), UUID(int=7), date(2026, 1, 1)},
    frozenset({1, 2}),
    {frozenset({1}), frozenset({frozenset()})},
    {(1, 2), ("a", (3, None))},
    [{1, 2}, {"s": frozenset("ab")}],
]

CHANGES = [
    ((), []),
    ((1, (2, "x")), [1, [2, "x"]]),
    ([(1,), (2,)], [[1], [2]]),
    ({"a": (1, {2})}, {"a": [1, {2}]}),
    (Colour.RED, "red"),
    (Colour.PAIR, [1, 2]),
    (Level.LOW, 1),
    (Word.YES, "yes"),
    (Permission.READ | Permission.WRITE, 3),
    ([Level.LOW, Colour.RED], [1, "red"]),
    ({Level.LOW}, {1}),
    ({Word.YES: Level.LOW}, {"yes": 1}),
    (Point(1), {"x": 1, "y": None}),
    ([Point(1, Point(2))], [{"x": 1, "y": {"x": 2, "y": None}}]),
    (Pair(1, 2), [1, 2]),
    (OrderedDict(a=1), {"a": 1}),
    (defaultdict(list, {"a": [1]}), {"a": [1]}),
    (Text("x"), "x"),
    ({Text("k"): Text("v")}, {"k": "v"}),
    (Number(7), 7),
    (Number(2**70), 2**70),
]


def identical(a: Any, b: Any) -> bool:
    """Tell whether two values are equal and of equal types all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return repr(a) == repr(b)
    return same_content(a, b)


def same_content(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return [(type(k), k) for k in a] == [(type(k), k) for k in b] and all(
            identical(a[k], b[k]) for k in a
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(identical, a, b))
    if isinstance(a, Decimal):
        return str(a) == str(b)
    if isinstance(a, datetime):
        # Where the offset is fixed there is no doubled hour, and fold has no meaning.
        fold_matters = isinstance(a.tzinfo, ZoneInfo)
        return a == b and a.utcoffset() == b.utcoffset() and (a.fold == b.fold or not fold_matters)
    return bool(a == b)


def as_result(value: Any) -> Any:
    return codec.decode_value(codec.encode_value(value))


def as_argument(value: Any) -> Any:
    args, kwargs = codec.decode_call(codec.encode_call((value, 1), {}))
    assert kwargs == {}
    assert args[1:] == (1,)
    return args[0]


def as_keyword(value: Any) -> Any:
    args, kwargs = codec.decode_call(codec.encode_call((1,), {"name": value}))
    assert args == (1,)
    assert list(kwargs) == ["name"]
    return kwargs["name"]


@pytest.mark.parametrize("value", SURVIVES)
def test_fault_i1_a_value_arrives_equal_and_of_its_type(value: Any) -> None:
    assert identical(as_result(value), value)
    assert identical(as_argument(value), value)
    assert identical(as_keyword(value), value)


@pytest.mark.parametrize(("value", "arrives"), CHANGES)
def test_the_documented_changes_of_type_are_made(value: Any, arrives: Any) -> None:
    assert identical(as_result(value), arrives)
    assert identical(as_argument(value), arrives)
    assert identical(as_keyword(value), arrives)


def test_nan_arrives_as_nan() -> None:
    assert math.isnan(as_result(math.nan))
    assert as_result(Decimal("NaN")).is_nan()


def test_the_zone_of_a_datetime_is_kept() -> None:
    zone = as_result(datetime(2026, 7, 1, tzinfo=PARIS)).tzinfo
    assert zone is PARIS
    assert as_result(datetime(2026, 7, 1, tzinfo=UTC)).tzinfo is UTC


CYCLE: list[Any] = [1]
CYCLE.append({"again": CYCLE})
DEEP: list[Any] = []
for _ in range(1_000):
    DEEP = [DEEP]

REFUSED = [
    (datetime(2026, 1, 1), "", "no time zone"),  # noqa: DTZ001
    ([{"when": datetime(2026, 1, 1)}], "[0]['when']", "no time zone"),  # noqa: DTZ001
    (datetime(2026, 1, 1, tzinfo=Zone()), "", "time zone of type"),
    (time(1, tzinfo=UTC), "", "time of day with a zone"),
    ({None: 1}, "", "the key None is a NoneType"),
    ({True: 1}, "", "the key True is a bool"),
    ({1.5: 1}, "", "the key 1.5 is a float"),
    ({(1, 2): 1}, "", "the key (1, 2) is a tuple"),
    ({Colour.RED: 1}, "", "must be str, int or bytes"),
    ({Text("a"): 1, b"a": object()}, "[b'a']", "cannot serialise a object"),
    (LONE_SURROGATE, "", "a lone surrogate at index 0"),
    (["ok", "abc" + LONE_SURROGATE], "[1]", "a lone surrogate at index 3"),
    ({"k": {LONE_SURROGATE: 1}}, "['k']", "a lone surrogate"),
    ({LONE_SURROGATE}, "{'\\ud800'}", "a lone surrogate"),
    (object(), "", "cannot serialise a object"),
    (lambda: 1, "", "cannot serialise a function"),
    (Point, "", "cannot serialise a type"),
    (Colour, "", "cannot serialise a enum.EnumType"),
    ([1, {"x": [2, 3j]}], "[1]['x'][1]", "cannot serialise a complex"),
    (Fraction(1, 3), "", "cannot serialise a fractions.Fraction"),
    (bytearray(b"x"), "", "Pass bytes(...)"),
    (memoryview(b"x"), "", "Pass bytes(...)"),
    ((n for n in [1]), "", "Pass list(...)"),
    (range(3), "", "Pass list(...)"),
    (threading.Lock(), "", "cannot serialise"),
    (Point(1, Point(2, {3, object})), ".y.y{<class 'object'>}", "cannot serialise a type"),
    (Unset(), "", "its field 'missing' has no value"),
    ({Point(1)}, "{Point(x=1, y=None)}", "arrives as a dict, which no set takes"),
    ({Colour.RED, "red"}, "", "two members become the same"),
    ({(1, Point(1))}, "{(1, Point(x=1, y=None))}{Point(x=1, y=None)}", "which no set takes"),
    (CYCLE, "[1]['again'][1]['again']", "or it contains itself"),
    (DEEP, "[0][0]", "nested deeper than 100 levels"),
    (ValueError("x"), "", "cannot serialise a ValueError"),
    (msgpack.Timestamp(1), "", "cannot serialise"),
]


@pytest.mark.parametrize(("value", "path", "reason"), REFUSED)
def test_fault_i1_what_does_not_survive_is_refused_with_its_path(
    value: Any, path: str, reason: str
) -> None:
    with pytest.raises(NotSerializable) as caught:
        codec.encode_value(value)
    assert caught.value.path.startswith("result" + path)
    assert reason in str(caught.value)
    with pytest.raises(NotSerializable) as caught:
        codec.encode_call((0, value), {})
    assert caught.value.path.startswith("args[1]" + path)
    with pytest.raises(NotSerializable) as caught:
        codec.encode_call((), {"a": value})
    assert caught.value.path.startswith("kwargs['a']" + path)


def test_a_refusal_leaves_the_codec_well() -> None:
    with pytest.raises(NotSerializable):
        codec.encode_call((1, "x" * 1_000, LONE_SURROGATE), {})
    assert codec.encode_call((1,), {}) == b"\x91\x01"


def test_an_error_names_a_path_that_can_be_read() -> None:
    with pytest.raises(NotSerializable) as caught:
        codec.encode_call((DEEP,), {})
    assert len(caught.value.path) < 60
    with pytest.raises(NotSerializable) as caught:
        codec.encode_value({"x" * 1_000: object()})
    assert len(str(caught.value)) < 300


def test_a_hundred_levels_survive() -> None:
    value: list[Any] = []
    for _ in range(codec.MAX_DEPTH - 1):
        value = [value, 2**70]
    assert identical(as_result(value), value)
    with pytest.raises(NotSerializable):
        codec.encode_value([value])


def test_a_structure_that_repeats_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "_MAX_CONTAINERS", 1_000)
    value: list[Any] = [1]
    for _ in range(60):
        value = [value, value]
    with pytest.raises(NotSerializable, match="repeats itself"):
        codec.encode_value(value)


def test_a_call_from_deep_inside_a_recursion_is_refused_not_broken() -> None:
    nested: list[Any] = []
    for _ in range(90):
        nested = [nested]

    def deep(levels: int) -> bytes:
        return deep(levels - 1) if levels else codec.encode_value(nested)

    with pytest.raises(NotSerializable, match="nested too deep for the stack"):
        deep(sys.getrecursionlimit() - len(inspect.stack(0)) - 120)
    assert identical(as_result(nested), nested)


def test_nested_sets_take_no_stack() -> None:
    value: frozenset[Any] = frozenset()
    for _ in range(codec.MAX_DEPTH - 1):
        value = frozenset({value})
    data = codec.encode_value(value)
    results = []
    # 40 KB for each level would be far over the half megabyte of a thread on some systems.
    old = threading.stack_size(512 * 1024)
    try:
        thread = threading.Thread(target=lambda: results.append(codec.decode_value(data)))
        thread.start()
    finally:
        threading.stack_size(old)
    thread.join()
    assert results == [value]


def test_a_pandas_like_time_with_nanoseconds_is_refused() -> None:
    class Nano(datetime):
        nanosecond = 1

    with pytest.raises(NotSerializable, match="nanoseconds"):
        codec.encode_value(Nano(2026, 1, 1, tzinfo=UTC))


def test_a_subclass_of_datetime_arrives_as_a_datetime() -> None:
    class Fake(datetime):
        pass

    assert identical(
        as_result(Fake(2026, 10, 25, 2, 30, fold=1, tzinfo=PARIS)),
        datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=PARIS),
    )


text = st.text("aé\0\n\U0001f600", max_size=5)
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text
hashable = plain | st.binary() | st.dates() | st.times() | st.timedeltas() | st.uuids()
keys = text | st.binary() | st.integers()
values = st.recursive(
    hashable | st.decimals(allow_nan=False) | st.datetimes(timezones=st.just(UTC)),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4)
        | st.sets(hashable, max_size=4)
        | st.frozensets(hashable, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=30, deadline=None)
@given(st.lists(values, max_size=3), st.dictionaries(text, values, max_size=3))
def test_any_call_of_supported_values_survives(args: list[Any], kwargs: dict[str, Any]) -> None:
    found_args, found_kwargs = codec.decode_call(codec.encode_call(tuple(args), kwargs))
    assert identical(list(found_args), args)
    assert identical(found_kwargs, kwargs)


# --- envelope ---------------------------------------------------------------


def test_a_call_without_keywords_is_its_arguments() -> None:
    payload = codec.encode_call((12345, "user@example.com"), {})
    assert payload == msgpack.packb([12345, "user@example.com"])
    assert len(payload) == 21


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((1,), {}), ((), {"a": 1}), ((1, 2), {"a": 1, "b": [2]}), (([],), {"0": 0})],
)
def test_positional_and_keyword_arguments_stay_apart(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    assert codec.decode_call(codec.encode_call(args, kwargs)) == (args, kwargs)


def test_the_same_call_has_the_same_bytes_on_both_paths() -> None:
    slow = codec._encode_slowly("args", lambda walk: codec._call_form(walk, (1, "a"), {"b": None}))
    assert codec.encode_call((1, "a"), {"b": None}) == slow


def test_an_argument_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(NotSerializable, match="must be a str"):
        codec.encode_call((), {1: 2})  # type: ignore[dict-item]
    with pytest.raises(NotSerializable, match="surrogate"):
        codec.encode_call((), {LONE_SURROGATE: 2})


@pytest.mark.parametrize(
    "payload",
    [
        b"\xc1\xcd\x03\xe7" + b"anything",
        b"\xc1",
        b"\xc0",
        b"\x05",
        msgpack.packb({0: [], 1: {"trace": "x"}}),
        msgpack.packb({0: "args"}),
        msgpack.packb({b"a": 1}),
        msgpack.packb([msgpack.ExtType(99, b"new")]),
        msgpack.packb([msgpack.ExtType(10, msgpack.packb([msgpack.ExtType(99, b"new")]))]),
    ],
)
def test_fault_l2_a_newer_form_is_told_apart(payload: bytes) -> None:
    with pytest.raises(UnknownEnvelope, match="a newer laneq"):
        codec.decode_call(payload)


def test_fault_l2_envelope_999_is_named() -> None:
    with pytest.raises(UnknownEnvelope, match="the form 999"):
        codec.decode_call(b"\xc1\xcd\x03\xe7rest")
    with pytest.raises(UnknownEnvelope):
        codec.decode_value(b"\xc1\xcd\x03\xe7rest")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x92\x01",
        b"\x91\x01\x01",
        b"\xa1\xff",
        b"\x81\x90\x01",
        b"\x91" * 5_000 + b"\xc0",
        msgpack.packb([msgpack.ExtType(2, b"short")]),
        msgpack.packb([msgpack.ExtType(4, b"\0" * 8 + b"Nowhere/City")]),
        msgpack.packb([msgpack.ExtType(4, b"\0" * 8 + b"../../etc/passwd")]),
        msgpack.packb([msgpack.ExtType(8, b"12x")]),
        msgpack.packb([msgpack.ExtType(9, b"12")]),
        msgpack.packb([msgpack.ExtType(10, b"\x01")]),
        msgpack.packb([msgpack.ExtType(10, b"\x91\x90")]),
        msgpack.packb([msgpack.ExtType(10, b"\x91\x01\x01")]),
        msgpack.packb([msgpack.ExtType(10, b"")]),
    ],
)
def test_broken_bytes_are_unreadable_and_nothing_else(payload: bytes) -> None:
    with pytest.raises(UnreadablePayload) as caught:
        codec.decode_call(payload)
    assert not isinstance(caught.value, UnknownEnvelope)


def test_a_bomb_of_nested_sets_is_unreadable() -> None:
    data = b"\xc0"
    for _ in range(3_000):
        inner = b"\x91" + data
        data = msgpack.packb(msgpack.ExtType(11, inner))
    with pytest.raises(UnreadablePayload):
        codec.decode_value(data)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    for decode in (codec.decode_call, codec.decode_value, codec.decode_error, codec.decode_record):
        try:
            decode(data)
        except UnreadablePayload:
            continue


def test_a_timestamp_of_another_language_is_a_datetime() -> None:
    data = msgpack.packb(msgpack.Timestamp(1, 500_000_000))
    assert codec.decode_value(data) == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)


def test_a_very_long_payload_does_not_keep_its_memory() -> None:
    before = codec._pack
    codec.encode_value(b"x" * (codec._LONG_PAYLOAD + 1))
    after = codec._pack
    assert after is not before
    codec.encode_call((b"x" * (codec._LONG_PAYLOAD + 1),), {})
    assert codec._pack is not after


# --- errors -----------------------------------------------------------------


class TwoArguments(Exception):
    """An error that cannot be made from its text."""

    def __init__(self, a: int, b: int) -> None:
        """Take two arguments."""
        super().__init__()
        self.a, self.b = a, b


class Unprintable(Exception):
    """An error that raises when it is looked at."""

    def __str__(self) -> str:
        """Raise."""
        raise RuntimeError("no text")

    def __repr__(self) -> str:
        """Raise."""
        raise RuntimeError("no text")


class Exits(Exception):
    """An error whose text ends the process."""

    def __str__(self) -> str:
        """Raise."""
        raise SystemExit(3)


def raised(error: BaseException) -> BaseException:
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def chain(length: int) -> BaseException:
    error: BaseException = ValueError("first")
    for n in range(length):
        following = ValueError(f"error {n}")
        following.__cause__ = error
        error = following
    return error


def recurse() -> None:
    recurse()


ERRORS = [
    ValueError("plain"),
    TwoArguments(1, 2),
    Unprintable(),
    Exits(),
    ValueError("x" * 10_000_000),
    ValueError("é" * 1_000_000),
    ValueError(LONE_SURROGATE),
    ExceptionGroup("several", [ValueError(str(n)) for n in range(100)]),
    ExceptionGroup("nested", [ExceptionGroup("inner", [Unprintable()])]),
    chain(1_000),
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
    type("E" * 5_000, (Exception,), {})("long name"),
]


@pytest.mark.parametrize("error", ERRORS)
def test_fault_i3_any_exception_is_described_within_the_limits(error: BaseException) -> None:
    described = codec.describe_exception(raised(error))
    assert described.type == type(error).__name__[:200]
    assert len(described.message.encode()) <= codec.MAX_ERROR_MESSAGE
    assert len(described.traceback.encode()) <= codec.MAX_ERROR_TRACEBACK
    data = codec.encode_error(described)
    assert len(data) <= 64 * 1024
    assert codec.decode_error(data) == described


def test_an_exception_is_described_by_type_text_and_traceback() -> None:
    described = codec.describe_exception(raised(KeyError("x")))
    assert described.type == "KeyError"
    assert described.message == "'x'"
    assert described.traceback.startswith("Traceback (most recent call last):")
    assert described.traceback.endswith("KeyError: 'x'\n")
    assert "in raised" in described.traceback


def test_an_exception_without_text_says_so() -> None:
    described = codec.describe_exception(raised(Unprintable()))
    assert described.message == "<its text cannot be shown: RuntimeError>"
    assert "Unprintable" in described.traceback


def test_a_recursion_is_described() -> None:
    with pytest.raises(RecursionError) as caught:
        recurse()
    described = codec.describe_exception(caught.value)
    assert described.type == "RecursionError"
    assert "Previous line repeated" in described.traceback


def test_a_long_traceback_keeps_its_beginning_and_its_end() -> None:
    text = "".join(f"frame {n}\n" for n in range(100_000))
    kept = codec.decode_error(codec.encode_error(RemoteError("E", "m", text))).traceback
    assert kept.startswith("frame 0\n")
    assert kept.endswith("frame 99999\n")
    assert f"cut: {len(text):,} characters" in kept


@pytest.mark.parametrize("limit", [50, 51, 52, 53])
def test_a_cut_never_splits_a_character(limit: int) -> None:
    for head in (None, 10):
        kept = codec._shortened("é€\U0001f600" * 50, limit, head=head)
        assert len(kept.encode()) <= limit
        assert "\ufffd" not in kept


def test_an_error_that_is_no_error_is_unreadable() -> None:
    for data in (b"", msgpack.packb("x"), msgpack.packb(["a", "b"]), msgpack.packb([1, 2, 3])):
        with pytest.raises(UnreadablePayload):
            codec.decode_error(data)


# --- records ----------------------------------------------------------------

PAYLOAD = b"\x92\x01\n\t\xff"


def test_a_record_without_options_is_name_line_feed_and_payload() -> None:
    record = codec.encode_record("shop.tasks.reindex", PAYLOAD)
    assert record == b"shop.tasks.reindex\n" + PAYLOAD
    assert codec.decode_record(record) == codec.Record("shop.tasks.reindex", PAYLOAD)


def test_a_record_writes_only_what_is_given() -> None:
    record = codec.encode_record(
        "t", PAYLOAD, boost_us=0, timeout_us=5_000_000, ttl_us=0, max_attempts=5, expires_us=None
    )
    assert record == b"t\tt=5000000\tr=0\tm=5\n" + PAYLOAD


def test_a_record_survives_with_every_option() -> None:
    options: dict[str, Any] = {name: n for n, name in enumerate(codec._LETTERS, start=1)}
    options |= {"fair_key": "50%\t\n~ü\ud800", "origin": "web 1"}
    record = codec.encode_record("t", PAYLOAD, **options)
    assert record.count(b"\n") == PAYLOAD.count(b"\n") + 1
    assert codec.decode_record(record) == codec.Record("t", PAYLOAD, **options)
    assert codec.encode_head("t", **options) + PAYLOAD == record


def test_every_letter_stands_for_one_option_of_a_record() -> None:
    names = [
        name
        for name in codec.Record._fields
        if name not in {"task", "payload", "fair_key", "origin"}
    ]
    assert list(codec._LETTERS) == names
    assert len(set(codec._LETTERS.values())) == len(names)
    assert not {"p", "g"} & set(codec._LETTERS.values())


def test_a_long_fair_key_is_cut_and_still_differs_from_others() -> None:
    heads = [codec.with_fair_key(b"t\tg=old\n", "ü" * n) for n in (300, 301)]
    assert heads[0] != heads[1]
    assert all(len(head) <= 210 and b"old" not in head for head in heads)


def test_a_record_of_a_newer_version_is_read() -> None:
    record = b"t\tz=something\tm=5\tY\n" + PAYLOAD
    assert codec.decode_record(record) == codec.Record("t", PAYLOAD, max_attempts=5)


def test_what_a_script_appends_to_the_head_is_read() -> None:
    head, _, payload = codec.encode_record("t", PAYLOAD, boost_us=3).partition(b"\n")
    found = codec.decode_record(head + b"\tq=1790000000000000\n" + payload)
    assert found.enqueued_us == 1_790_000_000_000_000
    assert found.boost_us == 3
    assert found.payload == PAYLOAD


@pytest.mark.parametrize(
    "record", [b"", b"t", b"\n", b"\xff\n", b"t\tm=x\n", b"t\tm=\n", b"t\tb=1.5\n"]
)
def test_a_broken_record_is_unreadable(record: bytes) -> None:
    with pytest.raises(UnreadablePayload):
        codec.decode_record(record)


@pytest.mark.parametrize("task", ["", "a b", "a\tb", "a\nb", "x" * 201, "a\x7f", LONE_SURROGATE])
def test_a_task_name_that_would_break_a_head_is_refused(task: str) -> None:
    with pytest.raises(OptionError, match=r"^task: "):
        codec.encode_record(task, PAYLOAD)


@pytest.mark.parametrize("origin", ["", "a\tb", "a\nb", "x" * 201])
def test_an_origin_that_would_break_a_head_is_refused(origin: str) -> None:
    with pytest.raises(OptionError, match=r"^origin: "):
        codec.encode_record("t", PAYLOAD, origin=origin)


@given(st.text("ab \t\n\0é\x85\u2028\ud800=", max_size=250))
@settings(max_examples=60)
def test_a_head_never_has_a_second_line(task: str) -> None:
    try:
        head = codec.encode_head(task, max_attempts=2)
    except OptionError:
        return
    assert head.count(b"\n") == 1
    assert codec.decode_record(head + PAYLOAD) == codec.Record(task, PAYLOAD, max_attempts=2)


def test_a_retry_survives_a_record() -> None:
    data = codec.encode_record(
        "t", PAYLOAD, max_attempts=5, base_us=2_000_000, cap_us=9_000_000, backoff=1, jitter=0
    )
    found = codec.retry_options(codec.decode_record(data))
    expected = Retry(5, base=2, cap=9, backoff="linear", jitter=False)
    assert Retry().with_record(**found) == expected


def test_a_record_without_retries_says_nothing_of_them() -> None:
    assert codec.retry_options(codec.Record("t", b"")) == {}
