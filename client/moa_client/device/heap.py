"""Returns memory that loading has used and freed to the system."""

from __future__ import annotations

import ctypes


def trim_heap() -> None:
    """Returns freed memory to the system; does nothing where the C library cannot."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):  # not glibc
        return
    trim(0)
