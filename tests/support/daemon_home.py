"""One user's daemon: its folders, its settings, and commands that concern it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moa_client.daemon.process import DaemonPaths, find_holder

from tests.support.programs import PATIENCE

CLIENT = [sys.executable, "-m", "moa_client.cli"]


@dataclass
class Home:
    """One user's folders and settings."""

    folder: Path
    environment: dict[str, str]

    @property
    def paths(self) -> DaemonPaths:
        return DaemonPaths(self.folder / "RUNTIME_DIR/moa")

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Runs a command: exit code, standard output, standard error."""
        done = subprocess.run(
            [*CLIENT, *arguments], env=self.environment, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=PATIENCE, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    def status(self) -> dict[str, Any]:
        code, out, _ = self.run("daemon", "status", "--json")
        status: dict[str, Any] = json.loads(out)
        assert code == 0, status
        return status

    def pid(self) -> int:
        pid = find_holder(self.paths.lock)
        assert pid is not None
        return pid

    def kill(self) -> None:
        """Ends the daemon as an accident would."""
        os.kill(self.pid(), signal.SIGKILL)
        while find_holder(self.paths.lock) is not None:
            pass

    def history(self) -> list[dict[str, Any]]:
        """The newest conversation's answers."""
        code, out, err = self.run("history", "export", "last", "--format", "json")
        assert code == 0, err
        answers: list[dict[str, Any]] = json.loads(out)["answers"]
        return answers


@contextmanager
def daemon_home(environment: dict[str, str], **settings: str) -> Iterator[Home]:
    """A user's home; a daemon that runs is killed at the end of the block.

    `settings`: of `moa-client`, as in the environment: SERVER="127.0.0.1:50051".
    """
    folder = Path(tempfile.mkdtemp(prefix="moa", dir="/tmp"))  # pytest's are too long for a socket
    everywhere = {"DAEMON": "true", "HISTORY": "true", "ENDPOINT_PORT": "0"}
    everywhere |= {"TEMPERATURE": "0", "TOP_P": "1"}  # of chats, which are compared with the target's own text
    given = {f"MOA_CLIENT_{name}": value for name, value in (everywhere | settings).items()}
    folders = {f"XDG_{name}": str(folder / name) for name in ("RUNTIME_DIR", "DATA_HOME", "STATE_HOME")}
    home = Home(folder, environment | given | folders)
    try:
        yield home
    finally:
        if find_holder(home.paths.lock) is not None:
            home.kill()
        shutil.rmtree(folder)
