"""Keys for the devices that are invited."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from moa_server.access.api_key import KeyEntry, check_name, hash_of, new_key
from moa_server.access.caller import CallerLimits, Right
from moa_server.access.key_file import changing

FIRST_DEVICE = "device"  # the name of the first one's key


def add_device(keys: Path, name: str, now: datetime) -> str:
    """A new key with all rights, as the device is to know it; the file gets its hash.

    Raises:
        ConfigError: the name is taken or cannot be one, or the file cannot be changed.
    """
    check_name(name)
    key = new_key()
    with changing(keys) as book:
        book[0] = book[0].with_entry(KeyEntry(name, hash_of(key), frozenset(Right), CallerLimits(), now))
    return key
