"""The table of published drafters, and how a model is recognised in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from moa_shared.drafter.choice.known import (
    KNOWN,
    Kind,
    known_drafter,
    known_for,
    known_of_sizes,
)
from moa_shared.drafter.companion.known import KNOWN_COMPANIONS
from moa_shared.drafter.published.named_target import model_key
from moa_shared.models.sources.hub import HUB_ID

README = Path(__file__).parents[5] / "README.md"
QWEN3_8B = {"hidden_size": 4096, "num_hidden_layers": 36, "vocab_size": 151936}


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen3-8B",
        "Qwen/Qwen3-8B@main",
        "Qwen/Qwen3-8B-FP8",
        "unsloth/Qwen3-8B-GGUF:Q4_K_M",
        "Qwen3-8B-Q4_K_M.gguf",
        "Qwen3-8B-UD-Q4_K_XL-00001-of-00002.gguf",
        "/models/Qwen3-8B/",
        "Qwen3 8B",
    ],
)
def test_a_model_is_recognised_however_it_is_stored(name: str) -> None:
    found = known_for([name], QWEN3_8B)
    assert found == known_for([name])
    assert {each.target.hub_id for each in found} == {"Qwen/Qwen3-8B"}
    assert found[0].kind is Kind.DFLASH


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen3-8B-Base", "DeepSeek-R1-0528-Qwen3-8B", "Qwen/Qwen3-80B", "me/my-Qwen3-8B", "qwen3:8b", ""]
)
def test_another_model_is_not(name: str) -> None:
    assert known_for([name]) == ()


def test_the_name_alone_is_not_enough() -> None:
    assert known_for(["Qwen3-8B"], QWEN3_8B | {"hidden_size": 1024}) == ()
    assert {each.target.hub_id for each in known_of_sizes(QWEN3_8B)} == {"Qwen/Qwen3-8B"}


def test_llama_by_any_of_its_names() -> None:
    names = ("meta-llama/Llama-3.1-8B-Instruct", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "Llama 3.1 8B Instruct")
    assert len({model_key(name) for name in names}) == 1
    assert model_key("meta-llama/Meta-Llama-3-8B-Instruct") != model_key(names[0])


def test_the_table_is_sound() -> None:
    ids = [each.hub_id for each in KNOWN]
    assert len({each.casefold() for each in ids}) == len(ids)
    for each in KNOWN:
        assert HUB_ID.fullmatch(each.hub_id)
        assert HUB_ID.fullmatch(each.target.hub_id)
        assert each.seen.startswith("https://")
        assert known_drafter(f"{each.hub_id}@main") is each
        assert each in known_for([each.target.hub_id])
    assert known_drafter("nobody/knows") is None


def test_readme_names_models_with_drafters_and_companions_that_are_known_for_them() -> None:
    row = r"serve hub:(\S+) --drafter (\S+) --companion hub:(\S+)`"
    rows = re.findall(row, README.read_text("utf-8"))
    assert 4 <= len(rows) <= 6
    companions = {model_key(each.hub) for each in KNOWN_COMPANIONS}
    for model, drafter, companion in rows:
        assert drafter in {each.hub_id for each in known_for([model])}
        assert model_key(companion) in companions
