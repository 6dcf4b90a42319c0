"""The command line: look at and steer a namespace, enqueue, run workers.

One file per noun. `group` has the root and the options that all share, `settings`
finds the address and the app, `session` talks to Redis, `output` prints a table
or JSON, and `status` turns what happened into an exit status. A command's module
is imported when the command is used, so that ``laneq --help`` is quick.
"""

from __future__ import annotations

from laneq.cli.group import main

__all__ = ["main"]
