"""A stage per test, on the real server and on fakeredis; invariants hold after each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stage import START_US, Stage


@pytest.fixture(params=["server", "fake"])
def bare(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A namespace in which nothing was published yet."""
    if request.param == "fake":
        stage = Stage(request.getfixturevalue("fake"), "test", is_fake=True)
    else:
        namespace = request.getfixturevalue("namespace")
        stage = Stage(request.getfixturevalue("raw"), namespace, is_fake=False)
    stage.set_clock(START_US)
    yield stage
    if stage.is_fake:  # else `namespace` looks
        assert stage.problems() == []


@pytest.fixture
def stage(bare: Stage) -> Stage:
    """A namespace with the default lanes."""
    bare.publish()
    return bare
