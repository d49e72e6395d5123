"""Gemma 4's assistants against transformers' own, on tiny models; what their files become, and which are refused."""

import dataclasses
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch
from moa_server.drafting.draft_decision import DraftOrder, OwnDrafter
from moa_server.drafting.forward_cost import TORCH, CostLine
from moa_server.engine.stepper import ServerDrafts, Stepper, Work
from moa_server.loading import memory_source
from moa_server.session.memory_feed import Chunk
from moa_server.session.verification import NO_DRAFT, StepPlan, Verification
from moa_server.verifier.kernel_target import KernelTarget
from moa_shared.drafter.checkpoint import Checkpoint, load_checkpoint
from moa_shared.drafter.kinds.assistant import ORDERING, AssistantState
from moa_shared.drafter.kinds.weights import FLOAT32, INT8
from moa_shared.drafter.published import find_drafter
from moa_shared.errors import CheckpointError, ProtocolError
from moa_shared.models import ModelFiles
from moa_shared.models.network.network import Network
from moa_shared.protocol.memory_codec import Codec, decode, row_bytes
from moa_shared.protocol.messages import AnswerSettings, FinishRule, Plane
from moa_shared.tree import ROOT

from tests.support.families import WINDOW, tiny_dense, weights_of
from tests.support.family_gguf import write_assistant_gguf
from tests.support.published_drafters import SHARING, tiny_assistant
from tests.support.tiny_models import tiny_model
from tests.support.torch_models import rewrite

pytestmark = pytest.mark.torch

Rows = npt.NDArray[np.float32]
TEXT = [5, 17, 42, 8, 17, 42, 90, 3, 11, 60, 33, 71, 2, 9]  # longer than twice the window
EVEN = {"vocab_size": 96, "vocab_size_per_layer_input": 96}  # which clusters share
SMALL = {"hidden_size": 40, "head_dim": 8, "global_head_dim": 24, "num_key_value_heads": 1, "intermediate_size": 36}
ROWS: dict[str, tuple[str, dict[str, Any], int, dict[str, Any]]] = {
    "31B": ("gemma 4", {}, 0, {}),
    "12B": ("gemma 4, 12B", {}, 0, {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}),
    "E4B": (SHARING, EVEN, 8, {}),
    "one head": (SHARING, {"num_key_value_heads": 1}, 0, {"sliding_window": 3}),
    "odd sizes": (SHARING, SMALL | {"vocab_size": 99, "vocab_size_per_layer_input": 99}, 11, {"intermediate_size": 20}),
}


class Pair:
    """A target and its assistant, in transformers and in a folder."""

    def __init__(self, row: str, folder: Path) -> None:
        family, changes, clusters, own = ROWS[row]
        self.target = tiny_dense(family, **changes)
        self.assistant = tiny_assistant(self.target, clusters, **own)
        self.folder = folder / "assistant"
        self.assistant.save_pretrained(self.folder)
        self.files = ModelFiles("gemma", folder, self.target.config.to_dict(), (), "", "")

    def converted(self, path: Path | None = None) -> Checkpoint:
        return load_checkpoint(find_drafter(str(path or self.folder), self.files))

    @torch.no_grad()
    def read(self, text: list[int]) -> tuple[dict[str, tuple[torch.Tensor, torch.Tensor]], torch.Tensor]:
        """The target's keys and values by kind of layer, and its last hidden states."""
        options = {"output_hidden_states": True, "return_shared_kv_states": True, "use_cache": False}
        out = self.target(torch.tensor([text]), **options)
        return out.shared_kv_states, out.hidden_states[-1]

    @torch.no_grad()
    def chain(self, text: list[int], levels: int, stop: int = 0) -> tuple[list[int], list[Rows]]:
        """The tokens of a greedy draft, and the logits of each, as transformers' candidate generator has them.

        `stop`: the draft is below so many tokens; 0: below all.
        """
        stop = stop or len(text)
        whole, states = self.read(text)
        keys = {kind: (key[:, :, : stop - 1], value[:, :, : stop - 1]) for kind, (key, value) in whole.items()}
        token, state, tokens, logits = text[stop - 1], states[:, stop - 2 : stop - 1], list[int](), list[Rows]()
        for _ in range(levels):
            embedded = self.target.get_input_embeddings()(torch.tensor([[token]]))
            out = self.assistant(
                inputs_embeds=torch.cat([embedded, state], dim=-1),
                attention_mask=torch.ones(1, stop, dtype=torch.long),
                position_ids=torch.tensor([[stop - 1]]),
                shared_kv_states=keys,
                use_cache=False,
            )
            token, state = int(out.logits.argmax()), out.last_hidden_state
            tokens.append(token)
            logits.append(out.logits[0, 0].numpy())
        return tokens, logits

    def rows(self, text: list[int]) -> tuple[Rows, Rows]:
        """Memory rows and states of a text, by transformers' target."""
        keys, states = self.read(text)
        kinds = (keys["full_attention"], keys["sliding_attention"])
        parts = [torch.stack(each, dim=3)[0].transpose(0, 1).reshape(len(text), -1).numpy() for each in kinds]
        return np.concatenate(parts, axis=-1), states[0].numpy()

    def state(self, checkpoint: Checkpoint, weights: str = FLOAT32) -> AssistantState:
        made = checkpoint.states(weights_of(self.target), weights)()
        assert isinstance(made, AssistantState)
        return made


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))
    return Pair(getattr(request, "param", "E4B"), tmp_path)


