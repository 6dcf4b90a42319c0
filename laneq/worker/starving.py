"""Say which lanes can wait for ever without anybody having said that they may."""

from __future__ import annotations

from collections.abc import Sequence

from laneq.calls.lanes import LanesInForce
from laneq.precedence import Rule, unsaid, unsaid_text
from laneq.worker.lines import log


class StarvingLanes:
    """Warns of each lane once, and again only after it was well in between.

    An app is refused that declares such a lane; here are those that came about otherwise: by the
    lanes of another app, by an older laneq, by what an operator has set. A worker runs for all
    that.
    """

    def __init__(self) -> None:
        self._rules: Sequence[Rule] = ()
        self._told: frozenset[tuple[str, str]] = frozenset()

    def know(self, lanes: LanesInForce) -> None:
        """Compare the lanes in force with those before."""
        rules = lanes.rules()
        if rules == self._rules:
            return
        self._rules = rules
        found = unsaid(rules)
        for one in found:
            if any((one.lane, other) not in self._told for other in one.unsaid_by):
                say = f"laneq lanes set {one.lane} may_starve=true"
                log.warning("%s", unsaid_text(rules, [one], say=say))
        self._told = frozenset((one.lane, other) for one in found for other in one.unsaid_by)
