"""Print what programs read, one JSON document on stdout, and notes to people on stderr."""

from __future__ import annotations

import json
import math
from typing import Any

import click


def print_json(document: Any) -> None:
    """Print one document; NaN and infinity, which JSON lacks, become text."""
    click.echo(json.dumps(_finite(document), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def note(text: str) -> None:
    """Tell a person something beside the data, on stderr."""
    click.echo(f"laneq: {text}", err=True)
