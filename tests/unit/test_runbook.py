"""The card at the top of the runbook: its commands exist, and its paths and ports are those that setup writes."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from moa_client.cli import cli as client
from moa_server.cli import cli as server
from moa_server.settings import METRICS_PORT, SYSTEM_FILE

ROOT = Path(__file__).resolve().parents[2]
CARD = (ROOT / "docs/runbook.md").read_text("utf-8").split("\n## ")[0]
COMMANDS = re.findall(r"`(moa-(?:server|client) [^`]+)`", CARD)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_card_exist(command: str) -> None:
    program, *words = shlex.split(command)
    result = CliRunner().invoke(server if program == "moa-server" else client, [*words, "--help"])
    assert result.exit_code == 0, result.output
    options = [word for word in words if word.startswith("--")]
    assert all(option in result.output for option in options)


def test_ports_and_paths_are_those_of_setup_and_the_unit() -> None:
    assert set(re.findall(r"127\.0\.0\.1:(\d+)", CARD)) == {str(METRICS_PORT)}
    assert str(SYSTEM_FILE) in CARD
    unit = (ROOT / "deploy/systemd/moa-server.service").read_text("utf-8")
    assert f"--config {SYSTEM_FILE}\n" in unit
    assert f":{METRICS_PORT}" in (ROOT / "deploy/prometheus/prometheus.yml").read_text("utf-8")
    assert f"MOA_SERVER_METRICS_PORT={METRICS_PORT}\n" in (ROOT / "deploy/Containerfile").read_text("utf-8")
