"""The variants of the C library: their names, what each needs of a CPU, and how their files are called.

One source, compiled with the flags of each; all compute the same bits. Shared by the build and by the loader, so it
imports nothing but the standard library.
"""

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parent
SOURCES = PACKAGE / "csrc"
LIBRARIES = PACKAGE / "lib"
PROBE = "probe"
NUMPY = "numpy"  # the name of computing without the library


@dataclass(frozen=True, slots=True)
class Variant:
    name: str  # of the file, of the macro MOA_VARIANT_<NAME>, and for MOA_KERNELS
    bit: int  # of the probe's answer (csrc/probe.c)
    instructions: str  # what the CPU must have, in words


X86 = (  # fastest first
    Variant("amx", 8, "AMX int8 and AVX-512 VNNI"),
    Variant("avx512", 4, "AVX-512 VNNI"),
    Variant("avxvnni", 2, "AVX-VNNI"),
    Variant("avx2", 1, "AVX2, FMA and F16C"),
)
ARM = (Variant("neon", 16, "the NEON dot product"),)
VARIANTS = X86 + ARM


def variants_of(machine: str) -> tuple[Variant, ...]:
    """The variants for a processor family as `platform.machine()` names it, fastest first; none for others."""
    match machine.lower():
        case "x86_64" | "amd64":
            return X86
        case "aarch64" | "arm64":
            return ARM
        case _:
            return ()


def library_file(name: str, system: str = sys.platform) -> str:
    """The file name of a variant or of the probe on a system (as `sys.platform` names it; this one)."""
    return name + {"win32": ".dll", "darwin": ".dylib"}.get(system, ".so")


def source_hash(folder: Path = SOURCES) -> str:
    """A hash of the C sources, 16 hexadecimal digits; every library carries that of its own."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.[ch]")):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]
