from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path

import pytest

from laneq import LaneQ, RedisRefused, RedisUnavailable
from laneq.embedded import EmbeddedServer
from tests.app.conftest import clients
from tests.patience import wait_until

ROOT = Path(__file__).resolve().parents[2]


def nothing(n: int = 0) -> int:
    return n


@pytest.fixture(autouse=True)
def nobody_is_left(raw):
    before = set(clients(raw))
    yield
    gc.collect()
    wait_until(lambda: set(clients(raw)) <= before)


def ids_in(raw, app: LaneQ) -> set[str]:
    return {job_id.decode() for job_id in raw.hkeys(app.keys.jobs)}


def test_leaving_the_block_closes_connections_in_both_colours(raw, url, namespace):
    before = len(clients(raw))
    with LaneQ(url, namespace=namespace) as app:
        task = app.task(nothing)
        task.enqueue()
        assert len(clients(raw)) == before + 1
    wait_until(lambda: len(clients(raw)) == before)

    async def main() -> None:
        async with app:
            await task.aenqueue()
            task.enqueue()
            assert len(clients(raw)) == before + 2

    asyncio.run(main())
    wait_until(lambda: len(clients(raw)) == before)


def test_after_a_close_the_app_connects_anew(colour, new_app):
    app = new_app()
    colour.ends.append(app)
    task = app.task(nothing)
    for _ in range(2):
        assert colour.ask(colour.ask(task, "enqueue"), "state") == "waiting"
        colour.ask(app, "close")


def test_a_loop_that_ends_takes_its_connection_along(raw, new_app):
    app = new_app()
    task = app.task(nothing)
    before = len(clients(raw))
    for _ in range(3):
        asyncio.run(task.aenqueue())
        wait_until(lambda: len(clients(raw)) == before)


def test_the_blocking_close_ends_the_connections_of_loops_that_do_not_run(raw, new_app):
    app = new_app()
    task = app.task(nothing)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(task.aenqueue())
    app.close()
    wait_until(lambda: not clients(raw))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    app.close()


def test_the_blocking_close_ends_the_connection_of_a_loop_in_another_thread(raw, new_app):
    app = new_app()
    task = app.task(nothing)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(task.aenqueue(), loop).result(10)
    app.close()
    wait_until(lambda: not clients(raw))
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


@pytest.mark.parametrize("goes_on", [True, False])
def test_the_blocking_close_in_a_coroutine_ends_its_connection_soon(raw, new_app, goes_on):
    app = new_app()
    task = app.task(nothing)

    async def main() -> None:
        await task.aenqueue()
        app.close()
        if goes_on:
            await task.aenqueue()
            await app.aclose()

    asyncio.run(main())
    wait_until(lambda: not clients(raw))


def test_a_blocking_enqueue_works_inside_a_running_loop(raw, new_app):
    app = new_app()
    task = app.task(nothing)

    async def main() -> None:
        first, second = task.enqueue(1), await task.aenqueue(2)
        assert {first.id, second.id} == ids_in(raw, app)
        assert first.state() == await second.astate() == "waiting"

    asyncio.run(main())


