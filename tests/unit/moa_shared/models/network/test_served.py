import pytest
from moa_shared.errors import ModelSourceError
from moa_shared.models.network.served import check_family

from tests.support.messages import says

GOOD = {"vocab_size": 8, "hidden_size": 4, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "it is of the model family 'gpt2', which moa does not serve"),
        ({"model_type": None}, "it is of the model family None, which moa does not serve"),
        ({"vocab_size": 0}, "The config.json of it has vocab_size = 0, expected a whole number from 1 to"),
        ({"hidden_size": "many"}, "The config.json of it has hidden_size = 'many', expected a whole number from"),
        ({"num_hidden_layers": 10**9}, "The config.json of it has num_hidden_layers = 1000000000, expected a whole"),
        ({"rope_scaling": [[[]]]}, "The config.json of it has rotary parameters that make no sense, which"),
        ({"layer_types": 7}, "The config.json of it has values that make no sense ('int' object is not iterable),"),
        ({"use_sliding_window": True}, "The config.json of it has use_sliding_window, and no sliding_window, which"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "The config.json of it has layers with a sliding"),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, "The config.json of it has 4 query heads over 3"),
        ({"num_attention_heads": 8}, "The config.json of it has 8 query heads over 8 key/value heads of 0 numbers"),
        ({"head_dim": 3}, "The config.json of it has 1 query heads over 1 key/value heads of 3 numbers, which moa"),
        ({"logits_scaling": float("nan")}, "The config.json of it has logits_scaling = nan, which moa does not"),
        ({"logits_scaling": 0, "rms_norm_eps": 1e-5}, "The config.json of it has values that make no sense (float di"),
        ({"rms_norm_eps": []}, "The config.json of it has values that make no sense (float() argument must be"),
    ],
)
def test_what_is_refused(change: dict[str, object], message: str) -> None:
    with says(ModelSourceError, message):
        check_family({**GOOD, "model_type": "qwen2", **change}, "it")


@pytest.mark.parametrize("rope", [None, {"rope_type": "llama3"}, {"rope_type": "yarn"}, {"type": "linear"}])
def test_rotary_scaling_by_position_alone_is_served(rope: dict[str, object] | None) -> None:
    check_family({**GOOD, "model_type": "llama", "rope_scaling": rope}, "it")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sliding_window": 0}, "sliding_window = 0"),
        ({"sliding_window": "5"}, "sliding_window = '5'"),
        ({"layer_types": ["sliding_attention"]}, "values that make no sense"),
        ({"layer_types": ["full_attention"] * 2}, "values that make no sense"),
        ({"layer_types": ["linear_attention"]}, "layer_types"),
        ({"no_rope_layers": [1, 1]}, "values that make no sense"),
        ({"no_rope_layer_interval": 0}, "no_rope_layer_interval = 0"),
        ({"use_bidirectional_attention": True}, "bidirectional attention"),
    ],
)
def test_layers_that_make_no_sense_are_refused(change: dict[str, object], message: str) -> None:
    config = {**GOOD, "model_type": "smollm3", "rms_norm_eps": 1e-5, **change}
    with pytest.raises(ModelSourceError, match=f"The config.json of it has .*{message}.*, which moa does not compute"):
        check_family(config, "it")
