"""What a step reads, a worker's tree and cache, what is said where an engine cannot be had, and the tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from inline_snapshot import snapshot
from moa_bench.spread import Spread
from moa_bench.suites.engine.measure import (
    llama_subject,
    our_subjects,
    render,
    step_bytes,
)
from moa_bench.suites.engine.worker import Worker, binary_tree
from moa_server.verifier.kernel_target import KernelTarget
from moa_shared.errors import ConfigError
from moa_shared.models import WeightReader, resolve
from moa_shared.models.weights.weights import HEAD, LAYER_EMBEDDINGS

from tests.support.messages import raises
from tests.support.tiny_models import save_tiny_model, save_tokenizer


def test_a_step_reads_all_layers_and_the_head(tmp_path: Path) -> None:
    files = resolve(str(save_tiny_model(tmp_path / "tiny")), tmp_path / "cache")
    reader = WeightReader(files)
    every = sum(reader.stored_bytes(name) for name in reader.names() if "embed_tokens" not in name)
    config = files.config
    position = 2 * 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
    assert HEAD in reader.names()
    assert step_bytes(files) == (every, position)


@pytest.mark.torch
def test_rows_that_are_looked_up_and_layers_without_keys_of_their_own_are_left_out(tmp_path: Path) -> None:
    from tests.support.dense_families import tiny_dense

    folder = tmp_path / "gemma"
    tiny_dense("gemma 4 with embeddings by layer").save_pretrained(folder)
    save_tokenizer(folder)
    files = resolve(str(folder), tmp_path / "cache")
    reader = WeightReader(files)
    every = sum(map(reader.stored_bytes, reader.names()))
    weights, position = step_bytes(files)
    assert weights <= every - reader.stored_bytes(LAYER_EMBEDDINGS) + reader.stored_bytes(HEAD)
    # Of six layers the first three have keys and values: sliding, full, sliding.
    heads, dim, whole = files.config["num_key_value_heads"], files.config["head_dim"], 64
    assert position == 2 * 2 * heads * (2 * dim + whole)


def test_trees_are_binary() -> None:
    assert binary_tree(1) == [-1]
    assert binary_tree(6) == [-1, 0, 0, 1, 1, 2]


def test_a_forward_leaves_the_context_as_it_was(make_target: Callable[[], KernelTarget]) -> None:
    worker = Worker(make_target())
    assert worker.read(20) > 0
    assert worker.forward(8) > 0
    assert worker.forward(1) > 0
    assert worker._cache.length == 20
    worker.read(5)
    assert worker._cache.length == 5


def test_a_folder_without_llama_cpp_is_refused(tmp_path: Path) -> None:
    files = SimpleNamespace(weights=(Path("model.gguf"),), target_id="A target")
    with raises(
        ConfigError,
        snapshot(
            "llama.cpp cannot be measured: TMP/node_modules/node-llama-cpp is not there. Run npm install --prefix TMP node-llama-cpp, or leave out --llama-cpp."
        ),
    ):
        llama_subject(tmp_path, files)  # type: ignore[arg-type]


def test_only_a_gguf_file_goes_to_llama_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/node")
    (tmp_path / "node_modules" / "node-llama-cpp").mkdir(parents=True)
    files = SimpleNamespace(weights=(Path("model.safetensors"),), target_id="A target")
    with raises(
        ConfigError, snapshot("llama.cpp cannot be measured: A target is not a GGUF file. Leave out --llama-cpp.")
    ):
        llama_subject(tmp_path, files)  # type: ignore[arg-type]
    files.weights = (Path("model.gguf"),)
    subject = llama_subject(tmp_path, files)  # type: ignore[arg-type]
    assert subject.command[-1] == "model.gguf"
    assert not subject.trees


@pytest.mark.parametrize(("is_sized", "count"), [(False, 2), (True, 0)])
def test_only_the_kernels_measure_a_large_model(is_sized: bool, count: int) -> None:
    kernels, *others = our_subjects("default", is_sized=is_sized)
    assert kernels.name.startswith("kernels, ")
    assert len(others) == count


def just(value: float) -> Spread:
    return Spread.of([value])


def cost(engine: str, rows: int, ms: float, to_step: float) -> dict[str, Any]:
    return {"engine": engine, "context": 128, "rows": rows, "ms": just(ms), "to_step": just(to_step)}


MEASURED: dict[str, Any] = {
    "forwards": [
        cost("kernels, avx2", 1, 10.0, 1.0),
        cost("kernels, avx2", 8, 14.0, 1.4),
        cost("llama.cpp", 1, 22.0, 1.0),
    ],
    "prompts": [{"engine": "kernels, avx2", "context": 128, "ms_a_token": just(1.2)}],
    "memory": {"kernels, avx2": 241.3},
    "load_s": {"kernels, avx2": 0.84},
    "limits": [{"context": 128, "mb": 100.0, "gb_s": just(12.0), "ms": just(8.0)}],
}


def test_forwards_become_a_table_a_context(facts: dict[str, Any]) -> None:
    text = render(facts | MEASURED)
    assert "### A forward after 128 tokens, ms" in text
    assert "| kernels, avx2 | 10.0 | 14.0 | 1.40 |  |" in text
    assert "| llama.cpp | 22.0 |  |  |  |" in text
    assert "| memory limit | 8.0 |  |  |  |" in text
    assert "| kernels, avx2 | 1.20 | 241 | 0.8 |" in text
    assert "| llama.cpp | 128 | 22.0 (22.0 to 22.0) | 8.0 (8.0 to 8.0) | 2.75 |" in text
