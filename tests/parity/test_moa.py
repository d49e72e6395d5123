"""Memory, training form and whole decoding runs: as in the authors' code, to the same number of target calls."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from moa_server.verifier import Target
from moa_shared.drafter.kinds.moa import KernelEncoder
from moa_shared.drafter.kinds.moa_decoder import DraftState
from moa_shared.drafter.kinds.weights import ArrayWeights
from moa_shared.drafting.drafts import TreeShape, draft_chain, draft_tree, find_candidates
from moa_shared.protocol.messages import AnswerSettings, Finish, FinishRule
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import DraftTree, longest_path
from moa_training.objective.blocks import Blocks
from moa_training.objective.moa import TrainingDrafter
from moa_training.objective.objective import Prediction, Turn, feature_losses, run_layer
from moa_training.settings import LossSettings
from moa_training.teacher.teacher import Activations

from tests.parity.conftest import Reference
from tests.support.decoders import encoder_of
from tests.support.torch_models import build_blocks

TOLERANCE = 1e-4


def assert_close(ours: torch.Tensor, theirs: object) -> None:
    torch.testing.assert_close(ours, torch.as_tensor(theirs), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("reused_layers", [0, 1, 3])
def test_memory_rows_with_torch_and_without(reference: Reference, reused_layers: int) -> None:
    checkpoint, kv = reference.checkpoint(reused_layers), reference.train["kv_stack"]
    theirs = reference.train[f"n{reused_layers}.memory"]
    memory = encoder_of(checkpoint, torch.float32).memory(torch.tensor(kv).flatten(0, 1))
    assert_close(memory.view(theirs.shape), theirs)
    encoder = KernelEncoder(checkpoint.config, ArrayWeights(checkpoint.tensors), "float32")
    own = encoder.memory(kv.reshape(-1, *kv.shape[-2:]))
    np.testing.assert_allclose(own.reshape(theirs.shape), theirs, rtol=0, atol=TOLERANCE)


def test_prefill_gives_the_authors_memory_and_cross_attention_cache(reference: Reference) -> None:
    """From the target's own forward to what the cross-attention attends to: rows, as on the wire, then rotated."""
    prompt = reference.infer["prompt_ids"].tolist()
    target: Target = reference.target()
    cache = target.new_cache()
    target.prefill(cache, prompt)
    encoder = encoder_of(reference.checkpoint(0), torch.float32)
    read = torch.from_numpy(cache.lsa_input(0, len(prompt)))
    assert_close(encoder.memory(read), reference.infer["prefill.memory"])
    decoder = reference.decoder(0)
    assert decoder.cross_attention is not None
    held = decoder.new_cache(decoder.cross_attention)
    decoder.remember(held, encoder.encode(read).numpy(), np.arange(len(prompt), dtype=np.int32))
    rows = held.read(0, len(prompt)).reshape(len(prompt), held.heads[0].number, 2, -1)
    assert_close(torch.from_numpy(rows[:, :, 0].swapaxes(0, 1)), reference.infer["prefill.ca_keys"])
    assert_close(torch.from_numpy(rows[:, :, 1].swapaxes(0, 1)), reference.infer["prefill.ca_values"])


AUTHORS = LossSettings(cross_entropy=0.1, feature=1.0, count_starts=True)
CASES = [f"n0_{name}" for name in ("stair_all", "stair_none", "mixed", "plain")] + [
    f"n{reused}_{name}" for reused in (1, 3) for name in ("stair_none", "mixed")
]


class AuthorsDrafter(TrainingDrafter):
    """The true state replaces the prediction at block starts, and the reused layers run causally over both."""

    def run_reused(
        self, layers: Sequence[Any], x: torch.Tensor, target: Activations, blocks: Blocks, turn: Turn
    ) -> torch.Tensor:
        assert target.state is not None
        x = torch.where(blocks.is_start[..., None], target.state, x)
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        for layer in layers:
            x = run_layer(layer, x, causal[None], turn)
        return x


