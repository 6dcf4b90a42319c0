"""Tell systemd how a worker is: ready, stopping (sd_notify's protocol, without its library)."""

from __future__ import annotations

import os
import socket

from laneq.worker.lines import log


def is_watched() -> bool:
    """Return whether systemd wants to be told again and again that all is well (WatchdogSec)."""
    return bool(os.environ.get("NOTIFY_SOCKET")) and (
        os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        and os.environ.get("WATCHDOG_USEC", "").isdigit()
    )


def notify(state: str) -> bool:
    """Send a state such as ``READY=1`` to ``$NOTIFY_SOCKET``; false where there is none."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return False
    target = "\0" + path[1:] if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(state.encode(), target)
    except OSError as error:
        log.warning("systemd was not told %s: %s", state, error)
        return False
    return True