def test_threads_and_loops_share_an_app(raw, new_app):
    app = new_app()
    task = app.task(nothing)
    made: list[str] = []

    def blocking() -> None:
        made.extend(task.enqueue(n).id for n in range(50))

    async def in_a_loop() -> None:
        made.extend([(await task.aenqueue(n)).id for n in range(50)])

    threads = [threading.Thread(target=blocking) for _ in range(4)]
    threads += [threading.Thread(target=lambda: asyncio.run(in_a_loop())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(made) == len(set(made)) == 400
    assert set(made) == ids_in(raw, app)


def test_many_coroutines_share_one_connection(raw, new_app):
    app = new_app()
    task = app.task(nothing)
    before = len(clients(raw))

    async def main() -> None:
        jobs = await asyncio.gather(*(task.aenqueue(n) for n in range(200)))
        assert {job.id for job in jobs} == ids_in(raw, app)
        assert len(clients(raw)) == before + 1

    asyncio.run(main())


def in_a_child(act) -> None:
    """Do something in a fork, and expect it to succeed."""
    with warnings.catch_warnings():
        # Python warns of forks beside threads, which is what is tested here.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(20)
            act()
        except BaseException as error:  # noqa: BLE001  the child must not become a second pytest
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_an_app_may_be_used_after_a_fork(raw, new_app):
    app = new_app()
    task = app.task(nothing)
    parent = task.enqueue(0)
    in_a_child(lambda: [task.enqueue(n) for n in range(5)])
    in_a_child(lambda: asyncio.run(task.aenqueue(1)))
    assert parent.state() == "waiting"  # over the connection that it had
    assert task.enqueue(0).id != parent.id
    assert len(ids_in(raw, app)) == 8


def test_a_fork_out_of_a_running_loop_may_enqueue(raw, new_app):
    app = new_app()
    task = app.task(nothing)

    async def main() -> None:
        await task.aenqueue(0)
        in_a_child(lambda: task.enqueue(1))
        await task.aenqueue(2)

    asyncio.run(main())
    assert len(ids_in(raw, app)) == 3


# --- trouble --------------------------------------------------------------------------


def test_without_redis_there_is_an_error_within_the_connect_timeout(colour):
    app = LaneQ("redis://127.0.0.1:1/0", connect_timeout=0.2)
    colour.ends.append(app)
    task = app.task(nothing)
    asked = colour.start(task, "enqueue")
    with pytest.raises(RedisUnavailable, match=r"127\.0\.0\.1:1 cannot be reached") as caught:
        asked.result(2)
    assert caught.value.__cause__ is not None
    assert caught.value.is_retryable


def test_a_server_that_never_answers_is_given_up(colour, proxy):
    app = LaneQ(proxy.url, connect_timeout=0.2)
    colour.ends.append(app)
    proxy.blackhole()
    with pytest.raises(RedisUnavailable, match="no answer within"):
        colour.start(app.task(nothing), "enqueue").result(3)


def test_an_enqueue_whose_reply_is_lost_makes_one_job(colour, proxy, raw, namespace):
    app = LaneQ(proxy.url, namespace=namespace)
    colour.ends.append(app)
    task = app.task(nothing)
    colour.ask(task, "enqueue", 0)
    lost = proxy.cut_before_next_reply("EVALSHA")
    job = colour.ask(task, "enqueue", 1)
    assert lost.is_set()
    assert job.deduplicated is False
    assert len(ids_in(raw, app)) == 2


def test_a_full_server_refuses_and_says_its_word(colour):
    with EmbeddedServer(config={"maxmemory": "5mb"}) as server:
        app = LaneQ(server.url, connect_timeout=0.2)
        task = app.task(nothing)
        colour.ask(task, "enqueue")
        app.sync_driver.command("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(RedisRefused, match="OOM") as caught:
            colour.ask(task, "enqueue")
        assert caught.value.__cause__ is not None
        colour.ask(app, "close")


# --- at the end of a program -------------------------------------------------------------

PROGRAM = """
    import asyncio, sys
    from laneq import LaneQ

    app = LaneQ(sys.argv[1], namespace=sys.argv[2])

    @app.task(name="t")
    def task(): ...

    async def main():
        await task.aenqueue()
        await app.aenqueue_many(task.call() for _ in range(3))

    task.enqueue()
    asyncio.run(main())
    {last}
"""

OWN_LOOP = """loop = asyncio.new_event_loop()
    loop.run_until_complete(task.aenqueue())
    app.close()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()"""


@pytest.mark.parametrize("last", ["app.close()", "pass", OWN_LOOP], ids=["closed", "left", "own"])
def test_a_program_ends_without_a_warning(tmp_path, url, namespace, last):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM.format(last=last)))
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", program, url, namespace],
        env={"PYTHONPATH": str(ROOT), "PYTHONASYNCIODEBUG": "0"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
