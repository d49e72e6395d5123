"""The real system for end-to-end tests: `moa-server serve` as a process, in float32, one for all tests of a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from moa_shared.models import ModelFiles

START_SECONDS = 120.0


@pytest.fixture(scope="session")
def float32_server(default_model_files: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server of the default target in float32."""
    folder = tmp_path_factory.mktemp("server")
    ready, log = folder / "ready", folder / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "moa_server.cli",
                "serve",
                "--dtype",
                "float32",
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
