"""What is made of a sentinel's word that another server is the master now.

An ordinary server plays the sentinel: what counts is the channel.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from laneq.drive import Address
from laneq.drive.route import Route
from laneq.drive.switches import SwitchListener, SwitchWatch
from laneq.keys import keys_of
from tests.drive.conftest import clients
from tests.patience import await_until, wait_until
from tests.proxy import Proxy

CHANNEL = "+switch-master"
OURS = "shop 127.0.0.1 6379 127.0.0.1 6380"
THEIRS = "ship 127.0.0.1 6379 127.0.0.1 6380"


@pytest.fixture
def address(proxy: Proxy) -> Address:
    return Address.parse(f"redis+sentinel://127.0.0.1:1,127.0.0.1:{proxy.port}/shop")


@pytest.fixture
def watch(address: Address, namespace: str) -> Iterator[SwitchWatch]:
    made = SwitchWatch(address, Route(keys_of(namespace).prefix), namespace)
    made.begin()
    yield made
    made.close()


def tell(raw: Any, message: str, *, listeners: int = 1) -> None:
    wait_until(lambda: raw.publish(CHANNEL, message) == listeners)


def test_a_watch_tells_once_of_a_switch_of_its_own_service(watch: SwitchWatch, raw: Any) -> None:
    assert not watch.has_switched()
    tell(raw, THEIRS)
    tell(raw, OURS)
    wait_until(watch.has_switched)
    assert not watch.has_switched()


def test_a_watch_finds_another_sentinel_when_its_own_has_gone(
    watch: SwitchWatch, raw: Any, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("laneq.drive.switches._AGAIN_S", 0.0)
    proxy.cut()
    wait_until(lambda: not watch.has_switched() and raw.pubsub_numsub(CHANNEL)[0][1] == 1)
    tell(raw, OURS)
    wait_until(watch.has_switched)


def test_a_watch_without_a_sentinel_in_reach_costs_a_look_little(
    watch: SwitchWatch, proxy: Proxy
) -> None:
    proxy.refuse()
    wait_until(lambda: not watch.has_switched() and watch._wire is None)
    began = time.monotonic()
    for _ in range(1_000):
        assert not watch.has_switched()
    assert time.monotonic() - began < 1


def test_a_closed_watch_leaves_no_connection_and_can_begin_again(
    watch: SwitchWatch, raw: Any, namespace: str
) -> None:
    assert len(clients(raw, namespace)) == 1
    watch.close()
    wait_until(lambda: clients(raw, namespace) == [])
    watch.begin()
    tell(raw, OURS)
    wait_until(watch.has_switched)


async def told(heard: asyncio.Event) -> None:
    async with asyncio.timeout(10):
        await heard.wait()
    heard.clear()


async def listening(raw: Any) -> None:
    await await_until(lambda: raw.pubsub_numsub(CHANNEL)[0][1] == 1)


async def test_a_listener_that_asks_for_the_master_can_still_be_called_off(
    address: Address, namespace: str, proxy: Proxy
) -> None:
    asked = proxy.swallow_next_reply("SENTINEL")
    listener = SwitchListener(address, Route(keys_of(namespace).prefix), namespace, print)
    listener.begin()
    await await_until(asked.is_set)
    assert listener.wire is not None
    assert listener.task is not None
    listener.task.cancel()
    await asyncio.wait([listener.task])
    listener.wire.close()
    await await_until(lambda: proxy.connections == 0)


async def test_a_listener_that_is_cut_off_while_it_asks_for_the_master_listens_again(
    address: Address, namespace: str, raw: Any, proxy: Proxy
) -> None:
    asked = proxy.swallow_next_reply("SENTINEL")
    listener = SwitchListener(address, Route(keys_of(namespace).prefix), namespace, print)
    listener.begin()
    await await_until(asked.is_set)
    first = listener.wire
    assert first is not None
    first.give_up("cut")
    await await_until(lambda: listener.wire not in {None, first} and listener.task is None)
    await listening(raw)
    assert listener.wire is not None
    listener.wire.close()


async def test_a_listener_is_told_also_after_its_sentinel_was_away(
    address: Address, namespace: str, raw: Any, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("laneq.drive.switches._AGAIN_S", 0.0)
    heard = asyncio.Event()
    route = Route(keys_of(namespace).prefix)
    listener = SwitchListener(address, route, namespace, heard.set)
    listener.begin()
    await listening(raw)
    raw.publish(CHANNEL, THEIRS)
    raw.publish(CHANNEL, OURS)
    await told(heard)
    proxy.refuse()
    await await_until(lambda: listener.wire is None)
    proxy.restore()
    await listening(raw)
    raw.publish(CHANNEL, THEIRS)
    raw.publish(CHANNEL, OURS)
    await told(heard)
    wire = listener.wire
    assert wire is not None
    wire.close()
    await wire.ended
    await await_until(lambda: listener.task is None)
    assert listener.wire is None
