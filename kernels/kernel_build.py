"""Compiles the C library: one shared library per variant, from the same sources with other flags, and the probe.

Needs the standard library only. What the compiler refuses is left out with a warning; no variant at all is no failure,
because numpy computes the same. A wheel for a named platform (`--plat-name`) is built by zig, whatever this machine is.
"""

import atexit
import ctypes
import functools
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from moa_kernels import variants
else:  # read alone: the package around it needs numpy, which an installation does not have yet
    spec = importlib.util.spec_from_file_location("kernel_variants", Path(__file__).parent / "moa_kernels/variants.py")
    sys.modules[spec.name] = variants = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(variants)

# Rows must have the same bits from every variant and compiler: nothing may contract a*b+c or reorder sums.
COMMON = ("-std=c11", "-ffp-contract=off", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra")
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni")
FLAGS = {
    variants.PROBE: (),  # must run anywhere
    "avx2": AVX2,
    "avxvnni": (*AVX2, "-mavxvnni"),
    "avx512": AVX512,
    "amx": (*AVX512, "-mamx-tile", "-mamx-int8"),
    "neon": ("-march=armv8.2-a+dotprod",),
}
ZIG_FLAGS = {**FLAGS, "neon": ("-mcpu=generic+v8_2a+dotprod",)}  # the same in zig's words
# What a variant has in common with another is compiled once: products.c and amx.c alone hold what the others lack.
SHARED = {("amx", "products.c"): "avx512", ("amx", "kernels.c"): "avx512", ("avxvnni", "kernels.c"): "avx2"}
# The variants to build, apart by commas; unset: all for wheels, and in place those that this CPU runs.
CHOICE = "MOA_BUILD_KERNELS"
ZIG = "ziglang>=0.13,<0.18"  # a compiler in a wheel (90 MB to fetch), for machines without one


class BuildError(Exception):
    """The compiler refused, with its first complaint; or what is built must not be published."""


class Compiler(NamedTuple):
    command: tuple[str, ...]

    def run(self, arguments: Sequence[str], folder: Path | None = None) -> str:
        """Calls it in a folder and returns what it prints; its warnings go to stderr. Raises BuildError."""
        words = [*self.command, *arguments]
        try:
            done = subprocess.run(words, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, errors="replace")
        except OSError as error:
            raise BuildError(f"{self.command[0]}: {error.strerror}") from error
        if done.returncode:
            raise BuildError(done.stderr.strip() or f"{shlex.join(self.command)} ended with {done.returncode}")
        sys.stderr.write(done.stderr)
        return done.stdout

    def flags_of(self, name: str, optimise: Sequence[str] = ("-O3",)) -> list[str]:
        instructions = (ZIG_FLAGS if "ziglang" in self.command else FLAGS)[name]
        macros = [f'-DMOA_SOURCE_HASH="{variants.source_hash()}"', f"-DMOA_VARIANT_{name.upper()}"]
        return [*COMMON, *optimise, *instructions, *macros]

    def build(self, files: Mapping[str, Path], optimise: Sequence[str] = ("-O3",)) -> dict[str, str]:
        """Builds the libraries of variants (or the probe) side by side; the first complaint about each, by name.

        A file appears whole or not at all, so programs that run keep the one they have loaded.
        """
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:

            def compiled(source: str, variant: str) -> str:
                output = str(Path(folder, f"{Path(source).stem}-{variant}.o"))
                # Position-independent code is all that Windows has, and compilers there warn of the flag.
                flags = [*self.flags_of(variant, optimise), *([] if sys.platform == "win32" else ["-fPIC"])]
                self.run([*flags, "-c", str(variants.SOURCES / source), "-o", output])
                return output

            # All before the links, which wait for them.
            parts = dict.fromkeys(part for name in files for part in parts_of(name))
            objects = {part: pool.submit(compiled, *part) for part in parts}

            def link(name: str, output: Path) -> str:
                # No flags of instructions: zig would compile its runtime anew for each set of them. Run in the folder,
                # because a library for macOS holds the path that it is written to.
                with tempfile.TemporaryDirectory(dir=output.parent) as made:
                    try:
                        linked = [objects[part].result() for part in parts_of(name)]
                        self.run([*COMMON, *optimise, "-shared", *linked, "-o", output.name, "-lm"], Path(made))
                    except BuildError as error:
                        return str(error)
                    Path(made, output.name).replace(output)
                return ""

            complaints = dict(zip(files, pool.map(link, files.keys(), files.values()), strict=True))
        return {name: text for name, text in complaints.items() if text}


def parts_of(name: str) -> list[tuple[str, str]]:
    """What a library is linked from: C files, and the variants that they are compiled as; what takes longest first."""
    if name == variants.PROBE:
        return [(source, name) for source in ("probe.c", "source_hash.c")]
    parts = [(source, SHARED.get((name, source), name)) for source in ("products.c", "kernels.c", "amx.c")]
    return [*parts, ("source_hash.c", variants.PROBE)]


def machine() -> str:
    name = sysconfig.get_platform().split("-")[-1]
    return platform.machine() if name == "universal2" else name


class Target(NamedTuple):
    machine: str  # as `platform.machine()` names it
    system: str  # as `sys.platform` does
    oldest: tuple[int, int]  # glibc or macOS
    zig: str  # all of this in zig's words


def target_of(plat_name: str) -> Target:
    """What a wheel's platform tag says, such as manylinux_2_28_aarch64 or macosx_11_0_arm64; raises BuildError."""
    if not (parts := re.fullmatch(r"(manylinux|macosx)_(\d+)_(\d+)_(x86_64|aarch64|arm64)", plat_name)):
        known = "manylinux_2_28_x86_64, manylinux_2_28_aarch64 or macosx_11_0_arm64"
        raise BuildError(f"--plat-name={plat_name} is no platform that kernels are built for. Name one like {known}.")
    kind, major, minor, processor = parts.groups()
    system, words = ("darwin", "macos") if kind == "macosx" else ("linux", "linux-gnu")
    zig = f"{'x86_64' if processor == 'x86_64' else 'aarch64'}-{words}.{major}.{minor}"
    return Target(processor, system, (int(major), int(minor)), zig)


def zig_compiler(target: str = "") -> Compiler:
    """The compiler of the ziglang package, for a target in zig's words; "": this Python's, with plain instructions."""
    cache = tempfile.mkdtemp(prefix="moa-zig-")  # 50 MB, which go with this process
    atexit.register(shutil.rmtree, cache, ignore_errors=True)
    os.environ.update(ZIG_GLOBAL_CACHE_DIR=cache, ZIG_LOCAL_CACHE_DIR=cache)
    linux = "linux-musl" if "musl" in str(sysconfig.get_config_var("HOST_GNU_TYPE")) else "linux-gnu.2.17"
    system = {"darwin": "macos", "win32": "windows-gnu"}.get(sys.platform, linux)
    own = f"{'x86_64' if machine().lower() in ('x86_64', 'amd64') else 'aarch64'}-{system}"
    # Without -g0 it adds debug information, four times the size of the code.
    words = ("-m", "ziglang", "cc", "-target", target or own, "-fno-sanitize=undefined", "-g0")
    # For a target the kernels need none of the runtime that it would compile; else the link fails.
    return Compiler((sys.executable, *words, *(["-rtlib=none", "-Wl,-z,defs"] if target else [])))


@functools.cache
def find_compiler() -> Compiler | None:
    """The first of $CC, cc, gcc, clang and the ziglang package that makes a shared library; None without any."""
    own = shlex.split(os.environ.get("CC", ""))
    there = [Compiler(tuple(own))] if own else []
    there += [Compiler((name,)) for name in ("cc", "gcc", "clang") if shutil.which(name)]
    there += [zig_compiler()] if importlib.util.find_spec("ziglang") else []
    for compiler in there:
        with tempfile.TemporaryDirectory() as folder:
            if not compiler.build({variants.PROBE: Path(folder, "probe.lib")}):
                return compiler
        warn(f"{shlex.join(compiler.command)} cannot build a shared library; trying the next compiler")
    return None


def requirements(plat_name: str | None = None) -> list[str]:
    """What to fetch from PyPI first, for a named platform, or for this machine if it has no compiler that works."""
    return [ZIG] if plat_name or (variants.variants_of(machine()) and find_compiler() is None) else []


def chosen(family: str) -> list[str]:
    """A family's variants that may be built: all, or those that MOA_BUILD_KERNELS names; BuildError for others."""
    known = [variant.name for variant in variants.variants_of(family)]
    wanted = os.environ[CHOICE].split(",") if os.environ.get(CHOICE) else known
    if unknown := ", ".join(name for name in wanted if name not in known):
        raise BuildError(f"{CHOICE} names {unknown}. Of {family} processors there are: {', '.join(known) or 'none'}.")
    return [name for name in known if name in wanted]


def run_here(probe: Path, names: Collection[str]) -> list[str]:
    """Those of the named variants that run here, as a built probe says; none if it says nothing."""
    try:
        bits = ctypes.CDLL(str(probe)).moa_probe()
    except (OSError, AttributeError):
        return []
    return [variant.name for variant in variants.VARIANTS if variant.name in names and variant.bit & bits]


def build(folder: Path, target: Target | None = None) -> list[str]:
    """Builds the probe and the chosen variants, which it returns, for a target (None: this machine); deletes others.

    Raises BuildError if one for a target would be left out, or is not known.
    """
    family, system = (target.machine, target.system) if target else (machine(), sys.platform)
    names = chosen(family)
    compiler = None if not names else zig_compiler(target.zig) if target else find_compiler()
    files = {name: folder / variants.library_file(name, system) for name in (variants.PROBE, *names)}
    if compiler is None:
        lack = "no C compiler was found" if names else f"there are none for {family} processors"
        warn(f"{lack}: the kernels are not built, and numpy does their work, many times slower")
        names = []
    else:
        folder.mkdir(parents=True, exist_ok=True)
        refused = compiler.build({variants.PROBE: files[variants.PROBE]})
        if folder == variants.LIBRARIES and not os.environ.get(CHOICE):
            names = run_here(files[variants.PROBE], names) or names[-1:]  # the plainest: it says what the CPU lacks
        refused |= compiler.build({name: files[name] for name in names})
        for name, complaint in refused.items():
            warn(f"{name} is left out, because {shlex.join(compiler.command)} does not compile it: {complaint}")
        names = [name for name in names if not {name, variants.PROBE} & refused.keys()]
    if target and len(names) < len(variants.variants_of(family)):
        raise BuildError(f"A wheel for {target.zig} needs all variants, and has only: {', '.join(names)}.")
    kept = {files[name] for name in (variants.PROBE, *names) if names}
    for path in set(folder.glob("*.*")) - kept:
        path.unlink()
    return names


def warn(text: str) -> None:
    print(f"moa kernels: {text}", file=sys.stderr)


if __name__ == "__main__":
    built = build(variants.LIBRARIES)
    print(f"moa kernels: built {', '.join(built) or 'nothing'}")
    sys.exit(not built and requirements() == [] and bool(chosen(machine())))
