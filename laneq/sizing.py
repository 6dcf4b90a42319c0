"""How many slots a lane needs: from its rate and run time, and for random arrivals.

Two answers, both shown to operators. The rule of thumb covers the average load with headroom.
Erlang's formula covers arrivals at random, which bunch: it gives the slots that keep the chance of
any wait under a bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count
from typing import Final

from laneq.errors import OptionError

# Products such as 100/s × 0.07 s come out a hair above the whole number they are.
_FUZZ: Final = 1e-9

#: The largest load, in busy slots, that is worked out.
MAX_LOAD: Final = 1e6


def _checked(option: str, number: float, low: float, high: float) -> float:
    if not low <= number <= high:  # also false for NaN
        raise OptionError(option, f"must be between {low:g} and {high:g}, not {number!r}")
    return number


def offered_load(rate_per_s: float, run_s: float) -> float:
    """Return the slots that are busy on average, in erlangs: rate × mean run time.

    It is Little's law (Little 1961, "A proof for the queuing formula L = λW").

    Raises:
        OptionError: a number is negative, NaN, or the product is over `MAX_LOAD`.
    """
    load = _checked("rate_per_s", rate_per_s, 0, 1e12) * _checked("run_s", run_s, 0, 1e12)
    return _checked("rate_per_s × run_s", load, 0, MAX_LOAD)


def reserve_for(rate_per_s: float, run_s: float, headroom: float = 1.5) -> int:
    """Return the slots to reserve for a load: ``max(1, ceil(rate × run × headroom))``.

    The rule is from "Worker Pools with Priority Lanes".

    Args:
        rate_per_s: jobs that arrive per second.
        run_s: mean run time of one, in seconds.
        headroom: factor over the average load.

    Raises:
        OptionError: a number is negative, NaN or far too large.
    """
    wanted = offered_load(rate_per_s, run_s) * _checked("headroom", headroom, 0, 1000)
    return max(1, math.ceil(wanted * (1 - _FUZZ)))


def _blocking(load: float) -> Iterator[tuple[int, float]]:
    # Erlang B for 1, 2, 3 … servers, by its recursion (Cooper 1981, Introduction to Queueing
    # Theory): B(n) = a B(n-1) / (n + a B(n-1)). All terms are positive, so it neither overflows
    # nor cancels, as the formula with powers and factorials does from some 170 servers.
    blocked = 1.0
    for servers in count(1):
        blocked = load * blocked / (servers + load * blocked)
        yield servers, blocked


def _waiting(servers: int, load: float, blocked: float) -> float:
    # Erlang C from B: C = n B / (n - a (1 - B)); at or over capacity everybody waits.
    if load >= servers:
        return 1.0
    return servers * blocked / (servers - load * (1 - blocked))


def erlang_c(servers: int, load: float) -> float:
    """Return the chance that a job which arrives at random has to wait for a slot.

    For Poisson arrivals, and run times that vary like an exponential distribution, in a queue of
    their own (Erlang 1917, "Solution of some problems in the theory of probabilities of
    significance in automatic telephone exchanges"). Run times that vary less wait less.

    Args:
        servers: slots.
        load: offered load in erlangs, see `offered_load`.

    Raises:
        OptionError: a number is negative, NaN or far too large.
    """
    _checked("servers", servers, 0, 10 * MAX_LOAD)
    _checked("load", load, 0, MAX_LOAD)
    if load >= servers:
        return 1.0
    # Once it has come down to zero it stays there, however many more servers there are.
    blocked = next(b for n, b in _blocking(load) if n >= servers or b == 0)
    return _waiting(servers, load, blocked)


def servers_for_wait(rate_per_s: float, run_s: float, chance: float = 0.01) -> int:
    """Return the fewest slots with which at most the share `chance` of jobs waits at all.

    Args:
        rate_per_s: jobs that arrive per second, at random.
        run_s: mean run time of one, in seconds.
        chance: the share that may wait, above 0 and below 1.

    Raises:
        OptionError: a number is negative, NaN or far too large.
    """
    _checked("chance", chance, 1e-12, 1 - 1e-12)
    load = offered_load(rate_per_s, run_s)
    return next(n for n, blocked in _blocking(load) if _waiting(n, load, blocked) <= chance)
