"""Pin processes and threads to cores, so that server and client measure as two machines would."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from moa_shared.errors import ConfigError


def split_cores(pin: bool) -> tuple[set[int] | None, set[int] | None]:
    """One core for the server and one for everything else, or (None, None) when nothing is to be pinned."""
    if not pin:
        return None, None
    if not hasattr(os, "sched_setaffinity"):
        raise ConfigError("Processes cannot be pinned to cores on this system.", hint="Leave out --pin.")
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        raise ConfigError(
            f"Pinning needs two cores, this process may use {len(allowed)}.",
            hint="Leave out --pin or allow more cores.",
        )
    return {allowed[0]}, {allowed[1]}


@contextmanager
def on_cores(cores: set[int] | None) -> Iterator[None]:
    """Run the block, and whatever threads and processes it starts, on these cores (None: wherever)."""
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