def every(row: Rows, state: AssistantState) -> Rows:
    """Logits by the target's tokens."""
    if state.token_ids is None:
        return row
    found = np.empty_like(row)
    found[state.token_ids] = row
    return found


@pytest.mark.parametrize("pair", ROWS, indirect=True)
def test_it_drafts_what_transformers_drafts(pair: Pair) -> None:
    checkpoint = pair.converted()
    memory, states = pair.rows(TEXT[:-1])
    assert memory.shape[1] == checkpoint.config.memory_width
    tokens, expected = pair.chain(TEXT, 5)
    state = pair.state(checkpoint)
    state.append_memory(0, memory)
    state.append_reused_state(0, states)
    state.extend(TEXT)
    rows = [state.begin()]
    for level, token in enumerate(tokens[:-1]):  # beside it a node that is not of the chain
        rows.append(state.expand([token, 7], [2 * level - 2 if level else -1] * 2)[:1])
    for got, wanted, token in zip(rows, expected, tokens, strict=True):
        np.testing.assert_allclose(every(got[0], state), wanted, rtol=0, atol=1e-4)
        assert int(every(got[0], state).argmax()) == token


@pytest.mark.parametrize("pair", ["31B", "E4B", "one head"], indirect=True)
def test_in_8_bits_over_the_servers_own_rows_it_drafts_the_same(pair: Pair) -> None:
    checkpoint = pair.converted()
    network = Network(weights_of(pair.target), pair.files.config, plain=True)
    target, length = KernelTarget(network, 256), 40
    state, cache = pair.state(checkpoint, INT8), target.new_cache()
    text = np.random.default_rng(3).integers(0, 90, length).tolist()
    output = target.forward(cache, text, want_state_layer=target.layer_count)
    state.append_memory(0, cache.read_layers(checkpoint.config.memory_layers, 0, length))
    state.append_reused_state(0, target.normed(output.states[target.layer_count]))
    accepted = np.zeros(2)  # of a target that says what transformers' assistant does, with its chances
    for stop in range(20, length):
        state.extend(text[len(state.tokens) : stop])
        row = state.begin()
        for level, (token, logits) in enumerate(zip(*pair.chain(text, 3, stop), strict=True)):
            chances = np.exp(logits - np.logaddexp.reduce(logits))
            accepted += chances[[int(every(row[0], state).argmax()), token]]
            row = state.expand([token], [level - 1])
    assert accepted[0] >= 0.98 * accepted[1]


@pytest.mark.parametrize("pair", ["31B", "E4B"], indirect=True)
def test_a_server_drafts_with_its_targets_own_rows_and_sends_them_to_a_device(pair: Pair) -> None:
    checkpoint, weights = pair.converted(), weights_of(pair.target)
    target = KernelTarget(Network(weights, pair.files.config, plain=True), 256)
    bare = memory_source(checkpoint, target)
    assert bare is not None
    source = replace(
        bare, drafter=OwnDrafter(checkpoint.states(weights, FLOAT32), 1, reads_all_rows=True, reads_target_cache=True)
    )
    stepper, drafts, text = Stepper(target, [source]), ServerDrafts(), list(TEXT)
    held, device = stepper.new_tensors(), pair.state(checkpoint)
    held.keep_rows(source, stepper.kept_widths(source, {}, drafts=True))
    rule, cost = FinishRule(AnswerSettings(), len(text), 256, frozenset(), str), CostLine(1.0, 1.0, 0.01, TORCH)

    def step(cached: int, *, chooses: bool, order: DraftOrder | None = None) -> Work:
        stop = len(text) if chooses else len(text) - 1
        work = Work(held, StepPlan(0, cached, tuple(text[cached:stop]), NO_DRAFT, chooses, rule, ()), order)
        drafts.deepen([work], 0.0, cost)
        [work.outcome] = stepper.verify_all([work])
        return work

    step(0, chooses=False)
    known = 0
    for token in (20, 31, 44):  # which nothing repeats
        expected, cached = pair.chain(text, 1)[0], len(text) - 1
        work = step(cached, chooses=True, order=DraftOrder(known, text[known:], 0.0, 8))
        assert work.guess is not None
        assert isinstance(work.outcome, Verification)
        assert work.guess.tree.child_with(ROOT, expected[0]) is not None
        start = len(device.tokens[:-1])  # what a stream would ask for before this forward
        for plane, first in ((Plane.MEMORY, start), (Plane.REUSED_STATE, cached - 1)):
            width, count = held.planes[plane].width, cached - first
            chunk = Chunk(plane, first, count, Codec.BF16, count * row_bytes(Codec.BF16, width))
            rows = decode(stepper.code(held, chunk).payload, Codec.BF16, count, width)
            (device.append_memory if plane is Plane.MEMORY else device.append_reused_state)(first, rows)
        device.extend(text[len(device.tokens) :])
        assert int(every(device.begin()[0], device).argmax()) == expected[0]
        known = len(text)
        text.append(token)


