"""Sends PINGs until it reads a line: ``python -m tests.faults.pinger URL``; prints percentiles."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from urllib.parse import urlsplit

_EVERY_S = 0.003


def main(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        client = socket.socket(socket.AF_UNIX)
        client.connect(parts.path)
    else:
        client = socket.create_connection((parts.hostname or "", parts.port or 6379))
    is_over = threading.Event()

    def wait_for_line() -> None:
        sys.stdin.readline()
        is_over.set()

    threading.Thread(target=wait_for_line, daemon=True).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    pings, late = [], []
    while not is_over.is_set():
        began = time.perf_counter()
        client.sendall(b"PING\r\n")
        assert client.recv(100) == b"+PONG\r\n"
        answered = time.perf_counter()
        pings.append((answered - began) * 1e3)
        time.sleep(_EVERY_S)
        late.append((time.perf_counter() - answered - _EVERY_S) * 1e3)
    pings.sort()
    late.sort()
    # Of a short time there are few: a hundredth of them, and three in any case, may be late.
    at = max(0, min(int(len(pings) * 0.99), len(pings) - 4))
    found = {"ping_p99": pings[at], "ping_max": pings[-1], "noise_p99": late[at]}
    sys.stdout.write(json.dumps({**found, "noise_max": late[-1]}))


if __name__ == "__main__":
    main(sys.argv[1])
