"""The house in docs/architecture.md: each package is above what it imports; `make lint` holds the picture fresh."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "docs" / "floors.py"


def python(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=SCRIPT.parent, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


def test_each_is_on_the_lowest_floor_above_what_it_imports() -> None:
    imports = "{'a': {'b', 'c'}, 'b': {'d'}, 'c': set(), 'd': {'e'}, 'e': {'d'}}"
    found = python("-c", f"from floors import above_what_they_import; print(above_what_they_import({imports}))")
    assert found == "[['a'], ['b'], ['c', 'd', 'e']]\n"
