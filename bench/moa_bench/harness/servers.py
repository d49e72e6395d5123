"""A moa-server of the bench's own: one thread, on loopback."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

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
    port: int = 0,
    times: Path | None = None,
) -> Iterator[Child]:
    """Start a server and wait until it can be called.

    Args:
        drafter: whose memory rows it serves: "default", "deep", "none" or a checkpoint's path.
        flags: more of `moa-server serve`.
        cores: the ones that it may use; None: any.
        times: where it writes when its forwards ran, once it has ended; None: nowhere.

    Raises:
        UnavailableError: it ended or did not get ready.
    """
    # A measurement asks the same again and again, and each time the whole text is to be read; all from one address.
    arguments = [
        "serve", model, "--config", os.devnull, "--port", str(port), "--threads", "1",
        "--execution", level, "--drafter", drafter,
        "--log-level", "warning", "--grace-seconds", "1", "--allow-ignore-end-of-text",
        "--share-prefixes", "off", "--peer-requests-per-minute", "0", *flags,
    ]  # fmt: skip
    module = "moa_server.cli"
    if times is not None:
        module, arguments = "moa_bench.suites.micro.timed_server", ["--times", str(times), *arguments]
    with running(module, arguments, cores=cores) as server:
        yield server
