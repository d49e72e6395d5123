"""What peers are asked, and what is said of those that are missing."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot
from moa_bench.suites.single.figures import LLAMA_CPP, TRANSFORMERS
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


def test_what_is_not_there_is_missing_with_its_reason(tmp_path: Path) -> None:
    files = resolve(str(save_tiny_model(tmp_path / "model")), tmp_path / "cache")
    assert find_peers(files, None, None, is_sized=True) == (
        [],
        {
            LLAMA_CPP: "--llama-cpp names no folder with node-llama-cpp",
            TRANSFORMERS: "it unpacks the weights into bfloat16, which takes more than three times their memory",
        },
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which npm could have installed node-llama-cpp."""
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    (tmp_path / "node_modules" / "node-llama-cpp").mkdir(parents=True)
    return tmp_path


def test_llama_cpp_reads_gguf_files_alone(folder: Path) -> None:
    files = resolve(str(save_tiny_model(folder / "model")), folder / "cache")
    with pytest.raises(ConfigError, match="model is not a GGUF file"):
        find_peers(files, folder, None, is_sized=True)


def test_peers_are_given_the_file_and_that_of_a_draft_model(
    write_gguf: GgufWriter, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moa_bench.suites.single.peers.find_spec", lambda name: name)
    files = resolve(str(write_gguf()), folder / "cache")
    path = str(files.weights[0])
    (llama, transformers), missing = find_peers(files, folder, files, is_sized=False)
    assert (llama.command[0], Path(llama.command[1]).name, llama.command[2:], missing) == (
        "/bin/node", "llama_cpp.mjs", (str(folder), path, path), {},
    )  # fmt: skip
    assert transformers.command[-4:] == ("--model", path, "--assistant", path)
    (llama, transformers), missing = find_peers(files, folder, None, is_sized=False)
    assert llama.command[2:] == (str(folder), path)
    assert list(missing) == ["llama.cpp, a draft model", "transformers, bfloat16, a draft model"]
