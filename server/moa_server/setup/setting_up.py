"""Makes a server's folder, renews its certificate, and invites devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from ipaddress import IPv6Address, ip_address
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding
from moa_shared.errors import ConfigError
from moa_shared.programs.addresses import is_loopback
from moa_shared.programs.atomic import create_private
from moa_shared.programs.config import SettingOrigin, load_settings, load_settings_and_origins
from moa_shared.protocol.invitation import Invitation

from moa_server.access.caller import CallerLimits, Right
from moa_server.access.keys import KeyEntry, changing, check_name, hash_of, new_key
from moa_server.running.addresses import host_port
from moa_server.settings import METRICS_PORT, SECTION, ServerSettings
from moa_server.setup.folder import (
    SetupFolder,
    general_names,
    hosts_of,
    make_authority,
    make_server_certificate,
    new_folder,
    new_private_key,
    read_certificate,
    read_identity,
    replace_private,
)


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

    Args:
        expires: when it ends; None: never.
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

    Args:
        hosts: names and addresses under which devices reach the server, the first one that of invitations.
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
    """Replaces the server's certificate; authority and key stay, so that devices notice nothing.

    Returns:
        its names.
    """
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
