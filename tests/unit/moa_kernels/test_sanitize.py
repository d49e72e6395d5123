import os
import subprocess
import sys

import pytest
from kernel_build import chosen, machine
from moa_kernels.variants import SOURCES

ROOT = SOURCES.parents[2]


@pytest.mark.long
@pytest.mark.timeout(900)  # compiling and computing without optimisation, on a busy machine
def test_sanitizers_find_nothing_in_the_plainest_variant() -> None:
    """All that the CPU runs: `make sanitize`."""
    names = chosen(machine())[-1:]
    if not names:
        pytest.skip(f"there are no kernels for {machine()} processors")
    command = [sys.executable, "kernels/sanitize.py", *names]
    environment = {**os.environ, "PYTHONPATH": "kernels"}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 77 and not os.environ.get("CI"):
        pytest.skip(done.stderr.strip())
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert f"{names[0]}: nothing found" in done.stdout
