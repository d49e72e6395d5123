"""Gemma 4 files that say what no Gemma 4 does, or too little."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot
from moa_shared.errors import ModelSourceError
from moa_shared.models.gguf.configuration import make_config
from moa_shared.models.gguf.header import read_header

from tests.support.dense_families import tiny_in_gguf
from tests.support.gemma4_gguf import write_gemma4_gguf
from tests.support.messages import raises

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"attention.sliding_window_pattern": [True] * 6},
            snapshot(
                "TMP/tiny.gguf has a last layer with a window, which no Gemma 4 that moa serves does. Use the same model as a folder of safetensors or a hub id."
            ),
        ),
        (
            {"attention.sliding_window_pattern": [True, False]},
            snapshot(
                "The GGUF file TMP/tiny.gguf does not say in gemma4.attention.sliding_window_pattern which of 6 layers see a window. The file is truncated or corrupt: fetch it again."
            ),
        ),
        (
            {"attention.shared_kv_layers": 6},
            snapshot(
                "TMP/tiny.gguf shares the keys and values of 6 of 6 layers, which no Gemma 4 that moa serves does. Use the same model as a folder of safetensors or a hub id."
            ),
        ),
        (
            {"feed_forward_length": [96, 96, 96, 192, 96, 192]},
            snapshot(
                "TMP/tiny.gguf has MLPs of the widths [96, 96, 96, 192, 96, 192], which no Gemma 4 that moa serves does. Use the same model as a folder of safetensors or a hub id."
            ),
        ),
        (
            {"feed_forward_length": [96, 96]},
            snapshot(
                "The GGUF file TMP/tiny.gguf says gemma4.feed_forward_length = '[96, 96]', expected 6 whole numbers. The file is truncated or corrupt: fetch it again."
            ),
        ),
        (
            {"attention.head_count_kv": [2, 3, 2, 2, 2, 2]},
            snapshot(
                "The config.json of tiny.gguf has 4 query heads over 3 heads of 64 numbers in layer 1, which moa does not compute. Fetch the model again, or choose another."
            ),
        ),
        (
            {"rope.dimension_count_swa": 16},
            snapshot(
                "TMP/tiny.gguf rotates 16 of a head's 32 numbers, which no Gemma 4 that moa serves does. Use the same model as a folder of safetensors or a hub id."
            ),
        ),
        (
            {"rope.freq_base_swa": None},
            snapshot(
                "The GGUF file TMP/tiny.gguf does not set gemma4.rope.freq_base_swa. Use a GGUF file of a whole model."
            ),
        ),
    ],
)
def test_what_no_gemma_4_says_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    model = tiny_in_gguf("gemma 4 with embeddings by layer")
    path = write_gemma4_gguf(model, tmp_path / "tiny.gguf", **changes)
    with raises(ModelSourceError, message):
        make_config(read_header(path))
