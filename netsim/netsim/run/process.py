"""A link in a process of its own, started and stopped from Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from netsim.errors import NetsimError
from netsim.run import control
from netsim.run.address import Address, parse_address

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
_POLL_S = 0.01


class LinkProcess:
    """A link running as a process. `scratch` is a folder for its ready file, control socket and standard error."""

    def __init__(self, command: str, words: Sequence[str], out: Path | None, scratch: Path) -> None:
        self.control_path = scratch / "control.sock"
        self.out = out
        self._ready = scratch / "ready"
        self._said = scratch / "stderr"
        outputs = [] if out is None else ["--out", str(out)]
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-P", "-m", "netsim.cli", command, *outputs, "--control", str(self.control_path),
                    "--ready-file", str(self._ready), *words,
                ],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said, env=environment(),
            )  # fmt: skip

    def await_ready(self) -> None:
        """Waits until the link carries traffic; raises NetsimError with what netsim said if it does not open."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._ready.exists():
            if self.process.poll() is not None:
                said = self._said.read_text().removeprefix("netsim: ").strip()
                raise NetsimError(f"The link did not open: {said}")
            if time.monotonic() > deadline:
                raise NetsimError(f"The link did not open within {START_TIMEOUT_S:.0f} s.")
            time.sleep(_POLL_S)

    def address(self) -> Address:
        """Where clients connect to."""
        return parse_address(self._ready.read_text().strip(), "link")

    def send(self, **request: Any) -> dict[str, Any]:
        """One request over the control socket."""
        return control.send(self.control_path, request)

    def stop(self) -> None:
        """Ends the process and waits for it; its outputs are complete then."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def environment() -> dict[str, str]:
    """Our environment, with the folder that netsim was imported from: a checkout may not be installed."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
