"""Models of random weights: whole, served, and of the sizes that they are called by."""

from dataclasses import replace
from pathlib import Path

import pytest
from moa_bench.harness.random_model import _tensors, random_model
from moa_bench.harness.shapes import SHAPES, ModelShape
from moa_shared.models import WeightReader, resolve
from moa_shared.models.gguf_entry import file_type
from moa_shared.models.storage.gguf_header import read_header
from moa_shared.programs.progress import SilentProgress

SILENT = SilentProgress()
TINY = ModelShape(hidden=256, layers=8, inner=512, heads=4, kv_heads=2, vocab=49160, context=64)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "tiny", TINY)
    monkeypatch.setitem(SHAPES, "narrow", replace(TINY, hidden=96, tied=False))
    monkeypatch.setitem(SHAPES, "mixture", replace(TINY, tied=False, experts=8, used=2, wide_heads=128))


@pytest.mark.usefixtures("tiny")
def test_a_model_is_served_and_made_once(tmp_path: Path) -> None:
    path = random_model("tiny", SILENT, tmp_path)
    files = resolve(str(path), tmp_path)
    sizes = [files.config[name] for name in ("vocab_size", "num_hidden_layers", "tie_word_embeddings")]
    assert sizes == [49160, 8, True]
    reader = WeightReader(files)
    assert all(reader.array(name).size for name in reader.names())
    assert file_type(read_header(path)) == "Q4_K_M"
    made = path.stat().st_mtime_ns
    assert random_model("tiny", SILENT, tmp_path).stat().st_mtime_ns == made


def test_sizes_are_those_of_published_files() -> None:
    for shape, published_mb in (("1b", 807.7), ("3b", 2019.4), ("8b", 4920.7), ("30b-a3b", 18556.7)):
        size = sum(tensor.nbytes for tensor in _tensors(SHAPES[shape])) / 1e6
        assert size == pytest.approx(published_mb, rel=0.015)  # they hold a vocabulary too


@pytest.mark.usefixtures("tiny")
def test_a_mixture_of_experts(tmp_path: Path) -> None:
    header = read_header(random_model("mixture", SILENT, tmp_path))
    assert header.architecture == "qwen3moe"
    assert [header.integer(f"qwen3moe.{key}") for key in (
        "expert_count", "expert_used_count", "expert_feed_forward_length", "attention.key_length",
    )] == [8, 2, 512, 128]  # fmt: skip
    shapes = {name.removeprefix("blk.0."): tensor.shape for name, tensor in header.tensors.items()}
    assert (shapes["attn_q.weight"], shapes["ffn_gate_inp.weight"]) == ((512, 256), (8, 256))
    assert (shapes["ffn_up_exps.weight"], shapes["ffn_down_exps.weight"]) == ((8, 512, 256), (8, 256, 512))
