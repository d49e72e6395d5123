"""Runs the kernels' tests under the address and undefined-behaviour sanitizers: `make sanitize`.

Arguments name variants; else all that this CPU runs. Exit status 77: the compiler has no sanitizer (gcc's libasan).
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from kernel_build import chosen, find_compiler, machine, run_here
from moa_kernels.library import FOLDER_VARIABLE
from moa_kernels.variants import PROBE, library_file

# Unoptimised and not inlined, so that each check is compiled once, not for each format and number of rows; with the
# lines of findings, but not the places of all variables, which take as long again.
FLAGS = ("-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-DINLINE=static inline")
TESTS = [f"tests/unit/moa_kernels/{name}" for name in ("test_linear.py", "test_tiles.py", "transformer")]


def main(names: list[str]) -> None:
    compiler = find_compiler()
    runtime = compiler.run(["-print-file-name=libasan.so"]).strip() if compiler else ""
    if compiler is None or not Path(runtime).is_absolute():
        print("Skipped: there is no gcc with libasan.", file=sys.stderr)
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder, library_file(name)) for name in (PROBE, *(names or chosen(machine())))}
        compiler.build({PROBE: files[PROBE]})
        here = run_here(files[PROBE], files)
        if refused := compiler.build({name: files[name] for name in here}, FLAGS):
            sys.exit(str(refused))
        # Leaks are Python's, which never frees all.
        options = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1", "LD_PRELOAD": runtime}
        pytest = [sys.executable, "-m", "pytest", "-n", "0", "-q", *TESTS]
        if done := subprocess.run(pytest, env={**os.environ, **options, FOLDER_VARIABLE: folder}).returncode:
            sys.exit(done)
    print(f"{', '.join(here)}: nothing found")


if __name__ == "__main__":
    main(sys.argv[1:])
