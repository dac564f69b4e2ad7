"""Certificates for servers that speak TLS: an authority made on the spot, which only these tests trust."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class TlsFiles:
    """Paths, as redis-server and redis-py want them."""

    ca: Path
    cert: Path
    key: Path


def make_tls_files(directory: Path, *names: str) -> TlsFiles:
    """Write a new authority and a certificate for names (host names or addresses) into directory."""
    authority = trustme.CA()
    certificate = authority.issue_cert(*(names or ("localhost", "127.0.0.1")))
    files = TlsFiles(directory / "ca.pem", directory / "cert.pem", directory / "key.pem")
    authority.cert_pem.write_to_path(str(files.ca))
    certificate.private_key_pem.write_to_path(str(files.key))
    for index, blob in enumerate(certificate.cert_chain_pems):
        blob.write_to_path(str(files.cert), append=index > 0)
    return files
