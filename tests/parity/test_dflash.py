"""DFlash as z-lab has it and DSpark as DeepSpec has it (../shared/parity/dflash, see its README): every recorded array,
from the published files.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from moa_shared.drafter.checkpoint import Checkpoint, load_checkpoint
from moa_shared.drafter.kinds.dflash import BlockState
from moa_shared.drafter.published import find_drafter
from moa_shared.drafting.drafts import draft_chain
from moa_shared.models import ModelFiles, WeightReader, resolve
from moa_shared.sampling.settings import Sampling
from safetensors.torch import load_file, save_file

from tests.support.tiny_models import save_tokenizer

GREEDY = Sampling()
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Vectors:
    """The drafters, their target, and what was recorded."""

    files: ModelFiles
    dflash: Checkpoint
    dspark: Checkpoint
    infer: dict[str, np.ndarray]
    spark: dict[str, np.ndarray]
    rounds: list[dict[str, int]]

    def state(self, checkpoint: Checkpoint) -> BlockState:
        state = checkpoint.states(WeightReader(self.files), "float32")()
        assert isinstance(state, BlockState)
        return state


@pytest.fixture(scope="module")
def vectors(shared_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Vectors:
    folder, made = shared_dir / "parity" / "dflash", tmp_path_factory.mktemp("dflash")
    target, spark = made / "target", made / "dspark"
    for source, copy in (("a_target", target), ("a_dspark_heads", spark)):
        shutil.copytree(folder / source, copy, copy_function=shutil.copyfile)
        copy.chmod(0o755)
    save_tokenizer(target)
    (spark / "model.safetensors").unlink()
    tensors = load_file(folder / "a_dflash" / "model.safetensors")
    tensors |= load_file(folder / "a_dspark_heads" / "model.safetensors")
    copies = load_file(folder / "a_target" / "model.safetensors")["model.embed_tokens.weight"]
    save_file(tensors | {"embed_tokens.weight": copies, "lm_head.weight": copies.clone()}, spark / "model.safetensors")
    files = resolve(str(target), made / "cache")
    dflash, dspark = (
        load_checkpoint(find_drafter(str(each), files, made / "cache")) for each in (folder / "a_dflash", spark)
    )
    return Vectors(
        files,
        dflash,
        dspark,
        dict(np.load(folder / "a_infer.npz")),
        dict(np.load(folder / "a_dspark.npz")),
        json.loads((folder / "manifest.json").read_text())["inference"]["rounds"],
    )


def same(ours: np.ndarray, theirs: np.ndarray) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE)


def test_all_rounds(vectors: Vectors) -> None:
    """The drafts of each round, and what was computed on the way, with the cache that the rounds before have left."""
    infer, state = vectors.infer, vectors.state(vectors.dflash)
    project = vectors.dflash.rows("float32")
    decoder, cache, text = state.decoder, state._context.cache, infer["vanilla_ids"].tolist()
    held = 0
    for number, record in enumerate(vectors.rounds):
        start, added = record["block_start"], record["context_rows_added"]
        features = infer[f"r{number}.features" if number else "target.selected_hidden"]
        rows = project(features.reshape(added, -1))
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
        assert cache.length == record["drafter_kv_after_crop"] == len(state._context)
        drafts = draft_chain(state, 7, GREEDY).tokens
        assert list(drafts) == infer[f"r{number}.draft_ids"].tolist()
        same(np.concatenate([*state._blocks.values()]), infer[f"r{number}.logits"])


def test_a_sparks_chain(vectors: Vectors) -> None:
    """Blocks of 7 whose first row guesses too, with what each drafted token adds to the next one's logits."""
    config = vectors.dspark.config
    assert (config.state_entries, config.block_size, config.anchor_guesses, config.markov_rank) == ((2, 4), 7, True, 8)
    spark, state = vectors.spark, vectors.state(vectors.dspark)
    text, held = vectors.infer["vanilla_ids"].tolist(), 0
    for number, start in enumerate((24, 27)):
        rows = np.concatenate([vectors.infer[f"r{each}.context_rows"] for each in range(2)])[held:start]
        state.append_memory(held, rows)
        held = start
        state.extend(text[len(state.tokens) : start + 1])
        assert spark[f"dspark.r{number}.block_input_ids"].tolist() == [text[start], *[255] * 6]
        same(state.decoder.block(state._context.cache, text[start], start), spark[f"dspark.r{number}.hidden_normed"])
        corrected = [state.begin()]
        same(state._blocks[-1], spark[f"dspark.r{number}.base_logits"])
        for step in range(6):
            corrected.append(state.expand([int(corrected[-1].argmax())], [step - 1]))
        same(np.concatenate(corrected), spark[f"dspark.r{number}.corrected_logits"])
        assert list(draft_chain(state, 20, GREEDY).tokens) == spark[f"dspark.r{number}.draft_ids"].tolist()
