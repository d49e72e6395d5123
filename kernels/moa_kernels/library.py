"""Chooses and loads the variant of the C library that suits this CPU, at the first use; its threads, and mapped files.

`MOA_KERNELS` forces a variant by name (or `numpy`), `MOA_KERNELS_DIR` names another folder to load from. Nothing is
replaced in silence: a forced variant that cannot be had is an error, and `explain` says why another choice was made.
"""

import ctypes as ct
import functools
import mmap
import os
import platform
import weakref
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from moa_kernels.bindings import KernelError, address, declare
from moa_kernels.variants import LIBRARIES, NUMPY, PROBE, VARIANTS, library_file, source_hash, variants_of

VARIANT_VARIABLE = "MOA_KERNELS"
FOLDER_VARIABLE = "MOA_KERNELS_DIR"
WITHOUT = "Kernels: numpy, many times slower than compiled ones"


@dataclass(frozen=True, slots=True)
class KernelChoice:
    name: str  # of the variant; `numpy` without a library
    library: ct.CDLL | None  # its functions, as bindings.py declares them; calls release the interpreter lock
    reason: str  # a sentence


def library() -> ct.CDLL | None:
    """The library in use; None where numpy computes. KernelError: what is forced cannot be used, or does not load."""
    return chosen().library


def variant_name() -> str:
    return chosen().name


def explain() -> str:
    return chosen().reason


def chosen() -> KernelChoice:
    return choose(os.environ.get(VARIANT_VARIABLE, ""), os.environ.get(FOLDER_VARIABLE, ""))


@functools.cache
def choose(forced: str, other_folder: str) -> KernelChoice:
    folder = Path(other_folder or LIBRARIES)
    if forced == NUMPY:
        return KernelChoice(NUMPY, None, f"{WITHOUT}, because {VARIANT_VARIABLE} says so.")
    return force(forced, folder) if forced else choose_fastest(folder)


def force(name: str, folder: Path) -> KernelChoice:
    asked, unset = f"{VARIANT_VARIABLE}={name}", f"Unset {VARIANT_VARIABLE} to take what it can run."
    variant = next((variant for variant in VARIANTS if variant.name == name), None)
    if variant is None:
        known = ", ".join([variant.name for variant in VARIANTS] + [NUMPY])
        raise KernelError(f"{asked} names no kernels. Known are {known}; unset, the fastest is taken.")
    if variant not in variants_of(platform.machine()):
        raise KernelError(f"{asked} is for other processors than this one ({platform.machine()}). {unset}")
    path = folder / library_file(name)
    if not path.is_file():
        raise KernelError(
            f"{asked}, but {path} does not exist. There are: {', '.join([*present(folder), NUMPY])}."
            " Install moa again with a C compiler that knows the variant, or unset the variable."
        )
    if not probe(folder) & variant.bit:
        raise KernelError(f"{asked}, but this CPU or its operating system lacks {variant.instructions}. {unset}")
    reason = f"Kernels: {name} ({variant.instructions}), because {VARIANT_VARIABLE} says so."
    return KernelChoice(name, declare(open_library(path)), reason)


def choose_fastest(folder: Path) -> KernelChoice:
    there, machine = present(folder), platform.machine()
    if not variants_of(machine):
        return KernelChoice(NUMPY, None, f"{WITHOUT}, because there are none for {machine} processors.")
    if not there:
        why = f"because none were compiled when moa was installed ({folder}); install a C compiler, then moa again"
        return KernelChoice(NUMPY, None, f"{WITHOUT}, {why}.")
    runs = [variant for variant in variants_of(machine) if variant.bit & probe(folder)]
    usable = [variant for variant in runs if variant.name in there]
    if not usable:
        needed = " or ".join(variant.instructions for variant in variants_of(machine) if variant.name in there)
        return KernelChoice(NUMPY, None, f"{WITHOUT}, because this CPU or its operating system lacks {needed}.")
    best, fastest = usable[0], runs[0]
    reason = f"Kernels: {best.name} ({best.instructions}), the fastest that this CPU runs"
    if best is not fastest:
        reason += f" of those compiled; {fastest.name} would be faster, but was left out when moa was installed"
    return KernelChoice(best.name, declare(open_library(folder / library_file(best.name))), reason + ".")


def present(folder: Path) -> list[str]:
    return [variant.name for variant in VARIANTS if (folder / library_file(variant.name)).is_file()]


@functools.cache
def probe(folder: Path) -> int:
    """The bits of the variants that this CPU and operating system can run."""
    probe_cpu = open_library(folder / library_file(PROBE)).moa_probe
    probe_cpu.restype = ct.c_int
    return int(probe_cpu())


def open_library(path: Path) -> ct.CDLL:
    """Loads a library; KernelError where it does not load or was built from other sources than lie here."""
    again = "Build the kernels again: install moa again, or `make kernels` in a checkout."
    try:
        functions = ct.CDLL(str(path))
        functions.moa_source_hash.restype = ct.c_char_p
        built_from = functions.moa_source_hash().decode()
    except (OSError, AttributeError) as error:
        raise KernelError(f"{path} cannot be loaded ({error}). {again}") from error
    if built_from != source_hash():
        raise KernelError(f"{path} was built from other C sources than those installed beside it. {again}")
    return functions


def guard(mapping: mmap.mmap, sentence: str) -> None:
    """Ends the process (74) with this sentence if a page of the mapping, for as long as it is there, cannot be read."""
    try:
        loaded = library()
    except KernelError:  # the computation reports it
        return
    if loaded is None or not len(mapping):
        return
    place = loaded.moa_guard(address(np.frombuffer(mapping, np.uint8)), len(mapping), f"{sentence}\n".encode())
    if place >= 0:
        weakref.finalize(mapping, loaded.moa_unguard, place).atexit = False


def populate(data: npt.NDArray[np.uint8]) -> None:
    """Reads a part of a mapped file and maps its pages, where the system can; releases the interpreter lock."""
    loaded = library()
    if loaded is not None:
        loaded.moa_populate(address(data), data.nbytes)


MOST = 64
_threads = 1


def available() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def set_threads(count: int) -> None:
    """Uses `count` threads from now on, at most 64; 0: as many as there are cores for this process."""
    global _threads
    _threads = min(MOST, count or available())


def threads() -> int:
    return _threads
