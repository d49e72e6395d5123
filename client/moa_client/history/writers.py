"""Which program writes a conversation: one at a time, so that two cannot mix their answers.

State: a file, of which each conversation that this program writes has one byte locked. Invariant: a lock ends with its
program, however that ends.
"""

from __future__ import annotations

import base64
import fcntl
import os
from pathlib import Path

from moa_shared.errors import ConflictError, HistoryError

FILE = "writers.lock"


class Writers:
    """The conversations that this program writes. One of these a program: closing the file lets go of all.

    Args:
        folder: of the history.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._file: int | None = None
        self._held: set[str] = set()

    def hold(self, conversation: str) -> None:
        """Makes this program the one that writes a conversation."""
        if conversation in self._held:
            return
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _place(conversation))
        except (BlockingIOError, PermissionError) as error:
            if self._file is None:
                raise _unusable(self._path, error) from error
            raise ConflictError(
                f"The conversation {conversation} is open in another chat.",
                hint="Continue there, or close it there first.",
            ) from None
        except OSError as error:
            raise _unusable(self._path, error) from error
        self._held.add(conversation)

    def release(self, conversation: str) -> None:
        """Lets other programs write a conversation."""
        if self._file is not None and conversation in self._held:
            self._held.remove(conversation)
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _place(conversation))

    def close(self) -> None:
        """Lets other programs write all conversations."""
        self._held.clear()
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _place(conversation: str) -> int:
    """The byte that stands for a conversation; the file is empty, and need not have it."""
    return int.from_bytes(base64.b32decode(conversation.upper()))


def _unusable(path: Path, error: OSError) -> HistoryError:
    return HistoryError(f"The history's file {path} cannot be used: {error.strerror or error}.")
