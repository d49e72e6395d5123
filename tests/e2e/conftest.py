"""The real system for end-to-end tests: `moa-server serve` as a process, one a level of execution for all tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from moa_kernels import variant_name
from moa_server.target.execution import NUMPY
from moa_shared.models import ModelFiles

START_SECONDS = 120.0


@pytest.fixture(scope="session")
def float32_server(default_model_files: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server of the default target in float32: the level that transformers is the yardstick of."""
    with _served("float32", tmp_path_factory.mktemp("float32")) as address:
        yield address


@pytest.fixture(scope="session")
def exact_server(default_model_files: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server of the default target on the default level, int8."""
    if variant_name() == NUMPY:
        pytest.skip("there are no kernels for this CPU")
    with _served("auto", tmp_path_factory.mktemp("int8")) as address:
        yield address


@contextmanager
def _served(execution: str, folder: Path) -> Iterator[str]:
    ready, log = folder / "ready", folder / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "moa_server.cli",
                "serve",
                "--execution",
                execution,
                "--port",
                "0",
                "--threads",
                "1",
                "--ready-file",
                str(ready),
                "--log-format",
                "json",
            ],
            stdout=out,
            stderr=out,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
    try:
        yield _address(process, ready, log)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0, log.read_text()


def _address(process: subprocess.Popen[bytes], ready: Path, log: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while not (ready.exists() and ready.read_text().strip()):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, f"the server did not start: {log.read_text()}"
        time.sleep(0.1)
    return ready.read_text().strip()
