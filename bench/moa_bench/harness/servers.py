"""A moa-server of the bench's own: one thread, on loopback."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from moa_shared.protocol.levels import INT8

from moa_bench.harness.child import Child, running


@contextmanager
def running_server(
    model: str = "default",
    *,
    level: str = INT8,
    drafter: str = "default",
    flags: Sequence[str] = (),
    cores: set[int] | None = None,
) -> Iterator[Child]:
    """Start a server and wait until it can be called.

    Args:
        drafter: whose memory rows it serves: "default", "deep", "none" or a checkpoint's path.
        flags: more of `moa-server serve`.
        cores: the ones that it may use; None: any.
    """
    # A measurement asks the same again and again, and each time the whole text is to be read; all from one address.
    arguments = [
        "serve", model, "--config", os.devnull, "--port", "0", "--threads", "1",
        "--execution", level, "--drafter", drafter,
        "--log-level", "warning", "--grace-seconds", "1", "--allow-ignore-end-of-text",
        "--share-prefixes", "off", "--peer-requests-per-minute", "0", *flags,
    ]  # fmt: skip
    with running("moa_server.cli", arguments, cores=cores) as server:
        yield server
