"""What orders to the other ranks carry, and which processes are ranks."""

import json

import pytest
from moa_server.verifier.pool import BatchPart, Run
from moa_server.verifier.target import Rank, rank_of
from moa_server.verifier.torch_target import check_shares
from moa_shared.errors import ConfigError

pytestmark = pytest.mark.torch


def test_a_forward_survives_its_order() -> None:
    tree = BatchPart([7, 8, 9], [0, 1, 1], 63, [4, 2], [-1, 0, 0])
    run = Run([tree, BatchPart([5], range(1), 3, [9, 6])], 4, [0, 3], [2])
    whole = Run([tree, BatchPart([5], [0], 3, [9])], 4, [0, 3], [2])  # with the pages that are in use
    assert Run.of(*json.loads(json.dumps(run.fields()))) == whole


LAUNCHED = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "29500",
}  # fmt: skip
SMOLLM2 = {"model_type": "llama", "num_attention_heads": 9, "num_key_value_heads": 3}


def test_torchrun_says_the_rank_and_a_process_by_itself_has_none() -> None:
    assert rank_of(LAUNCHED) == Rank(3, 4, 1, 2)
    for environment in ({}, {"WORLD_SIZE": "4", "RANK": "3"}, {**LAUNCHED, "WORLD_SIZE": "1", "RANK": "0"}):
        assert rank_of(environment) is None


def test_heads_must_be_split_evenly_and_other_families_are_not_shared() -> None:
    check_shares(SMOLLM2, "smol", 3)
    check_shares({"model_type": "llama", "num_attention_heads": 8}, "gpt", 8)
    with pytest.raises(ConfigError, match="processes cannot share them"):
        check_shares(SMOLLM2, "smol", 2)
    gemma = {"model_type": "gemma2", "num_attention_heads": 8}
    check_shares(gemma, "gemma", 1)
    with pytest.raises(ConfigError, match="gemma is of the family gemma"):
        check_shares(gemma, "gemma", 2)
