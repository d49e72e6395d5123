"""The wheel of a release: a device without a compiler takes it and chats, with a server that computes with its kernels."""

import os
import platform
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from kernel_build import BuildError
from moa_kernels import variant_name
from moa_kernels.library import FOLDER_VARIABLE, WITHOUT
from release import check_wheel

from tests.support.programs import CHECKOUT, environment, printed, started

# One worker makes the wheel and the environment, once.
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("wheel"), pytest.mark.timeout(900)]
SOURCES = ("LICENSE", "MANIFEST.in", "README.md", "constraints.txt", "pyproject.toml", "setup.py")
ROOTS = ("proto", "shared", "server", "client", "netsim", "training", "bench", "kernels", "drafters")
UNTRACKED = shutil.ignore_patterns("__pycache__", "*.egg-info", "lib", "results")
PLATFORM = f"manylinux_2_28_{platform.machine()}"
README = CHECKOUT / "README.md"
PIP = (sys.executable, "-m", "pip")
CONSTRAINTS = ("--constraint", CHECKOUT / "constraints.txt")
# What a device may have to fetch, and to keep without bytecode. Of the latter numpy has 57 MB, grpcio 18 MB, moa 9 MB.
FETCHED_BYTES, INSTALLED_BYTES = 48e6, 150e6


def run(*command: str | Path, **variables: str) -> str:
    return printed(*command, seconds=600, env={**os.environ, **variables})


def copy_sources(folder: Path) -> Path:
    """What a wheel is built from, as in a fresh clone."""
    folder.mkdir()
    for name in SOURCES:
        shutil.copy(CHECKOUT / name, folder)
    for name in ROOTS:
        shutil.copytree(CHECKOUT / name, folder / name, ignore=UNTRACKED)
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as a release is, by zig; from a copy, because a build leaves files among its sources."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = copy_sources(folder / "sources")
    plat_name = f"--config-settings=--build-option=--plat-name={PLATFORM}"
    run(*PIP, "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, plat_name, sources)
    (made,) = folder.glob("moa_split-*.whl")
    return made


@pytest.fixture(scope="module")
def packages(wheel: Path) -> Path:
    """What pip fetches for `moa-split[client]`, moa's own wheel included."""
    folder = wheel.parent / "packages"
    run(*PIP, "download", "--quiet", "--dest", folder, *CONSTRAINTS, f"{wheel}[client]")
    return folder


@pytest.fixture(scope="module")
def device(wheel: Path, packages: Path) -> Path:
    """The Python of an environment with `moa-split[client]`, without bytecode, on a machine without a compiler."""
    folder = wheel.parent / "client"
    venv.create(folder, with_pip=False)
    python = folder / "bin/python"
    options = ("--quiet", "--no-compile", "--no-index", "--find-links", packages)
    alone = {"PATH": str(python.parent), "PYTHONPATH": "", "CC": ""}
    run(*PIP, "--python", python, "install", *options, "moa-split[client]", **alone)
    return python


def bytes_in(folder: Path) -> int:
    """The size of all files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_it_is_fit_for_its_platform(wheel: Path, tmp_path: Path) -> None:
    check_wheel(wheel)
    older = tmp_path / wheel.name.replace("_2_28_", "_2_5_")
    shutil.copy(wheel, older)
    with pytest.raises(BuildError, match="needs version 2"):
        check_wheel(older)
    elsewhere = tmp_path / wheel.name.replace(PLATFORM, "macosx_11_0_arm64")
    shutil.copy(wheel, elsewhere)
    with pytest.raises(BuildError, match=r"probe\.so.*, not .*neon\.dylib"):
        check_wheel(elsewhere)


def test_a_device_fetches_and_keeps_little(packages: Path, device: Path) -> None:
    assert bytes_in(packages) <= FETCHED_BYTES
    assert bytes_in(device.parents[1] / "lib") <= INSTALLED_BYTES


def test_a_device_chats_with_a_server_on_the_same_kernels(device: Path, tmp_path: Path) -> None:
    """What the extra `server` installs besides, the tests of the images serve with."""
    said = run(device, "-m", "moa_kernels", PYTHONPATH="", PATH="")
    assert said.startswith("Kernels: ")
    assert not said.startswith(WITHOUT)
    (kernels,) = device.parents[1].glob("lib/python*/site-packages/moa_kernels/lib")
    variables = {FOLDER_VARIABLE: str(kernels), "MOA_CACHE_DIR": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    server = [sys.executable, "-m", "moa_server.cli", "serve", "--port", "0"]
    with started(server, environment(*ROOTS, **variables)) as program:
        line = program.out.readline()
        assert line.startswith("serving SmolLM2-135M-Instruct on "), program.end()
        client = device.with_name("moa-client")
        words = ("chat", "--no-daemon", "--server", line.split()[-1], "Hello")
        assert run(client, *words, HOME=str(tmp_path / "device"), PATH="", PYTHONPATH="").strip()
        program.process.terminate()
        assert program.end()[0] == 0


def test_what_readme_installs_by_pipx_serves_and_chats(tmp_path: Path) -> None:
    """README's lines word for word, with nothing else installed."""
    lines = re.findall(
        r"^\$ ((?:pipx|moa-server serve|moa-client chat)\b.*?)(?: +#.*)?$", README.read_text("utf-8"), re.M
    )
    *installing, serve, chat = lines[: lines.index("moa-client chat") + 1]
    assert [line.split()[1] for line in installing] == ["install", "runpip"]
    venv.create(tmp_path / "pipx", with_pip=False)
    run(*PIP, "--python", tmp_path / "pipx/bin/python", "install", "--quiet", "pipx")
    variables = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))} | {
        "HOME": str(tmp_path),
        "PATH": f"{tmp_path}/.local/bin:{tmp_path}/pipx/bin:/usr/bin:/bin",
        "PIPX_DEFAULT_PYTHON": sys.executable,
        "MOA_BUILD_KERNELS": variant_name(),  # for this machine alone, which takes less time
        "MOA_SERVER_PORT": "0",
        "MOA_CLIENT_DAEMON": "false",
    }
    sources = copy_sources(tmp_path / "sources")
    for line in installing:
        printed("sh", "-c", line, seconds=600, cwd=sources, env=variables)
    with started(["sh", "-c", f"exec {serve}"], variables) as server:
        line = server.out.readline()
        assert line.startswith("serving SmolLM2-135M-Instruct on "), server.end()
        device = variables | {"MOA_CLIENT_SERVER": line.split()[-1]}
        asked = subprocess.run(chat, shell=True, env=device, input="Hello", capture_output=True, text=True, timeout=300)
    assert (asked.returncode, asked.stdout.strip() != "") == (0, True), asked.stderr
