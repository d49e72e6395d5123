"""The container images: what they hold, and an answer through them, each as nobody, on a read-only root file system.

podman has a store of its own in /var/tmp, which the next run finds again, on machines that let root do less than usual.
Where no registry can be reached, the base image is made of Debian's packages.
"""

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from moa_kernels.variants import variants_of

from tests.support.programs import CHECKOUT, free_port, printed
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
            printed(
                "mmdebstrap", "--quiet", "--variant=custom", "--include=?essential", f"--include={PACKAGES}",
                f'--setup-hook=cd "$1" && {MERGED}', f'--customize-hook=cd "$1" && rm -r {UNWANTED}', "bookworm", tar,
                seconds=BUILD_SECONDS,
            )  # fmt: skip
            self.call("import", tar, BASE, seconds=BUILD_SECONDS)

    def build(self, *images: str) -> None:
        """Builds images as an operator does, with deploy/build.sh; with one kind of kernels alone."""
        with tempfile.TemporaryDirectory() as folder:
            options = ["--isolation=chroot", "--build-arg", f"KERNELS={KERNELS}", *pip_mounts(Path(folder))]
            command = [str(CHECKOUT / "deploy/build.sh"), *images, "--", *options]
            variables = {"ENGINE": shlex.join(self.words), "BASE": BASE, "PREFIX": PREFIX}
            printed(*command, seconds=BUILD_SECONDS, env={**os.environ, **variables})


def pip_mounts(folder: Path) -> list[str]:
    """Options that let pip in the build find packages where this machine's pip does."""
    listed = printed(sys.executable, "-m", "pip", "config", "list")
    values: dict[str, str] = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        values[name.split(".")[-1]] = value.strip("'")
    lines = ["[global]", *(f"{name} = {value}" for name, value in values.items())]
    Path(folder, "pip.conf").write_text("\n".join(lines) + "\n")
    words = [Path(word.removeprefix("file://")) for value in values.values() for word in value.split()]
    # The whole of an index, whose pages refer to files beside them.
    found = [path.parent if path.name == "simple" or path.is_file() else path for path in words if path.is_absolute()]
    places = {Path(folder, "pip.conf"): Path("/etc/pip.conf"), **{path: path for path in found if path.exists()}}
    return [word for here, there in places.items() for word in ("--volume", f"{here}:{there}:ro")]


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


@pytest.fixture(scope="session")
def images() -> Engine:
    """The engine, whose store holds the images of this checkout."""
    engine = find_engine()
    engine.make_base()
    engine.build("server", "client", "netsim")
    # What a killed build left may still be in use.
    engine.call("image", "prune", "--force", seconds=BUILD_SECONDS, check=False)
    return engine


PATIENCE = 300.0
PROGRESS = re.compile(r'"event": "begun"|^serving ')


@dataclass(frozen=True)
class Container:
    """A container that runs."""

    engine: Engine
    name: str

    def log(self) -> str:
        done = self.engine.call("logs", self.name)
        return done.stdout + done.stderr

    def await_healthy(self) -> None:
        """Waits until its health check passes.

        Asks when the log says that the server begins something or serves: to ask all the time slows the start.
        """
        command = ["timeout", str(PATIENCE), *self.engine.words, "logs", "--follow", self.name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as log:
            assert log.stdout is not None
            while self.engine.call("healthcheck", "run", self.name, check=False).returncode:
                assert any(PROGRESS.search(line) for line in log.stdout), self.log()
            log.terminate()

    def stop(self) -> int:
        """Sends SIGTERM; its exit status."""
        self.engine.call("stop", "--time", "40", self.name)
        return int(self.engine.call("inspect", "--format", "{{.State.ExitCode}}", self.name).stdout)


@contextmanager
def running(engine: Engine, image: str, *arguments: str, options: tuple[str, ...] = ()) -> Iterator[Container]:
    """A hardened container, which is removed at the end."""
    name = f"moa-test-{image}"
    engine.call("rm", "--force", "--ignore", name)
    engine.call(
        "run", "--detach", "--name", name, *LIMITS, *HARDENED, "--network", "host", "--tmpfs", "/tmp", *options,
        f"{PREFIX}{image}", *arguments,
    )  # fmt: skip
    try:
        yield Container(engine, name)
    finally:
        engine.call("rm", "--force", "--time", "0", name)


# One worker has the store, and builds once.
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("images"), pytest.mark.timeout(1800)]
CACHE = "moa-test-cache"
COMPILERS = ("cc", "gcc", "clang", "as", "ld", "make", "pip", "pip3")


@pytest.mark.parametrize("image", ["server", "client", "netsim"])
def test_an_image_is_bare_and_computes_with_the_kernels_that_were_chosen(images: Engine, image: str) -> None:
    about = images.inspect(image)
    assert about["Size"] < 1e9
    user, _, group = about["Config"]["User"].partition(":")
    assert int(user) > 0
    assert int(group) > 0
    assert about["Config"]["StopSignal"] == "SIGTERM"
    labels = about["Config"]["Labels"]
    assert labels["org.opencontainers.image.title"] == f"moa-{image}"
    assert labels["org.opencontainers.image.version"] != "unknown"
    looked = f"for each in {' '.join(COMPILERS)}; do command -v $each; done; python -c 'import torch' 2>/dev/null && echo torch"
    found = images.once(image, "-c", looked, options=["--entrypoint", "/bin/sh"], check=False)
    assert found.stdout == ""
    if image != "netsim":
        said = images.once(image, "-m", "moa_kernels", options=["--entrypoint", "/opt/moa/bin/python"]).stdout
        assert said.startswith(f"Kernels: {KERNELS} ")


def test_a_question_through_an_emulated_link(images: Engine) -> None:
    images.call("volume", "rm", "--force", CACHE)
    port, link = free_port(), free_port()
    variables = {"HOST": "127.0.0.1", "PORT": port, "METRICS_PORT": free_port()}
    given = [word for name, value in variables.items() for word in ("--env", f"MOA_SERVER_{name}={value}")]
    options = ("--volume", f"{CACHE}:/var/cache/moa", *given)
    for cache in ("cold", "warm"):
        with running(images, "server", options=options) as server:
            server.await_healthy()
            if cache == "warm":
                proxy = ["proxy", "--profile", "4g", "--listen", f"127.0.0.1:{link}", "--upstream", f"127.0.0.1:{port}"]
                with running(images, "netsim", *proxy) as netsim:
                    direct, far = (
                        images.once("client", *ASK, "--server", f"127.0.0.1:{each}") for each in (port, link)
                    )
                    assert direct.stdout.strip()
                    assert (direct.stdout, netsim.stop()) == (far.stdout, 0)
            assert server.stop() == 0
            assert '"stopped"' in server.log()
