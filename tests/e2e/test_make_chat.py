"""What `make chat` runs: it ends all that it started, and says why a program did not start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import CHECKOUT
from tests.support.terminal import Terminal

COMMAND = (sys.executable, str(CHECKOUT / "deploy/chat.py"))


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "left").mkdir()
    return {**os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path / "left"), "TERM": "xterm"}


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        (
            {"MOA_SERVER_TLS_CERT": "/nonexistent"},
            "moa-server did not start:\nError: The certificate has no private key.",
        ),
        ({"NETWORK": "none-such"}, "netsim did not start:\n"),
    ],
)
def test_what_a_program_says_that_does_not_start_is_shown(
    variables: dict[str, str], said: str, environment: dict[str, str], tmp_path: Path
) -> None:
    done = subprocess.run(COMMAND, env={**environment, **variables}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert said in done.stderr
    assert list((tmp_path / "left").glob("tmp*")) == []  # deleted when all has ended


@pytest.mark.long
def test_ctrl_c_stops_the_answer_alone(environment: dict[str, str], tmp_path: Path) -> None:
    terminal = Terminal(COMMAND, {**environment, "NETWORK": "4g"})
    try:
        terminal.at_prompt("Tell a very long story about the sea.\r")
        terminal.wait_for(r"\n\w+ \w+ \w+")
        terminal.type("\x03")
        for number in ("2", "3"):  # the server and the link have not heard of it
            terminal.at_prompt(f"Write {number} words.\r")
            terminal.wait_for(rf"Write {number} words\.\s+(?!link )\w")  # and not the status line's first word
        terminal.at_prompt("/q\r")
        assert terminal.end() == 0
    finally:
        terminal.close()
    assert list((tmp_path / "left").glob("tmp*")) == []
