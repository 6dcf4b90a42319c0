"""What one run of the command line was told; the context object of its commands."""

from __future__ import annotations


class Settings:
    """The options that all commands share.

    Attributes:
        given: what the command line says, by name: url, namespace, app.
        wants_json: print one JSON document in place of a table.
    """

    def __init__(self) -> None:
        """Nothing is given yet."""
        self.given: dict[str, str] = {}
        self.wants_json = False
