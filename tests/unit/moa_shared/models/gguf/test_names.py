from __future__ import annotations

import numpy as np
import pytest
from moa_shared.models.gguf.names import hugging_face_name, paired_heads, unpair_rows

LLAMA = {"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output.weight", "lm_head.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("blk.12.attn_k.bias", "model.layers.12.self_attn.k_proj.bias"),
        ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
        ("blk.0.ffn_gate_exps.weight", None),
        ("blk.0.token_embd.weight", None),
        ("attn_q.weight", None),
        ("rope_freqs.weight", None),
    ],
)
def test_names(name: str, expected: str | None) -> None:
    assert hugging_face_name(name) == expected


def test_only_a_llamas_queries_and_keys_are_paired() -> None:
    assert paired_heads("blk.0.attn_q.weight", LLAMA) == 4
    assert paired_heads("blk.0.attn_k.bias", LLAMA) == 2
    assert paired_heads("blk.0.attn_v.weight", LLAMA) == 0
    assert paired_heads("blk.0.attn_q.weight", LLAMA | {"model_type": "qwen2"}) == 0


def test_rows_are_unpaired_as_llama_cpp_pairs_them() -> None:
    heads, head_dim = 3, 8
    rows = np.arange(heads * head_dim * 2).reshape(-1, 2)
    paired = rows.reshape(heads, 2, head_dim // 2, 2).swapaxes(1, 2).reshape(rows.shape)  # of its converter
    assert not np.array_equal(paired, rows)
    assert np.array_equal(unpair_rows(paired, heads), rows)
    assert np.array_equal(unpair_rows(paired[:, 0], heads), rows[:, 0])
