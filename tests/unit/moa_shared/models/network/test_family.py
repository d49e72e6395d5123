from __future__ import annotations

import pytest
from moa_shared.errors import ModelSourceError
from moa_shared.models.network.family import FAMILIES, check_family

GOOD = {"vocab_size": 8, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_families_served(family: str) -> None:
    check_family({**GOOD, "model_type": family}, "it")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "family 'gpt2', which moa does not serve.*llama, qwen2, qwen3"),
        ({"model_type": None}, "family None"),
        ({"vocab_size": 0}, "vocab_size = 0, expected a positive integer"),
        ({"hidden_size": "many"}, "hidden_size = 'many'"),
        ({"num_hidden_layers": 10**9}, "has 1000000000 layers, at most 1024 are served"),
        ({"rope_scaling": [[[]]]}, "make no sense"),
        ({"rope_scaling": {"factor": {"a": {}}}}, "make no sense"),
        ({"layer_types": 7}, "make no sense"),
        ({"use_sliding_window": True}, "sliding-window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "'dynamic' rotary scaling"),
        ({"rope_scaling": {"type": "longrope"}}, "'longrope' rotary scaling"),
    ],
)
def test_what_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ModelSourceError, match=message):
        check_family({**GOOD, "model_type": "qwen2", **change}, "it")


@pytest.mark.parametrize("rope", [None, {"rope_type": "llama3"}, {"rope_type": "yarn"}, {"type": "linear"}])
def test_rotary_scaling_by_position_alone_is_served(rope: dict[str, object] | None) -> None:
    check_family({**GOOD, "model_type": "llama", "rope_scaling": rope}, "it")
