"""`moa-server doctor` as a user meets it."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from inline_snapshot import snapshot
from moa_server.capacity import plan
from moa_server.cli import cli

from tests.support.messages import steady
from tests.support.tiny_models import WORDS, save_tiny_model, save_tokenizer

STEPS = ["settings", "model", "drafter", "memory", "disk", "port", "TLS"]
STEPS += ["keys", "CPU", "threads", "speed", "clock", "open files", "user"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return save_tiny_model(folder, seed=1, num_hidden_layers=2, max_position_embeddings=64)


def doctor(*words: object) -> Result:
    return CliRunner().invoke(cli, ["doctor", *map(str, words)])


@pytest.mark.torch
def test_a_server_that_could_start(model: Path) -> None:
    result = doctor(model, "--execution", "float32", "--drafter", "none", "--port", 0)
    assert (result.exit_code, [line.split()[1] for line in result.stdout.splitlines() if line[2] != " "]) == (
        0,
        [name.split()[0] for name in STEPS],
    )
    assert "not estimated on the level float32\n" in result.stdout
    measured = doctor(model, "--execution", "float32", "--drafter", "none", "--port", 0, "--measure")
    assert "float32: a plain step takes " in measured.stdout


def test_a_companion_is_compared_with_the_model(model: Path, tmp_path: Path) -> None:
    small, other = (save_tiny_model(tmp_path / name, seed=5) for name in ("small", "other"))
    save_tokenizer(other, [*WORDS[:8], "gravity", *WORDS[9:]])
    common = (model, "--drafter", "none", "--port", 0, "--companion")
    lines = [
        line for path in (small, other) for line in doctor(*common, path).stdout.splitlines() if " companion " in line
    ]
    assert lines == snapshot(
        [
            "  ok    companion    small, 570.6 kB; the same vocabulary; its text was not measured",
            "  fail  companion    other cannot be a companion of tiny: token 8 is 'w8' there and 'gravity' here",
        ]
    )


def test_without_measuring_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(plan, "load_execution", load)
    result = doctor("default", "--drafter", "none", "--port", 0)
    assert result.exit_code == 0
    assert re.search(
        r"ok    speed        int8: at most about [\d.e+]+ tokens/s; a plain step reads 1\d\d\.\d MB", result.stdout
    )
    assert re.search(r"ok    memory       .* a conversation of 8192 tokens 19\d\.\d MB", result.stdout)


def test_problems_are_named_and_the_steps_that_need_them_left_out(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = doctor(model, "--port", port, "--kv-bytes", 10**15, "--execution", "float32", "--json")
        metrics = doctor(model, "--port", 0, "--metrics-port", port, "--execution", "float32", "--json")
    checks = {each["name"]: each for each in json.loads(result.stdout)}
    assert (result.exit_code, list(checks)) == (1, STEPS)
    assert {name: checks[name]["state"] for name in ("model", "drafter", "memory", "port", "speed")} == snapshot(
        {"model": "ok", "drafter": "warn", "memory": "fail", "port": "fail", "speed": "skip"}
    )
    assert steady(checks["port"]["message"] + " / " + checks["port"]["hint"]) == snapshot(
        "Cannot listen on 127.0.0.1:PORT: it is in use, or no address of this machine / Choose another --host or --port (0: any free port)."
    )
    (told,) = (each for each in json.loads(metrics.stdout) if each["name"] == "port")
    assert (told["state"], told["hint"]) == (
        "fail",
        "Choose another --metrics-host or --metrics-port (0: any free port).",
    )
    result = doctor("no/such/model", "--port", 0, "--json")
    states = {each["name"]: each["state"] for each in json.loads(result.stdout)}
    assert (result.exit_code, [name for name, state in states.items() if state == "skip"]) == snapshot(
        (1, ["drafter", "memory", "speed"])
    )
