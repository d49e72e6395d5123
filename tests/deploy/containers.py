"""Containers of the images that run while a test looks at them."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.deploy.engine import HARDENED, LIMITS, PREFIX, Engine

PATIENCE = 120.0
PROGRESS = re.compile(r'"event": "begun"|^serving ')


@dataclass(frozen=True)
class Container:
    """A container that runs."""

    engine: Engine
    name: str

    def log(self) -> str:
        done = self.engine.call("logs", self.name)
        return done.stdout + done.stderr

    def await_healthy(self) -> float:
        """Waits until its health check passes; returns how many seconds that took.

        Asks when the log says that the server begins something or serves: to ask all the time slows the start.
        """
        began = time.monotonic()
        command = ["timeout", str(PATIENCE), *self.engine.words, "logs", "--follow", self.name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as log:
            assert log.stdout is not None
            while self.engine.call("healthcheck", "run", self.name, check=False).returncode:
                assert any(PROGRESS.search(line) for line in log.stdout), self.log()
            log.terminate()
        return time.monotonic() - began

    def await_handler(self, number: int) -> None:
        """Waits until its first process handles a signal."""
        began = time.monotonic()
        while not self._handled() >> number - 1 & 1:
            assert time.monotonic() - began < PATIENCE, self.log()

    def _handled(self) -> int:
        status = self.engine.call("exec", self.name, "cat", "/proc/1/status").stdout
        return int(status.partition("SigCgt:")[2].split()[0], 16)

    def stop(self) -> int:
        """Sends SIGTERM; its exit status."""
        self.engine.call("stop", "--time", "40", self.name)
        return int(self.engine.call("inspect", "--format", "{{.State.ExitCode}}", self.name).stdout)


@contextmanager
def running(engine: Engine, image: str, *arguments: str, options: tuple[str, ...] = ()) -> Iterator[Container]:
    """A hardened container, which is removed at the end."""
    name = f"moa-test-{image}"
    engine.call("rm", "--force", "--ignore", name)
    engine.call(
        "run", "--detach", "--name", name, *LIMITS, *HARDENED, "--network", "host", "--tmpfs", "/tmp", *options,
        f"{PREFIX}{image}", *arguments,
    )  # fmt: skip
    try:
        yield Container(engine, name)
    finally:
        engine.call("rm", "--force", "--time", "0", name)
