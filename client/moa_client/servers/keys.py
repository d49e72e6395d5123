"""API keys: in the system's keyring or in a file, and never on a command line, where others could read them."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from moa_shared.errors import ConfigError, NotFoundError
from moa_shared.programs.missing_packages import install_extra

from moa_client.servers.entry import ServerEntry

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
    """The key in a text.

    Args:
        source: where the text comes from, for the message.
    """
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
    """Puts the key of a server into the keyring."""
    keyring = _keyring()
    try:
        keyring.set_password(SERVICE, entry.name, key)
    except keyring.errors.KeyringError as error:
        raise _refused(error) from None


def forget_key(entry: ServerEntry, others: Iterable[ServerEntry] = ()) -> None:
    """Takes the key of a server out of the keyring, if it is there.

    Args:
        others: that stay listed; a key that an earlier version kept for all servers of an address stays for them.
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
