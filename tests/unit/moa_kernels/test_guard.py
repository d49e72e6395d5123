import mmap
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from moa_kernels import guard, populate, variant_name
from moa_kernels.library import library

pytestmark = pytest.mark.skipif(variant_name() == "numpy", reason="the guard is part of the kernels")
# Maps a file, shortens it and looks at a byte behind its end.
PROGRAM = """
import mmap, os, sys
from moa_kernels import guard
file = open(sys.argv[1], "r+b")
guarded, other = (mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) for _ in range(2))
guard(guarded, "Error: it is gone.")
os.truncate(sys.argv[1], 4096)
print(guarded[0], flush=True)
print((guarded if sys.argv[2] == "guarded" else other)[5000])
"""


def run(path: Path, which: str) -> subprocess.CompletedProcess[str]:
    path.write_bytes(b"\1" * 8192)
    return subprocess.run([sys.executable, "-c", PROGRAM, str(path), which], capture_output=True, text=True)


def test_a_file_that_shrinks_ends_the_process_with_the_sentence(tmp_path: Path) -> None:
    done = run(tmp_path / "file", "guarded")
    assert (done.returncode, done.stdout, done.stderr) == (74, "1\n", "Error: it is gone.\n")
    assert run(tmp_path / "file", "other").returncode == -signal.SIGBUS  # as without a guard


def test_a_mapping_that_is_brought_in_is_resident(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\1" * (64 << 20))
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    data = np.frombuffer(mapping, np.uint8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    populate(data[100:])  # not at a page's start
    assert int(data[::4096].sum()) == len(data) // 4096
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 100  # of 16,384 pages


def test_guards_end_with_their_mappings(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\1" * 4096)
    for _ in range(3000):  # more than there are places for
        with path.open("rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        guard(mapping, "Error: it is gone.")
        del mapping
    loaded = library()
    assert loaded is not None
    place = loaded.moa_guard(None, 0, b"")
    loaded.moa_unguard(place)
    assert 0 <= place < 1000
