"""Certificates for tests: an authority, a server on loopback, and a client, as files that mongod and PyMongo read."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CLIENT = "CN=a-run,O=runs"
"""The subject of the client's certificate, which is its user name."""


class Authority:
    """An authority whose certificate is in `authority.pem` of a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("authority", "tests")
        built = self._builder(self._name, self._key.public_key())
        built = built.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.file = directory / "authority.pem"
        self.file.write_bytes(self._signed(built).public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, organization: str) -> Path:
        """A file with key and certificate, valid for 127.0.0.1."""
        key = ec.generate_private_key(ec.SECP256R1())
        built = self._builder(_name(name, organization), key.public_key())
        addresses = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        uses = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        built = built.add_extension(addresses, critical=False).add_extension(uses, critical=False)
        plain = serialization.NoEncryption()
        secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        file = self._directory / f"{name}.pem"
        file.write_bytes(secret + self._signed(built).public_bytes(serialization.Encoding.PEM))
        file.chmod(0o600)
        return file

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        day = datetime.timedelta(days=1)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - day)
            .not_valid_after(now + day)
        )

    def _signed(self, built: x509.CertificateBuilder) -> x509.Certificate:
        return built.sign(self._key, hashes.SHA256())


def _name(common: str, organization: str) -> x509.Name:
    parts = ((NameOID.ORGANIZATION_NAME, organization), (NameOID.COMMON_NAME, common))
    return x509.Name([x509.NameAttribute(kind, text) for kind, text in parts])
