"""Standard output of the programs: characters that it cannot hold become marks, and a failure is one sentence."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from moa_shared.errors import OutputError


def tolerate_encoding() -> None:
    """Writes characters that the locale lacks as "?": one that is not UTF-8 lacks most."""
    if (reconfigure := getattr(sys.stdout, "reconfigure", None)) is not None:
        reconfigure(errors="replace")


def write_output(text: str) -> None:
    """Writes to standard output, at once.

    Raises:
        BrokenPipeError: its reader has enough.
        OutputError: it cannot be written.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _unwritable(error) from None


@contextmanager
def output_errors() -> Iterator[None]:
    """Wraps a whole program, for help texts and lists, which are not written by `write_output`.

    Raises:
        OutputError: standard output cannot be written.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        raise _unwritable(error) from None


def close_output() -> None:
    """Discards all further output, at exit too: what is still held would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unwritable(error: OSError) -> OutputError:
    close_output()
    return OutputError(f"Standard output cannot be written: {error.strerror or error}.")
