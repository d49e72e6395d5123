"""docs/netsim.md says what the program says."""

import re
from pathlib import Path

from netsim.cli import COMMANDS
from netsim.traces import EventKind

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "netsim.md").read_text()


def test_every_command_is_described_and_no_other_is_named() -> None:
    described = set(re.findall(r"`([a-z]+)`", "".join(re.findall(r"^\| (`netsim .*?) \|", PAGE, re.MULTILINE))))
    described |= set(re.findall(r"^\| `netsim ([a-z]+)`", PAGE, re.MULTILINE))
    assert described == set(COMMANDS)
    assert set(re.findall(r"(?:^|`)netsim ([a-z]+)", PAGE, re.MULTILINE)) <= set(COMMANDS)


def test_every_event_is_described() -> None:
    assert all(f"`{kind}" in PAGE for kind in EventKind)
