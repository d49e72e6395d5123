"""Keys for the devices that are invited."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from moa_server.access.api_key import KeyEntry, check_name, hash_of, new_key
from moa_server.access.caller import CallerLimits, Right
from moa_server.access.key_file import changing

FIRST_DEVICE = "device"  # the name of the first one's key


def add_device(keys: Path, name: str, now: datetime, expires: datetime | None = None) -> str:
    """A new key with all rights, as the device is to know it; the file gets its hash.

    Args:
        expires: when it ends; None: never.

    Raises:
        ConfigError: the name is taken or cannot be one, or the file cannot be changed.
    """
    check_name(name)
    key = new_key()
    with changing(keys) as book:
        book[0] = book[0].with_entry(KeyEntry(name, hash_of(key), frozenset(Right), CallerLimits(), now, expires))
    return key


def invitation_words(name: str, settings: Path, expires: datetime | None) -> str:
    """What the operator is told below an invitation.

    Args:
        name: of its key; `settings`: the configuration in force.
    """
    until = f"{expires:%Y-%m-%d}, or until its key is revoked" if expires is not None else "its key is revoked"
    return f"""\
The line above is an invitation; it is shown this once. Send it as you would a password: whoever has it can use this
server, from any number of devices, until {until}.
On the device: moa-client servers join NAME
To take it back: moa-server keys revoke {name} --config {settings}
"""
