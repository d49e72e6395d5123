"""The compose file as an operator follows it: a server with a certificate and a key, and a device behind 4G."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.deploy.containers import Container
from tests.deploy.engine import ASK, LIMITS, Engine
from tests.deploy.recipes import COMPOSE
from tests.support.programs import free_port

# One worker has the store, and builds once.
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("images"), pytest.mark.timeout(1800)]
PROJECT = "moa-test"
PODMAN = """#!/bin/sh
case $1 in run | create) command=$1; shift; set -- "$command" {limits} "$@" ;; esac
exec {engine} "$@"
"""


@dataclass(frozen=True)
class Compose:
    """podman-compose over the tests' engine and the compose file as it is."""

    podman: Path
    variables: dict[str, str]

    def call(self, *arguments: str, given: str = "") -> str:
        """What a command prints on standard output."""
        command = [sys.executable, "-m", "podman_compose", "--podman-path", str(self.podman), "--in-pod", "false"]
        done = subprocess.run(
            [*command, "-p", PROJECT, "-f", str(COMPOSE), *arguments],
            env={**os.environ, **self.variables}, input=given, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def compose(images: Engine, tmp_path: Path) -> Iterator[Compose]:
    podman = tmp_path / "podman"
    podman.write_text(PODMAN.format(limits=shlex.join(LIMITS), engine=shlex.join(images.words)))
    podman.chmod(0o755)
    compose = Compose(podman, {"MOA_PORT": str(free_port())})
    end = ("--profile", "device", "down", "--volumes", "--timeout", "0")
    compose.call(*end)
    yield compose
    compose.call(*end)


def test_a_device_joins_and_asks(images: Engine, compose: Compose) -> None:
    run = ("run", "--rm", "--no-deps", "-T")
    invitation = compose.call(*run, "server", "setup", "moa.test", "--folder", "/etc/moa/server")
    compose.call("up", "--detach", "--no-build", "--no-deps", "server")
    Container(images, f"{PROJECT}_server_1").await_healthy()
    compose.call("up", "--detach", "--no-build", "--no-deps", "netsim")
    compose.call("--profile", "device", *run, "client", "servers", "join", "home", given=invitation)
    answer = compose.call("--profile", "device", *run, "client", *ASK)
    assert answer.strip()
