"""TLS before a server that has none, and certificates for it."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import threading
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit


class TlsEnd:
    """Takes TLS connections and passes what they say to the server in the clear."""

    def __init__(self, upstream: str, folder: Path) -> None:
        self._path = urlsplit(upstream).path
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "server.pem", folder / "server.key")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._run(
            asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    @staticmethod
    async def _end() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_unix_connection(self._path)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            try:
                while data := await source.read(65536):
                    sink.write(data)
            except OSError:
                return  # the client went away; the finally below ends both sides
            finally:
                sink.close()

        await asyncio.gather(pump(reader, up_writer), pump(up_reader, writer))


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def make_certificates(folder: Path) -> None:
    """Make ``ca.pem``, which has signed ``server.pem`` for 127.0.0.1, and ``other.pem``."""
    for name in ("ca", "other"):
        openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", f"/CN={name}"),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
            *("-keyout", folder / f"{name}.key", "-out", folder / f"{name}.pem"),
        )
    openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
        *("-nodes", "-days", "2", "-subj", "/CN=server"),
        *("-addext", "subjectAltName=IP:127.0.0.1", "-CA", folder / "ca.pem"),
        *("-CAkey", folder / "ca.key", "-addext", "basicConstraints=critical,CA:FALSE"),
        *("-keyout", folder / "server.key", "-out", folder / "server.pem"),
    )
