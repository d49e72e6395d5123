"""The tables of exit codes against the catalogues of errors."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from moa_client.commands.daemon import NOT_RUNNING
from moa_shared.errors import CATALOGUE
from netsim.errors import NetsimError

DOCS = Path(__file__).resolve().parents[2] / "docs"
OURS, NETSIM = (
    (DOCS / page).read_text("utf-8").split("\n## Exit codes\n")[1].split("\n## ")[0]
    for page in ("client.md", "netsim.md")
)
WITHOUT_AN_ERROR = {0, 1, NOT_RUNNING, 128 + 1, 128 + 15}


def rows(text: str) -> dict[int, str]:
    """What follows the code in each row of a table."""
    return {int(code): rest for code, rest in re.findall(r"^\| (\d+) \|(.*)$", text, re.MULTILINE)}


def test_each_error_has_its_place_in_the_table() -> None:
    expected: defaultdict[int, set[str]] = defaultdict(set)
    for code, error in CATALOGUE.items():
        expected[error.exit_code].add(code)
    named = {code: set(re.findall(r"`(\w+)`", rest.split("|")[0])) for code, rest in rows(OURS).items()}
    assert {code: names for code, names in named.items() if names} == expected
    assert {code for code, names in named.items() if not names} == WITHOUT_AN_ERROR


def test_each_status_of_netsim_is_in_its_table() -> None:
    errors: list[type[NetsimError]] = [NetsimError, *NetsimError.__subclasses__()]
    assert set(rows(NETSIM)) == {0} | {error.exit_code for error in errors}
