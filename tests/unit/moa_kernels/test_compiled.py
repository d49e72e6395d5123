"""What was compiled: all variants compute the same bits, keep their sums in registers and stay inside their memory.

Bits are hashes of what each makes of the same pseudo-random inputs (tests_c/check.c); NEON, on another processor, is
compiled whole and run by an emulator.
"""

import functools
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from kernel_build import COMMON, Compiler, chosen, find_compiler, machine, parts_of
from moa_kernels.bindings import FORMATS
from moa_kernels.library import open_library, present, probe
from moa_kernels.variants import LIBRARIES, PROBE, SOURCES, VARIANTS, X86, Variant, library_file, variants_of

CHECK = SOURCES.parents[1] / "tests_c" / "check.c"
CROSS_COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
HERE = variants_of(platform.machine())
FUNCTION = re.compile(r"[0-9a-f]+ <(.*)>:")
SPILL = re.compile(r"vmov\w+ +%[xyz]mm\d+,[-\w]*\(%r[sb]p")
PRODUCT = re.compile(r"vpmaddubsw|vpdpbusd")
MOST_SPILLS = 1.2  # a product; 1.13 were seen, and AVX2 without the barriers has from 1.29 on


@functools.cache
def hashes(variant: Variant, seed: int) -> dict[str, str]:
    """What each line of the check is called, and its hash."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "check")
        command = native(variant, program) if variant in HERE else emulated(variant, program)
        done = subprocess.run([*command, str(seed)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())


def native(variant: Variant, program: Path) -> list[str]:
    compiler = find_compiler()
    if compiler is None or not present(LIBRARIES):
        pytest.skip("no kernels are compiled here, or there is no C compiler (make kernels)")
    if variant.name not in present(LIBRARIES) or not probe(LIBRARIES) & variant.bit:
        pytest.skip(f"this CPU lacks {variant.instructions}, or the compiler did not know them")
    libraries = [LIBRARIES / library_file(name) for name in (variant.name, PROBE)]
    for library in libraries:
        open_library(library)  # refuses what was built from other sources
    compiler.run([*COMMON, "-O1", f"-I{SOURCES}", str(CHECK), *map(str, libraries), "-o", str(program)])
    return [str(program)]


def emulated(variant: Variant, program: Path) -> list[str]:
    if variant.name != "neon" or not shutil.which(CROSS_COMPILER) or not shutil.which(EMULATOR):
        pytest.skip(f"{variant.name} needs another processor, or {CROSS_COMPILER} and {EMULATOR} to try it here")
    compiler = Compiler((CROSS_COMPILER,))
    sources = [str(CHECK), str(SOURCES / "probe.c"), *(str(SOURCES / source) for source, _ in parts_of(variant.name))]
    compiler.run([*compiler.flags_of("neon"), "-static", f"-I{SOURCES}", *sources, "-o", str(program), "-lm"])
    return [EMULATOR, str(program)]


@pytest.mark.timeout(400)  # compiling for NEON, on a busy machine
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_bits_are_those_of_the_plainest_variant(variant: Variant) -> None:
    if not HERE:
        pytest.skip(f"there are no kernels for {platform.machine()} processors")
    assert hashes(variant, 1) == hashes(HERE[-1], 1)


def test_threads_change_nothing() -> None:
    by_threads: dict[str, set[str]] = {}
    for name, value in hashes(HERE[-1], 1).items():
        by_threads.setdefault(name.split(" threads=")[0], set()).add(value)
    assert len(by_threads) < len(hashes(HERE[-1], 1))
    assert [name for name, values in by_threads.items() if len(values) > 1] == []


def test_hashes_depend_on_the_inputs() -> None:
    first, second = hashes(HERE[-1], 1), hashes(HERE[-1], 2)
    assert (first.keys(), [name for name in first if first[name] == second[name]]) == (second.keys(), [])


@pytest.mark.skipif(shutil.which("objdump") is None, reason="binutils' objdump, which shows the code, is not installed")
@pytest.mark.parametrize("variant", [each.name for each in X86 if (LIBRARIES / library_file(each.name)).exists()])
def test_sums_stay_in_registers(variant: str) -> None:
    """A compiler that keeps them elsewhere halves the speed, and nothing else tells.

    Without the barriers of csrc/dots_x86.h gcc -O3 stores nearly every sum of AVX2 to the stack.
    """
    command = ["objdump", "-d", "--no-show-raw-insn", str(LIBRARIES / library_file(variant))]
    spills, products = count(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    functions = [f"tiles_MOA_{kind.upper()}" for kind in FORMATS]
    assert all(products[name] > 50 for name in functions)
    assert {name for name in functions if spills[name] > MOST_SPILLS * products[name]} == set()


def count(code: str) -> tuple[Counter[str], Counter[str]]:
    """Vectors stored to the stack, and integer products, of each function."""
    spills, products, name = Counter[str](), Counter[str](), ""
    for line in code.splitlines():
        if found := FUNCTION.match(line):
            name = found[1]
        elif SPILL.search(line):
            spills[name] += 1
        elif PRODUCT.search(line):
            products[name] += 1
    return spills, products


@pytest.mark.long
@pytest.mark.timeout(900)  # compiling and computing without optimisation, on a busy machine
def test_sanitizers_find_nothing_in_the_plainest_variant() -> None:
    """All that the CPU runs: `make sanitize`."""
    names = chosen(machine())[-1:]
    if not names:
        pytest.skip(f"there are no kernels for {machine()} processors")
    command = [sys.executable, "kernels/sanitize.py", *names]
    environment = {**os.environ, "PYTHONPATH": "kernels"}
    done = subprocess.run(command, env=environment, cwd=SOURCES.parents[2], capture_output=True, text=True)
    if done.returncode == 77 and not os.environ.get("CI"):
        pytest.skip(done.stderr.strip())
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert f"{names[0]}: nothing found" in done.stdout
