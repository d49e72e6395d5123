"""Removes the secrets of a server that is no longer listed as it was."""

from __future__ import annotations

from moa_client.servers.book import ServerBook
from moa_client.servers.entry import ServerEntry
from moa_client.servers.joining import forget_files
from moa_client.servers.keys import forget_key


def forget(gone: ServerEntry, now: ServerEntry | None, left: ServerBook) -> None:
    """Removes what an entry had and the one in its place does not need.

    Args:
        now: of the same name; None: there is none.
        left: the list as it is.
    """
    forget_files(gone, kept=(now.tls_ca, now.key_file) if now is not None else ())
    if gone.key_keyring and (now is None or not now.key_keyring):
        forget_key(gone, left.entries)
