from __future__ import annotations

from pathlib import Path

import pytest
from moa_bench.suites.engine.limit import StepBytes, step_bytes
from moa_shared.models import WeightReader, resolve
from moa_shared.models.weights.weights import HEAD, LAYER_EMBEDDINGS

from tests.support.tiny_models import save_tiny_model, save_tokenizer


def test_a_step_reads_all_layers_and_the_head(tmp_path: Path) -> None:
    files = resolve(str(save_tiny_model(tmp_path / "tiny")), tmp_path / "cache")
    reader = WeightReader(files)
    every = sum(reader.stored_bytes(name) for name in reader.names() if "embed_tokens" not in name)
    config = files.config
    position = 2 * 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
    assert HEAD in reader.names()
    assert step_bytes(files) == StepBytes(every, position)


@pytest.mark.torch
def test_rows_that_are_looked_up_and_layers_without_keys_of_their_own_are_left_out(tmp_path: Path) -> None:
    from tests.support.dense_families import tiny_dense

    folder = tmp_path / "gemma"
    tiny_dense("gemma 4 with embeddings by layer").save_pretrained(folder)
    save_tokenizer(folder)
    files = resolve(str(folder), tmp_path / "cache")
    reader = WeightReader(files)
    every = sum(map(reader.stored_bytes, reader.names()))
    needed = step_bytes(files)
    assert needed.weights <= every - reader.stored_bytes(LAYER_EMBEDDINGS) + reader.stored_bytes(HEAD)
    # Of six layers the first three have keys and values: sliding, full, sliding.
    heads, dim, whole = files.config["num_key_value_heads"], files.config["head_dim"], 64
    assert needed.position == 2 * 2 * heads * (2 * dim + whole)
