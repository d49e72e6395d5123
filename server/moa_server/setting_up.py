"""The folder that `moa-server setup` makes: authority, certificate, keys, server.toml; and invitations of devices.

Invariants: it is there whole or not at all; only its owner may read what is in it.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from ipaddress import IPv6Address
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding
from moa_shared.errors import ConfigError
from moa_shared.programs.addresses import Invitation, is_loopback
from moa_shared.programs.atomic import create_private, write_private
from moa_shared.programs.config import load_settings, load_settings_and_origins

from moa_server.access.keys import KeyEntry, changing, check_name, hash_of, new_key
from moa_server.access.limits import CallerLimits, Right
from moa_server.addresses import host_port
from moa_server.settings import METRICS_PORT, SECTION, SETTINGS_NAME, ServerSettings
from moa_server.tls import (
    CertificateFiles,
    general_name,
    key_pem,
    make_authority,
    make_server_certificate,
    names_in,
    new_private_key,
    parse_certificates,
    parse_pair,
    read_file,
)

FIRST_DEVICE = "device"  # the name of the first one's key
_AGAIN = "Name the folder with --folder, or make one: moa-server setup HOST."


class SetupFolder:
    """The paths in a server's folder. `settings_name`: of the file that `moa-server serve --config` reads."""

    def __init__(self, path: Path, settings_name: str = SETTINGS_NAME) -> None:
        self.path = path
        self.settings = path / settings_name
        self.authority = CertificateFiles(path / "authority.pem", path / "authority.key.pem")
        self.server = CertificateFiles(path / "server.pem", path / "server.key.pem")
        self.keys = path / "keys.toml"

    def settings_text(self, host: str, port: int, metrics_port: int) -> str:
        values: dict[str, str | int] = {
            "host": host,
            "port": port,
            "tls_cert": str(self.server.certificate),
            "tls_key": str(self.server.key),
            "keys_file": str(self.keys),
            "metrics_port": metrics_port,
        }
        head = "# Written by `moa-server setup`. What else can be set: moa-server serve --help\n[server]\n"
        return head + "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())


def set_up(
    folder: SetupFolder, hosts: Sequence[str], port: int, now: datetime, metrics_port: int = METRICS_PORT
) -> str:
    """Makes the folder, for names and addresses of which invitations say the first; gives the first device's key."""
    for host in hosts:
        general_name(host)  # an error now, not after the authority is made
    authority_key, key = new_private_key(), new_private_key()
    authority = make_authority(hosts[0], authority_key, now)
    server = make_server_certificate(authority, authority_key, hosts, key, now)
    contents = {
        folder.authority.certificate: authority.public_bytes(Encoding.PEM),
        folder.authority.key: key_pem(authority_key),
        folder.server.certificate: server.public_bytes(Encoding.PEM),
        folder.server.key: key_pem(key),
        folder.settings: folder.settings_text(_listen_address(hosts), port, metrics_port).encode(),
    }
    with _new_folder(folder.path) as partial:
        for path, content in contents.items():
            create_private(partial / path.name, content)
        return add_key(partial / folder.keys.name, FIRST_DEVICE, now)


@contextmanager
def _new_folder(path: Path) -> Iterator[Path]:
    """Gives a temporary folder that becomes `path` when the block ends; if it fails, nothing is left."""
    with _writing(path):
        if path.is_dir() and any(path.iterdir()):
            hint = "Another device: moa-server invite NAME. A new certificate: moa-server setup --renew."
            raise ConfigError(f"{path} holds a server's files already.", hint=hint)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{path.name}.part-", dir=path.parent))  # its owner's alone
        try:
            yield partial
            partial.replace(path)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.", hint="") from None


def renew(folder: SetupFolder, hosts: Sequence[str], now: datetime) -> Sequence[str]:
    """Replaces the server's certificate; authority and key stay, so that devices notice nothing. Returns its names."""
    (authority, authority_key), (server, key) = (
        parse_pair(read_file(files.certificate, _AGAIN), read_file(files.key, _AGAIN), files)
        for files in (folder.authority, folder.server)
    )
    names = hosts or names_in(server)
    renewed = make_server_certificate(authority, authority_key, names, key, now)
    with _writing(folder.server.certificate):
        write_private(folder.server.certificate, renewed.public_bytes(Encoding.PEM))
    return names


def find_key_file(config_file: Path | None, named: Path | None = None) -> tuple[Path, str]:
    """The file of keys of the configuration in force, and what names it. `config_file`: None: there is none."""
    settings, origins = load_settings_and_origins(ServerSettings, SECTION, {"keys_file": named}, config_file)
    if settings.keys_file is not None:
        return settings.keys_file, origins["keys_file"].name
    if config_file is None:
        hint = "Make one: moa-server setup HOST. Or name your server's: --config FILE, or --keys-file FILE."
        said = "No configuration of a server was found, so it is not known which file of keys it reads."
        raise ConfigError(said, hint=hint)
    hint = 'Write keys_file = "FILE" there, or name a file with --keys-file FILE.'
    raise ConfigError(f"{config_file} names no file of keys, so a server with it asks for no keys.", hint=hint)


def add_key(
    path: Path,
    name: str,
    now: datetime,
    expires: datetime | None = None,
    rights: frozenset[Right] = frozenset(Right),
    limits: CallerLimits | None = None,
) -> str:
    """A new key, as the device is to know it; the file gets its hash. `expires`: None: never."""
    check_name(name)
    key = new_key()
    with changing(path) as book:
        book[0] = book[0].with_entry(KeyEntry(name, hash_of(key), rights, limits or CallerLimits(), now, expires))
    return key


def invitation_with(folder: SetupFolder, key: str) -> Invitation:
    """An invitation to this server. `key`: the API key for the device."""
    server, authority = (
        parse_certificates(read_file(each.certificate, _AGAIN), each.certificate)[0]
        for each in (folder.server, folder.authority)
    )
    port = load_settings(ServerSettings, SECTION, {}, folder.settings).port
    if not port:
        said = f"{folder.settings} names no port, so devices cannot be told one."
        raise ConfigError(said, hint="Write port = 50051 there.")
    return Invitation(host_port(names_in(server)[0], port), key, authority.public_bytes(Encoding.DER))


def invitation_words(name: str, settings: Path, expires: datetime | None) -> str:
    """What the operator is told below an invitation. `name`: of its key; `settings`: the configuration in force."""
    until = f"{expires:%Y-%m-%d}, or until its key is revoked" if expires is not None else "its key is revoked"
    return f"""\
The line above is an invitation; it is shown this once. Send it as you would a password: whoever has it can use this
server, from any number of devices, until {until}.
On the device: moa-client servers join NAME
To take it back: moa-server keys revoke {name} --config {settings}
"""


def _listen_address(hosts: Sequence[str]) -> str:
    bare = [host.strip("[]") for host in hosts]
    if all(map(is_loopback, bare)):
        return bare[0] if len({*bare}) == 1 else "localhost"
    return "::" if any(isinstance(general_name(host).value, IPv6Address) for host in hosts) else "0.0.0.0"
