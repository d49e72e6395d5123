"""A fleet of the tiny target on a Ray of this machine."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from moa_server.cluster.local_ray import LocalRay

from tests.support.tiny_models import save_tiny_model

COMMAND_SECONDS = 300.0  # of a busy machine; Ray is given two tries to start
WATCHER_LOG = "watcher.log"


@dataclass(frozen=True)
class Fleet:
    """The commands of one operator, and a program that stays connected to Ray for `status`.

    Args:
        folder: of models and state.
        model: that is served.
        port: of the first replica, which is followed by those of the others; 0: any.
        ray: variables by which commands find a Ray that they have not started.
    """

    folder: Path
    model: Path
    port: int = 0
    ray: Mapping[str, str] = field(default_factory=dict)
    _watchers: list[subprocess.Popen[str]] = field(default_factory=list)  # that `status` asks: one at most

    def __post_init__(self) -> None:
        # Ray Serve imports pandas where there is one, as in no installation of the extra `cluster` alone.
        self._hidden.mkdir()
        (self._hidden / "pandas.py").write_text("raise ImportError")

    def command(self, *arguments: object) -> tuple[int, str, str]:
        """Runs `moa-server cluster`: exit code, standard output, standard error."""
        words = [sys.executable, "-m", "moa_server.cli", "cluster", *map(str, arguments)]
        done = subprocess.run(words, env=self.environment(), capture_output=True, text=True, timeout=COMMAND_SECONDS)
        return done.returncode, done.stdout, done.stderr

    async def meanwhile(self, *arguments: object) -> tuple[int, str, str]:
        """The same, while other things go on."""
        return await asyncio.to_thread(self.command, *arguments)

    def up(self, *arguments: object, model: Path | None = None) -> tuple[object, ...]:
        """The arguments that bring two replicas up."""
        return (
            "up", model or self.model, "--drafter", "none", "--port", self.port, "--min-replicas", 2, "--cpus", 0.5,
            "--allow-ignore-end-of-text", *arguments,
        )  # fmt: skip

    @property
    def head(self) -> LocalRay:
        """The Ray that `up` has started."""
        return LocalRay(**json.loads((self.folder / "state" / "moa" / "cluster.json").read_text("utf-8")))

    def status(self, name: str = "moa") -> dict[str, Any]:
        """How a fleet is: what `moa-server cluster status --json` says."""
        if not (line := self._watched(name)):
            self.leave()  # it has ended with the Ray that it was connected to
            line = self._watched(name)
        assert line, (self.folder / WATCHER_LOG).read_text("utf-8")
        found: dict[str, Any] = json.loads(line)
        return found

    def leave(self) -> None:
        """Ends the connection to Ray that `status` keeps."""
        for process in self._watchers:
            process.kill()
            process.communicate()
        self._watchers.clear()

    def _watched(self, name: str) -> str:
        """What the watcher says of a fleet; empty: it has ended."""
        if not self._watchers:
            with (self.folder / WATCHER_LOG).open("w") as log:
                command, pipe = [sys.executable, "-m", "tests.cluster.fleet_watcher"], subprocess.PIPE
                process = subprocess.Popen(
                    command, env=self.environment(), stdin=pipe, stdout=pipe, stderr=log, text=True
                )
            self._watchers.append(process)
        asked, answers = self._watchers[0].stdin, self._watchers[0].stdout
        assert asked is not None
        assert answers is not None
        try:
            asked.write(f"{name}\n")
            asked.flush()
        except BrokenPipeError:
            return ""
        return answers.readline()

    @property
    def _hidden(self) -> Path:
        """Stands for packages that programs are to miss."""
        return self.folder / "hidden"

    def environment(self) -> dict[str, str]:
        """Of all programs."""
        path = os.pathsep.join([str(self._hidden), *sys.path])
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MOA_"))}
        ours = {"PYTHONPATH": path, "XDG_STATE_HOME": str(self.folder / "state"), "OMP_NUM_THREADS": "1"}
        return {**kept, **ours, **self.ray}


def port_of_two() -> int:
    """A port at which nothing listens now, nor at the next one."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port = int(first.getsockname()[1])
            with suppress(OSError, OverflowError), socket.create_server(("127.0.0.1", port + 1)):
                return port


@pytest.fixture(scope="session")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The operator of the fleet that all tests share, on a Ray that takes half a minute to start."""
    folder = tmp_path_factory.mktemp("fleet")
    made = Fleet(folder, save_tiny_model(folder / "tiny", max_position_embeddings=1024), port_of_two())
    try:
        yield made
    finally:
        made.leave()
        made.command("down")


@pytest.fixture
def fleet(operator: Fleet) -> Fleet:
    """Two replicas that serve."""
    bring_up(operator)
    return operator


def bring_up(operator: Fleet, *arguments: object) -> None:
    """Brings the fleet up where none is, or Ray has ended under it: at first, and after a test that failed there."""
    try:
        is_up = operator.head.is_alive
    except FileNotFoundError:
        is_up = False
    if not is_up:
        code, _, err = operator.command(*operator.up(*arguments))
        assert code == 0, err


def unnumbered(text: str) -> str:
    """What a command says, without what differs from run to run."""
    text = re.sub(r"Ray has been starting for .*\n", "", text)  # where the machine is busy
    return re.sub(r"process \d+", "process N", text)
