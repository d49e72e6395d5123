"""The folder that `moa-server setup` makes: authority, certificate, keys, server.toml; and invitations of devices.

Invariants: it is there whole or not at all; only its owner may read what is in it.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import IPv6Address, ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from moa_shared.errors import ConfigError, NotFoundError
from moa_shared.programs.addresses import is_loopback
from moa_shared.programs.atomic import create_private, write_private
from moa_shared.programs.config import SettingOrigin, load_settings, load_settings_and_origins
from moa_shared.protocol.invitation import Invitation

from moa_server.access.caller import CallerLimits, Right
from moa_server.access.keys import KeyEntry, changing, check_name, hash_of, new_key
from moa_server.running.addresses import host_port
from moa_server.settings import METRICS_PORT, SECTION, SETTINGS_NAME, ServerSettings

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


@dataclass(frozen=True, slots=True)
class NamedFile:
    path: Path
    origin: SettingOrigin

    def words(self) -> str:
        return f"The file of keys is {self.path} (from {self.origin.name})."


def find_key_file(config_file: Path | None, named: Path | None = None) -> NamedFile:
    """The file of keys of the configuration in force. `config_file`: in force; None: there is none."""
    settings, origins = load_settings_and_origins(ServerSettings, SECTION, {"keys_file": named}, config_file)
    if settings.keys_file is not None:
        return NamedFile(settings.keys_file, origins["keys_file"])
    if config_file is None:
        raise ConfigError(
            "No configuration of a server was found, so it is not known which file of keys it reads.",
            hint="Make one: moa-server setup HOST. Or name your server's: --config FILE, or --keys-file FILE.",
        )
    raise ConfigError(
        f"{config_file} names no file of keys, so a server with it asks for no keys.",
        hint='Write keys_file = "FILE" there, or name a file with --keys-file FILE.',
    )


FIRST_DEVICE = "device"  # the name of the first one's key


def add_device(keys: Path, name: str, now: datetime, expires: datetime | None = None) -> str:
    """A new key with all rights, as the device is to know it; the file gets its hash.

    `expires`: when it ends; None: never.
    """
    check_name(name)
    key = new_key()
    with changing(keys) as book:
        book[0] = book[0].with_entry(KeyEntry(name, hash_of(key), frozenset(Right), CallerLimits(), now, expires))
    return key


def invitation_words(name: str, settings: Path, expires: datetime | None) -> str:
    """What the operator is told below an invitation. `name`: of its key; `settings`: the configuration in force."""
    until = f"{expires:%Y-%m-%d}, or until its key is revoked" if expires is not None else "its key is revoked"
    return f"""\
The line above is an invitation; it is shown this once. Send it as you would a password: whoever has it can use this
server, from any number of devices, until {until}.
On the device: moa-client servers join NAME
To take it back: moa-server keys revoke {name} --config {settings}
"""


def set_up(
    folder: SetupFolder,
    hosts: Sequence[str],
    port: int,
    add_key: Callable[[Path], str],
    now: datetime,
    metrics_port: int = METRICS_PORT,
) -> str:
    """Makes the folder; the key of the first device.

    `hosts`: names and addresses under which devices reach the server, the first one that of invitations.
    """
    general_names(hosts)  # an error now, not after the authority is made
    authority = make_authority(hosts[0], now)
    server = make_server_certificate(authority, hosts, new_private_key(), now)
    contents = {
        folder.authority: authority.certificate_pem,
        folder.authority_key: authority.key_pem,
        folder.certificate: server.certificate_pem,
        folder.key: server.key_pem,
        folder.settings: folder.settings_text(_listen_address(hosts), port, metrics_port).encode(),
    }
    with new_folder(folder.path) as partial:
        for path, content in contents.items():
            create_private(partial / path.name, content)
        return add_key(partial / folder.keys.name)


def renew(folder: SetupFolder, hosts: Sequence[str], now: datetime) -> list[str]:
    """Replaces the server's certificate; authority and key stay, so that devices notice nothing. Returns its names."""
    authority = read_identity(folder.authority, folder.authority_key)
    server = read_identity(folder.certificate, folder.key)
    names = [*hosts] or hosts_of(server.certificate)
    renewed = make_server_certificate(authority, names, server.key, now)
    replace_private(folder.certificate, renewed.certificate_pem)
    return names


def invitation_with(folder: SetupFolder, key: str) -> Invitation:
    """An invitation to this server. `key`: the API key for the device."""
    [host, *_] = hosts_of(read_certificate(folder.certificate))
    port = _settings(folder).port
    if not port:
        raise ConfigError(
            f"{folder.settings} names no port, so devices cannot be told one.", hint="Write port = 50051 there."
        )
    authority = read_certificate(folder.authority).public_bytes(Encoding.DER)
    return Invitation(host_port(host, port), key, authority)


def keys_of(folder: SetupFolder) -> Path:
    return find_key_file(folder.settings).path


def _settings(folder: SetupFolder) -> ServerSettings:
    return load_settings(ServerSettings, SECTION, {}, folder.settings)


def _listen_address(hosts: Sequence[str]) -> str:
    bare = [host.strip("[]") for host in hosts]
    if all(map(is_loopback, bare)):
        return bare[0] if len({*bare}) == 1 else "localhost"
    return "::" if any(_is_ipv6(host) for host in hosts) else "0.0.0.0"


def _is_ipv6(host: str) -> bool:
    try:
        return isinstance(ip_address(host.strip("[]")), IPv6Address)
    except ValueError:
        return False
