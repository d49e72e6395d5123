"""An authority of one's own, and the certificates that it gives a server. Pure but for the random keys.

Invariant: the authority vouches for servers and for nothing else: it can make no further authorities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from moa_shared.errors import ConfigError

AUTHORITY_DAYS = 3650
SERVER_DAYS = 365
SKEW = timedelta(hours=1)  # of the devices' clocks
MOST_COMMON_NAME = 64


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """Not encrypted: the server reads it without anybody there."""
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


def new_key() -> ec.EllipticCurvePrivateKey:
    """A key on the curve P-256, which every TLS library knows."""
    return ec.generate_private_key(ec.SECP256R1())


def make_authority(host: str, now: datetime) -> Identity:
    """A new authority, for the server at `host`."""
    key = new_key()
    name = _name(f"moa authority of {host}")
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        _builder(name, name, key, now, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return Identity(builder.sign(key, hashes.SHA256()), key)


def make_server_certificate(
    authority: Identity, hosts: Sequence[str], key: ec.EllipticCurvePrivateKey, now: datetime
) -> Identity:
    """A certificate for a server that is reached by any of these names and IP addresses.

    Raises:
        ConfigError: one of them can be neither.
    """
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = (
        _builder(_name(hosts[0]), authority.certificate.subject, key, now, SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(general_names(hosts)), critical=False)
        .add_extension(signer, critical=False)
    )
    return Identity(builder.sign(authority.key, hashes.SHA256()), key)


def general_names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    """Names and IP addresses as a certificate has them.

    Raises:
        ConfigError: one of them can be neither.
    """
    return [_general_name(host) for host in hosts]


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """The names and addresses of a server's certificate, in the order in which they were given."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(each.value) for each in names]


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:MOST_COMMON_NAME])])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host.strip("[]")))
    except ValueError:
        pass
    if is_dns_name(host):
        return x509.DNSName(host)
    raise ConfigError(
        f"{host!r} is no name of a host and no IP address.",
        hint="Name the server as devices reach it, without port: gpu.example or 192.0.2.7.",
    )


def is_dns_name(text: str) -> bool:
    """Whether a text can be a host's name: letters, digits and hyphens between dots."""
    labels = text.removesuffix(".").split(".")
    return len(text) <= 253 and all(
        0 < len(label) <= 63
        and label.isascii()
        and label.replace("-", "").isalnum()
        and not label.startswith("-")
        and not label.endswith("-")
        for label in labels
    )
