"""Run laneq's own check from tests, over a plain client of a real server or of fakeredis.

`laneq.check` is the one place that says what must hold. The `namespace` fixture runs it after each
test; a test that breaks something on purpose names the kinds of problems in `allowed_in`.
"""

from __future__ import annotations

from typing import Any

import redis

from laneq import check
from laneq.calls.call import Call
from laneq.check import Problem, Report
from laneq.keys import keys_of

_ALLOWED: dict[str, set[str]] = {}


def allowed_in(namespace: str) -> set[str]:
    """Return the kinds of problems that a test makes on purpose, to be added to."""
    return _ALLOWED.setdefault(namespace, set())


def forget(namespace: str) -> None:
    """Forget what was allowed in a namespace that is gone."""
    _ALLOWED.pop(namespace, None)


def audit(client: Any, namespace: str, *, is_repair: bool = False, is_fake: bool = False) -> Report:
    """Check a namespace, and repair it first if that is asked for."""
    steps = check.check(keys_of(namespace), is_repair=is_repair)
    try:
        step = next(steps)
        while True:
            step = steps.send(_carry_out(client, step, is_fake=is_fake))
    except StopIteration as end:
        report: Report = end.value
        return report


def problems_in(client: Any, namespace: str, *, is_fake: bool = False) -> list[Problem]:
    """Return every broken invariant of a namespace that its test does not allow."""
    allowed = allowed_in(namespace)
    report = audit(client, namespace, is_fake=is_fake)
    return [problem for problem in report.problems if problem.kind not in allowed]


def _carry_out(client: Any, step: check.Step, *, is_fake: bool) -> Any:
    if not isinstance(step, Call):
        return step.read(client.execute_command(*step.args))
    script, given = step.script, (len(step.keys), *step.keys, *step.argv)
    if is_fake:
        return step.read(client.eval(script.plain, *given))
    try:
        return step.read(client.evalsha(script.sha.decode(), *given))
    except redis.exceptions.NoScriptError:
        return step.read(client.eval(script.text, *given))
