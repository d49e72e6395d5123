"""Builds a release into dist/, from the last commit: sources, wheels of moa and of its drafters, bills of materials.

Each wheel of a platform is built by zig from the source distribution, and checked (wheel_check.py). The same commit
gives the same bytes: `--check` builds again elsewhere, and compares. Run by `make wheels`, which installs what this
needs.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping
from pathlib import Path

from kernel_build import BuildError
from wheel_check import check_wheel

CHECKOUT = Path(__file__).parents[1]
DIST = CHECKOUT / "dist"
CONSTRAINTS = CHECKOUT / "constraints.txt"
# glibc 2.28 is that of Debian 10 and RHEL 8, and what grpcio and numpy ask for; macOS 11 is the first on ARM.
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_28_aarch64", "macosx_11_0_arm64")
# The extras that have a bill of materials, with what is installed next to them.
BILLS = {"client": (), "server": ("moa_split_drafters-*.whl",)}
SUMS = "SHA256SUMS"


def build_release(folder: Path) -> None:
    """Fills an empty folder.

    Raises:
        BuildError: a wheel must not be published.
        CalledProcessError: a step failed, and said why.
    """
    made = run("git", "log", "-1", "--format=%ct").strip()
    with tempfile.TemporaryDirectory() as sources:
        tar = Path(sources, "sources.tar")
        run("git", "archive", "--output", tar, "HEAD")
        run("tar", "--extract", "--no-same-permissions", "--file", tar, "--directory", sources)
        tar.unlink()
        run_python("build", "--sdist", "--no-isolation", "--outdir", folder, sources, SOURCE_DATE_EPOCH=made)
        drafters = Path(sources, "drafters")
        run_python("build", "--wheel", "--no-isolation", "--outdir", folder, drafters, SOURCE_DATE_EPOCH=made)
    (sdist,) = folder.glob("moa_split-*.tar.gz")
    for platform in PLATFORMS:
        options = ("--no-deps", "--no-build-isolation", f"--config-settings=--build-option=--plat-name={platform}")
        run_python("pip", "wheel", "--quiet", *options, "--wheel-dir", folder, sdist, SOURCE_DATE_EPOCH=made)
        (wheel,) = folder.glob(f"moa_split-*-{platform}.whl")
        check_wheel(wheel)
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, checked", flush=True)
    (wheel,) = folder.glob(f"moa_split-*-{PLATFORMS[0]}.whl")
    for extra in BILLS:
        write_bill(wheel, extra, folder / sdist.name.replace(".tar.gz", f"-{extra}.cdx.json"))
    lines = [f"{digest}  {name}\n" for name, digest in sorted(digests(folder).items())]
    (folder / SUMS).write_text("".join(lines))


def write_bill(wheel: Path, extra: str, path: Path) -> None:
    """Writes in CycloneDX what an environment holds that has the wheel with an extra."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=False)
        python = Path(folder, "bin/python")
        options = ("--quiet", "--no-compile", "--constraint", CONSTRAINTS)
        others = [path for name in BILLS[extra] for path in wheel.parent.glob(name)]
        run_python("pip", "--python", python, "install", *options, f"{wheel}[{extra}]", *others)
        for origin in Path(folder).glob("lib/python*/site-packages/moa_split*.dist-info/direct_url.json"):
            origin.unlink()  # it names a temporary folder, which the bill would repeat
        run_python("cyclonedx_py", "environment", "--output-reproducible", "--output-file", path, python)


def run_python(module: str, *arguments: str | Path, **variables: str) -> str:
    """Runs a module of this environment to its end, and returns what it prints."""
    return run(sys.executable, "-m", module, *arguments, **variables)


def run(*command: str | Path, **variables: str) -> str:
    """Runs a command in the checkout to its end, and returns what it prints; its errors go to stderr."""
    environment = {**os.environ, **variables}
    return subprocess.run(command, env=environment, cwd=CHECKOUT, check=True, stdout=subprocess.PIPE, text=True).stdout


def digests(folder: Path) -> Mapping[str, str]:
    """The sha256 of each file of a release, by name."""
    files = (path for path in folder.iterdir() if path.name != SUMS)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def compare(fresh: Path, folder: Path) -> None:
    """Compares two builds.

    Raises:
        BuildError: they differ.
    """
    ours, theirs = digests(fresh), digests(folder)
    if differing := sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)):
        raise BuildError(f"A second build differs from {folder} in {', '.join(differing)}.")
    print(f"{folder}: a second build has the same bytes")


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the release of the last commit into dist/.")
    parser.add_argument("--check", action="store_true", help="build it again, and compare with what is in dist/")
    is_check = parser.parse_args().check
    if is_check and not DIST.is_dir():
        sys.exit("There is no release in dist/ to compare with. Build one first: make wheels.")
    try:
        with tempfile.TemporaryDirectory() as folder:
            fresh = Path(folder)
            build_release(fresh)
            if is_check:
                compare(fresh, DIST)
            else:
                DIST.mkdir(exist_ok=True)
                for path in DIST.iterdir():
                    path.unlink()
                for path in fresh.iterdir():
                    shutil.move(path, DIST)
    except BuildError as error:
        sys.exit(str(error))
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error.stdout}{error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
