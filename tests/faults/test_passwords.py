"""Fault K6: one address for all programs, and a password that none of them ever shows."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, quote_plus, urlsplit

import psutil
import pytest
import redis

from tests.faults.conftest import NewField
from tests.faults.field import Field, wait_until
from tests.faults.sentinel import Sentinels
from tests.processes import is_alive
from tests.tls import TlsEnd, make_certificates

PASSWORD = "p/#%@:+é"
USER = "us:er/%40"
LOGIN = f"{quote(USER, safe='')}:{quote(PASSWORD, safe='')}@"

#: Every spelling in which a program could let it slip.
SPELLINGS = {
    PASSWORD,
    quote(PASSWORD, safe=""),
    quote(PASSWORD),
    quote_plus(PASSWORD),
    repr(PASSWORD)[1:-1],
    ascii(PASSWORD)[1:-1],
    repr(PASSWORD.encode())[2:-1],
    PASSWORD.encode().decode("latin-1"),
    quote(PASSWORD, safe="").lower(),
}

#: A program that tells all it knows: every logger at debug level, and what it has in its hands.
APP = """
import asyncio, logging, sys, traceback
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
from laneq import LaneQ, current_job
from tests.faults.body import lanes, noted

app = LaneQ(lanes=lanes())

@app.task(name="tell")
async def tell(fails: bool = False) -> str:
    with noted():
        said = repr([app, app.address, vars(app), current_job()])
        print(said)
        if fails:
            raise ValueError(said)
    return said
"""

PRODUCER = """
import asyncio, sys, traceback
sys.path.insert(0, {folder!r})
import fault_app as shop
print(repr([shop.app, str(shop.app.address), shop.app.address, shop.app.sync_driver]))
async def main():
    return (await shop.tell.aenqueue()).id
for act in (lambda: shop.tell.enqueue().id, lambda: asyncio.run(main())):
    try:
        print("enqueued", act())
    except Exception as error:
        traceback.print_exc()
        print("failed", type(error).__name__)
