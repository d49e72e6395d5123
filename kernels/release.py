"""Builds a release into dist/, from the last commit: sources, wheels of moa and of its drafters, bills of materials.

Each wheel of a platform is built by zig from the source distribution, and its libraries are checked. The same commit
gives the same bytes: `--check` builds again, and compares. Run by `make wheels`, which installs what this needs.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterator, Set
from pathlib import Path

import lief
from kernel_build import BuildError, Target, target_of
from moa_kernels.bindings import SIGNATURES
from moa_kernels.variants import LIBRARIES, PACKAGE, PROBE, library_file, variants_of

CHECKOUT = Path(__file__).parents[1]
DIST, PYTHON = CHECKOUT / "dist", (sys.executable, "-m")
# glibc 2.28 is that of Debian 10 and RHEL 8, and what grpcio and numpy ask for; macOS 11 is the first on ARM.
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_28_aarch64", "macosx_11_0_arm64")
# The extras that have a bill of materials, with what is installed next to them.
BILLS = {"client": "", "server": "moa_split_drafters-*.whl"}
SYSTEM_LIBRARIES = {"libc.so.6", "libm.so.6", "libpthread.so.0", "/usr/lib/libSystem.B.dylib"}


def build_release(folder: Path) -> None:
    """Fills an empty folder; raises BuildError where a step fails, or a wheel must not be published."""
    os.environ["SOURCE_DATE_EPOCH"] = made = run("git", "log", "-1", "--format=%ct").strip()
    with tempfile.TemporaryDirectory() as sources, tempfile.TemporaryDirectory() as packed:
        run("git", "archive", "--output", f"{packed}/sources.tar", "HEAD")
        run("tar", "--extract", "--no-same-permissions", "--file", f"{packed}/sources.tar", "--directory", sources)
        run(*PYTHON, "build", "--sdist", "--no-isolation", "--outdir", folder, sources)
        run(*PYTHON, "build", "--wheel", "--no-isolation", "--outdir", folder, f"{sources}/drafters")
        (sdist,) = folder.glob("moa_split-*.tar.gz")
        name = sdist.name.removesuffix(".tar.gz")
        run("tar", "--extract", "--file", sdist, "--directory", packed)
        # Packed again, without the time, order, owner and mode of this machine's files.
        plain = ("--sort=name", f"--mtime=@{made}", "--owner=0", "--group=0", "--numeric-owner", "--mode=go=rX,u=rwX")
        gzip = "--use-compress-program=gzip --no-name"
        run("tar", "--create", "--format=gnu", *plain, gzip, "--file", sdist, "--directory", packed, name)
    for platform in PLATFORMS:
        options = ("--no-deps", "--no-build-isolation", f"--config-settings=--build-option=--plat-name={platform}")
        run(*PYTHON, "pip", "wheel", "--quiet", *options, "--wheel-dir", folder, sdist)
        (wheel,) = folder.glob(f"moa_split-*-{platform}.whl")
        check_wheel(wheel)
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, checked", flush=True)
    (wheel,) = folder.glob(f"moa_split-*-{PLATFORMS[0]}.whl")
    for extra in BILLS:
        write_bill(wheel, extra, folder / f"{name}-{extra}.cdx.json")
    run("sh", "-c", f"cd {folder} && sha256sum * > SHA256SUMS")


def write_bill(wheel: Path, extra: str, path: Path) -> None:
    """Writes in CycloneDX what an environment holds that has the wheel with an extra."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=False)
        options = ("--quiet", "--no-compile", "--constraint", "constraints.txt")
        others = wheel.parent.glob(BILLS[extra]) if BILLS[extra] else ()
        run(*PYTHON, "pip", "--python", f"{folder}/bin/python", "install", *options, f"{wheel}[{extra}]", *others)
        for origin in Path(folder).glob("lib/python*/site-packages/moa_split*.dist-info/direct_url.json"):
            origin.unlink()  # it names a temporary folder, which the bill would repeat
        bill = ("environment", "--output-reproducible", "--output-file", path)
        run(*PYTHON, "cyclonedx_py", *bill, f"{folder}/bin/python")


def run(*command: str | Path) -> str:
    done = subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise BuildError(f"{done.stdout}{' '.join(map(str, command))} ended with {done.returncode}")
    return done.stdout


def check_wheel(wheel: Path) -> None:
    target = target_of(wheel.stem.split("-")[-1])
    folder = f"{PACKAGE.name}/{LIBRARIES.name}/"
    names = [PROBE, *(variant.name for variant in variants_of(target.machine))]
    files = {folder + library_file(name, target.system): name for name in names}
    with tempfile.TemporaryDirectory() as unpacked, zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith(folder)}
        if held != set(files):
            raise BuildError(f"{wheel.name} holds {', '.join(sorted(held)) or 'no kernels'}, not {', '.join(files)}.")
        for file, name in files.items():
            exports = {"moa_source_hash", *(["moa_probe"] if name == PROBE else SIGNATURES)}
            for fault in faults_of(Path(archive.extract(file, unpacked)), target, exports):
                raise BuildError(f"{file} of {wheel.name} {fault}.")


def faults_of(path: Path, target: Target, exports: Set[str]) -> Iterator[str]:
    lief.logging.disable()  # it warns of what every dylib by zig has
    match lief.parse(path):
        case lief.ELF.Binary() as library:
            processor, needed = library.header.machine_type.name, set(library.libraries)
            asked = [each.name for file in library.symbols_version_requirement for each in file.get_auxiliary_symbols()]
            versions = [tuple(map(int, str(name).removeprefix("GLIBC_").split("."))) for name in asked]
        case lief.MachO.Binary(build_version=lief.MachO.BuildVersion() as version) as library:
            processor, own = library.header.cpu_type.name, lief.MachO.LoadCommand.TYPE.ID_DYLIB
            needed = {str(each.name) for each in library.libraries if each.command != own}
            versions = [tuple(version.minos[:2])]
            if not library.has_code_signature:
                yield "is not signed, so macOS would not load it"
        case _:
            yield "is no library that a system could load"
            return
    if processor.lower() != target.machine:
        yield f"is for {processor}"
    # macOS has an underscore before each name, and every dylib by zig two of its linker's.
    found = {str(each.name).removeprefix("_") for each in library.exported_symbols}
    if found := (found - {"__dso_handle", "_mh_dylib_header"}) ^ exports:
        yield f"differs from what is bound in {', '.join(sorted(found))}"
    if strange := needed - SYSTEM_LIBRARIES:
        yield f"needs {', '.join(map(str, sorted(strange)))}, which not every machine has"
    if (oldest := max(versions, default=())) > target.oldest:
        yield f"needs version {'.'.join(map(str, oldest))} of the system"


def main() -> None:
    is_check = "--check" in sys.argv
    if is_check and not DIST.is_dir():
        raise BuildError("There is no release in dist/ to compare with. Build one first: make wheels.")
    with tempfile.TemporaryDirectory() as folder:
        build_release(Path(folder))
        if is_check:
            run("sh", "-c", f"cd '{DIST}' && sha256sum --check --quiet {folder}/SHA256SUMS")
            print(f"{DIST}: a second build has the same bytes")
        else:
            shutil.rmtree(DIST, ignore_errors=True)
            shutil.copytree(folder, DIST)
            DIST.chmod(0o755)


if __name__ == "__main__":
    try:
        main()
    except BuildError as error:
        sys.exit(str(error))
