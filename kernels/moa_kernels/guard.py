"""Mapped files: bringing them in at once, and a sentence and exit code 74 where they can no longer be read.

State: the library's table of guarded files. Without the library neither is done.
"""

from __future__ import annotations

import mmap
import weakref

import numpy as np
import numpy.typing as npt

from moa_kernels.bindings import address
from moa_kernels.errors import KernelError
from moa_kernels.library import library


def guard(mapping: mmap.mmap, sentence: str) -> None:
    """Ends the process with this sentence on standard error if a page of the mapping cannot be read.

    Args:
        mapping: guarded for as long as it is there.
    """
    try:
        loaded = library()
    except KernelError:  # the computation reports it
        return
    if loaded is None or not len(mapping):
        return
    place = loaded.moa_guard(address(np.frombuffer(mapping, np.uint8)), len(mapping), f"{sentence}\n".encode())
    if place >= 0:
        weakref.finalize(mapping, loaded.moa_unguard, place).atexit = False


def populate(data: npt.NDArray[np.uint8]) -> None:
    """Reads a part of a mapped file and maps its pages, where the system can; releases the interpreter lock."""
    loaded = library()
    if loaded is not None:
        loaded.moa_populate(address(data), data.nbytes)