class Case:
    """One recorded forward of the authors' training code, run with ours."""

    def __init__(self, reference: Reference, name: str) -> None:
        self.record = reference.manifest["training"]["moa_cases"][name]
        self.reused = self.record["target_layer_inference"]
        self.arrays = {key: torch.tensor(value) for key, value in reference.train.items()}
        self.name = name
        self.head = reference.weights["lm_head.weight"]
        self.answer = self.arrays["response_mask"].bool()
        self.real = self.arrays["attention_mask"].bool()
        model = reference.model().requires_grad_(False)
        checkpoint = reference.checkpoint(self.reused)
        layers = list(model.model.layers)
        self.drafter = AuthorsDrafter(checkpoint.config, layers[len(layers) - self.reused :], model.model.norm)
        self.drafter.load_state_dict(checkpoint.torch_tensors())
        every, staircase = self.record["every"], self.record["row_uses_staircase"]
        self.blocks = build_blocks(
            self.answer,
            torch.tensor(every) if every else None,
            torch.tensor(staircase) if staircase else torch.zeros(3, dtype=torch.bool),
        )
        self.target = Activations(
            model.model.embed_tokens(self.arrays["input_ids"].long()),
            self.arrays["kv_stack"],
            self.arrays["target_last_hidden"],
            self.arrays[f"target_hidden_minus{self.reused + 1}"] if self.reused else None,
            self.arrays["position_ids"].long(),
        )

    def predict(self) -> Prediction:
        # Of padded rows the authors' masks differ from ours, and nothing of them counts.
        blocks = Blocks(
            self.blocks.start,
            torch.where(self.real[..., None], self.blocks.self_visible, self.theirs("sa_visible").bool()),
            torch.where(self.real[..., None], self.blocks.memory_visible, self.theirs("ca_visible").bool()),
        )
        prediction: Prediction = self.drafter(self.target, blocks)
        return prediction

    def theirs(self, name: str) -> torch.Tensor:
        return self.arrays[f"{self.name}.{name}"]

    def assert_close(self, ours: torch.Tensor, name: str) -> None:
        torch.testing.assert_close(ours[self.real], self.theirs(name)[self.real], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_masks(reference: Reference, name: str) -> None:
    case = Case(reference, name)
    assert torch.equal(case.blocks.self_visible[case.real], case.theirs("sa_visible").bool()[case.real])
    assert torch.equal(case.blocks.memory_visible[case.real], case.theirs("ca_visible").bool()[case.real])


@pytest.mark.parametrize("name", CASES)
def test_activations(reference: Reference, name: str) -> None:
    case = Case(reference, name)
    prediction = case.predict()
    if f"{name}.sa_out" in case.arrays:
        case.assert_close(prediction.self_out, "sa_out")
    crossed = prediction.feature if case.reused == 0 else prediction.state
    assert crossed is not None
    case.assert_close(crossed, "ca_out")
    if case.reused:
        assert case.target.state is not None
        injected = torch.where(case.blocks.is_start[..., None], case.target.state, crossed)
        case.assert_close(injected, "tli_in")
        case.assert_close(prediction.feature, "tli_out_norm")
    if f"{name}.logits_every4" in case.arrays:
        logits = (prediction.feature @ case.head.t())[:, ::4]
        real = case.real[:, ::4]
        torch.testing.assert_close(logits[real], case.theirs("logits_every4")[real], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_losses_and_gradients(reference: Reference, name: str) -> None:
    case = Case(reference, name)
    losses = feature_losses(case.predict(), case.target, case.head, case.answer.float(), AUTHORS, case.blocks.is_start)
    record = case.record
    assert losses.total.item() == pytest.approx(record["total_loss"], abs=1e-5)
    assert losses.cross_entropy.item() == pytest.approx(record["losses"]["forward_KL"], abs=1e-5)
    assert losses.feature is not None
    assert losses.feature.item() == pytest.approx(record["losses"]["feature_loss"], abs=1e-5)
    if case.reused:
        assert losses.state is not None
        assert losses.state.item() == pytest.approx(record["losses"]["prev_feature_loss"], abs=1e-5)
    losses.total.backward()
    norms = {key: float(value.grad.norm()) for key, value in case.drafter.named_parameters() if value.grad is not None}
    assert norms == pytest.approx(record["grad_l2_norms"], rel=1e-4)


GREEDY = Sampling()
Rows = npt.NDArray[np.float32]
PAPER_TREE = TreeShape(depth=6, breadth=8, nodes=62)


class Recording(DraftState):
    """A state that keeps the logits of each draft step."""

    steps: list[Rows]

    def begin(self) -> Rows:
        self.steps = [super().begin()]
        return self.steps[0]

    def expand(self, *args: Any) -> Rows:
        self.steps.append(super().expand(*args))
        return self.steps[-1]


class Decoding:
    """A conversation with the drafter beside the target: prefill, then `cycle` after `cycle`."""

    def __init__(self, reference: Reference, reused_layers: int) -> None:
        self.target = reference.target()
        self.cache = self.target.new_cache()
        self.encode = reference.checkpoint(reused_layers).rows("float32")
        self.state = Recording(reference.decoder(reused_layers))
        self.state_layer = self.target.layer_count - reused_layers if reused_layers else None
        self.tokens: list[int] = reference.infer["prompt_ids"].tolist()
        self.chosen: list[int] = []
        output = self.target.forward(self.cache, self.tokens, want_state_layer=self.state_layer)
        self.calls = 1
        self._remember(0, None if self.state_layer is None else output.states[self.state_layer])
        self._commit([int(output.logits[-1].argmax())], len(self.tokens))

    def _commit(self, new: list[int], old: int) -> None:
        self.state.extend(self.tokens[:old] if not self.state.tokens else [])
        self.state.extend(new)
        self.tokens += new

    def _remember(self, start: int, state: Rows | None) -> None:
        self.state.append_memory(start, self.encode(self.cache.lsa_input(start, self.cache.length)))
        if state is not None:
            self.state.append_reused_state(start, state)

    def cycle(self, draft: Callable[[DraftState], DraftTree]) -> tuple[DraftTree, int]:
        """One round; the tree and how many of its nodes were accepted."""
        root = len(self.tokens) - 1
        tree = draft(self.state)
        parents = [-1, *(parent + 1 for parent in tree.parents)]
        output = self.target.forward(
            self.cache, [self.tokens[-1], *tree.tokens], parents, want_state_layer=self.state_layer
        )
        self.calls += 1
        self.chosen = output.logits.argmax(-1).tolist()
        path, bonus = longest_path(tree, self.chosen[0], self.chosen[1:])
        rows = [0, *(node + 1 for node in path)]
        self.cache.keep(rows)
        self._remember(root, output.states[self.state_layer][rows] if self.state_layer is not None else None)
        self._commit([*(tree.tokens[node] for node in path), bonus], len(self.tokens))
        return tree, len(path)


def run(reference: Reference, mode: str, draft: Callable[[DraftState], DraftTree]) -> None:
    """All cycles that the authors recorded, each compared."""
    record = reference.manifest["inference"][f"moa.{mode}"]
    decoding, compared = Decoding(reference, 0), 0
    for cycle, emitted in enumerate(record["emitted_per_cycle"]):
        newest = decoding.tokens[-1]
        assert decoding.state._memory is not None
        assert len(decoding.state._memory) == record["cycles"][cycle]["memory_len"]
        tree, accepted = decoding.cycle(draft)
        assert [newest, *tree.tokens] == reference.infer[f"moa.{mode}.cycle{cycle}.verify_ids"].tolist()
        assert decoding.chosen == reference.infer[f"moa.{mode}.cycle{cycle}.target_argmax"].tolist()
        for step, ours in enumerate(decoding.state.steps):
            theirs = reference.infer.get(f"moa.{mode}.cycle{cycle}.draft_step{step}.logits")
            if theirs is not None:
                np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
                compared += 1
        if cycle + 1 < len(record["emitted_per_cycle"]):  # the last one is clipped by the length limit
            assert accepted + 1 == emitted
    expected = reference.infer[f"moa.{mode}.ids"].tolist()
    assert decoding.tokens[: len(expected)] == expected == reference.infer["vanilla_ids"].tolist()
    assert decoding.calls == record["target_calls"]
    assert compared >= 6


def test_chains(reference: Reference) -> None:
    run(reference, "chain", lambda state: draft_chain(state, 6, GREEDY))


def test_trees(reference: Reference) -> None:
    cycles = iter(range(100))

    def draft(state: DraftState) -> DraftTree:
        cycle = next(cycles)
        pool = find_candidates(state, PAPER_TREE, GREEDY)
        tree, chosen = pool.tree(PAPER_TREE.nodes)
        name = f"moa.tree.cycle{cycle}."
        theirs = reference.infer[f"{name}parents"].tolist()
        assert [-1, *tree.parents] == [parent - 1 if parent > 0 else -1 for parent in theirs]
        assert chosen == reference.infer[f"{name}pool_index"].tolist()
        np.testing.assert_allclose(
            [pool.scores[index] for index in chosen], reference.infer[f"{name}scores"], rtol=0, atol=1e-4
        )
        return tree

    run(reference, "tree", draft)


@pytest.mark.parametrize("reused_layers", [0, 1, 3])
def test_chains_with_reused_layers(reference: Reference, reused_layers: int) -> None:
    name = f"chain_via_training_forward.n{reused_layers}"
    record = reference.manifest["inference"][name]
    theirs = reference.infer[f"{name}.draft_logits"]
    decoding = Decoding(reference, reused_layers)
    for number, cycle in enumerate(record["cycles"]):
        assert len(decoding.tokens) - 1 == cycle["root_position"]
        if number < 2:
            logits = [decoding.state.begin()]
            for step, token in enumerate(cycle["chain_draft_ids"][:-1]):
                logits.append(decoding.state.expand([token], [step - 1]))
            np.testing.assert_allclose(np.concatenate(logits), theirs[6 * number : 6 * number + 6], rtol=0, atol=1e-4)
        tree, accepted = decoding.cycle(lambda state: draft_chain(state, 6, GREEDY))
        assert list(tree.tokens) == cycle["chain_draft_ids"]
        assert accepted == cycle["accepted"]
    assert decoding.calls == record["target_calls"]
    expected = reference.infer["vanilla_ids"].tolist()
    assert decoding.tokens[: len(expected)] == expected


def test_an_answer_ends_within_an_accepted_run(reference: Reference) -> None:
    """The authors' end-of-text case, by the rule for where an answer ends."""
    end = reference.manifest["inference"]["eos_case"]["eos_token_id"]
    decoding, start = Decoding(reference, 0), len(reference.infer["prompt_ids"])
    rule = FinishRule(AnswerSettings(), start, 512, frozenset({end}), decode=lambda _: "")
    finish, new, base = Finish.UNFINISHED, list[int](), start
    while finish is Finish.UNFINISHED:
        base = len(decoding.tokens)
        decoding.cycle(lambda state: draft_tree(state, PAPER_TREE, GREEDY))
        new, finish = rule.cut(decoding.tokens[start:base], decoding.tokens[base:])
    assert finish is Finish.END_OF_TEXT
    assert len(new) < len(decoding.tokens) - base
    tokens = [*decoding.tokens[:base], *new]
    assert tokens == reference.infer["eos_case.ids"].tolist()[: len(tokens)]
    assert tokens[-1] == end
