"""The systemd unit: what systemd says of it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from moa_server.settings import ServerSettings
from moa_shared.programs.config import settings_of

from tests.support.programs import CHECKOUT
from tests.support.skipping import cannot_run

UNIT = CHECKOUT / "deploy/systemd/moa-server.service"
EXPOSURE = 2.0  # systemd's own word up to here: OK


@pytest.fixture
def analyze() -> str:
    return shutil.which("systemd-analyze") or cannot_run("needs systemd-analyze")


def test_systemd_takes_the_unit(analyze: str, tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/moa/bin/moa-server", shutil.which("true") or ""))
    done = subprocess.run([analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_little_is_exposed(analyze: str) -> None:
    command = [analyze, "security", "--no-pager", "--offline=true", str(UNIT)]
    done = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert found, done.stderr
    print(f"exposure {found[1]}")
    assert float(found[1]) <= EXPOSURE


def test_the_times_fit_the_settings() -> None:
    unit = dict(line.split("=", 1) for line in UNIT.read_text().splitlines() if re.match(r"\w+=", line))
    settings = settings_of(ServerSettings)
    assert int(unit["TimeoutStopSec"]) > settings["grace_seconds"].default
    assert int(unit["WatchdogSec"]) > ServerSettings().hang_seconds
