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
        ({"rope_scaling": [[[]]]}, "The config.json of it has layer_types or rotary parameters that make no sense"),
        ({"rope_scaling": {"factor": {"a": {}}}}, "The config.json of it has layer_types or rotary parameters that"),
        ({"layer_types": 7}, "The config.json of it has layer_types or rotary parameters that make no sense"),
        ({"use_sliding_window": True}, "The config.json of it has use_sliding_window, and no sliding_window, which"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "The config.json of it has layers with a sliding"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "it uses 'dynamic' rotary scaling, under which cached keys"),
    ],
)
def test_what_is_refused(change: dict[str, object], message: str) -> None:
    with says(ModelSourceError, message):
        check_family({**GOOD, "model_type": "qwen2", **change}, "it")


@pytest.mark.parametrize(
    "change",
    [
        {"num_attention_heads": 4, "num_key_value_heads": 3},
        {"num_attention_heads": 1, "num_key_value_heads": 2},
        {"num_attention_heads": 8},  # heads of no numbers
        {"head_dim": 3},
    ],
)
def test_heads_that_do_not_divide_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ModelSourceError, match="which is no network"):
        check_family({**GOOD, "model_type": "llama", **change}, "it")


@pytest.mark.parametrize("rope", [None, {"rope_type": "llama3"}, {"rope_type": "yarn"}, {"type": "linear"}])
def test_rotary_scaling_by_position_alone_is_served(rope: dict[str, object] | None) -> None:
    check_family({**GOOD, "model_type": "llama", "rope_scaling": rope}, "it")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sliding_window": 0}, "sliding_window = 0"),
        ({"sliding_window": "5"}, "sliding_window = '5'"),
        ({"layer_types": ["sliding_attention"]}, "layers with a sliding window, and no size of it"),
        ({"layer_types": ["full_attention"] * 2}, "for 1 layers"),
        ({"layer_types": ["linear_attention"]}, "for 1 layers"),
        ({"no_rope_layers": [1, 1]}, "for 1 layers"),
        ({"no_rope_layer_interval": 0}, "no_rope_layer_interval = 0"),
        ({"sliding_window_pattern": 0}, "sliding_window_pattern = 0"),
        ({"use_bidirectional_attention": True}, "bidirectional attention"),
    ],
)
def test_layers_that_make_no_sense_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ModelSourceError, match=f"The config.json of it has .*{message}.*, which moa does not compute"):
        check_family({**GOOD, "model_type": "smollm3", **change}, "it")


@pytest.mark.parametrize("key", ["logits_scaling", "rope_theta", "query_pre_attn_scalar"])
@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), "x", True, []])
def test_factors_that_are_no_numbers_above_0(key: str, value: object) -> None:
    with pytest.raises(ModelSourceError, match=rf"it has {key} = .*, expected a number above 0"):
        check_family({**GOOD, "model_type": "granite", key: value}, "it")
