"""What a step reads, a worker's tree and cache, what is said where an engine cannot be had, and the tables."""

from pathlib import Path
from typing import Any

from moa_bench.report import Spread
from moa_bench.suites.engine import Worker, binary_tree, render, step_bytes
from moa_shared.models import WeightReader, resolve
from moa_shared.models.storage.tensors import HEAD

from tests.support.tiny_models import save_tiny_model, tiny_kernel_target, tiny_model


def test_a_step_reads_all_layers_and_the_head(tmp_path: Path) -> None:
    files = resolve(str(save_tiny_model(tmp_path / "tiny")), tmp_path / "cache")
    reader = WeightReader(files)
    every = sum(reader.stored_bytes(name) for name in reader.names() if "embed_tokens" not in name)
    config = files.config
    position = 2 * 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
    assert HEAD in reader.names()
    assert step_bytes(files) == (every, position)


def test_a_forward_leaves_the_context_as_it_was() -> None:
    assert binary_tree(6) == [-1, 0, 0, 1, 1, 2]
    worker = Worker(tiny_kernel_target(tiny_model(max_position_embeddings=512)))
    assert worker.read(20) > 0
    assert worker.forward(8) > 0
    assert worker.forward(1) > 0
    assert worker._cache.length == 20
    worker.read(5)
    assert worker._cache.length == 5


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
