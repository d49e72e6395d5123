"""Which rank this process has, and which targets its replica can share."""

from __future__ import annotations

from typing import Any

import pytest
from inline_snapshot import snapshot
from moa_server.verifier.parallel.rank import Rank, check_shares, rank_of
from moa_shared.errors import ConfigError

from tests.support.messages import raises

LAUNCHED = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "gpu.example",
    "MASTER_PORT": "29500",
}
SMOLLM2 = {"model_type": "llama", "num_attention_heads": 9, "num_key_value_heads": 3}


def test_torchrun_says_the_rank() -> None:
    assert rank_of(LAUNCHED) == Rank(3, 4, 1, 2)


@pytest.mark.parametrize(
    "environment",
    [{}, {"WORLD_SIZE": "4", "RANK": "3"}, {**LAUNCHED, "WORLD_SIZE": "1", "RANK": "0"}],
    ids=["alone", "of something else", "one process"],
)
def test_a_process_by_itself_has_no_rank(environment: dict[str, str]) -> None:
    assert rank_of(environment) is None


def test_heads_must_be_split_evenly() -> None:
    check_shares(SMOLLM2, "smol", 3)
    check_shares({"model_type": "llama", "num_attention_heads": 8}, "gpt", 8)
    with raises(
        ConfigError,
        snapshot("smol has 9 heads and 3 of keys and values: 2 processes cannot share them evenly. Start 3 processes."),
    ):
        check_shares(SMOLLM2, "smol", 2)


@pytest.mark.parametrize(
    ("config", "hint"),
    [
        ({"num_attention_heads": 32, "num_key_value_heads": 8}, "Start 2 or 4 or 8 processes."),
        ({"num_attention_heads": 7, "num_key_value_heads": 1}, "Serve it in one process, without torchrun."),
    ],
)
def test_the_numbers_that_fit_are_named(config: dict[str, Any], hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_shares({"model_type": "llama", **config}, "a model", 3)
    assert caught.value.hint == hint


def test_other_families_are_not_shared() -> None:
    gemma = {"model_type": "gemma2", "num_attention_heads": 8}
    check_shares(gemma, "gemma", 1)
    with raises(
        ConfigError,
        snapshot(
            "gemma is of the family gemma2, which processes do not share. Serve it in one process, without torchrun."
        ),
    ):
        check_shares(gemma, "gemma", 2)
