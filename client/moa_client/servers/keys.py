"""API keys and what an invitation brings: in the system's keyring or in files, and never on a command line.

State: the folder `joined` next to the list of servers, with a certificate and a key of each. Invariant: only its owner
may read what is in it.
"""

from __future__ import annotations

import ssl
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from moa_shared.errors import ConfigError, NotFoundError
from moa_shared.programs.atomic import write_private
from moa_shared.programs.entry import install_extra
from moa_shared.protocol.invitation import Invitation

from moa_client.servers.book import ServerBook, ServerEntry, book_path
from moa_client.settings import check_address

SERVICE = "moa"  # in the keyring; the user's name there is the server's name
MOST_CHARACTERS = 4096
NO_KEYRING = "Keep the key in a file instead: --key-file FILE."


def key_of(entry: ServerEntry) -> str:
    """The API key for a server; empty if it needs none."""
    if entry.key_file is not None:
        return read_key_file(entry.key_file)
    return load_key(entry) if entry.key_keyring else ""


def read_key_file(path: Path) -> str:
    """A key from a file that only its owner can read."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFoundError(f"There is no key file {path}.", hint="Add the server again with its key.") from None
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"The key file {path} cannot be read: {why}.", hint="") from None
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(f"Others can read the key file {path}.", hint=f"Protect it: chmod 600 {path}")
    return check_key(text, f"The key file {path}")


def check_key(text: str, source: str) -> str:
    """The key in a text. `source`: where the text comes from, for the message."""
    key = text.strip()
    if not key or len(key) > MOST_CHARACTERS or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(f"{source} does not hold one API key.", hint="It must be one line of ASCII without spaces.")
    return key


def load_key(entry: ServerEntry) -> str:
    """The key of a server from the keyring.

    Earlier versions kept it by the server's address, which several servers of the list may have: what is found there
    is kept by the name from then on.
    """
    keyring = _keyring()
    try:
        key = keyring.get_password(SERVICE, entry.name)
        if not key and (key := keyring.get_password(SERVICE, entry.address)):
            keyring.set_password(SERVICE, entry.name, key)
    except keyring.errors.KeyringError as error:
        raise _refused(error) from None
    if not key:
        raise ConfigError(
            f"The keyring has no API key for {entry.name} ({entry.address}).",
            hint=f"Add the server again: moa-client servers add {entry.name} {entry.address} --key-keyring.",
        )
    return check_key(key, f"The keyring's entry for {entry.name}")


def store_key(entry: ServerEntry, key: str) -> None:
    keyring = _keyring()
    try:
        keyring.set_password(SERVICE, entry.name, key)
    except keyring.errors.KeyringError as error:
        raise _refused(error) from None


def forget_key(entry: ServerEntry, others: Iterable[ServerEntry] = ()) -> None:
    """Takes the key of a server out of the keyring, if it is there.

    `others`: that stay listed; a key that an earlier version kept for all servers of an address stays for them.
    """
    keyring = _keyring()
    shared = any(other.key_keyring and other.address == entry.address for other in others)
    for user in (entry.name, *([] if shared else [entry.address])):
        try:
            keyring.delete_password(SERVICE, user)
        except keyring.errors.PasswordDeleteError:
            continue
        except keyring.errors.KeyringError as error:
            raise _refused(error) from None


def _keyring() -> Any:
    try:
        import keyring
        import keyring.errors
    except ImportError:
        raise ConfigError(
            "The system's keyring cannot be used: the package keyring is not installed.",
            hint=f"Install it: {install_extra('keyring')}. {NO_KEYRING}",
        ) from None
    return keyring


def _refused(error: Exception) -> ConfigError:
    words = " ".join(str(error).split()) or type(error).__name__
    return ConfigError(f"The system's keyring cannot be used: {words.rstrip('.')}.", hint=NO_KEYRING)


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


def forget(gone: ServerEntry, now: ServerEntry | None, left: ServerBook) -> None:
    """Removes what an entry had and the one in its place does not need.

    `now`: of the same name; None: there is none.
    """
    forget_files(gone, kept=(now.tls_ca, now.key_file) if now is not None else ())
    if gone.key_keyring and (now is None or not now.key_keyring):
        forget_key(gone, left.entries)
