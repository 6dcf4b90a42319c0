"""Odd ways for a body to end: what it raises and returns, by name."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn


class NeedsTwo(Exception):
    """Cannot be rebuilt from its arguments."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


class Unprintable(Exception):
    """Has no text."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __str__(self) -> str:
        raise SystemExit(3)


class Untraceable(Exception):
    """Does not take another traceback."""

    def with_traceback(self, tb: object) -> NoReturn:
        raise RuntimeError("no traceback")


@dataclass
class Exits:
    """A value that ends the program when it is encoded."""

    a: int

    def __getattribute__(self, name: str) -> Any:
        if name == "a":
            raise SystemExit(3)
        return super().__getattribute__(name)


def _chain() -> Exception:
    error: Exception = ValueError("first")
    for n in range(1_000):
        following = ValueError(n)
        following.__cause__ = error
        error = following
    return error


def _deep(n: int) -> int:
    return _deep(n + 1) + 1


def _with_socket() -> Exception:
    error = OSError("has a socket")
    error.sock = socket.socketpair()  # type: ignore[attr-defined]
    return error


def _raises(error: BaseException) -> NoReturn:
    raise error


def _cycle() -> list[Any]:
    cycle: list[Any] = [1]
    cycle.append(cycle)
    return cycle


#: What bodies do, by name.
RAISES: dict[str, Callable[[], Any]] = {
    "two arguments": lambda: _raises(NeedsTwo(1, 2)),
    "unprintable": lambda: _raises(Unprintable()),
    "untraceable": lambda: _raises(Untraceable("as ever")),
    "10 MB": lambda: _raises(ValueError("x" * 10_000_000)),
    "group": lambda: _raises(ExceptionGroup("two", [ValueError("a"), KeyError("b")])),
    "base group": lambda: _raises(BaseExceptionGroup("two", [SystemExit(3), KeyboardInterrupt()])),
    "chain": lambda: _raises(_chain()),
    "deep": lambda: _deep(0),
    "socket": lambda: _raises(_with_socket()),
    "exit": lambda: sys.exit(3),
    "interrupt": lambda: _raises(KeyboardInterrupt()),
    "generator exit": lambda: _raises(GeneratorExit()),
    "cancelled": lambda: _raises(asyncio.CancelledError()),
    "surrogate": lambda: _raises(ValueError("\ud800\x00")),
}
RETURNS: dict[str, Callable[[], Any]] = {
    "file": lambda: sys.stdin,
    "lambda": lambda: {"f": [lambda: 0]},
    "large": lambda: bytes(1_048_577),
    "exits": lambda: Exits(a=1),
    "cycle": _cycle,
}
DOES: dict[str, Callable[[], Any]] = RAISES | RETURNS
