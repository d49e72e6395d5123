"""The block drafter on the kernels, and what published DFlash and DSpark checkpoints become."""

from typing import Any

import numpy as np
import pytest
from moa_kernels import Rotary
from moa_kernels.blocks import norm
from moa_shared.drafter.checkpoint import fresh_tensors
from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.drafter.kinds.config import DeviceHalf, Published, Shapes
from moa_shared.drafter.kinds.dflash import BlockDecoder, BlockState
from moa_shared.drafter.kinds.weights import ArrayWeights
from moa_shared.drafter.published import convert
from moa_shared.errors import CheckpointError
from moa_shared.models.storage.tensors import EMBEDDINGS, HEAD

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
    assert len(drafter._context) == 20


def test_a_block_sees_no_row_of_its_first_token_nor_of_later_ones() -> None:
    """Wherever they are among the others: rows come in any order, and a text may be cut back to any token."""
    drafter = state()
    drafter.extend(list(range(21)))
    drafter.append_memory(0, ROWS[:20])
    for length in (21, 16):
        drafter.crop(length)
        without, mixed = state(), state()
        for each in (without, mixed):
            each.extend(drafter.tokens)
        without.append_memory(0, ROWS[: length - 1])
        for start in range(length - 1, -1, -3):
            mixed.append_memory(max(0, start - 2), ROWS[max(0, start - 2) : start + 1])
        drafter.append_memory(0, ROWS[:length])
        theirs = chain_logits(without, [7] * 4)
        for each in (drafter, mixed):
            np.testing.assert_allclose(chain_logits(each, [7] * 4), theirs, rtol=0, atol=1e-5)
        without.append_memory(length - 1, ROWS[length - 1 : length])
        for each in (mixed, without):
            each.extend([1])
        np.testing.assert_allclose(mixed.begin(), without.begin(), rtol=0, atol=1e-5)  # nothing is lost


def test_a_block_without_any_row_and_with_biases() -> None:
    drafter, own = state(qkv_bias=True), tensors(qkv_bias=True)
    for length in (1, 2):
        drafter.extend([2 + length])
        drafter.append_memory(0, ROWS[: length - 1])
        theirs = expected(own, ROWS[: length - 1], list(range(length - 1)), 2 + length, length - 1)[1:]
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


TARGET = {
    "model_type": "qwen3", "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 36,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    "max_position_embeddings": 256, "hidden_act": "silu",
}  # fmt: skip
SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16,
    "num_hidden_layers": 5, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "vocab_size": 97, "hidden_act": "silu",
    "layer_types": ["full_attention"] * 5,
}  # fmt: skip
ZLAB = {
    **SIZES, "architectures": ["DFlashDraftModel"], "block_size": 16, "num_target_layers": 36,
    "dflash_config": {"mask_token_id": 96, "target_layer_ids": [1, 9, 17, 25, 33]},
}  # fmt: skip
SPECULATORS = {
    "architectures": ["DFlashSpeculator"], "transformer_layer_config": SIZES, "block_size": 8, "mask_token_id": 95,
    "aux_hidden_state_layer_ids": [2, 10, 18, 26, 34], "speculators_model_type": "dflash",
}  # fmt: skip
DEEPSPEC = {
    **SIZES, "architectures": ["Qwen3DSparkModel"], "block_size": 7, "mask_token_id": 96,
    "target_layer_ids": [1, 9, 17, 25, 33], "markov_head_type": "vanilla",
}  # fmt: skip
FIVE = (2, 10, 18, 26, 34)
MARKOV = {"markov_head.markov_w1.weight": (97, 8), "markov_head.markov_w2.weight": (97, 8)}
CONFIDENCE = {"confidence_head.proj.weight": (1, 72), "confidence_head.proj.bias": (1,)}
COPIES = {"embed_tokens.weight": (97, 64), "lm_head.weight": (97, 64)}


def shapes(**changes: tuple[int, ...] | None) -> Shapes:
    """Of five layers; changes by name, None leaves a tensor out."""
    found: Shapes = {"fc.weight": (64, 320), "hidden_norm.weight": (64,), "norm.weight": (64,)}
    for layer in range(5):
        for name, shape in {
            "self_attn.q_proj": (64, 64), "self_attn.k_proj": (16, 64), "self_attn.v_proj": (16, 64),
            "self_attn.o_proj": (64, 64), "self_attn.q_norm": (16,), "self_attn.k_norm": (16,),
            "mlp.gate_proj": (96, 64), "mlp.up_proj": (96, 64), "mlp.down_proj": (64, 96),
            "input_layernorm": (64,), "post_attention_layernorm": (64,),
        }.items():  # fmt: skip
            found[f"layers.{layer}.{name}.weight"] = shape
    found |= {name: shape for name, shape in changes.items() if shape is not None}
    return {name: shape for name, shape in found.items() if changes.get(name, shape) is not None}


def became(tensors: Shapes, published: dict[str, Any]) -> DrafterConfig:
    config, names = convert(Published(tensors, published, TARGET, "tiny", "published"))
    assert {names[name]: tensors[name] for name in names} == config.shapes()
    return config


