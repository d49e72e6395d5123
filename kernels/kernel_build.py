"""Compiles the C library: one shared library per variant, from the same sources with other flags, and the probe.

What two variants have in common is compiled once, and linked into both libraries.

Used by the installation (kernel_backend.py, setup.py), by `make kernels` (builds in place) and by tests. Needs the
standard library only. What the compiler does not know is left out with a warning; no variant at all is no failure
here, because numpy computes the same (moa_kernels/library.py says at run time what that costs).

A wheel for a named platform (`--plat-name`) is built by zig, whatever this machine is: for another processor or
system, and for an older glibc than that of this machine.
"""

from __future__ import annotations

import argparse
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
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moa_kernels import variants
else:  # read alone: the package around it needs numpy, which an installation does not have yet
    spec = importlib.util.spec_from_file_location("kernel_variants", Path(__file__).parent / "moa_kernels/variants.py")
    sys.modules[spec.name] = variants = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(variants)

# Rows must have the same bits from every variant and compiler: nothing may contract a*b+c or reorder sums.
COMMON = ("-std=c11", "-ffp-contract=off", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra")
OPTIMISED = ("-O3",)
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
# What a variant has in common with another, by C file: products.c and amx.c alone hold what the others lack.
SHARED = {
    "amx": {"products.c": "avx512", "kernels.c": "avx512"},
    "avxvnni": {"kernels.c": "avx2"},
}
# Position-independent code is all that Windows has, and compilers there warn of the flag.
POSITION_INDEPENDENT = () if sys.platform == "win32" else ("-fPIC",)
# The variable that names the variants to build, apart by commas. Where it is not set or empty: in place, for this
# machine, those that its CPU runs; all for wheels.
CHOICE = "MOA_BUILD_KERNELS"
ZIG_FLAGS = {**FLAGS, "neon": ("-mcpu=generic+v8_2a+dotprod",)}  # the same in zig's words
# A compiler in a wheel (90 MB to fetch), for machines without one.
ZIG = "ziglang>=0.13,<0.18"
# The oldest glibc that a library by zig asks for: that of manylinux2014.
ZIG_GLIBC = "2.17"
NAMED_PLATFORM = re.compile(r"(manylinux|macosx)_(\d+)_(\d+)_(x86_64|aarch64|arm64)")
# It exports a function, because zig 0.17 crashes at an empty library for macOS.
TRIAL = """
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
__attribute__((visibility("default"))) int trial(int value) { return value; }
"""


class BuildError(Exception):
    """The compiler refused; the text is its first complaint."""


@dataclass(frozen=True, slots=True)
class Part:
    """A C file, compiled with the flags of a variant (or of the probe)."""

    source: Path
    variant: str


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C compiler with gcc's command line.

    Attributes:
        command: how it is called, without flags.
        environment: variables to set for it.
        flags: for the instructions of each variant.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, Sequence[str]] = field(default_factory=lambda: FLAGS)

    def run(self, arguments: Sequence[str], folder: Path | None = None) -> str:
        """Calls the compiler and returns what it prints; its warnings go to stderr.

        Args:
            folder: the working directory of the call; this process's where None.

        Raises:
            BuildError: it fails, or is not there.
        """
        try:
            done = subprocess.run(
                [*self.command, *arguments],
                env={**os.environ, **self.environment},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise BuildError(f"{self.command[0]}: {error.strerror}") from error
        if done.returncode:
            raise BuildError(done.stderr.strip() or f"{shlex.join(self.command)} ended with {done.returncode}")
        sys.stderr.write(done.stderr)
        return done.stdout

    def flags_of(self, name: str, optimise: Sequence[str] = OPTIMISED) -> list[str]:
        """The flags for a variant (or the probe), without inputs and output."""
        defines = [f'-DMOA_SOURCE_HASH="{variants.source_hash()}"']
        if name != variants.PROBE:
            defines.append(f"-DMOA_VARIANT_{name.upper()}")
        return [*COMMON, *optimise, *self.flags[name], *defines]

    def compile(self, part: Part, folder: Path, optimise: Sequence[str] = OPTIMISED) -> Path:
        """Compiles a part of libraries into a folder, and returns the object.

        Raises:
            BuildError: it does not compile.
        """
        output = folder / f"{part.source.stem}-{part.variant}.o"
        flags = [*self.flags_of(part.variant, optimise), *POSITION_INDEPENDENT]
        self.run([*flags, "-c", str(part.source), "-o", str(output)])
        return output

    def link(self, objects: Sequence[Path], output: Path, optimise: Sequence[str] = OPTIMISED) -> None:
        """Links objects to a shared library.

        The file appears whole or not at all, so programs that run keep the one they have loaded. The linker gets no
        flags of instructions: zig would compile its runtime anew for each set of them.

        Raises:
            BuildError: they do not fit together.
        """
        with tempfile.TemporaryDirectory(dir=output.parent) as folder:
            # Run there, because a library for macOS holds the path that it is written to.
            self.run([*COMMON, *optimise, "-shared", *map(str, objects), "-o", output.name, "-lm"], Path(folder))
            Path(folder, output.name).replace(output)

    def accepts(self, name: str) -> bool:
        """Whether it makes a shared library with the flags of a variant (or of the probe)."""
        with tempfile.TemporaryDirectory() as created:
            folder = Path(created)
            source = folder / "trial.c"
            source.write_text(TRIAL)
            try:
                self.link([self.compile(Part(source, name), folder)], folder / "trial.lib")
            except BuildError:
                return False
        return True


def parts_of(name: str) -> list[Part]:
    """What the library of a variant (or of the probe) is linked from, what takes longest first."""
    if name == variants.PROBE:
        return [Part(variants.SOURCES / source, variants.PROBE) for source in ("probe.c", "source_hash.c")]
    compiled_as = {"source_hash.c": variants.PROBE} | SHARED.get(name, {})
    sources = ("products.c", "kernels.c", "amx.c", "source_hash.c")
    return [Part(variants.SOURCES / source, compiled_as.get(source, name)) for source in sources]


def compile_library(compiler: Compiler, name: str, output: Path, optimise: Sequence[str] = OPTIMISED) -> None:
    """Builds the library of a variant (or of the probe) from the C sources.

    Raises:
        BuildError: it does not compile.
    """
    with tempfile.TemporaryDirectory() as folder:
        objects = [compiler.compile(part, Path(folder), optimise) for part in parts_of(name)]
        compiler.link(objects, output, optimise)


def machine() -> str:
    """The processor family that this Python runs on (not always the system's: think of emulation)."""
    name = sysconfig.get_platform().split("-")[-1]
    return platform.machine() if name == "universal2" else name


def zig_target() -> str:
    """The target for zig's compiler: this Python's, with the family's plain instructions (zig assumes this CPU's)."""
    family = "x86_64" if machine().lower() in ("x86_64", "amd64") else "aarch64"
    if sys.platform == "darwin":
        return f"{family}-macos"
    if sys.platform == "win32":
        return f"{family}-windows-gnu"
    is_musl = "musl" in str(sysconfig.get_config_var("HOST_GNU_TYPE"))
    return f"{family}-linux-musl" if is_musl else f"{family}-linux-gnu.{ZIG_GLIBC}"


@dataclass(frozen=True, slots=True)
class Target:
    """A platform that a wheel is named for.

    Attributes:
        machine: the processor family, as `platform.machine()` names it.
        system: as `sys.platform` names it.
        oldest: the glibc or macOS that libraries may ask for.
        zig: all of this in the words of zig's compiler.
    """

    machine: str
    system: str
    oldest: tuple[int, int]
    zig: str


def target_of(plat_name: str) -> Target:
    """What a wheel's platform tag says, such as manylinux_2_28_aarch64 or macosx_11_0_arm64.

    Raises:
        BuildError: kernels cannot be built for it.
    """
    if not (parts := NAMED_PLATFORM.fullmatch(plat_name)):
        raise BuildError(
            f"--plat-name={plat_name} is no platform that kernels are built for. Name one like"
            " manylinux_2_28_x86_64, manylinux_2_28_aarch64 or macosx_11_0_arm64, or leave it out for this machine."
        )
    kind, major, minor, processor = parts.groups()
    family = "x86_64" if processor == "x86_64" else "aarch64"
    system, words = ("darwin", "macos") if kind == "macosx" else ("linux", "linux-gnu")
    return Target(processor, system, (int(major), int(minor)), f"{family}-{words}.{major}.{minor}")


def zig_compiler(target: str | None = None) -> Compiler:
    """The compiler of the ziglang package, for a target in zig's words (this Python's where None).

    Its cache (50 MB) lies in a temporary folder, which goes with this process.
    """
    cache = tempfile.mkdtemp(prefix="moa-zig-")
    atexit.register(shutil.rmtree, cache, ignore_errors=True)
    # Without -g0 it adds debug information, four times the size of the code.
    flags = ["-fno-sanitize=undefined", "-g0"]
    if target:  # the kernels need none of the runtime that it would compile; else the link fails
        flags += ["-rtlib=none", "-Wl,-z,defs"]
    command = (sys.executable, "-m", "ziglang", "cc", "-target", target or zig_target(), *flags)
    return Compiler(command, {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}, ZIG_FLAGS)


@functools.cache
def find_compiler() -> Compiler | None:
    """The first that works of $CC, cc, gcc, clang and the ziglang package; None without any."""
    chosen = shlex.split(os.environ.get("CC", ""))
    for command in [chosen, ["cc"], ["gcc"], ["clang"]]:
        if command and shutil.which(command[0]):
            compiler = Compiler(tuple(command))
            if compiler.accepts(variants.PROBE):
                return compiler
            warn(f"{shlex.join(command)} cannot build a shared library; trying the next compiler")
        elif command and command is chosen:
            warn(f"CC={os.environ['CC']} is not a program; trying the next compiler")
    if importlib.util.find_spec("ziglang") is not None:
        if (compiler := zig_compiler()).accepts(variants.PROBE):
            return compiler
        warn("the ziglang package cannot build a shared library")
    return None


def plat_name_in(config_settings: Mapping[str, str | list[str]] | None) -> str | None:
    """The platform that a frontend's `--config-settings=--build-option=--plat-name=NAME` names, if any."""
    options = (config_settings or {}).get("--build-option", [])
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--plat-name", "-p")
    known, _ = parser.parse_known_args(shlex.split(options) if isinstance(options, str) else options)
    plat_name: str | None = known.plat_name
    return plat_name


def requirements(plat_name: str | None = None) -> list[str]:
    """What to fetch from PyPI to compile the kernels, for a named platform or for this machine.

    Nothing where a compiler works or there are no variants.
    """
    if plat_name is not None:
        return [ZIG]
    return [ZIG] if variants.variants_of(machine()) and find_compiler() is None else []


@dataclass(frozen=True, slots=True)
class Built:
    """What a build made: the names of its variants, and the compiler's complaint for each that did not compile."""

    variants: tuple[str, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)


def run_here(compiler: Compiler, names: Sequence[str]) -> list[str]:
    """Those of the named variants that this CPU and operating system run; none where the probe tells nothing."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, variants.library_file(variants.PROBE))
        try:
            compile_library(compiler, variants.PROBE, path)
            bits = ctypes.CDLL(str(path)).moa_probe()
        except (BuildError, OSError, AttributeError):
            return []
    return [variant.name for variant in variants.VARIANTS if variant.name in names and variant.bit & bits]


def chosen(family: str) -> list[str]:
    """The names of a processor family's variants that may be built: all, or those that MOA_BUILD_KERNELS names.

    Raises:
        BuildError: it names one that there is not.
    """
    known = [variant.name for variant in variants.variants_of(family)]
    wanted = os.environ.get(CHOICE, "").split(",") if os.environ.get(CHOICE) else known
    if unknown := [name for name in wanted if name not in known]:
        raise BuildError(
            f"{CHOICE} names {', '.join(unknown)}. Of {family} processors there are: {', '.join(known) or 'none'}."
        )
    return [name for name in known if name in wanted]


def build(folder: Path, target: Target | None = None) -> Built:
    """Builds the probe and the chosen variants into a folder, and deletes what earlier builds left there besides.

    A variant is left out with a warning where the compiler does not know its instructions, or refuses the source.

    Args:
        target: what they are for; this machine where None.

    Raises:
        BuildError: a variant for a target would be left out, or one is chosen that there is not.
    """
    family, system = (target.machine, target.system) if target else (machine(), sys.platform)
    names = [variants.PROBE, *chosen(family)]
    compiler = None
    if len(names) > 1:
        compiler = zig_compiler(target.zig) if target else find_compiler()
    if compiler and folder == variants.LIBRARIES and not os.environ.get(CHOICE):
        names = [variants.PROBE, *(run_here(compiler, names) or names[-1:])]  # the plainest: it says what the CPU lacks
    built = Built()
    if compiler is None:
        lack = "no C compiler was found" if len(names) > 1 else f"there are none for {family} processors"
        warn(f"{lack}: the kernels are not built, and numpy does their work, many times slower")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        built = compile_all(compiler, {name: folder / variants.library_file(name, system) for name in names})
    if target and len(built.variants) < len(variants.variants_of(family)):
        raise BuildError(f"A wheel for {target.zig} needs all variants, and has only: {', '.join(built.variants)}.")
    kept = {variants.library_file(name, system) for name in (variants.PROBE, *built.variants)}
    for path in folder.glob("*.*"):
        if not built.variants or path.name not in kept:
            path.unlink()
    return built


def compile_all(compiler: Compiler, files: Mapping[str, Path]) -> Built:
    """Builds the named libraries side by side, each to its file; what cannot be built is left out with a warning."""
    errors: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        # All before the links, which wait for them.
        objects = {
            part: pool.submit(compiler.compile, part, Path(folder))
            for part in dict.fromkeys(part for name in files for part in parts_of(name))
        }

        def attempt(name: str) -> bool:
            try:
                compiler.link([objects[part].result() for part in parts_of(name)], files[name])
            except BuildError as error:
                if not compiler.accepts(name):
                    warn(f"{name} is left out: {shlex.join(compiler.command)} does not know its instructions")
                    return False
                errors[name] = str(error)
                warn(f"{name} is left out, because it does not compile: {error}")
                return False
            return True

        done = [name for name, made in zip(files, pool.map(attempt, files), strict=True) if made]
    usable = tuple(name for name in done if name != variants.PROBE) if variants.PROBE in done else ()
    return Built(usable, errors)


def warn(text: str) -> None:
    print(f"moa kernels: {text}", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the kernels in place.")
    parser.add_argument("--requirements", action="store_true", help="only name what to install first, if anything")
    if parser.parse_args().requirements:
        print("\n".join(requirements()))
        return 0
    built = build(variants.LIBRARIES)
    print(f"moa kernels: built {', '.join(built.variants) or 'nothing'}")
    return bool(built.errors)


if __name__ == "__main__":
    sys.exit(main())
