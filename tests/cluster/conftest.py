"""A fleet of the tiny target on a Ray of this machine."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import run
from typing import Any

import pytest
from moa_server.cluster.local_ray import LocalRay

from tests.support.tiny_models import save_tiny_model

COMMAND_SECONDS = 300.0  # of a busy machine; Ray is given two tries to start


@dataclass(frozen=True)
class Fleet:
    """The commands of one operator.

    Args:
        folder: of models and state.
        model: that is served.
        ray: variables by which commands find a Ray that they have not started.
    """

    folder: Path
    model: Path
    ray: Mapping[str, str] = field(default_factory=dict)

    def command(self, *arguments: object) -> tuple[int, str, str]:
        """Runs `moa-server cluster`: exit code, standard output, standard error."""
        done = run(
            self._words(arguments), env=self.environment(), capture_output=True, text=True, timeout=COMMAND_SECONDS
        )
        return done.returncode, done.stdout, done.stderr

    async def meanwhile(self, *arguments: object) -> tuple[int, str, str]:
        """The same, while other things go on."""
        return await asyncio.to_thread(self.command, *arguments)

    def up(self, *arguments: object, model: Path | None = None) -> tuple[object, ...]:
        """The arguments that bring two replicas up."""
        return (
            "up", model or self.model, "--drafter", "none", "--port", 0, "--min-replicas", 2, "--cpus", 0.5,
            "--allow-ignore-end-of-text", *arguments,
        )  # fmt: skip

    @property
    def head(self) -> LocalRay:
        """The Ray that `up` has started."""
        return LocalRay(**json.loads((self.folder / "state" / "moa" / "cluster.json").read_text("utf-8")))

    def status(self, name: str = "moa") -> dict[str, Any]:
        """What `status` says of a fleet."""
        code, out, err = self.command("status", "--name", name, "--json")
        assert code == 0, err
        found: dict[str, Any] = json.loads(out)
        return found

    def _words(self, arguments: tuple[object, ...]) -> list[str]:
        return [sys.executable, "-m", "moa_server.cli", "cluster", *map(str, arguments)]

    def environment(self) -> dict[str, str]:
        """Of all programs."""
        path = os.pathsep.join(sys.path)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MOA_"))}
        ours = {"PYTHONPATH": path, "XDG_STATE_HOME": str(self.folder / "state"), "OMP_NUM_THREADS": "1"}
        return {**kept, **ours, **self.ray}


@contextmanager
def serving(folder: Path, *arguments: object) -> Iterator[Fleet]:
    """A fleet that serves, deployed with these arguments too, on a Ray of its own."""
    made = Fleet(folder, save_tiny_model(folder / "tiny", max_position_embeddings=1024))
    code, _, err = made.command(*made.up(*arguments))
    try:
        assert code == 0, err
        yield made
    finally:
        made.command("down")


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two replicas that serve; Ray takes half a minute to start, and is there for all tests."""
    with serving(tmp_path_factory.mktemp("fleet")) as made:
        yield made
