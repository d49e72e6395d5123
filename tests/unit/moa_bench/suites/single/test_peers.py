"""What peers are asked, what is said of those that are missing, and that nothing unknown is run."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot
from moa_bench.suites.single.names import LLAMA_CPP
from moa_bench.suites.single.peers import llama_cpp
from moa_bench.suites.single.peers.peers import ask_peer, find_peers
from moa_bench.suites.single.peers.transformers_worker import Generator
from moa_bench.suites.single.rounds import Answer
from moa_shared.errors import ChecksumError, ConfigError, DataError
from moa_shared.models import ModelFiles, resolve
from moa_shared.programs.progress import SilentProgress

from tests.support.messages import raises
from tests.support.tiny_gguf import GgufWriter, write_gguf
from tests.support.tiny_models import save_tiny_model
from tests.support.torch_models import torch_model

pytestmark = pytest.mark.torch

__all__ = ["write_gguf"]


@pytest.fixture
def gguf_files(write_gguf: GgufWriter, tmp_path: Path) -> ModelFiles:
    return resolve(str(write_gguf()), tmp_path / "cache")


def test_a_peer_is_given_the_prompt_and_the_number_of_tokens() -> None:
    asked: list[Mapping[str, Any]] = []

    def ask(command: Mapping[str, Any]) -> dict[str, Any]:
        asked.append(command)
        return {"tokens": [7, 8, 9], "arrivals_ms": [40.0, 52.0, 64.0]}

    assert ask_peer(ask, "lookup", [1, 2], 3) == Answer((7, 8, 9), 40.0, 24.0)
    assert asked == [{"ask": [1, 2], "count": 3, "mode": "lookup"}]
    with raises(
        DataError,
        snapshot("A peer was asked for 4 tokens and gave 3, with 3 times. Measure without it, and report this."),
    ):
        ask_peer(ask, "plain", [1, 2], 4)


def test_without_an_installation_llama_cpp_is_missing(gguf_files: ModelFiles, tmp_path: Path) -> None:
    peers, missing = find_peers("default", gguf_files, tmp_path, None)
    assert [(peer.subject.name, peer.modes) for peer in peers] == [
        ("transformers, bfloat16", ("plain", "lookup")),
        ("transformers, float32", ("plain", "lookup")),
    ]
    assert missing["transformers, its assistant"] == snapshot("no smaller model is named (--assistant)")
    if shutil.which("node"):
        assert missing[LLAMA_CPP] == snapshot(
            "it is not installed. Run moa-bench single --fetch-llama-cpp, which installs it into the cache with npm."
        )


def test_llama_cpp_reads_gguf_files_alone(tmp_path: Path) -> None:
    files = resolve(str(save_tiny_model(tmp_path / "model")), tmp_path / "cache")
    peers, missing = find_peers("default", files, tmp_path, "smaller")
    assert missing == {LLAMA_CPP: "model is not a GGUF file"}
    assert all(peer.modes == ("plain", "lookup", "assistant") for peer in peers)


def test_other_files_than_the_pinned_ones_are_not_run(
    gguf_files: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    addon = llama_cpp.install_folder(tmp_path) / "node_modules" / llama_cpp.BINARIES / "addon.node"
    addon.parent.mkdir(parents=True)
    addon.write_bytes(b"evil")
    with raises(
        ChecksumError,
        snapshot(
            "llama.cpp in TMP/llama.cpp/node-llama-cpp-3.22.1 is not what moa-bench was made with: sha256 DIGEST, expected DIGEST. Delete that folder and fetch it again."
        ),
    ):
        find_peers("default", gguf_files, tmp_path, None)
    with pytest.raises(ChecksumError):
        llama_cpp.fetch(tmp_path, SilentProgress())
    found = llama_cpp.files_sha256(llama_cpp.install_folder(tmp_path) / "node_modules", llama_cpp.FOLDERS)
    monkeypatch.setattr(llama_cpp, "SHA256", found)
    peers, _ = find_peers("default", gguf_files, tmp_path, None)
    assert peers[-1].subject.command[0] == "/bin/node"
    assert peers[-1].subject.command[-1] == str(gguf_files.weights[0])


def test_without_npm_nothing_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with raises(
        ConfigError, snapshot("llama.cpp cannot be fetched: npm is not there. Install node 20 or later, with npm.")
    ):
        llama_cpp.fetch(tmp_path, SilentProgress())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mode", ["plain", "lookup", "assistant"])
def test_transformers_writes_as_many_tokens_as_asked_and_says_when(mode: str) -> None:
    model = torch_model()
    said = Generator(model, torch_model(seed=4)).ask([5, 9, 11, 40, 5, 9, 11], 12, mode)
    assert said["tokens"] == Generator(model).ask([5, 9, 11, 40, 5, 9, 11], 12, "plain")["tokens"]
    assert len(said["tokens"]) == len(said["arrivals_ms"]) == 12
    assert said["arrivals_ms"] == sorted(said["arrivals_ms"])
    assert said["arrivals_ms"][0] > 0
