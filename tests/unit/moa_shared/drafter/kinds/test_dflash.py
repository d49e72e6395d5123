"""The block drafter on the kernels: what a block sees, what its nodes say, and rows that come late."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from moa_kernels import Rotary
from moa_kernels.arithmetic import norm
from moa_shared.drafter import ArrayWeights, DrafterConfig, fresh_tensors
from moa_shared.drafter.kinds.config import DeviceHalf
from moa_shared.drafter.kinds.dflash import BlockDecoder, BlockState
from moa_shared.models.weights.weights import EMBEDDINGS, HEAD

VOCAB, HIDDEN, DIM, BLOCK, MASK = 50, 64, 32, 6, 49
ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
Arrays = dict[str, np.ndarray]


def config(**changes: Any) -> DrafterConfig:
    sizes = {
        "vocab_size": VOCAB, "hidden_size": HIDDEN, "target_layers": 4, "target_heads": 4, "target_kv_heads": 2,
        "target_head_dim": DIM, "sa_kv_heads": 2, "sa_mlp": 96, "ca_kv_heads": 2, "ca_mlp": 1, "lsa_heads": 2,
        "lsa_kv_heads": 2, "lsa_mlp": 1, "rms_norm_eps": 1e-6, "rope_parameters": ROPE, "kind": "dflash",
        "own_layers": 2, "state_entries": (1, 3), "head_norms": True, "block_size": BLOCK, "mask_token": MASK,
    }  # fmt: skip
    return DrafterConfig(**{**sizes, **changes})


def random(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


TABLES = {EMBEDDINGS: random(VOCAB, HIDDEN, seed=1), HEAD: random(VOCAB, HIDDEN, seed=2) / 8}
ROWS = random(30, HIDDEN, seed=3)


def tensors(**changes: Any) -> Arrays:
    made = fresh_tensors(config(**changes), seed=4)
    made |= {name: random(*each.shape, seed=6) for name, each in made.items() if name.endswith(".bias")}
    return {name: 1 + random(*each.shape, seed=5) / 10 if "norm" in name else each for name, each in made.items()}


def state(weights: str = "float32", **changes: Any) -> BlockState:
    own = ArrayWeights(tensors(**changes))
    return BlockState(BlockDecoder(DeviceHalf(config(**changes), own, ArrayWeights(TABLES), weights)))


def expected(own: Arrays, rows: np.ndarray, places: list[int], token: int, position: int) -> np.ndarray:
    """Logits of all rows of a block, by the plain definition."""

    def linear(rows: np.ndarray, name: str) -> np.ndarray:
        out: np.ndarray = rows @ own[f"{name}.weight"].T + own.get(f"{name}.bias", np.float32(0))
        return out

    rotary, at = Rotary(DIM, ROPE), np.arange(position, position + BLOCK, dtype=np.int32)
    x = TABLES[EMBEDDINGS][[token] + [MASK] * (BLOCK - 1)]
    for layer in ("layers.0.", "layers.1."):

        def heads(rows: np.ndarray, part: str, positions: Any = None, layer: str = layer) -> np.ndarray:
            split = linear(rows, f"{layer}self_attn.{part}_proj").reshape(len(rows), 4 if part == "q" else 2, DIM)
            if part == "v":
                return split
            normed = norm(split.reshape(-1, DIM), own[f"{layer}self_attn.{part}_norm.weight"], 1e-6)
            return rotary.rotate(normed.reshape(split.shape), np.asarray(positions, np.int32))

        y = norm(x, own[f"{layer}input_layernorm.weight"], 1e-6)
        keys = np.concatenate((heads(rows, "k", places), heads(y, "k", at)))
        values = np.concatenate((heads(rows, "v"), heads(y, "v")))
        queries = heads(y, "q", at)
        scores = np.einsum("qhd,khd->hqk", queries, np.repeat(keys, 2, axis=1)) / DIM**0.5
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        seen = np.einsum("hqk,khd->qhd", weights, np.repeat(values, 2, axis=1)).reshape(BLOCK, -1)
        x = x + linear(seen, f"{layer}self_attn.o_proj")
        y = norm(x, own[f"{layer}post_attention_layernorm.weight"], 1e-6)
        gate, up = y @ own[f"{layer}mlp.gate_proj.weight"].T, y @ own[f"{layer}mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ own[f"{layer}mlp.down_proj.weight"].T
    logits: np.ndarray = norm(x, own["norm.weight"], 1e-6) @ TABLES[HEAD].T
    return logits


def chain_logits(drafter: BlockState, tokens: list[int]) -> np.ndarray:
    return np.concatenate([drafter.begin(), *(drafter.expand([token], [at - 1]) for at, token in enumerate(tokens))])


@pytest.mark.parametrize(("weights", "tolerance"), [("float32", 1e-4), ("int8", 0.15), ("int4", 0.6)])
def test_a_block_sees_all_rows_that_have_come_and_itself(weights: str, tolerance: float) -> None:
    """Some rows are missing in the middle, as over a link: they are not seen, and the others keep their positions."""
    drafter, own = state(weights), tensors()
    drafter.extend(list(range(21)))
    drafter.append_memory(12, ROWS[12:20])
    drafter.append_memory(0, ROWS[:9])
    places = [*range(9), *range(12, 20)]
    theirs = expected(own, ROWS[places], places, 20, 20)[1:]
    ours = chain_logits(drafter, [7, 7, 7, 7])
    assert ours.shape == (BLOCK - 1, VOCAB)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * np.abs(theirs).max())
    drafter.append_memory(0, ROWS[:20])  # the missing ones; the others are held already
    whole = expected(own, ROWS[:20], list(range(20)), 20, 20)[1:]
    np.testing.assert_allclose(chain_logits(drafter, [3] * 4), whole, rtol=0, atol=tolerance * np.abs(whole).max())
    assert drafter.memory_rows == 20


def test_a_block_sees_no_row_of_its_first_token_nor_of_later_ones() -> None:
    """Wherever they are among the others: rows come in any order, and a text may be cut back to any token."""
    drafter = state()
    drafter.extend(list(range(21)))
    drafter.append_memory(0, ROWS[:20])
    for length in (21, 16):
        drafter.crop(length)
        without = state()
        without.extend(drafter.tokens)
        without.append_memory(0, ROWS[: length - 1])
        theirs = chain_logits(without, [7] * 4)
        drafter.append_memory(0, ROWS[:length])
        np.testing.assert_allclose(chain_logits(drafter, [7] * 4), theirs, rtol=0, atol=1e-5)
        mixed = state()
        mixed.extend(drafter.tokens)
        for start in range(length - 1, -1, -3):
            mixed.append_memory(max(0, start - 2), ROWS[max(0, start - 2) : start + 1])
        np.testing.assert_allclose(chain_logits(mixed, [7] * 4), theirs, rtol=0, atol=1e-5)
        mixed.extend([1])
        without.extend([1])
        without.append_memory(length - 1, ROWS[length - 1 : length])
        np.testing.assert_allclose(mixed.begin(), without.begin(), rtol=0, atol=1e-5)  # nothing is lost


@pytest.mark.parametrize("biased", [False, True])
def test_a_block_without_any_row_or_with_one(biased: bool) -> None:
    drafter, own = state(qkv_bias=biased), tensors(qkv_bias=biased)
    drafter.extend([3])
    theirs = expected(own, ROWS[:0], [], 3, 0)[1:]
    np.testing.assert_allclose(chain_logits(drafter, [1] * 4), theirs, rtol=0, atol=1e-4)
    drafter.extend([4])
    drafter.append_memory(0, ROWS[:1])
    theirs = expected(own, ROWS[:1], [0], 4, 1)[1:]
    np.testing.assert_allclose(chain_logits(drafter, [1] * 4), theirs, rtol=0, atol=1e-4)


def test_what_follows_a_node_depends_on_its_depth_alone() -> None:
    drafter = state()
    drafter.extend([1, 2, 3])
    drafter.append_memory(0, ROWS[:2])
    chain = chain_logits(drafter, [9] * 4)
    drafter.begin()
    tree = drafter.expand([4, 5, 6, 7], [-1, -1, 0, 2])
    np.testing.assert_array_equal(tree, chain[[1, 1, 2, 3]])


def test_with_factors_it_depends_on_the_token_too_and_the_first_row_guesses() -> None:
    changes: dict[str, Any] = {"anchor_guesses": True, "markov_rank": 32}
    drafter, own = state(**changes), tensors(**changes)
    drafter.extend([1, 2, 3])
    drafter.append_memory(0, ROWS[:2])
    base = expected(own, ROWS[:2], [0, 1], 3, 2)
    theirs = base[[0, 1, 1, 2]] + own["markov_w1.weight"][[3, 4, 5, 6]] @ own["markov_w2.weight"].T
    ours = np.concatenate((drafter.begin(), drafter.expand([4, 5, 6], [-1, -1, 1])))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
    assert drafter.most_depth == BLOCK


def test_below_a_block_a_further_one_begins_at_the_last_token() -> None:
    """And the first one is still there for other nodes, and made again after a third has pushed the second out."""
    drafter, own = state(), tensors()
    drafter.extend([1, 2, 3])
    drafter.append_memory(0, ROWS[:2])
    first = chain_logits(drafter, [10, 11, 12, 13])
    second = expected(own, ROWS[:2], [0, 1], 14, 7)[1:]
    np.testing.assert_allclose(drafter.expand([14], [3]), second[:1], rtol=0, atol=1e-4)
    np.testing.assert_allclose(drafter.expand([15], [4]), second[1:2], rtol=0, atol=1e-4)
    third = expected(own, ROWS[:2], [0, 1], 24, 7)[1:]
    np.testing.assert_allclose(drafter.expand([24], [3]), third[:1], rtol=0, atol=1e-4)
    np.testing.assert_allclose(drafter.expand([16], [5]), second[2:3], rtol=0, atol=1e-4)
    np.testing.assert_array_equal(drafter.expand([30], [-1]), first[1:2])
