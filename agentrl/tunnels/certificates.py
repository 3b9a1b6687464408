"""The key of a host and its certificate, as TLS contexts.

Invariants: the key is in the memory of one process and never on a disk; only TLS 1.3; both sides show a certificate of
the run's authority.
"""

from __future__ import annotations

import os
import ssl

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class HostKey:
    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())

    def request(self) -> str:
        """What the authority needs to make a certificate."""
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "host")])
        made = x509.CertificateSigningRequestBuilder().subject_name(name).sign(self._key, hashes.SHA256())
        return made.public_bytes(serialization.Encoding.PEM).decode()

    def contexts(self, certificate: str, authority: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """The TLS contexts for incoming and for outgoing connections. Raises ssl.SSLError."""
        coming, going = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        coming.verify_mode = ssl.CERT_REQUIRED
        for context in (coming, going):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.load_verify_locations(cadata=authority)
            self._show(context, certificate)
        return coming, going

    def _show(self, context: ssl.SSLContext, certificate: str) -> None:
        """Load the certificate and the key. OpenSSL reads a key only from a file, so this file is in memory."""
        secret = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        descriptor = os.memfd_create("key", os.MFD_CLOEXEC)
        with open(descriptor, "wb", closefd=True) as file:
            file.write(secret + certificate.encode())
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{descriptor}")
