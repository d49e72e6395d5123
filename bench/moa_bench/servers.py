"""A moa-server of the bench's own: one thread, on loopback."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from moa_bench.child import Child, running


@contextmanager
def running_server(
    model: str = "default",
    *,
    dtype: str = "bf16",
    drafter: str = "default",
    flags: Sequence[str] = (),
    cores: set[int] | None = None,
    port: int = 0,
) -> Iterator[Child]:
    """Start a server and wait until it can be called.

    Args:
        drafter: whose memory rows it serves: "default", "none" or a checkpoint's path.
        flags: more of `moa-server serve`.
        cores: the ones that it may use; None: any.

    Raises:
        UnavailableError: it ended or did not get ready.
    """
    arguments = [
        "serve", model, "--port", str(port), "--threads", "1", "--dtype", dtype, "--drafter", drafter,
        "--log-level", "warning", *flags,
    ]  # fmt: skip
    with running("moa_server.cli", arguments, cores=cores) as server:
        yield server
