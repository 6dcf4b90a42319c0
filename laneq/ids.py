"""Ids: of jobs, made by the producer, and of worker processes.

A job id is 20 characters: 12 random ones that a process draws once, and an
8-digit counter. The producer makes it, so an enqueue that is sent again after
a broken connection bears the same id and is stored once.

Invariants: no two processes share a prefix (62**12 of them, drawn from the
system's random source at import, in a child after a fork, and when the counter
has run out); prefix and counter are read as one pair, so that a thread which
is overtaken by a renewal cannot join the old number to the new prefix.

Reading ``os.urandom`` is the one impurity below `drive`: uniqueness over
processes and hosts can come from nowhere else.
"""

from __future__ import annotations

import os
import re
from itertools import count, islice
from typing import Final

_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

# Decimal digits are written faster than padded hexadecimal ones, and all
# numbers from FIRST up to LIMIT have eight of them.
_FIRST: Final = 10_000_000
_LIMIT: Final = 100_000_000

_ID: Final = re.compile(r"[0-9A-Za-z]{12}[0-9a-f]{8}", re.ASCII)


def _random_text(length: int) -> str:
    # Eight bits more per character than it needs: the bias of the remainder
    # is below one in 10**40 for the lengths used here.
    number = int.from_bytes(os.urandom(2 * length))
    letters = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        letters.append(_ALPHABET[digit])
    return "".join(letters)


def _new_stream(first: int = _FIRST) -> tuple[str, count[int]]:
    return _random_text(12), count(first)


_stream = _new_stream()


def _renew() -> None:
    global _stream  # noqa: PLW0603  one stream per process is the point
    _stream = _new_stream()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def new_id() -> str:
    """Return a job id that no other call, thread or process returns."""
    while True:
        prefix, numbers = _stream
        number = next(numbers)
        if number < _LIMIT:
            return f"{prefix}{number}"
        _renew()


def new_ids(n: int) -> list[str]:
    """Return `n` job ids in the order in which they were made."""
    prefix, numbers = _stream
    made = [f"{prefix}{number}" for number in islice(numbers, n)]
    if made and len(made[-1]) > 20:  # noqa: PLR2004  the counter ran out on the way
        made = [an_id for an_id in made if len(an_id) == 20]  # noqa: PLR2004
        made += [new_id() for _ in range(n - len(made))]
    return made


def worker_id() -> str:
    """Return the id of a worker's incarnation: 16 characters, random at each call.

    It names one start of a process. Host name, pid and the operator's label
    are no identity: a container starts again with all three the same (fault A3).
    """
    return _random_text(16)


def is_id(text: str) -> bool:
    """Tell whether `text` has the form of a job id; says nothing of its existence."""
    return _ID.fullmatch(text) is not None
