"""Servers that ask who comes: a user without dangerous commands, and TLS by a CA of one's own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.faults.field import Field
from tests.faults.ports import free_port

#: What managed servers leave to their users.
_RULES: Final = ("reset", "on", "+@all", "-@dangerous")


def restricted(field: Field, name: str = "tenant", password: str = "p/#%@:+é") -> tuple[str, str]:
    """Make a user who may touch the field's namespace only, without the dangerous commands.

    Returns:
        User name and password.
    """
    prefix = field.keys.prefix.decode()
    rules = (*_RULES, f">{password}", f"~{prefix}*", f"&{prefix}*")
    field.raw.execute_command("ACL", "SETUSER", name, *rules)
    return name, password


class Certificates:
    """Two certificate authorities, and a server's certificate that the first one has signed.

    Skips the test where there is no openssl.

    Args:
        folder: an empty folder.

    Attributes:
        ca: the authority's certificate, for clients.
        other_ca: one that has signed nothing.
    """

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("openssl makes the certificates, and is not installed")
        self.folder = folder
        self.ca, self.other_ca = (self._authority(name) for name in ("ca", "other"))
        self._make("server", "-addext", "subjectAltName=IP:127.0.0.1", "-CA", str(self.ca),
                   "-CAkey", str(folder / "ca.key"),
                   "-addext", "basicConstraints=critical,CA:FALSE")  # fmt: skip

    def _authority(self, name: str) -> Path:
        return self._make(name, "-addext", "keyUsage=critical,keyCertSign,cRLSign")

    def _make(self, name: str, *options: str) -> Path:
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"]
        command += ["ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
        command += [*options, "-keyout", str(key), "-out", str(certificate)]
        subprocess.run(command, check=True, capture_output=True)
        return certificate

    def directives(self) -> dict[str, str]:
        """Return the directives of a server that takes TLS, on a port of its own."""
        return {
            "tls-port": str(free_port()),
            "tls-cert-file": str(self.folder / "server.pem"),
            "tls-key-file": str(self.folder / "server.key"),
            "tls-ca-cert-file": str(self.ca),
            "tls-auth-clients": "no",
        }
