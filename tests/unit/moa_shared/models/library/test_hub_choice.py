"""Which files of a repository are meant."""

from __future__ import annotations

import pytest
from inline_snapshot import snapshot
from moa_shared.errors import ModelSourceError
from moa_shared.models.sources.hub import choose_files

from tests.support.messages import raises

PARTS = ["big/A-Q8_0-00001-of-00002.gguf", "big/A-Q8_0-00002-of-00002.gguf"]
GGUF = ["A-Q4_K_M.gguf", "A-Q4_K_S.gguf", "A-IQ4_XS.gguf", *PARTS, "mmproj-A-F16.gguf", "README.md", "config.json"]
PLAIN = ["config.json", "model.safetensors", "tokenizer.json", "pytorch_model.bin", "README.md"]


@pytest.mark.parametrize(
    ("names", "wanted", "chosen"),
    [
        (GGUF, "", ["A-Q4_K_M.gguf"]),
        (GGUF, "q4_k_s", ["A-Q4_K_S.gguf"]),
        (GGUF, "Q8_0", PARTS),
        (GGUF, "A-Q8_0", PARTS),
        (GGUF, "big/*", PARTS),
        (GGUF, "q8*", PARTS),
        (GGUF, "*iq4*", ["A-IQ4_XS.gguf"]),
        (GGUF, "a-q4_k_m.GGUF", ["A-Q4_K_M.gguf"]),
        (["only.gguf", "README.md"], "", ["only.gguf"]),
        (PLAIN, "", ["config.json", "model.safetensors", "tokenizer.json"]),
        ([*PLAIN, "A-Q8_0.gguf"], "Q8_0", ["A-Q8_0.gguf"]),
    ],
)
def test_what_is_meant(names: list[str], wanted: str, chosen: list[str]) -> None:
    assert choose_files("o/A", names, wanted) == chosen


def test_what_is_not_there_or_not_clear() -> None:
    for names, wanted, message in (
        (
            GGUF,
            "Q5_K_M",
            snapshot(
                "o/A holds no GGUF file 'Q5_K_M', only A-IQ4_XS.gguf, A-Q4_K_M.gguf, A-Q4_K_S.gguf, big/A-Q8_0-00001-of-00002.gguf. Name one of them, o/A:IQ4_XS for one."
            ),
        ),
        (
            GGUF,
            "*q4_k*",
            snapshot(
                "o/A:*q4_k* may mean several models: A-Q4_K_M.gguf, A-Q4_K_S.gguf. Name one of them, o/A:Q4_K_M for one."
            ),
        ),
        (
            ["A-Q8_0.gguf", "B-Q8_0.gguf"],
            "",
            snapshot(
                "o/A may mean several models: A-Q8_0.gguf, B-Q8_0.gguf. Name one of them, o/A:A-Q8_0.gguf for one."
            ),
        ),
        (
            [f"A{number:02}-Q8_0.gguf" for number in range(20)],
            "Q8_0",
            snapshot(
                "o/A:Q8_0 may mean several models: A00-Q8_0.gguf, A01-Q8_0.gguf, A02-Q8_0.gguf, A03-Q8_0.gguf, A04-Q8_0.gguf, A05-Q8_0.gguf, A06-Q8_0.gguf, A07-Q8_0.gguf, A08-Q8_0.gguf, A09-Q8_0.gguf, A10-Q8_0.gguf, A11-Q8_0.gguf and 8 more. Name one of them, o/A:A00-Q8_0.gguf for one."
            ),
        ),
        (["README.md"], "", snapshot("o/A holds neither GGUF files nor safetensors. Choose another model.")),
        (PLAIN, "Q4_K_M", snapshot("o/A holds no GGUF files. To fetch its safetensors, name o/A alone.")),
    ):
        with raises(ModelSourceError, message):
            choose_files("o/A", names, wanted)
