"""DFlash as z-lab has it and DSpark as DeepSpec has it (../shared/parity/dflash, see its README): every recorded array."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from moa_kernels.arithmetic import norm
from moa_shared.drafter.checkpoint.config import DrafterConfig
from moa_shared.drafter.checkpoint.weights import ArrayWeights
from moa_shared.drafter.dflash.decoder import BlockDecoder
from moa_shared.drafter.dflash.state import BlockState
from moa_shared.drafting import draft_chain
from moa_shared.sampling.settings import Sampling
from safetensors.torch import load_file

GREEDY = Sampling()
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Vectors:
    """The drafter, its target's tables, and what was recorded."""

    own: dict[str, np.ndarray]
    heads: dict[str, np.ndarray]
    tables: dict[str, np.ndarray]
    infer: dict[str, np.ndarray]
    dspark: dict[str, np.ndarray]
    rounds: list[dict[str, int]]

    def state(self, **changes: object) -> BlockState:
        own = self.own | (
            {name.removeprefix("markov_head."): tensor for name, tensor in self.heads.items()} if changes else {}
        )
        decoder = BlockDecoder(config(**changes), ArrayWeights(own), ArrayWeights(self.tables), "float32")
        return BlockState(decoder)


def config(**changes: object) -> DrafterConfig:
    sizes = {
        "vocab_size": 256, "hidden_size": 64, "target_layers": 6, "target_heads": 4, "target_kv_heads": 2,
        "target_head_dim": 16, "sa_kv_heads": 2, "sa_mlp": 96, "ca_kv_heads": 2, "ca_mlp": 1, "lsa_heads": 2,
        "lsa_kv_heads": 2, "lsa_mlp": 1, "rms_norm_eps": 1e-6, "kind": "dflash", "own_layers": 2,
        "state_entries": (2, 4), "head_norms": True, "block_size": 8, "mask_token": 255,
    }  # fmt: skip
    return DrafterConfig(**{**sizes, **changes})


def _arrays(path: Path) -> dict[str, np.ndarray]:
    return {name: tensor.float().numpy() for name, tensor in load_file(path / "model.safetensors").items()}


@pytest.fixture(scope="module")
def vectors(shared_dir: Path) -> Vectors:
    folder = shared_dir / "parity" / "dflash"
    tables = _arrays(folder / "a_target")
    tables["lm_head.weight"] = tables["model.embed_tokens.weight"]
    return Vectors(
        _arrays(folder / "a_dflash"),
        _arrays(folder / "a_dspark_heads"),
        tables,
        dict(np.load(folder / "a_infer.npz")),
        dict(np.load(folder / "a_dspark.npz")),
        json.loads((folder / "manifest.json").read_text())["inference"]["rounds"],
    )


def same(ours: np.ndarray, theirs: np.ndarray) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE)


def test_all_rounds(vectors: Vectors) -> None:
    """The drafts of each round, and what was computed on the way, with the cache that the rounds before have left."""
    infer, state = vectors.infer, vectors.state()
    decoder, cache, text = state.decoder, state._context.cache, infer["vanilla_ids"].tolist()
    held = 0
    for number, record in enumerate(vectors.rounds):
        start, added = record["block_start"], record["context_rows_added"]
        features = infer[f"r{number}.features" if number else "target.selected_hidden"]
        rows = features.reshape(added, -1) @ vectors.own["fc.weight"].T
        same(rows, infer[f"r{number}.fc_out"])
        rows = norm(rows, vectors.own["hidden_norm.weight"], 1e-6)
        same(rows, infer[f"r{number}.context_rows"])
        state.append_memory(held, rows)
        held += added
        state.extend(text[len(state.tokens) : start + 1])
        block = infer[f"r{number}.block_input_ids"].tolist()
        assert block == [state.tokens[-1], *[255] * 7]
        assert infer[f"r{number}.positions"].tolist() == [*range(start - added, start + 8)]
        out, layers = decoder.stack.run(decoder.inputs(block[0]), [decoder.segment(cache, start)], (1, 2))
        for layer in range(2):
            same(layers[layer + 1], infer[f"r{number}.layer{layer}_out"])
            if number < 2:
                cache.length += 8
                read = cache.read(0, cache.length)[:, layer].reshape(-1, 2, 2, 16)
                cache.length -= 8
                same(read[:, :, 0].swapaxes(0, 1), infer[f"r{number}.layer{layer}_keys"])
                same(read[:, :, 1].swapaxes(0, 1), infer[f"r{number}.layer{layer}_values"])
        same(out, layers[2])
        same(decoder.block(cache, block[0], start), infer[f"r{number}.normed_out"][1:])
        assert cache.length == record["drafter_kv_after_crop"] == state.memory_rows
        drafts = draft_chain(state, 7, GREEDY).tokens
        assert list(drafts) == infer[f"r{number}.draft_ids"].tolist()
        same(np.concatenate([*state._blocks.values()]), infer[f"r{number}.logits"])


def test_rows_that_come_out_of_order_or_twice_change_nothing(vectors: Vectors) -> None:
    infer = vectors.infer
    whole, late = vectors.state(), vectors.state()
    prompt, rows = infer["vanilla_ids"].tolist()[:25], infer["r0.context_rows"]
    for state in (whole, late):
        state.extend(prompt)
    whole.append_memory(0, rows)
    late.append_memory(16, rows[16:])
    unaware = late.begin()
    late.append_memory(0, rows[:20])
    assert np.abs(unaware - infer["r0.logits"][:1]).max() > 0.01
    same(late.begin(), infer["r0.logits"][:1])
    late.append_memory(24, np.ones((3, 64), np.float32))
    late.crop(24)
    late.extend(prompt[24:])
    same(late.begin(), whole.begin())


def test_a_sparks_chain(vectors: Vectors) -> None:
    """Blocks of 7 whose first row guesses too, with what each drafted token adds to the next one's logits."""
    dspark, state = vectors.dspark, vectors.state(block_size=7, anchor_guesses=True, markov_rank=8)
    text, held = vectors.infer["vanilla_ids"].tolist(), 0
    for number, start in enumerate((24, 27)):
        rows = np.concatenate([vectors.infer[f"r{each}.context_rows"] for each in range(2)])[held:start]
        state.append_memory(held, rows)
        held = start
        state.extend(text[len(state.tokens) : start + 1])
        assert dspark[f"dspark.r{number}.block_input_ids"].tolist() == [text[start], *[255] * 6]
        same(state.decoder.block(state._context.cache, text[start], start), dspark[f"dspark.r{number}.hidden_normed"])
        corrected = [state.begin()]
        same(state._blocks[-1], dspark[f"dspark.r{number}.base_logits"])
        for step in range(6):
            corrected.append(state.expand([int(corrected[-1].argmax())], [step - 1]))
        same(np.concatenate(corrected), dspark[f"dspark.r{number}.corrected_logits"])
        assert list(draft_chain(state, 20, GREEDY).tokens) == dspark[f"dspark.r{number}.draft_ids"].tolist()
