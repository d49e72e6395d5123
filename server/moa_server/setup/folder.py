"""The folder that `moa-server setup` makes: authority, certificate, keys and server.toml.

Invariants: it is there whole or not at all; only its owner may read what is in it.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from moa_shared.errors import ConfigError, NotFoundError
from moa_shared.programs.atomic import write_private

from moa_server.settings import SETTINGS_NAME

AUTHORITY_DAYS = 3650
SERVER_DAYS = 365
SKEW = timedelta(hours=1)  # of the devices' clocks
MOST_COMMON_NAME = 64


@dataclass(frozen=True, slots=True)
class Identity:
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


def new_private_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def make_authority(host: str, now: datetime) -> Identity:
    key = new_private_key()
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
    """A certificate for a server that is reached by any of these names and IP addresses."""
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


HEAD = "# Written by `moa-server setup`. What else can be set: moa-server serve --help\n"
_AGAIN = "Name the folder with --folder, or make one: moa-server setup HOST."


@dataclass(frozen=True, slots=True)
class SetupFolder:
    """The paths in a server's folder. `settings_name`: of the file that `moa-server serve --config` reads."""

    path: Path
    settings_name: str = SETTINGS_NAME

    @classmethod
    def of(cls, config_file: Path) -> SetupFolder:
        whole = config_file.expanduser().absolute()
        return cls(whole.parent, whole.name)

    @property
    def authority(self) -> Path:
        return self.path / "authority.pem"

    @property
    def authority_key(self) -> Path:
        return self.path / "authority.key.pem"

    @property
    def certificate(self) -> Path:
        return self.path / "server.pem"

    @property
    def key(self) -> Path:
        return self.path / "server.key.pem"

    @property
    def keys(self) -> Path:
        return self.path / "keys.toml"

    @property
    def settings(self) -> Path:
        return self.path / self.settings_name

    def settings_text(self, host: str, port: int, metrics_port: int) -> str:
        values: dict[str, str | int] = {
            "host": host,
            "port": port,
            "tls_cert": str(self.certificate),
            "tls_key": str(self.key),
            "keys_file": str(self.keys),
            "metrics_port": metrics_port,
        }
        return f"{HEAD}[server]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Gives a temporary folder that becomes `path` when the block ends; if it fails, nothing is left."""
    try:
        if path.is_dir() and any(path.iterdir()):
            raise ConfigError(
                f"{path} holds a server's files already.",
                hint="Another device: moa-server invite NAME. A new certificate: moa-server setup --renew.",
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{path.name}.part-", dir=path.parent))  # its owner's alone
        try:
            yield partial
            partial.replace(path)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.", hint="") from None


def replace_private(path: Path, content: bytes) -> None:
    try:
        write_private(path, content)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.", hint="") from None


def read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(_read(path))
    except ValueError:
        raise ConfigError(f"{path} holds no certificate in PEM.", hint=_AGAIN) from None


def read_identity(certificate: Path, key: Path) -> Identity:
    """A certificate and its key, on the curve P-256 as `moa-server setup` makes them."""
    try:
        found = load_pem_private_key(_read(key), None)
    except (ValueError, TypeError):
        raise ConfigError(f"{key} holds no key in PEM without a password.", hint=_AGAIN) from None
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{key} was not made by moa-server setup.", hint=_AGAIN)
    return Identity(read_certificate(certificate), found)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise NotFoundError(f"There is no {path}.", hint=_AGAIN) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.", hint="") from None