shop.app.close()
"""


class Said:
    """Runs programs and keeps all that they say, and how they are listed by ps."""

    def __init__(self, field: Field) -> None:
        self._field = field
        self.texts: list[str] = []

    def run(self, *line: str, url: str) -> subprocess.CompletedProcess[str]:
        """Run a Python program with this address in its environment."""
        done = subprocess.run(
            [sys.executable, *line],
            capture_output=True,
            text=True,
            cwd=self._field.folder,
            env={**os.environ, **self._field.environment, "LANEQ_URL": url},
            timeout=60,
            check=False,
        )
        self.texts += [done.stdout, done.stderr]
        return done

    def laneq(self, *words: str, url: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "laneq", *words, url=url)

    def produce(self, *, url: str) -> subprocess.CompletedProcess[str]:
        return self.run("-c", PRODUCER.format(folder=str(self._field.folder)), url=url)

    def assert_silent(self) -> None:
        """No spelling of the password is in any of it, nor in how a process is listed."""
        listed = [" ".join(process.cmdline()) for process in _mine() if is_alive(process)]
        for text in [*self.texts, *listed, *(worker.text for worker in self._field.workers)]:
            for spelling in SPELLINGS:
                assert spelling not in text


def _mine() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


@contextlib.contextmanager
def password_needed(field: Field) -> Iterator[None]:
    """Nobody but the user with the password may look at the namespace."""
    let_in(field.raw)
    with redis.Redis.from_url(field.server.url, username=USER, password=PASSWORD) as mine:
        mine.execute_command("ACL", "SETUSER", "default", "resetkeys")
        try:
            yield
        finally:
            mine.execute_command("ACL", "SETUSER", "default", "~*")


def let_in(client: redis.Redis) -> None:
    """Let the user in who has the password."""
    client.execute_command(
        *("ACL", "SETUSER", USER, "on", f">{PASSWORD}", "~*", "&*", "+@all"), NEVER_DECODE=True
    )


@contextlib.contextmanager
def address(field: Field, way: str) -> Iterator[tuple[str, str]]:
    """Give an address of the server by one of the ways to it, and one that must be refused."""
    where = field.url.removeprefix("redis://")
    if way == "plain":
        wrong = field.url.replace("redis://", f"redis://{quote(USER, safe='')}:wrong@")
        yield f"redis://{LOGIN}{where}", wrong
    elif way == "sentinels":
        with Sentinels(field) as sentinels:
            rest = sentinels.url.removeprefix("redis+sentinel://")
            replica = sentinels.servers[1]
            with redis.Redis.from_url(replica.url) as client:
                let_in(client)
            yield f"redis+sentinel://{LOGIN}{rest}", f"redis+sentinel://wrong:{LOGIN[-9:]}{rest}"
    else:
        folder = field.folder / "certificates"
        folder.mkdir()
        make_certificates(folder)
        with TlsEnd(field.url, folder) as end:
            secure = f"rediss://{LOGIN}127.0.0.1:{end.port}/0?ssl_ca_certs="
            yield f"{secure}{folder / 'ca.pem'}", f"{secure}{folder / 'other.pem'}"


needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl makes the certificates"
)


@pytest.mark.parametrize("way", ["plain", "sentinels", pytest.param("tls", marks=needs_openssl)])
@pytest.mark.timeout(300)
def test_fault_K6_an_address_works_in_every_program_and_none_shows_its_password(
    new_field: NewField, tmp_path: Path, way: str
) -> None:
    field = new_field(port=None if way == "tls" else 0, app=APP)
    said = Said(field)
    with address(field, way) as (url, wrong), password_needed(field):
        worker = field.worker(url=url, processes=2, is_ready=False)
        worker.until("is ready", times=2)
        assert said.produce(url=url).stdout.count("enqueued") == 2
        field.until_started(2)
        assert said.laneq("enqueue", "tell", "true", "--wait", url=url).returncode == 1
        for words in ("lanes", "jobs --json", "dead", "workers --json", "health --json"):
            done = said.laneq(*words.split(), url=url)
            assert done.returncode == 0, done.stdout + done.stderr
        refused(field, said, wrong, way)
        if way == "tls":
            assert_never_in_the_clear(said, url)
        if way != "sentinels":  # those would soon have another server for a stopped one
            cut_off(field, said, url)
        worker.term()
        worker.wait()
    said.assert_silent()


def refused(field: Field, said: Said, wrong: str, way: str) -> None:
    """A wrong password or certificate is told in plain words, by every program."""
    words = "certificate verify failed" if way == "tls" else "WRONGPASS"
    looked = said.laneq("lanes", url=wrong)
    assert looked.returncode == 3, looked.stdout + looked.stderr
    assert words in looked.stderr
    produced = said.produce(url=wrong)
    assert produced.stdout.count("failed Redis") == 2, produced.stdout + produced.stderr
    assert words in produced.stderr
    worker = field.worker(url=wrong, is_ready=False)
    worker.until(words)
    if way == "tls":
        worker.term()  # a certificate may be mended while it waits for that
    else:
        assert worker.wait() == 3


def assert_never_in_the_clear(said: Said, url: str) -> None:
    """What is sent before the other side has shown its certificate is a TLS greeting."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def listen() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:  # closed: the test has seen enough
                    return
                with connection:
                    heard.append(connection.recv(65536))

        thread = threading.Thread(target=listen)
        thread.start()
        port = f":{urlsplit(url).port}/"
        done = said.laneq("lanes", url=url.replace(port, f":{listener.getsockname()[1]}/"))
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    assert done.returncode == 3
    assert heard
    assert all(data.startswith(b"\x16\x03") and PASSWORD.encode() not in data for data in heard)


def cut_off(field: Field, said: Said, url: str) -> None:
    """Errors on the way, with their tracebacks, are no reason to show it either."""
    worker = field.workers[0]
    field.pause_server()
    assert said.laneq("lanes", url=url).returncode == 3
    assert said.produce(url=url).stdout.count("failed Redis") == 2
    field.resume_server()
    before = len(field.starts())
    assert said.produce(url=url).stdout.count("enqueued") == 2
    wait_until(lambda: len(field.starts()) >= before + 2, what="jobs after the outage")
    assert worker.is_running
