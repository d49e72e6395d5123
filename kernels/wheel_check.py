"""What must be true of a wheel that is to be published: it holds all libraries of its platform, and each will load.

The platform is the one that its name claims: the processor, the oldest glibc or macOS, and the functions that
moa_kernels/bindings.py binds. Nothing is executed, so wheels for other machines are checked too. Needs lief.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path

import lief
from kernel_build import BuildError, Target, target_of
from moa_kernels.bindings import SIGNATURES
from moa_kernels.variants import LIBRARIES, PACKAGE, PROBE, library_file, variants_of

SOURCE_HASH = "moa_source_hash"
PROBE_EXPORTS = frozenset({"moa_probe", SOURCE_HASH})
KERNEL_EXPORTS = frozenset({*SIGNATURES, SOURCE_HASH})
SYSTEM_LIBRARIES = {"libc.so.6", "libm.so.6", "libpthread.so.0", "/usr/lib/libSystem.B.dylib"}
LINKER_SYMBOLS = {"__dso_handle", "_mh_dylib_header"}  # every dylib by zig has them
PROCESSORS = {
    lief.ELF.ARCH.X86_64: "x86_64",
    lief.ELF.ARCH.AARCH64: "aarch64",
    lief.MachO.Header.CPU_TYPE.X86_64: "x86_64",
    lief.MachO.Header.CPU_TYPE.ARM64: "arm64",
}
Version = tuple[int, ...]


class WheelError(BuildError):
    """A wheel must not be published; the text says why."""


@dataclass(frozen=True, slots=True)
class Library:
    """What a shared library says about itself.

    Attributes:
        processor: as in the platform tag of a wheel.
        exports: the functions that others may call, without the underscore of macOS.
        needs: the libraries that it loads.
        oldest: the glibc or macOS that it asks for.
        has_signature: which macOS on ARM asks for; Linux has none.
    """

    processor: str
    exports: Set[str]
    needs: Set[str]
    oldest: Version
    has_signature: bool


def check_wheel(wheel: Path) -> None:
    """Checks a wheel for a named platform.

    Raises:
        WheelError: it lacks a library, or holds one that does not fit its name.
        BuildError: its name is for no platform that kernels are built for.
    """
    target = target_of(wheel.stem.split("-")[-1])
    folder = f"{PACKAGE.name}/{LIBRARIES.name}/"
    names = [PROBE, *(variant.name for variant in variants_of(target.machine))]
    files = {folder + library_file(name, target.system): name for name in names}
    with tempfile.TemporaryDirectory() as unpacked, zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith(folder)}
        if held != set(files):
            raise WheelError(f"{wheel.name} holds {', '.join(sorted(held)) or 'no kernels'}, not {', '.join(files)}.")
        for file, name in files.items():
            library = read_library(Path(archive.extract(file, unpacked)))
            for fault in faults_of(library, target, PROBE_EXPORTS if name == PROBE else KERNEL_EXPORTS):
                raise WheelError(f"{file} of {wheel.name} {fault}.")


def faults_of(library: Library, target: Target, exports: Set[str]) -> Iterator[str]:
    """What of a library does not fit its platform or those who call it."""
    if library.processor != target.machine:
        yield f"is for {library.processor}"
    if library.exports != exports:
        yield f"differs from what is bound in {', '.join(sorted(library.exports ^ exports))}"
    if strange := library.needs - SYSTEM_LIBRARIES:
        yield f"needs {', '.join(sorted(strange))}, which not every machine has"
    if library.oldest > target.oldest:
        yield f"needs version {'.'.join(map(str, library.oldest))} of the system"
    if target.system == "darwin" and not library.has_signature:
        yield "is not signed, so macOS would not load it"


def read_library(path: Path) -> Library:
    """Reads an ELF or Mach-O library.

    Raises:
        WheelError: it is neither, or lacks what is to be checked.
    """
    lief.logging.disable()  # it warns of what every dylib by zig has
    match lief.parse(path):
        case lief.ELF.Binary() as elf:
            versions = [each.name for file in elf.symbols_version_requirement for each in file.get_auxiliary_symbols()]
            return Library(
                PROCESSORS[elf.header.machine_type],
                {str(symbol.name) for symbol in elf.exported_symbols},
                {str(name) for name in elf.libraries},
                max((glibc_version(str(name)) for name in versions), default=()),
                has_signature=False,
            )
        case lief.MachO.Binary() as macho:
            if (version := macho.build_version) is None:
                raise WheelError(f"{path.name} does not say which macOS it is for.")
            exported = {str(symbol.name).removeprefix("_") for symbol in macho.exported_symbols}
            return Library(
                PROCESSORS[macho.header.cpu_type],
                exported - LINKER_SYMBOLS,
                {str(each.name) for each in macho.libraries if each.command != lief.MachO.LoadCommand.TYPE.ID_DYLIB},
                tuple(version.minos[:2]),
                macho.has_code_signature,
            )
    raise WheelError(f"{path.name} is no library that a system could load.")


def glibc_version(symbol_version: str) -> Version:
    """The numbers of `GLIBC_2.17`."""
    return tuple(int(part) for part in symbol_version.removeprefix("GLIBC_").split("."))