def dflash(**values: Any) -> dict[str, Any]:
    return {"dflash_config": {"mask_token_id": 96, **values}}


@pytest.mark.parametrize(
    ("tensors", "published", "block"),
    [
        ({}, ZLAB, (16, 96, False, 0, 0)),
        ({}, {**ZLAB, "block_size": None, **dflash(block_size=10)}, (10, 96, False, 0, 0)),
        (COPIES, SPECULATORS, (8, 95, False, 0, 0)),
        ({**COPIES, "lm_head.weight": (40, 64), "d2t": (40,), "t2d": (97,)}, SPECULATORS, (8, 95, False, 0, 40)),
        ({}, {**SPECULATORS, "sample_from_anchor": True}, (8, 95, True, 0, 0)),
        (COPIES, DEEPSPEC, (7, 96, True, 0, 0)),
        ({**COPIES, **MARKOV, **CONFIDENCE}, DEEPSPEC, (7, 96, True, 8, 0)),
        (MARKOV, {**ZLAB, "sample_from_anchor": False}, (16, 96, False, 8, 0)),
    ],
)
def test_layouts(tensors: Any, published: dict[str, Any], block: tuple[int, int, bool, int, int]) -> None:
    config = became(shapes(**tensors), published)
    said = config.block_size, config.mask_token, config.anchor_guesses, config.markov_rank, config.draft_vocab
    assert (said, config.state_entries, config.qkv_bias) == (block, FIVE, False)
    assert (config.kind, config.own_layers, config.sa_kv_heads, config.sa_mlp) == ("dflash", 5, 1, 96)
    assert (config.heads, config.head_dim, config.rms_norm_eps, config.memory_width) == (4, 16, 1e-5, 64)
    assert config.rope_parameters["rope_theta"] == 5e5
    of_server = [name for name in config.shapes() if name.startswith(config.traits.server_tensors)]
    assert of_server == ["fc.weight", "hidden_norm.weight"]


def test_what_a_configuration_leaves_out_is_the_tensors_own_and_biases_are_taken() -> None:
    """speculators' names only what differs from a Qwen3 of transformers; drafters for gpt-oss have biases."""
    widths = {"q": 64, "k": 16, "v": 16, "o": 64}
    biases = {f"layers.{n}.self_attn.{part}_proj.bias": (width,) for n in range(5) for part, width in widths.items()}
    sparse = {**SPECULATORS, "transformer_layer_config": {"vocab_size": 97, "num_hidden_layers": 5}}
    config = became(shapes(**biases), sparse)
    assert (config.heads, config.head_dim, config.rms_norm_eps, config.qkv_bias) == (4, 16, 1e-6, True)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 10_000.0}


def test_layers_that_are_not_named() -> None:
    """As z-lab's code chooses them; an option of ours overrides every form."""
    assert became(shapes(), {**ZLAB, **dflash()}).state_entries == FIVE
    assert became(shapes(), {**SPECULATORS, "moa_state_entries": [0, 1, 2, 3, 36]}).state_entries == (0, 1, 2, 3, 36)
    others = tuple(f"layers.{n}." for n in (1, 2, 3, 4))
    one = {name: shape for name, shape in shapes(**{"fc.weight": (64, 64)}).items() if not name.startswith(others)}
    assert became(one, {**ZLAB, **dflash()}).state_entries == (19,)


@pytest.mark.parametrize(
    ("tensors", "changes", "message"),
    [
        ({}, {"block_size": 65}, "The block_size of published is 65, expected a whole number from 1 to 64"),
        ({}, {"block_size": 1}, "one row of a block or more must guess"),
        ({}, dflash(mask_token_id=97), "The mask_token_id of published is 97, expected .* from 0 to 96"),
        ({}, dflash(target_layer_ids=[1, 9, 17, 25, 36]), "reads hidden state 37 of the target, tiny has 36 layers"),
        ({}, dflash(target_layer_ids=[1, 9, 17]), "names 3 of the target's hidden states, its projection takes 5"),
        ({}, {"num_target_layers": 28}, "for a target whose num_hidden_layers is 28, tiny has 36"),
        ({"fc.weight": (64, 300)}, {}, "takes 300 numbers a token, tiny has states of 64"),
        ({}, {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "rotary parameters differ by kind of layer"),
        ({}, {"layer_types": ["sliding_attention"] * 5}, "layers that see a window"),
        ({}, dflash(causal=True), "blocks whose rows do not see those after them"),
        (MARKOV, {"markov_head_type": "rnn"}, "a head of the type rnn"),
        ({}, {"embed_requires_grad": True}, "embeddings of its own"),
        ({"norm.weight": None}, {}, "lacks the tensor norm.weight"),
        ({"markov_head.markov_w1.weight": (97, 8)}, {}, "lacks the tensor markov_w2.weight"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tensors: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        convert(Published(shapes(**tensors), {**ZLAB, **changes}, TARGET, "tiny", "published"))