def test_rows_may_come_in_any_order_and_lack_what_only_a_window_sees(pair: Pair) -> None:
    checkpoint = pair.converted()
    narrow, old = checkpoint.config.memory_widths[0], len(TEXT) - 2 - WINDOW
    memory, states = pair.rows(TEXT[:-1])
    whole, late = pair.state(checkpoint), pair.state(checkpoint)
    whole.append_memory(0, memory)
    whole.append_reused_state(0, states)
    late.append_reused_state(len(TEXT) - 2, states[-1:])
    late.append_memory(len(TEXT) - 4, memory[-3:])
    for state in (whole, late):
        state.extend(TEXT)
    assert np.abs(late.begin() - whole.begin()).max() > 1e-2
    late.append_memory(old, memory[old:-2])
    late.append_memory(4, memory[4:old, :narrow])
    late.append_memory(0, memory[:5, :narrow])
    np.testing.assert_allclose(late.begin(), whole.begin(), rtol=0, atol=1e-5)
    with pytest.raises(ProtocolError, match="numbers, got 33"):
        late.append_memory(0, memory[:, :33])
    with pytest.raises(ProtocolError, match="state rows of 64 numbers, got 32"):
        late.append_reused_state(0, states[:, :32])


def test_a_draft_begins_at_the_newest_token_whose_state_has_come(pair: Pair) -> None:
    checkpoint, state = pair.converted(), None
    memory, states = pair.rows(TEXT[:-1])
    tokens, expected = pair.chain(TEXT, 3)
    state = pair.state(checkpoint)
    state.append_memory(0, memory)
    state.append_reused_state(0, states)
    state.extend([*TEXT, *tokens[:2]])  # of which no state is known
    np.testing.assert_allclose(every(state.begin()[0], state), expected[2], rtol=0, atol=1e-4)
    state.extend([1] * 8)  # too many
    first = state.begin()
    state.append_reused_state(len(state.tokens) - 2, np.zeros((1, 64), np.float32))
    np.testing.assert_array_equal(state.begin(), first)


FAULTS: dict[str, dict[str, Any]] = {  # keys of config.json or of its text_config, and tensors
    "is for a target whose hidden_size is 128, gemma has 64": {"backbone_hidden_size": 128},
    "is for a target whose vocab_size is 104, gemma has 96": {"vocab_size": 104},
    "whose last layer of full_attention is 1 heads of 64 numbers, gemma has 2 heads of 64": {"num_key_value_heads": 1},
    "layer_types = ": {"layer_types": ["sliding_attention", "chunked_attention", "full_attention"]},
    "clusters must share the vocabulary evenly": {"num_centroids": 7},
    "chosen_clusters must be 1 to clusters": {"centroid_intermediate_top_k": 9},
    "cannot be used: it has no text_config": {"text_config": None},
    "lacks the tensor post_projection.weight": {"post_projection.weight": None},
    "lacks the tensor centroids.weight": {"masked_embedding.centroids.weight": None},
    "token_ordering leads to tokens outside the vocabulary of 96": {ORDERING: torch.arange(96) + 1},
    "token_ordering leads to tokens that are not each once": {ORDERING: torch.arange(96) // 2},
    "norm.weight holds values that are not numbers": {"model.norm.weight": torch.full((32,), torch.nan)},
}


@pytest.mark.parametrize("words", FAULTS)
def test_what_does_not_fit_is_refused(pair: Pair, words: str) -> None:
    path = pair.folder / "config.json"
    config = json.loads(path.read_text("utf-8"))
    for key, value in FAULTS[words].items():
        if "." in key:
            rewrite(pair.folder, **{key: value})
        else:
            (config["text_config"] if key in config["text_config"] else config)[key] = value
    path.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=words):
        pair.converted()


def test_another_family_has_no_assistants(pair: Pair) -> None:
    pair.files = replace(pair.files, config=tiny_model().config)
    with pytest.raises(CheckpointError, match="is for a Gemma 4, which gemma is not"):
        pair.converted()


@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.Q8_0])
def test_a_gguf_file_becomes_the_same_drafter(pair: Pair, kind: gguf.GGMLQuantizationType) -> None:
    path = pair.folder.parent / "mtp-tiny.gguf"
    write_assistant_gguf(pair.assistant, path, kind)
    ours, theirs = pair.converted(path), pair.converted()
    plain = {key: value for key, value in dataclasses.asdict(theirs.config).items() if key != "layer_config"}
    assert plain == {key: getattr(ours.config, key) for key in plain}
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name in ours.tensors:
        error = 0.0 if kind == gguf.GGMLQuantizationType.F32 else 0.01 * np.abs(theirs.tensors[name]).max()
        np.testing.assert_allclose(ours.tensors[name], theirs.tensors[name], rtol=0, atol=error)
    for each in (pair.state(ours), pair.state(theirs)):
        each.extend(TEXT)
        assert each.begin().shape == (1, 96)
