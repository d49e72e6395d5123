"""llama.cpp as npm has it: the prebuilt addon of node-llama-cpp, of one version whose files are known by their hash.

The package holds llama.cpp's libraries and an addon for node; it has no `llama-server`. Invariant: of these two
packages no other files are run than those pinned here, and npm runs no script of any package.
"""

import hashlib
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from moa_shared.errors import ChecksumError, ConfigError, UnavailableError
from moa_shared.programs.progress import Progress

VERSION = "3.22.1"  # its addon is built of llama.cpp's release v0.5.0
BINARIES = "@node-llama-cpp/linux-x64"
PACKAGES = ("node-llama-cpp", BINARIES)
FOLDERS = ("node-llama-cpp/dist", BINARIES)  # of node_modules: what is run of them
SHA256 = "9e1159988f476d2013d947c2f45e994098013c1c0a049099f63ef231b05659ef"  # of these folders
INSTALL_TIMEOUT_S = 600.0
FETCH_HINT = "Run moa-bench single --fetch-llama-cpp, which installs it into the cache with npm."


def install_folder(root: Path) -> Path:
    return root / "llama.cpp" / f"node-llama-cpp-{VERSION}"


def fetch(root: Path, progress: Progress) -> Path:
    """Installs it into a cache with npm, if it is not there; its folder."""
    folder = install_folder(root)
    if folder.is_dir():
        check(folder)
        return folder
    npm = shutil.which("npm")
    if npm is None:
        raise ConfigError("llama.cpp cannot be fetched: npm is not there.", hint="Install node 20 or later, with npm.")
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise ConfigError("llama.cpp is pinned for Linux on x86-64 alone.", hint="Measure without it.")
    partial = folder.with_name(folder.name + ".part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    packages = [f"{name}@{VERSION}" for name in PACKAGES]
    flags = ["--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund", "--prefix", str(partial)]
    with progress.task("Fetching llama.cpp"):
        try:
            subprocess.run(
                [npm, "install", *flags, *packages], check=True, capture_output=True, timeout=INSTALL_TIMEOUT_S
            )
        except subprocess.CalledProcessError as error:
            said = error.stderr[-500:].decode("utf-8", "replace").strip()
            raise UnavailableError(f"npm cannot install llama.cpp: {said}", hint="Run it again later.") from error
        except subprocess.TimeoutExpired as error:
            raise UnavailableError(
                f"npm has not installed llama.cpp within {INSTALL_TIMEOUT_S:.0f} s.", hint="Run it again later."
            ) from error
    check(partial)
    partial.rename(folder)
    return folder


def check(folder: Path) -> None:
    """Raises ChecksumError unless a folder holds the files that are pinned."""
    found = files_sha256(folder / "node_modules", FOLDERS)
    if found != SHA256:
        raise ChecksumError(
            f"llama.cpp in {folder} is not what moa-bench was made with: sha256 {found}, expected {SHA256}.",
            hint="Delete that folder and fetch it again.",
        )


def files_sha256(root: Path, folders: tuple[str, ...]) -> str:
    """sha256 over the names and contents of all files below some folders of `root`."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(path for path in (root / folder).rglob("*") if path.is_file()):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{path.relative_to(root).as_posix()} {content}\n".encode())
    return digest.hexdigest()
