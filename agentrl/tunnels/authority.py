"""The certificate authority of a run: it tells the tunnels of its hosts from all others.

Invariants:
- Key and certificate are made once, in one file with mode 0600 of the coordinator's state directory.
- A certificate names one host, by a digest, because the name of a host need not be the name of a machine.
- Certificates are valid from a day ago: clocks of hosts differ.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import secrets
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from agentrl.errors import ConfigError, DiskError, ProtocolError

FILE = "authority.pem"
VALID_DAYS = 30
"""Of a host's certificate. Its tunnel asks for another one after half of them."""
_AUTHORITY_DAYS = 3650
_BEFORE = dt.timedelta(days=1)


def name_of(host: str) -> str:
    """The name of a host in its certificate."""
    return f"{hashlib.sha256(host.encode()).hexdigest()[:40]}.agentrl"


class Authority:
    def __init__(self, state_dir: Path, run: str) -> None:
        path = state_dir / FILE
        try:
            if not path.exists():
                _make(path, run)
            data = path.read_bytes()
        except OSError as broken:
            raise DiskError(f"{path} cannot be made or read: {broken.strerror}.") from broken
        try:
            key = serialization.load_pem_private_key(data, None)
            self._certificate = x509.load_pem_x509_certificate(data)
        except ValueError as broken:
            raise ConfigError(
                f"{path} is damaged: {broken}.",
                hint="Delete it while the run is down; hosts get new certificates when they connect.",
            ) from broken
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key = key

    @property
    def certificate(self) -> str:
        return self._certificate.public_bytes(serialization.Encoding.PEM).decode()

    def issue(self, host: str, request: str, *, days: float = VALID_DAYS) -> str:
        """The certificate of a host for the public key in its request. Raises ProtocolError."""
        try:
            wanted = x509.load_pem_x509_csr(request.encode())
        except ValueError as broken:
            raise ProtocolError(f"The certificate request of host {host} is not valid: {broken}.") from broken
        if not wanted.is_signature_valid:
            raise ProtocolError(f"The certificate request of host {host} is not signed by its own key.")
        now = dt.datetime.now(dt.UTC)
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        made = (
            x509.CertificateBuilder()
            .subject_name(_named(host))
            .issuer_name(self._certificate.subject)
            .public_key(wanted.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BEFORE)
            .not_valid_after(now + dt.timedelta(days=days))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name_of(host))]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return made.public_bytes(serialization.Encoding.PEM).decode()


def _make(path: Path, run: str) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_named(f"run {run}"))
        .issuer_name(_named(f"run {run}"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + dt.timedelta(days=_AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_signs_certificates(), critical=True)
        .sign(key, hashes.SHA256())
    )
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ) + certificate.public_bytes(serialization.Encoding.PEM)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _signs_certificates() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
