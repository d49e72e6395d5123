from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest
from moa_kernels.variants import SOURCES, variants_of

ROOT = SOURCES.parents[1]


@pytest.mark.long
@pytest.mark.timeout(400)  # compiling, on a busy machine
def test_sanitizers_find_nothing_in_the_plainest_variant() -> None:
    """All that the CPU runs: `make sanitize`."""
    names = [variant.name for variant in variants_of(platform.machine())][-1:]
    if not names:
        pytest.skip(f"there are no kernels for {platform.machine()} processors")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(ROOT / "sanitize.py"), *names], env=environment, capture_output=True, text=True
    )
    if done.returncode == 77 and not os.environ.get("CI"):
        pytest.skip(done.stderr.strip())
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{names[0]}: nothing found" in done.stdout
