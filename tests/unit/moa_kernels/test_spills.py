"""The built libraries keep their sums in registers: a compiler that does not halves the speed, and nothing else tells.

Without the barriers of csrc/dots_x86.h gcc -O3 stores nearly every sum of AVX2 to the stack.
"""

import re
import shutil
import subprocess
from collections import Counter

import pytest
from moa_kernels.formats import FORMATS
from moa_kernels.variants import LIBRARIES, X86, library_file

FUNCTION = re.compile(r"[0-9a-f]+ <(.*)>:")
SPILL = re.compile(r"vmov\w+ +%[xyz]mm\d+,[-\w]*\(%r[sb]p")
PRODUCT = re.compile(r"vpmaddubsw|vpdpbusd")
MOST_SPILLS = 1.2  # a product; 1.13 were seen, and AVX2 without the barriers has from 1.29 on

VARIANTS = [each.name for each in X86 if (LIBRARIES / library_file(each.name)).exists()]


@pytest.mark.skipif(shutil.which("objdump") is None, reason="binutils' objdump, which shows the code, is not installed")
@pytest.mark.parametrize("variant", VARIANTS)
def test_sums_stay_in_registers(variant: str) -> None:
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
