import re
from typing import Any

import numpy as np
import pytest
import torch
from moa_kernels import KernelError, Rotary
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

pytestmark = pytest.mark.torch

HEAD_DIM, MOST = 64, 4096
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 1024}
PARAMETERS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "another base": {"rope_type": "default", "rope_theta": 1e6},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": YARN | {"rope_type": "llama3", "rope_theta": 5e5, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": YARN,
    "yarn of DeepSeek": YARN | {"factor": 40, "beta_fast": 16, "beta_slow": 2, "mscale": 1.0, "mscale_all_dim": 0.7},
    "yarn with its factor": YARN | {"attention_factor": 1.5, "truncate": False},
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_angles_are_those_of_transformers(name: str) -> None:
    config = LlamaConfig(
        hidden_size=4 * HEAD_DIM, num_attention_heads=4, max_position_embeddings=MOST,
        rope_parameters=dict(PARAMETERS[name]),
    )  # fmt: skip
    expected_tables = LlamaRotaryEmbedding(config)(torch.zeros(1, MOST, 1), torch.arange(MOST)[None])
    for ours, theirs in zip(Rotary(HEAD_DIM, PARAMETERS[name], MOST).tables(MOST), expected_tables, strict=True):
        assert ours.shape[1] == HEAD_DIM // 2
        expected = theirs[0, :, : HEAD_DIM // 2].numpy()
        # A frequency may be rounded to the next float32: then angles differ by a part in 8 million.
        bound = 2e-6 + np.arange(MOST)[:, None] * 2.5e-7
        assert bool((np.abs(ours[:MOST] - expected) <= bound).all())


def test_tables_that_another_thread_makes_are_seen_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    rotary, sine = Rotary(32, PARAMETERS["default"]), np.sin
    seen = []

    def sine_while_another_thread_asks(angles: np.ndarray[Any, Any]) -> Any:
        monkeypatch.setattr(np, "sin", sine)
        seen.append(rotary.tables(10))
        return sine(angles)

    monkeypatch.setattr(np, "sin", sine_while_another_thread_asks)
    rotary.tables(10)
    assert [len(cosines) == len(sines) >= 10 for cosines, sines in seen] == [True]


@pytest.mark.parametrize(("parameters", "why"), [
    ({}, "KeyError('rope_theta')"),
    ({**PARAMETERS["llama3"], "low_freq_factor": "low"}, "could not convert string to float: 'low'"),
    ({"rope_type": "linear", "rope_theta": 1e4, "factor": 0}, "its angles are not finite"),
    ({"rope_theta": None}, "must be a string or a real number, not 'NoneType'"),
    ({"rope_theta": float("nan")}, "its angles are not finite"),
    ({**PARAMETERS["yarn"], "attention_factor": 1e6}, "its angles are not finite, or scaled by 1000000.0"),
])  # fmt: skip
def test_parameters_that_cannot_be_used(parameters: dict[str, Any], why: str) -> None:
    with pytest.raises(KernelError, match=rf"The rotary parameters .* cannot be used \(.*{re.escape(why)}.*\)\."):
        Rotary(64, parameters)
