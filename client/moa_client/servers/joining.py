"""Keeps what an invitation brings: the authority's certificate and the key, each in a file of the server's name.

State: the folder `joined` next to the list of servers. Invariant: only its owner may read what is in it.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path

from moa_shared.errors import ConfigError
from moa_shared.programs.atomic import write_private
from moa_shared.protocol.invitation import Invitation

from moa_client.servers.book import book_path
from moa_client.servers.entry import ServerEntry
from moa_client.servers.keys import check_key, store_key
from moa_client.settings import check_address

_AGAIN = "Ask the operator for another one: moa-server invite NAME."


def check_invitation(invitation: Invitation) -> None:
    """Raises ConfigError if an invitation holds what cannot be used."""
    try:
        check_address(invitation.address)
    except ValueError as error:
        raise ConfigError(f"The invitation's address is {invitation.address!r}: {error}.", hint=_AGAIN) from None
    check_key(invitation.key, "The invitation")
    if invitation.authority:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=invitation.authority)
        except (ssl.SSLError, ValueError):
            raise ConfigError("The invitation's certificate cannot be read.", hint=_AGAIN) from None


def keep_invitation(name: str, invitation: Invitation, *, in_keyring: bool) -> ServerEntry:
    """Writes certificate and key; the entry that names them."""
    folder = _folder()
    ca = folder / f"{name}.pem" if invitation.authority else None
    key_file = None if in_keyring else folder / f"{name}.key"
    entry = ServerEntry(name, invitation.address, tls=True, tls_ca=ca, key_file=key_file, key_keyring=in_keyring)
    if in_keyring:
        store_key(entry, invitation.key)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if ca is not None:
            write_private(ca, ssl.DER_cert_to_PEM_cert(invitation.authority).encode())
        if key_file is not None:
            write_private(key_file, f"{invitation.key}\n".encode())
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror or error}.", hint="") from None
    return entry


def new_key(entry: ServerEntry) -> str:
    """What the user does for another key of a server, in a sentence; empty: it is not listed."""
    if not entry.name:
        return ""
    if any(path is not None and path.parent == _folder() for path in (entry.tls_ca, entry.key_file)):
        join = f"moa-client servers join {entry.name} --replace"
        return f"Ask the operator for another invitation (moa-server invite NAME), then: {join}."
    if entry.key_file is not None:
        return f"Ask the operator for another key, and write it into {entry.key_file}."
    where = "--key-keyring" if entry.key_keyring else "--key-file FILE"
    add = f"moa-client servers add {entry.name} {entry.address}"
    return f"Ask the operator for a key, then add the server again with its options and {where}: {add} ..."


def forget_files(entry: ServerEntry, kept: Sequence[Path | None] = ()) -> None:
    """Deletes what `keep_invitation` has written for a server; files of the user's own stay, and those to be kept."""
    for path in (entry.tls_ca, entry.key_file):
        if path is not None and path.parent == _folder() and path not in kept:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise ConfigError(f"{path} cannot be deleted: {error.strerror or error}.", hint="") from None


def _folder() -> Path:
    return book_path().parent / "joined"
