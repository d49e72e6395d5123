"""Commands that use a link, and servers at its far end: started, awaited, ended."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from netsim.errors import CommandError

LINK_VARIABLE = "NETSIM_LINK"
PLACEHOLDER = "{link}"
SERVER_DEADLINE_S = 120.0  # a server may have a model to load
POLL_S = 0.05


def start_command(command: Sequence[str], link: str, prefix: Sequence[str]) -> subprocess.Popen[bytes]:
    """Starts the command with the link's address in place of `{link}` and in NETSIM_LINK; raises CommandError."""
    words = [word.replace(PLACEHOLDER, link) for word in command]
    # The launcher into a namespace would report a missing program in its own words: look before.
    if prefix and shutil.which(words[0]) is None:
        raise CommandError(f"The command {words[0]!r} does not start: there is no such program.")
    try:
        return subprocess.Popen([*prefix, *words], env={**os.environ, LINK_VARIABLE: link})
    except OSError as error:
        raise CommandError(f"The command {shlex.join(words)!r} does not start: {error.strerror}.") from error


def end_command(child: subprocess.Popen[bytes]) -> int:
    """The command's status as a shell reports it: 128 and the number for a signal."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(5.0)
        except subprocess.TimeoutExpired:
            child.kill()
    status = child.wait()
    return status if status >= 0 else 128 - status


def await_listening(server: subprocess.Popen[bytes], port: int) -> None:
    """Waits until something listens on the port in the server's namespace; raises CommandError."""
    deadline = time.monotonic() + SERVER_DEADLINE_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise CommandError(f"The server ended with status {server.returncode} before it listened on port {port}.")
        for table in ("tcp", "tcp6"):
            path = Path(f"/proc/{server.pid}/net/{table}")
            lines = path.read_text().splitlines()[1:] if path.exists() else []
            # Columns: number, local address, remote address, state (0A is LISTEN).
            if any(f[1].endswith(f":{port:04X}") and f[3] == "0A" for f in map(str.split, lines)):
                return
        time.sleep(POLL_S)
    raise CommandError(f"The server does not listen on port {port} after {SERVER_DEADLINE_S:.0f} s.")
