"""The certificate authority of a run: it proves which tunnels belong to hosts of the run.

Invariants:
- Key and certificate are in one file with mode 0600 of the coordinator's state directory.
- They are replaced in three steps, and all hosts complete a step before the next one begins: the next authority is also
  trusted; it issues the certificates; the former one is no longer trusted. If the process dies in between, one of these
  states is left.
- A certificate names one host, by a digest, because the name of a host need not be the name of a machine.
- Certificates are valid from a day ago, because the clocks of hosts differ.
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
"""The lifetime of a host's certificate. Its tunnel requests a new one after half of it."""
_AUTHORITY_DAYS = 3650
_BEFORE = dt.timedelta(days=1)


def name_of(host: str) -> str:
    return f"{hashlib.sha256(host.encode()).hexdigest()[:40]}.agentrl"


class Authority:
    def __init__(self, state_dir: Path, run: str) -> None:
        self._path = state_dir / FILE
        self._run = run
        self._next: bytes | None = None
        try:
            if not self._path.exists():
                _write(self._path, _made(run))
            data = self._path.read_bytes()
        except OSError as broken:
            raise DiskError(f"{self._path} cannot be made or read: {broken.strerror}.") from broken
        self._use(data)

    def _use(self, data: bytes) -> None:
        try:
            key = serialization.load_pem_private_key(data, None)
            self._certificates = x509.load_pem_x509_certificates(data)
        except ValueError as broken:
            raise ConfigError(
                f"{self._path} is damaged: {broken}.",
                hint="Delete it while the run is down; hosts get new certificates when they connect.",
            ) from broken
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key = key
        self._certificate = self._certificates[0]

    @property
    def trusted(self) -> str:
        """The certificates that hosts accept: the authority's own, and during a replacement also that of the former or
        the next authority."""
        known = self._certificates + ([] if self._next is None else x509.load_pem_x509_certificates(self._next))
        return "".join(each.public_bytes(serialization.Encoding.PEM).decode() for each in known)

    # ---- replacing it ----

    def prepare_next(self) -> None:
        """Add the next authority to `trusted`. No effect if a former one is still trusted."""
        if len(self._certificates) == 1 and self._next is None:
            self._next = _made(self._run)

    def issue_by_next(self) -> None:
        """Let the next authority issue certificates; the former one stays trusted."""
        if self._next is None:
            return
        data = self._next + self._certificate.public_bytes(serialization.Encoding.PEM)
        _write(self._path, data)
        self._next = None
        self._use(data)

    def drop_former(self) -> None:
        """Trust only the present authority from now on."""
        if len(self._certificates) > 1:
            secret = self._key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            data = secret + self._certificate.public_bytes(serialization.Encoding.PEM)
            _write(self._path, data)
            self._use(data)

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


def _made(run: str) -> bytes:
    """A key and its certificate."""
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
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return secret + certificate.public_bytes(serialization.Encoding.PEM)


def _write(path: Path, text: bytes) -> None:
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
