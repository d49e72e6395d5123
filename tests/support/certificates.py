"""Certificates for tests, made when they are needed: an authority, and what it vouches for."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

HERE = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key, in PEM."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path, name: str = "server") -> tuple[Path, Path]:
        """Replaces the files of this name, each at once and the certificate first; where they are."""
        paths = folder / f"{name}.pem", folder / f"{name}.key"
        for path, data in zip(paths, (self.certificate, self.key), strict=True):
            put(path, data)
        return paths


def put(path: Path, data: bytes) -> None:
    """Replaces a file at once; only its owner can read it."""
    partial = path.with_suffix(".partial")
    partial.touch(0o600)
    partial.write_bytes(data)
    partial.replace(path)


class Authority:
    """Vouches for certificates."""

    def __init__(self, name: str = "tests", days: float = 30.0) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        certificate = (
            _builder(self._name, self._name, self._key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = certificate.public_bytes(Encoding.PEM)

    def issue(
        self,
        name: str = "server",
        names: tuple[str, ...] = HERE,
        *,
        days: float = 20.0,
        starts: float = -20.0,
        key: ec.EllipticCurvePrivateKey | None = None,
    ) -> Pair:
        """A certificate.

        Args:
            name: the subject's; empty: none.
            names: hosts and addresses for which it is.
            starts, days: days until it begins and until it ends.
            key: None: a new one.
        """
        key = key or ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_named(name), self._name, key.public_key(), days, starts)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName([_alternative(each) for each in names]), False)
        certificate = builder.sign(self._key, hashes.SHA256())
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return Pair(certificate.public_bytes(Encoding.PEM), pem)

    def write(self, folder: Path, name: str = "authority") -> Path:
        """Replaces the file of this name; where it is."""
        path = folder / f"{name}.pem"
        put(path, self.certificate)
        return path


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: float, starts: float = -20.0
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=starts))
        .not_valid_after(now + timedelta(days=days))
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)] if name else [])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
