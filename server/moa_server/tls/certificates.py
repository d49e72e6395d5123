"""Certificates of a server: those that it reads, checked, and those that `moa-server setup` makes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    SECP384R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from moa_shared.errors import ConfigError, NotFoundError
from moa_shared.programs.atomic import open_to_others

from moa_server.access.keys import file_stamp

PrivateKey = RSAPrivateKey | EllipticCurvePrivateKey
DAY = timedelta(days=1)
DNS_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*\.?")


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Where the certificate is.

    `certificate`: with those between it and its authority, in PEM; `key`: its private key. `client_authorities`:
    certificates of those who may vouch for clients; None: clients need no certificate.
    """

    certificate: Path
    key: Path
    client_authorities: Path | None = None

    def stamps(self) -> list[tuple[int, ...] | None]:
        return [file_stamp(path) for path in (self.certificate, self.key, self.client_authorities) if path is not None]


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """A certificate and its key, in PEM.

    `client_authorities`: those who may vouch for clients; None: clients need no certificate.
    """

    chain: bytes
    key: bytes = field(repr=False)
    client_authorities: bytes | None
    names: tuple[str, ...]
    expires_at: datetime

    def days_left(self, now: datetime) -> float:
        return (self.expires_at - now) / DAY


def read_certificate(files: CertificateFiles, now: datetime) -> ServerCertificate:
    """What a server shows its clients, checked."""
    chain, key = read_file(files.certificate, "Check --tls-cert."), read_file(files.key, "Check --tls-key.")
    if open_to_others(files.key.stat()):
        raise ConfigError(f"Others can read the private key {files.key}.", hint=f"Protect it: chmod 600 {files.key}")
    leaf, _ = parse_pair(chain, key, files)
    _check_dates(leaf, files.certificate, now)
    authorities = None
    if files.client_authorities is not None:
        authorities = read_file(files.client_authorities, "Check --tls-client-ca.")
        found = parse_certificates(authorities, files.client_authorities)
        if all(each.not_valid_after_utc <= now for each in found):
            raise ConfigError(
                f"No authority in {files.client_authorities} is valid any longer: no client could connect.",
                hint="Put the authority's new certificate there.",
            )
    return ServerCertificate(chain, key, authorities, names_in(leaf), leaf.not_valid_after_utc)


def read_file(path: Path, hint: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise NotFoundError(f"There is no file {path}.", hint=hint) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.", hint=hint) from None


def parse_certificates(pem: bytes, path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise ConfigError(f"{path} does not hold certificates in PEM, or not whole ones.", hint="") from None


def parse_pair(chain: bytes, key_pem: bytes, files: CertificateFiles) -> tuple[x509.Certificate, PrivateKey]:
    """The first certificate of a chain, and its key; raises ConfigError for a pair that no server can use."""
    leaf = parse_certificates(chain, files.certificate)[0]
    try:
        key = load_pem_private_key(key_pem, None)
    except TypeError:
        raise ConfigError(
            f"The private key {files.key} has a passphrase, which nobody could type when the server restarts.",
            hint=f"Write it without one, for the server's user alone: openssl pkey -in {files.key} -out FILE.",
        ) from None
    except Exception as error:  # noqa: BLE001 (the library's kinds differ by format: all say that this is no key)
        raise ConfigError(
            f"{files.key} does not hold a private key in PEM, or not a whole one ({type(error).__name__}).", hint=""
        ) from None
    if not isinstance(key, PrivateKey) or (
        isinstance(key, EllipticCurvePrivateKey) and not isinstance(key.curve, SECP256R1 | SECP384R1)
    ):
        raise ConfigError(
            f"gRPC cannot use the kind of the private key {files.key}.",
            hint="Have a certificate made for a key of the kind RSA, P-256 or P-384.",
        )
    if key.public_key() != leaf.public_key():
        raise ConfigError(
            f"The private key {files.key} does not belong to the certificate {files.certificate}.",
            hint="Name the key that the certificate was made for; the server's certificate comes first in its file.",
        )
    return leaf, key


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


def names_in(leaf: x509.Certificate) -> tuple[str, ...]:
    """The names and addresses of a certificate, in the order in which they were given."""
    try:
        alternatives = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return tuple(str(each.value) for each in leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME))
    return tuple(str(each.value) for each in alternatives)


AUTHORITY_DAYS = 3650
SERVER_DAYS = 365
SKEW = timedelta(hours=1)  # of the devices' clocks
MOST_COMMON_NAME = 64
USAGES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip


def new_private_key() -> PrivateKey:
    return generate_private_key(SECP256R1())


def key_pem(key: PrivateKey) -> bytes:
    """Not encrypted: the server reads it without anybody there."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def make_authority(host: str, key: PrivateKey, now: datetime) -> x509.Certificate:
    name = _name(f"moa authority of {host}")
    builder = _builder(name, name, key, now, AUTHORITY_DAYS, "key_cert_sign", "crl_sign")
    return builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).sign(key, SHA256())


def make_server_certificate(
    authority: x509.Certificate, authority_key: PrivateKey, hosts: Sequence[str], key: PrivateKey, now: datetime
) -> x509.Certificate:
    """A certificate for a server that is reached by any of these names and IP addresses."""
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    return (
        _builder(_name(hosts[0]), authority.subject, key, now, SERVER_DAYS, "digital_signature")
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([general_name(host) for host in hosts]), critical=False)
        .add_extension(signer, critical=False)
        .sign(authority_key, SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: PrivateKey, now: datetime, days: int, *usages: str
) -> x509.CertificateBuilder:
    usage = x509.KeyUsage(**{each: each in usages for each in USAGES})
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(usage, critical=True)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:MOST_COMMON_NAME])])


def general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host.strip("[]")))
    except ValueError:
        pass
    if DNS_NAME.fullmatch(host) and len(host) <= 253:
        return x509.DNSName(host)
    raise ConfigError(
        f"{host!r} is no name of a host and no IP address.",
        hint="Name the server as devices reach it, without port: gpu.example or 192.0.2.7.",
    )
