"""Certificates for tests, made when they are needed: an authority, and what it vouches for."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from moa_server.tls import general_name

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
        self._key, self._name = ec.generate_private_key(ec.SECP256R1()), name
        itself = x509.BasicConstraints(ca=True, path_length=None)
        self.certificate = self._sign(name, self._key, itself, -20.0, days)

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
            names: hosts and addresses for which it is.
            starts, days: days until it begins and until it ends.
            key: None: a new one.
        """
        key = key or ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(name, key, x509.SubjectAlternativeName(map(general_name, names)), starts, days)
        return Pair(certificate, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))

    def write(self, folder: Path) -> Path:
        """Replaces the file of its certificate; where it is."""
        path = folder / "authority.pem"
        put(path, self.certificate)
        return path

    def _sign(
        self, subject: str, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType, starts: float, days: float
    ) -> bytes:
        subject_name, issuer_name = (
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (subject, self._name)
        )
        now, is_critical = datetime.now(UTC), isinstance(extension, x509.BasicConstraints)
        certificate = (
            x509.CertificateBuilder(issuer_name, subject_name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now + timedelta(days=starts))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(extension, is_critical)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(Encoding.PEM)
