from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from moa_shared.errors import MoaError
from moa_shared.programs.output import output_errors, tolerate_encoding, write_output
tolerate_encoding()
try:
    with output_errors():
        {}
except MoaError as error:
    print(f"Error: {{error}}", file=sys.stderr)
    sys.exit(error.exit_code)
"""


def ends(code: str, target: str, **environment: str) -> tuple[int, str]:
    """Exit code and standard error of a program whose standard output is `target`."""
    with open(target, "wb") as out:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(code)],
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
            timeout=60,
        )
    return done.returncode, done.stderr


@pytest.mark.parametrize("code", ["write_output('answer')", "print('help')", "print('x' * 100_000)"])
def test_a_disk_that_is_full_is_one_sentence(code: str) -> None:
    status, said = ends(code, "/dev/full")
    assert status == 74
    assert said.startswith("Error: Standard output cannot be written: No space left on device. ")
    assert said.count("\n") == 1


def test_characters_that_the_encoding_lacks_are_marks(tmp_path: object) -> None:
    path = f"{tmp_path}/out"
    assert ends("write_output('caf\u00e9 \u6f22\\n')", path, PYTHONIOENCODING="ascii", PYTHONUTF8="0") == (0, "")
    with open(path) as file:
        assert file.read() == "caf? ?\n"
