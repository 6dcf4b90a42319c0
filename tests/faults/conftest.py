"""Fixtures of fault tests: see `tests.faults.field`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ENGINE
from tests.faults.field import Field

NewField = Callable[..., Field]

#: Seconds that a test may take unless it says otherwise, or is `long`.
_LIMIT_S = 180


@pytest.hookimpl(trylast=True)  # the long ones have their time by then
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test in this folder, and give it time for a loaded machine."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.fault)
            item.add_marker(pytest.mark.slow)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(_LIMIT_S))


@pytest.fixture
def new_field(tmp_path: Path) -> Iterator[NewField]:
    """Make fields with the options of `Field`; each must be in order at the end."""
    made: list[Field] = []
    with contextlib.ExitStack() as stack:

        def new_field(**options: Any) -> Field:
            folder = tmp_path / f"field-{len(made)}"
            folder.mkdir()
            field = stack.enter_context(Field(folder, engine=ENGINE, **options))
            made.append(field)
            return field

        yield new_field
        for field in made:
            field.end_workers()
            field.assert_in_order()


@pytest.fixture
def field(new_field: NewField) -> Field:
    """A field with the default lanes, a lease of 4 s, and a server that keeps nothing."""
    return new_field()
