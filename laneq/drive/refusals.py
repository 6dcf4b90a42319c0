"""Turn what goes wrong with Redis into laneq's own errors: the one place for it.

Two kinds. `RedisUnavailable`: there is no connection, or it broke. `RedisRefused`:
the server answered, with an error; its first word says which. Messages name host
and port, and never a password.
"""

from __future__ import annotations

from typing import Any, Final

import redis.exceptions as theirs

from laneq.calls.call import Until
from laneq.drive.address import Address
from laneq.errors import RedisRefused, RedisUnavailable, StoreError

NOSCRIPT: Final = "NOSCRIPT"
READONLY: Final = "READONLY"

#: The server will answer soon, or another one will: a call is worth repeating at once.
PASSING: Final = frozenset(
    {
        "ASK", "BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MOVED", "NOREPLICAS", READONLY,
        "TRYAGAIN",
    }
)  # fmt: skip

#: This server will not take it, but another one may: look for the master, or for the node of
#: the cluster, anew. The old connection is of no use any more.
ELSEWHERE: Final = frozenset({"CLUSTERDOWN", "MASTERDOWN", "MOVED", "NOREPLICAS", READONLY})

#: What the words mean for the operator: whether the state can pass, and what to do.
_ADVICE: Final = {
    "ASK": (True, "The cluster is moving the namespace to another node: wait until it is done."),
    "BUSY": (
        True,
        "A script is running for too long; another client's, since laneq's are bounded.",
    ),
    "CLUSTERDOWN": (True, "The cluster does not cover every slot: look at CLUSTER INFO."),
    "CROSSSLOT": (False, "Use a single Redis, or a namespace that no proxy renames."),
    "EXECABORT": (False, "Look at the error before it in the server's log."),
    "LOADING": (True, "Redis is reading its data: wait until it has started."),
    "MASTERDOWN": (True, "This replica has lost its master: wait for the failover."),
    "MISCONF": (True, "Redis cannot write its snapshot: look at its log and its disk."),
    "MOVED": (True, "Another node of the cluster has the namespace now: it is looked for."),
    "NOAUTH": (False, "Put a password into the address: redis://:PASSWORD@host:port/0."),
    "NOPERM": (False, "Give this user the commands and keys that laneq needs (ACL SETUSER)."),
    "NOREPLICAS": (True, "Too few replicas are in reach: see min-replicas-to-write."),
    "OOM": (True, "Redis is at its maxmemory: free memory, or raise the limit."),
    READONLY: (True, "This server is a replica: give the master's address, or the sentinels'."),
    "TRYAGAIN": (True, "The cluster is moving slots: wait until it is done."),
    "WRONGPASS": (False, "Check user name and password of the address."),
}


class Lost(Exception):
    """Why a connection is gone; stands in the place of each reply still expected.

    Attributes:
        reason: in words, for the message.
        is_closing: the driver itself closed it, so nothing is to be repeated.
    """

    def __init__(self, reason: str, *, is_closing: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_closing = is_closing


def word_of(reply: Any) -> str:
    """Return the first word of an error reply: NOSCRIPT, OOM and so on."""
    return str(reply).partition(" ")[0]


def refused(address: Address, word: str, text: str) -> RedisRefused:
    """Return the error for a server that answered with one.

    Args:
        address: the server.
        word: first word of the reply.
        text: all of the reply.
    """
    is_retryable, advice = _ADVICE.get(word, (False, ""))
    message = f"Redis at {address.where} refused: {text}"
    if advice:
        message = f"{message.rstrip('.')}. {advice}"
    return RedisRefused(word, message, is_retryable=is_retryable)


def unavailable(address: Address, reason: str) -> RedisUnavailable:
    """Return the error for a server that cannot be reached, or for a broken connection."""
    return RedisUnavailable(f"Redis at {address.where} cannot be reached: {reason}")


def timed_out(until: Until[Any]) -> TimeoutError:
    """Return the error for a wait whose time is over."""
    return TimeoutError(f"nothing was announced within {until.timeout_s:g} s")


def not_connected(address: Address, error: Exception, timeout_s: float) -> StoreError:
    """Return our error for one that redis-py raised while connecting.

    Args:
        address: the server.
        error: what was raised.
        timeout_s: seconds that connecting could take.
    """
    # Its asyncio unix connection wraps what the server answered.
    while type(error) is theirs.ConnectionError and isinstance(error.__cause__, theirs.RedisError):
        error = error.__cause__
    text = str(error) or type(error).__name__
    if isinstance(error, (theirs.TimeoutError, TimeoutError)):
        return unavailable(address, f"no answer within {timeout_s:.3g} s")
    word = getattr(error, "status_code", None)
    if isinstance(error, theirs.AuthenticationError):
        word = word or ("NOAUTH" if address.password is None else "WRONGPASS")
    elif isinstance(error, theirs.BusyLoadingError):
        word = word or "LOADING"
    elif not isinstance(error, theirs.ResponseError):
        return unavailable(address, text)
    if "cluster mode" in text or "DB index" in text:
        text = (
            f"{text.rstrip('.')}. There is no database {address.db}; a cluster has 0 only: "
            f"leave /{address.db} out of the address."
        )
    return refused(address, word or "ERR", f"{word} {text}" if word else text)


def trouble(address: Address, reply: Any) -> StoreError:
    """Return our error for an error reply, or for `Lost` in the place of one."""
    if isinstance(reply, Lost):
        error: StoreError = unavailable(address, reply.reason)
        error.__cause__ = reply.__cause__ or reply
    else:
        error = refused(address, word_of(reply), str(reply))
        error.__cause__ = reply
    return error
