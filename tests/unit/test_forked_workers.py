"""Workers that are forked (tests/support/forked_workers.py) run what was imported before, and say what cannot be imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import CHECKOUT

CONFTEST = """
import sys
sys.path.append({checkout!r})
from tests.support.forked_workers import fork_workers
def pytest_xdist_setupnodes(config, specs):
    fork_workers(config, specs)
"""
GOOD = """
import os
IMPORTED_BY = os.getpid()
def test_it_is_imported_by_the_parent_of_all_workers():
    assert os.getppid() == IMPORTED_BY
"""


@pytest.mark.parametrize(("other", "shown"), [("", "1 passed"), ("import nothing_of_the_kind", "nothing_of_the_kind")])
def test_workers_are_forks(tmp_path: Path, other: str, shown: str) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST.format(checkout=str(CHECKOUT)))
    (tmp_path / "test_good.py").write_text(GOOD)
    (tmp_path / "test_other.py").write_text(other)
    command = [sys.executable, "-m", "pytest", "-pxdist", "-n1", "--import-mode=importlib", "-c/dev/null"]
    variables = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run([*command, "."], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=100)
    assert shown in done.stdout, done.stderr
    assert bool(done.returncode) == bool(other)
