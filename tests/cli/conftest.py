"""Fixtures of the command lines."""

import importlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from moa_client.cli import main

from tests.cli.client_program import CHAT, ENVIRONMENT, Run, Served, make_drafter, make_model, options, serving
from tests.support.messages import steady
from tests.support.model_places import places  # noqa: F401 (a fixture)
from tests.support.terminal import Terminal, opened
from tests.support.tiny_gguf import write_gguf  # noqa: F401 (a fixture)

PROGRAMS = {
    "moa-client": "moa_client.cli:main",
    "moa-server": "moa_server.cli:main",
    "moa-train": "moa_training.cli:main",
    "moa-bench": "moa_bench.cli:main",
    "netsim": "netsim.cli:main",
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server process with a tiny model and a random drafter of it."""
    folder = tmp_path_factory.mktemp("client")
    with serving(folder, make_model(folder / "tiny", 1), make_drafter(folder / "d.safetensors")) as running:
        yield running


@pytest.fixture
def terminal(served: Served) -> Iterator[Terminal]:
    """The chat program on a terminal, at its first prompt."""
    with opened([*CHAT, *options(served, max_tokens=6)], ENVIRONMENT) as program:
        program.wait_for(f"Talking to tiny at {served.address}")
        yield program


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a cache that is empty, of a client without settings."""
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))
    for name in [name for name in os.environ if name.startswith("MOA_CLIENT_")]:
        monkeypatch.delenv(name)
    return tmp_path / "cache"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs the program in this process: exit code, standard output, standard error (steady)."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))  # of the log
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))  # of the history
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))  # of the daemon
    monkeypatch.setenv("MOA_CLIENT_TEMPERATURE", "0")  # of what is compared with the target's own text
    monkeypatch.setenv("MOA_CLIENT_TOP_P", "1")

    def run(*arguments: object, stdin: str | bytes = "") -> tuple[int, str, str]:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        monkeypatch.setattr(sys, "argv", ["moa-client", *map(str, arguments)])
        code = 0
        capsys.readouterr()  # what making a model has printed
        try:
            main()
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        out, err = capsys.readouterr()
        return code, out, steady(err)

    return run


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a program in this process: exit status, standard output, standard error."""

    def run(*words: str) -> tuple[int, str, str]:
        module, _, function = PROGRAMS[words[0]].partition(":")
        monkeypatch.setattr(sys, "argv", list(words))
        monkeypatch.setattr(sys.modules["__main__"], "__package__", "")  # else click calls it "python -m pytest"
        with pytest.raises(SystemExit) as ended:
            getattr(importlib.import_module(module), function)()
        return int(ended.value.code or 0), *capsys.readouterr()

    return run
