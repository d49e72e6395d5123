"""EAGLE-3 and 3.1 as their authors compute them, from their files to chains, trees and what follows an acceptance."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from moa_server.loading import memory_source
from moa_server.verifier.target import Request, Target, TargetOutput
from moa_server.verifier.torch_target import TorchTarget
from moa_shared.drafter.checkpoint import Checkpoint, load_checkpoint
from moa_shared.drafter.kinds.eagle import BaselineState
from moa_shared.drafter.published import find_drafter
from moa_shared.drafting.drafts import TreeShape, draft_chain, find_candidates
from moa_shared.models import ModelFiles, WeightReader, resolve
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import longest_path
from transformers import LlamaForCausalLM

from tests.support.tiny_models import save_tokenizer

GREEDY = Sampling()
FOLDERS = {"chain": "a_eagle3", "tree": "a_eagle3", "e31.chain": "a_eagle31_speculators"}
ENTRIES = (2, 3, 4)


@pytest.fixture(scope="module")
def folder(shared_dir: Path) -> Path:
    return shared_dir / "parity" / "eagle3"


@pytest.fixture(scope="module")
def infer(folder: Path) -> dict[str, np.ndarray]:
    return dict(np.load(folder / "a_infer.npz"))


@pytest.fixture(scope="module")
def files(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    copy = tmp_path_factory.mktemp("eagle3") / "target"
    shutil.copytree(folder / "a_target", copy, copy_function=shutil.copyfile)
    copy.chmod(0o755)
    save_tokenizer(copy)
    return resolve(str(copy))


@pytest.fixture(scope="module")
def target(folder: Path) -> TorchTarget:
    return TorchTarget(LlamaForCausalLM.from_pretrained(folder / "a_target", dtype=torch.float32).eval())


def checkpoint_of(folder: Path, files: ModelFiles, name: str, cache: Path) -> Checkpoint:
    return load_checkpoint(find_drafter(str(folder / name), files, cache))


def state_of(checkpoint: Checkpoint, files: ModelFiles, weights: str = "float32") -> BaselineState:
    state = checkpoint.states(WeightReader(files), weights)()
    assert isinstance(state, BaselineState)
    return state


def forward(target: Target, cache: object, tokens: list[int], parents: list[int] | None = None) -> TargetOutput:
    request = Request(cache, tokens, parents, range(len(tokens)), ENTRIES)  # type: ignore[arg-type]
    return target.forward_all([request])[0]


def side_by_side(output: TargetOutput) -> np.ndarray:
    return np.concatenate([output.states[entry] for entry in ENTRIES], axis=-1)


class Recorder:
    """A state that keeps what each call gave."""

    def __init__(self, state: BaselineState) -> None:
        self.state = state
        self.logits: list[np.ndarray] = []
        self.expanded: list[list[int]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self.state, name)

    def begin(self) -> np.ndarray:
        self.logits = [self.state.begin()]
        self.expanded = []
        return self.logits[0]

    def expand(self, tokens: list[int], parents: list[int]) -> np.ndarray:
        self.expanded.append(list(tokens))
        self.logits.append(self.state.expand(tokens, parents))
        return self.logits[-1]


@pytest.mark.parametrize("mode", FOLDERS)
def test_all_rounds(
    mode: str, folder: Path, infer: dict[str, np.ndarray], files: ModelFiles, target: TorchTarget, tmp_path: Path
) -> None:
    checkpoint = checkpoint_of(folder, files, FOLDERS[mode], tmp_path)
    assert checkpoint.config.state_entries == ENTRIES
    project = checkpoint.rows("float32")
    source = memory_source(checkpoint, target)
    assert source is not None
    recorder = Recorder(state_of(checkpoint, files))
    cache = target.new_cache()
    tokens: list[int] = infer["prompt_ids"].tolist()
    output = forward(target, cache, tokens)
    features = side_by_side(output)
    np.testing.assert_allclose(features, infer["target.aux_hidden"].reshape(24, -1), rtol=0, atol=1e-4)
    tokens.append(int(output.logits[-1].argmax()))
    recorder.state.extend(tokens)
    start = 0
    for number in range(sum(f"{mode}.r{number}.verify_ids" in infer for number in range(9))):
        theirs = {name.split(".")[-1]: array for name, array in infer.items() if name.startswith(f"{mode}.r{number}.")}
        assert tokens[start + 1 :] == theirs["fed_token_ids"].tolist()
        rows = project(features)
        np.testing.assert_allclose(rows, theirs["fc_out"], rtol=0, atol=1e-4)
        np.testing.assert_allclose(source.encode(features), theirs["fc_out"], rtol=0, atol=1e-4)
        recorder.state.append_memory(start, rows)
        if mode == "tree":
            pool = find_candidates(recorder, TreeShape(4, 4, 16), GREEDY)  # type: ignore[arg-type]
            tree, chosen = pool.tree(16)
            assert chosen == theirs["pool_index"].tolist()
            np.testing.assert_allclose(pool.scores, theirs["pool_scores"], rtol=0, atol=1e-4)
            assert [-1, *(parent + 1 for parent in tree.parents)] == theirs["parents"].tolist()
            assert recorder.expanded == theirs["expanded_ids"].tolist()
            outputs = np.stack(recorder.state._node_outputs).reshape(3, 4, -1)
            np.testing.assert_allclose(outputs, theirs["expanded_hidden_out"], rtol=0, atol=1e-4)
        else:
            tree = draft_chain(recorder, 5, GREEDY)  # type: ignore[arg-type]
            np.testing.assert_allclose(np.concatenate(recorder.logits), theirs["logits"], rtol=0, atol=1e-4)
            hidden = theirs["hidden_normed" if checkpoint.config.normed_feedback else "hidden"]
            fed_back = np.stack([recorder.state._newest(), *recorder.state._node_outputs])
            np.testing.assert_allclose(fed_back, hidden, rtol=0, atol=1e-4)
        assert [tokens[-1], *tree.tokens] == theirs["verify_ids"].tolist()
        start = len(tokens) - 1
        output = forward(target, cache, [tokens[-1], *tree.tokens], [-1, *(parent + 1 for parent in tree.parents)])
        greedy = output.logits.argmax(-1).tolist()
        assert greedy == theirs["target_argmax"].tolist()
        path, bonus = longest_path(tree, greedy[0], greedy[1:])
        kept = [0, *(node + 1 for node in path)]
        cache.keep(kept)
        features = side_by_side(output)[kept]
        new = [*(tree.tokens[node] for node in path), bonus]
        recorder.state.extend(new)
        tokens += new
    assert tokens == infer["vanilla_ids"].tolist()[: len(tokens)]
