"""Makes a server's folder, renews its certificate, and invites devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from ipaddress import IPv6Address, ip_address
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding
from moa_shared.errors import ConfigError
from moa_shared.programs.addresses import is_loopback
from moa_shared.programs.atomic import create_private
from moa_shared.programs.config import load_settings
from moa_shared.protocol.invitation import Invitation

from moa_server.access.named_file import find_key_file
from moa_server.running.addresses import host_port
from moa_server.settings import METRICS_PORT, SECTION, ServerSettings
from moa_server.setup.authority import general_names, hosts_of, make_authority, make_server_certificate, new_key
from moa_server.setup.folder import SetupFolder, new_folder, read_certificate, read_identity, replace_private


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
        add_key: adds a key to a file, and returns it.
        metrics_port: for metrics and health, on this machine only.

    Raises:
        ConfigError: a host is no name, or there is a folder already, or it cannot be written.
    """
    general_names(hosts)  # an error now, not after the authority is made
    authority = make_authority(hosts[0], now)
    server = make_server_certificate(authority, hosts, new_key(), now)
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

    Args:
        hosts: its names from now on; none: as before.

    Returns:
        its names.

    Raises:
        NotFoundError, ConfigError: the folder does not hold what setup has made.
    """
    authority = read_identity(folder.authority, folder.authority_key)
    server = read_identity(folder.certificate, folder.key)
    names = [*hosts] or hosts_of(server.certificate)
    renewed = make_server_certificate(authority, names, server.key, now)
    replace_private(folder.certificate, renewed.certificate_pem)
    return names


def invitation_with(folder: SetupFolder, key: str) -> Invitation:
    """An invitation to this server.

    Args:
        key: the API key for the device.

    Raises:
        NotFoundError, ConfigError: the folder does not hold what setup has made.
    """
    [host, *_] = hosts_of(read_certificate(folder.certificate))
    port = _settings(folder).port
    if not port:
        raise ConfigError(
            f"{folder.settings} names no port, so devices cannot be told one.", hint="Write port = 50051 there."
        )
    authority = read_certificate(folder.authority).public_bytes(Encoding.DER)
    return Invitation(host_port(host, port), key, authority)


def keys_of(folder: SetupFolder) -> Path:
    """The file of keys that the server reads.

    Raises:
        NotFoundError, ConfigError: server.toml cannot be used, or names none.
    """
    return find_key_file(folder.settings).path


def _settings(folder: SetupFolder) -> ServerSettings:
    return load_settings(ServerSettings, SECTION, {}, folder.settings)


def _listen_address(hosts: Sequence[str]) -> str:
    """All addresses of the machine, those of IPv6 too if one of them is named; loopback if nothing else is named."""
    bare = [host.strip("[]") for host in hosts]
    if all(map(is_loopback, bare)):
        return bare[0] if len({*bare}) == 1 else "localhost"
    return "::" if any(_is_ipv6(host) for host in hosts) else "0.0.0.0"


def _is_ipv6(host: str) -> bool:
    try:
        return isinstance(ip_address(host.strip("[]")), IPv6Address)
    except ValueError:
        return False
