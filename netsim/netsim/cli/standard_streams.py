"""Standard streams that the program was started without; netsim has its own copy, as it imports nothing of ours."""

from __future__ import annotations

import os
import sys

MODES = {"stdin": "r", "stdout": "w", "stderr": "w"}  # in the order of their descriptors


def open_standard_streams() -> None:
    """Opens what is closed of standard input, output and error on /dev/null, before anything else takes its place.

    Otherwise a socket could become descriptor 2, and errors would be written into it.
    """
    for descriptor, (name, mode) in enumerate(MODES.items()):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free: this one
        if getattr(sys, name) is None:  # as Python leaves it where the descriptor was closed
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115 (as long as the program)
