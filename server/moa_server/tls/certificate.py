"""Reads the server's certificate, and refuses one that clients could not use.

Invariant: what is returned is whole, belongs together and is valid now.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, SECP384R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509.oid import NameOID
from moa_shared.errors import ConfigError, NotFoundError
from moa_shared.programs.secret_files import open_to_others

from moa_server.tls.files import CertificateFiles

DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """A certificate and its key, in PEM.

    Args:
        client_authorities: those who may vouch for clients; None: clients need no certificate.
        names: for which clients accept it.
        expires_at: with time zone.
    """

    chain: bytes
    key: bytes = field(repr=False)
    client_authorities: bytes | None
    names: tuple[str, ...]
    expires_at: datetime

    def days_left(self, now: datetime) -> float:
        """For how long it is valid."""
        return (self.expires_at - now) / DAY


def read_certificate(files: CertificateFiles, now: datetime) -> ServerCertificate:
    """Reads and checks all files.

    Raises:
        NotFoundError: one of them is missing.
        ConfigError: one cannot be used, or they do not belong together; why, and what to do.
    """
    chain = _read(files.certificate, "--tls-cert")
    leaf = _parse_certificates(chain, files.certificate)[0]
    key = _read(files.key, "--tls-key")
    _check_mode(files.key)
    _check_key(_parse_key(key, files.key), leaf, files)
    _check_dates(leaf, files.certificate, now)
    authorities = None
    if files.client_authorities is not None:
        authorities = _read(files.client_authorities, "--tls-client-ca")
        found = _parse_certificates(authorities, files.client_authorities)
        if all(each.not_valid_after_utc <= now for each in found):
            raise ConfigError(
                f"No authority in {files.client_authorities} is valid any longer: no client could connect.",
                hint="Put the authority's new certificate there.",
            )
    return ServerCertificate(chain, key, authorities, _names(leaf), leaf.not_valid_after_utc)


def _read(path: Path, option: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise NotFoundError(f"There is no file {path}.", hint=f"Check {option}.") from None
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror or error}.", hint=f"Let the server's user read it ({option})."
        ) from None


def _parse_certificates(pem: bytes, path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise ConfigError(f"{path} does not hold certificates in PEM, or not whole ones.", hint="") from None


def _parse_key(pem: bytes, path: Path) -> PrivateKeyTypes:
    try:
        return load_pem_private_key(pem, None)
    except TypeError:
        raise ConfigError(
            f"The private key {path} has a passphrase, which nobody could type when the server restarts.",
            hint=f"Write it without one, for the server's user alone: openssl pkey -in {path} -out FILE.",
        ) from None
    except Exception as error:  # noqa: BLE001 (the library's kinds differ by format: all say that this is no key)
        raise ConfigError(
            f"{path} does not hold a private key in PEM, or not a whole one ({type(error).__name__}).", hint=""
        ) from None


def _check_mode(path: Path) -> None:
    """Refuses a key that others can read."""
    if open_to_others(path.stat()):
        raise ConfigError(f"Others can read the private key {path}.", hint=f"Protect it: chmod 600 {path}")


def _check_key(key: PrivateKeyTypes, leaf: x509.Certificate, files: CertificateFiles) -> None:
    is_known = isinstance(key, RSAPrivateKey) or (
        isinstance(key, EllipticCurvePrivateKey) and isinstance(key.curve, SECP256R1 | SECP384R1)
    )
    if not is_known:
        raise ConfigError(
            f"gRPC cannot use the kind of the private key {files.key}.",
            hint="Have a certificate made for a key of the kind RSA, P-256 or P-384.",
        )
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if key.public_key().public_bytes(*form) != leaf.public_key().public_bytes(*form):
        raise ConfigError(
            f"The private key {files.key} does not belong to the certificate {files.certificate}.",
            hint="Name the key that the certificate was made for; the server's certificate comes first in its file.",
        )


def _check_dates(leaf: x509.Certificate, path: Path, now: datetime) -> None:
    if leaf.not_valid_after_utc <= now:
        raise ConfigError(
            f"The certificate {path} has expired on {leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC: no client "
            "would accept it.",
            hint="Renew it.",
        )
    if leaf.not_valid_before_utc > now:
        raise ConfigError(
            f"The certificate {path} is valid only from {leaf.not_valid_before_utc:%Y-%m-%d %H:%M} UTC.",
            hint="Check this machine's clock.",
        )


def _names(leaf: x509.Certificate) -> tuple[str, ...]:
    try:
        alternatives = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return tuple(str(each.value) for each in leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME))
    return tuple(str(each.value) for each in alternatives)
