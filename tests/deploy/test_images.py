"""The container images: what they hold, and an answer through them, each as nobody, on a read-only root file system."""

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.deploy.engine import ASK, HARDENED, KERNELS, LIMITS, PREFIX, Engine
from tests.support.programs import free_port

PATIENCE = 120.0
PROGRESS = re.compile(r'"event": "begun"|^serving ')


@dataclass(frozen=True)
class Container:
    """A container that runs."""

    engine: Engine
    name: str

    def log(self) -> str:
        done = self.engine.call("logs", self.name)
        return done.stdout + done.stderr

    def await_healthy(self) -> float:
        """Waits until its health check passes; returns how many seconds that took.

        Asks when the log says that the server begins something or serves: to ask all the time slows the start.
        """
        began = time.monotonic()
        command = ["timeout", str(PATIENCE), *self.engine.words, "logs", "--follow", self.name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as log:
            assert log.stdout is not None
            while self.engine.call("healthcheck", "run", self.name, check=False).returncode:
                assert any(PROGRESS.search(line) for line in log.stdout), self.log()
            log.terminate()
        return time.monotonic() - began

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
def test_an_image_is_bare(images: Engine, image: str) -> None:
    about = images.inspect(image)
    print(f"{image}: {about['Size'] / 1e6:.0f} MB")
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


@pytest.mark.parametrize("image", ["server", "client"])
def test_an_image_computes_with_the_kernels_that_were_chosen(images: Engine, image: str) -> None:
    said = images.once(image, "-m", "moa_kernels", options=["--entrypoint", "/opt/moa/bin/python"]).stdout
    assert said.startswith(f"Kernels: {KERNELS} ")


def serving(port: int, metrics_port: int) -> tuple[str, ...]:
    return (
        "--volume", f"{CACHE}:/var/cache/moa", "--env", "MOA_SERVER_HOST=127.0.0.1",
        "--env", f"MOA_SERVER_PORT={port}", "--env", f"MOA_SERVER_METRICS_PORT={metrics_port}",
    )  # fmt: skip


def test_a_question_through_an_emulated_link(images: Engine) -> None:
    images.call("volume", "rm", "--force", CACHE)
    port, metrics_port, link = free_port(), free_port(), free_port()
    for cache in ("cold", "warm"):
        with running(images, "server", options=serving(port, metrics_port)) as server:
            print(f"serving after {server.await_healthy():.1f} s with a {cache} cache")
            if cache == "warm":
                ask_over(images, port, link)
            assert server.stop() == 0
            assert '"stopped"' in server.log()


def ask_over(images: Engine, port: int, link: int) -> None:
    options = ["proxy", "--profile", "4g", "--listen", f"127.0.0.1:{link}", "--upstream", f"127.0.0.1:{port}"]
    with running(images, "netsim", *options) as netsim:
        answers = [images.once("client", *ASK, "--server", f"127.0.0.1:{each}").stdout for each in (port, link)]
        assert answers[0].strip()
        assert answers[0] == answers[1]
        assert netsim.stop() == 0
