from __future__ import annotations

import pytest
from moa_shared.models.gguf.parts import storage_label


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("Llama-3.2-3B-Instruct-Q4_K_M.gguf", "Q4_K_M"),
        ("gpt-oss-20b-MXFP4_MOE.gguf", "MXFP4_MOE"),
        ("Qwen3-30B-A3B-UD-Q4_K_XL-00001-of-00002.gguf", "UD-Q4_K_XL"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("model.i1-IQ4_XS.gguf", "IQ4_XS"),
        ("some-bf16.gguf", "bf16"),
        ("q8_0.gguf", "q8_0"),
        ("Qwen3-8B.gguf", None),
        ("Q-and-A.gguf", None),
    ],
)
def test_how_a_file_is_stored_stands_in_its_name(name: str, label: str | None) -> None:
    assert storage_label(name) == label
