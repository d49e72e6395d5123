"""What peers are asked, and what is said of those that are missing."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot
from moa_bench.suites.single.figures import LLAMA_CPP
from moa_bench.suites.single.peers import ask_peer, find_peers
from moa_bench.suites.single.rounds import MethodAnswer
from moa_shared.errors import ConfigError, DataError
from moa_shared.models import resolve

from tests.support.messages import raises
from tests.support.tiny_gguf import GgufWriter, write_gguf
from tests.support.tiny_models import save_tiny_model

__all__ = ["write_gguf"]


def test_a_peer_is_given_the_prompt_and_the_number_of_tokens() -> None:
    asked: list[Mapping[str, Any]] = []

    def ask(command: Mapping[str, Any]) -> dict[str, Any]:
        asked.append(command)
        return {"tokens": [7, 8, 9], "arrivals_ms": [40.0, 52.0, 64.0]}

    assert ask_peer(ask, "lookup", [1, 2], 3) == MethodAnswer((7, 8, 9), 40.0, 24.0)
    assert asked == [{"ask": [1, 2], "count": 3, "mode": "lookup"}]
    with raises(
        DataError,
        snapshot("A peer was asked for 4 tokens and gave 3, with 3 times. Measure without it, and report this."),
    ):
        ask_peer(ask, "plain", [1, 2], 4)


def test_without_a_folder_llama_cpp_is_missing(tmp_path: Path) -> None:
    files = resolve(str(save_tiny_model(tmp_path / "model")), tmp_path / "cache")
    assert find_peers(files, None) == ([], {LLAMA_CPP: "--llama-cpp names no folder with node-llama-cpp"})


def test_llama_cpp_reads_gguf_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    (tmp_path / "node_modules" / "node-llama-cpp").mkdir(parents=True)
    files = resolve(str(save_tiny_model(tmp_path / "model")), tmp_path / "cache")
    with pytest.raises(ConfigError, match="model is not a GGUF file"):
        find_peers(files, tmp_path)


def test_llama_cpp_is_given_the_file(write_gguf: GgufWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    (tmp_path / "node_modules" / "node-llama-cpp").mkdir(parents=True)
    files = resolve(str(write_gguf()), tmp_path / "cache")
    (peer,), missing = find_peers(files, tmp_path)
    assert (peer.command[0], Path(peer.command[1]).name, peer.command[2:], missing) == (
        "/bin/node", "llama_cpp.mjs", (str(tmp_path), str(files.weights[0])), {},
    )  # fmt: skip
