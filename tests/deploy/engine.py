"""podman as the tests use it: with a store of its own, on machines that let root do less than usual.

State: a store in /var/tmp, which the next run finds again. Where no registry can be reached, the base image is made of
Debian's packages.
"""

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moa_kernels.variants import variants_of

from tests.support.programs import CHECKOUT
from tests.support.skipping import cannot_run

STORE = Path("/var/tmp/moa-test-images")
BASE = "localhost/moa-base:bookworm"
PREFIX = "localhost/moa-"
PACKAGES = "apt,usr-is-merged,python3,python3-venv,ca-certificates"
# /usr is merged from the start: what would merge it later brings all of Perl.
MERGED = "for each in bin sbin lib lib64; do mkdir -p usr/$each && ln -s usr/$each; done"
# Built into the images: the plainest, the quickest to compile; seldom those that the CPU would choose itself.
KERNELS = variants_of(platform.machine())[-1].name
# Debian's slim images leave these out too. To have dpkg leave them out takes longer.
UNWANTED = "usr/share/doc/* usr/share/man/* usr/share/locale/*"
# What podman would set by itself is more than this machine may allow.
LIMITS = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096")
HARDENED = ("--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges")
# Without a drafter, which takes most of a minute to fetch over 4G.
ASK = ("chat", "--no-daemon", "--drafter", "none", "--temperature", "0", "Name three fruits")
BUILD_SECONDS = 1500  # a minute and a half on an idle machine


@dataclass(frozen=True)
class Engine:
    """podman with the options that come before its command."""

    words: tuple[str, ...]

    def call(self, *arguments: str, seconds: float = 60, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Calls podman; fails with what it printed."""
        done = subprocess.run([*self.words, *arguments], capture_output=True, text=True, timeout=seconds)
        assert not check or done.returncode == 0, f"{shlex.join(arguments)}: {done.stdout}{done.stderr}"
        return done

    def inspect(self, image: str) -> dict[str, Any]:
        """What an image says about itself."""
        found: list[dict[str, Any]] = json.loads(self.call("image", "inspect", f"{PREFIX}{image}").stdout)
        return found[0]

    def once(
        self, image: str, *arguments: str, options: Sequence[str] = (), seconds: float = 60, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Runs a container to its end, hardened."""
        return self.call(
            "run", "--rm", *LIMITS, *HARDENED, "--network", "host", "--tmpfs", "/tmp", *options, f"{PREFIX}{image}",
            *arguments, seconds=seconds, check=check,
        )  # fmt: skip

    def make_base(self) -> None:
        """Imports a Debian with Python, unless the store has it."""
        if self.call("image", "exists", BASE, check=False).returncode == 0:
            return
        with tempfile.TemporaryDirectory() as folder:
            tar = str(Path(folder, "base.tar"))
            # Custom: all packages in one go, not the essential ones first.
            made = subprocess.run(
                ["mmdebstrap", "--quiet", "--variant=custom", "--include=?essential", f"--include={PACKAGES}",
                 f'--setup-hook=cd "$1" && {MERGED}', f'--customize-hook=cd "$1" && rm -r {UNWANTED}', "bookworm", tar],
                capture_output=True, text=True, timeout=BUILD_SECONDS,
            )  # fmt: skip
            assert made.returncode == 0, made.stderr
            self.call("import", tar, BASE, seconds=BUILD_SECONDS)

    def build(self, *images: str) -> None:
        """Builds images as an operator does, with deploy/build.sh; with one kind of kernels alone."""
        with tempfile.TemporaryDirectory() as folder:
            options = ["--isolation=chroot", "--build-arg", f"KERNELS={KERNELS}", *pip_mounts(Path(folder))]
            command = [str(CHECKOUT / "deploy/build.sh"), *images, "--", *options]
            variables = {"ENGINE": shlex.join(self.words), "BASE": BASE, "PREFIX": PREFIX}
            done = subprocess.run(
                command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=BUILD_SECONDS
            )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def pip_mounts(folder: Path) -> list[str]:
    """Options that let pip in the build find packages where this machine's pip does."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    values: dict[str, str] = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        values[name.split(".")[-1]] = value.strip("'")
    lines = ["[global]", *(f"{name} = {value}" for name, value in values.items())]
    Path(folder, "pip.conf").write_text("\n".join(lines) + "\n")
    places = {Path(folder, "pip.conf"): Path("/etc/pip.conf"), **{path: path for path in map(_folder, _paths(values))}}
    return [word for here, there in places.items() for word in ("--volume", f"{here}:{there}:ro")]


def _paths(values: dict[str, str]) -> list[Path]:
    words = [word.removeprefix("file://") for value in values.values() for word in value.split()]
    return [Path(word) for word in words if word.startswith("/") and Path(word).exists()]


def _folder(path: Path) -> Path:
    """The whole of an index, whose pages refer to files beside them."""
    return path.parent if path.name == "simple" or path.is_file() else path


def find_engine() -> Engine:
    """podman, as root; the test cannot run without."""
    missing = [name for name in ("podman", "mmdebstrap") if shutil.which(name) is None]
    if missing:
        cannot_run(f"needs {' and '.join(missing)}")
    if os.geteuid() != 0:
        cannot_run("needs root, to make a base image")
    STORE.mkdir(mode=0o700, exist_ok=True)
    words = ["podman", "--root", str(STORE / "store"), "--runroot", str(STORE / "run"), "--cgroup-manager", "cgroupfs"]
    # crun refuses machines with both kinds of cgroups
    return Engine((*words, "--runtime", "runc") if shutil.which("runc") else tuple(words))
