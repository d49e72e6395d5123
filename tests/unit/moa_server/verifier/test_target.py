from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from moa_server.verifier import KVCache, Request, Target
from moa_shared.errors import ContextLengthError, InternalError, MoaError, TokenRangeError, TreeError
from moa_shared.tree import path_to
from transformers import PreTrainedModel

from tests.support.tiny_models import FAMILIES, tiny_kernel_target, tiny_model
from tests.support.torch_models import torch_model
from tests.unit.moa_server.verifier.paged_targets import ATTENTIONS, paged_target

pytestmark = pytest.mark.torch

TargetFactory = Callable[..., Target]


@pytest.fixture(params=[*ATTENTIONS, "kernels"])
def make_target(request: pytest.FixtureRequest) -> TargetFactory:
    """A tiny target in float32: the kernels, or torch with each library's attention."""

    def make(family: str = "llama", context_length: int | None = None, **changes: Any) -> Target:
        if request.param == "kernels":
            return tiny_kernel_target(tiny_model(family, **changes), context_length, plain=True)
        return paged_target(torch_model(family, **changes), request.param, context_length)

    return make


PREFIX = [5, 17, 3, 88, 41, 41, 2]
TREE = [-1, 0, 0, 1, 1, 2, 3, 5, 5, 0]  # root; several children; three levels; a late child of the root
TREE_TOKENS = [11, 12, 13, 14, 15, 16, 17, 18, 19, 12]
CLOSE: dict[str, Any] = {"atol": 2e-5, "rtol": 1e-5}


def bare(model: PreTrainedModel, tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and last hidden state of transformers' own forward over the whole text."""
    with torch.no_grad():
        output = model(torch.tensor([tokens]), output_hidden_states=True, use_cache=False)
    return output.logits[0], output.hidden_states[-1][0]


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_chain_in_parts_and_its_states_equal_transformers_own_forward(
    make_target: TargetFactory, family: str
) -> None:
    model, target = torch_model(family), make_target(family)
    expected, hidden = bare(model, PREFIX + TREE_TOKENS)
    with torch.no_grad():
        states = model(torch.tensor([PREFIX + TREE_TOKENS]), output_hidden_states=True).hidden_states
    for layer, chunk in zip(range(target.layer_count), (3, 100, 1), strict=False):
        cache = target.new_cache()
        chunks = [PREFIX[start : start + chunk] for start in range(0, len(PREFIX), chunk)]
        parts = [target.forward(cache, tokens, want_state_layer=layer) for tokens in (*chunks, TREE_TOKENS)]
        np.testing.assert_allclose(np.concatenate([part.states[layer] for part in parts]), states[layer][0], **CLOSE)
        np.testing.assert_allclose(np.concatenate([part.logits for part in parts]), expected, **CLOSE)
        np.testing.assert_allclose(np.concatenate([part.hidden for part in parts]), hidden, **CLOSE)
        assert cache.length == len(PREFIX) + len(TREE_TOKENS)
    assert not target.forward(target.new_cache(), PREFIX).states


def test_logits_only_of_the_rows_asked_for(make_target: TargetFactory) -> None:
    target = make_target()
    whole = target.forward(target.new_cache(), PREFIX)
    some = target.forward(target.new_cache(), PREFIX, logits_for=[4, 1])
    np.testing.assert_allclose(some.logits, whole.logits[[4, 1]], **CLOSE)
    np.testing.assert_allclose(some.hidden, whole.hidden[[4, 1]], **CLOSE)
    assert target.forward(target.new_cache(), PREFIX, logits_for=[]).logits.shape == (0, target.vocab_size)


@pytest.mark.parametrize(
    ("tokens", "more", "error", "words"),
    [
        ([], {}, TokenRangeError, "A forward needs at least one token, got none"),
        ([1, 97, 2], {}, TokenRangeError, "97 is outside the vocabulary of 97"),
        ([1, -1, 2], {}, TokenRangeError, "-1 is outside the vocabulary of 97"),
        ([1, 2, 3], {"parents": [0, 0, 1]}, TreeError, "of a draft tree has parent"),
        ([1, 2, 3], {"parents": [-1, 2, 0]}, TreeError, "of a draft tree has parent"),
        ([1, 2, 3], {"parents": [-2, 0, 0]}, TreeError, "of a draft tree has parent"),
        ([1, 2, 3], {"parents": [-1, 0]}, TreeError, "3 tokens came with 2 parents"),
        ([1] * 122, {}, ContextLengthError, "129 tokens do not fit into the context of 128"),
        ([1], {"want_state_layer": 4}, InternalError, "was requested from a target with"),
        ([1], {"logits_for": [1]}, InternalError, "were requested from a forward of"),
    ],
)
def test_what_cannot_be_computed_is_refused_and_harms_nothing(
    make_target: TargetFactory, tokens: list[int], more: dict[str, Any], error: type[MoaError], words: str
) -> None:
    target = make_target()
    cache = target.new_cache()
    target.forward(cache, PREFIX)
    with pytest.raises(error, match=words):
        target.forward(cache, tokens, **more)
    assert_unharmed(target, [cache])


def test_the_context_is_counted_by_position_not_by_node(make_target: TargetFactory) -> None:
    target = make_target(context_length=len(PREFIX) + 2)
    cache = target.new_cache()
    target.forward(cache, PREFIX)
    target.forward(cache, [1, 2, 3, 4], [-1, 0, 0, -1])  # four nodes on two levels fit
    cache.keep([0])
    with pytest.raises(ContextLengthError, match="tokens do not fit into the context of"):
        target.forward(cache, [1, 2])
    assert cache.length == len(PREFIX) + 1
    assert make_target(context_length=10**6).context_length == 128
    with pytest.raises(ContextLengthError, match="tokens do not fit into the context of"):
        make_target().prefill(cache, [1] * 129)
    assert cache.length == len(PREFIX) + 1


def test_a_forward_for_several_conversations_gives_each_its_own(make_target: TargetFactory, family: str) -> None:
    model, target = torch_model(family), make_target(family)
    caches = [target.new_cache() for _ in range(3)]
    for cache, text in zip(caches[1:], (PREFIX[:4], [41, 2]), strict=True):
        target.forward(cache, text)
    first, tree, last = target.forward_all(
        [
            Request(caches[0], PREFIX, None, [6], state_layers=(2,)),
            Request(caches[1], TREE_TOKENS, TREE, range(len(TREE))),
            Request(caches[2], [7], None, [0], state_layers=(1,)),
        ]
    )
    for node in range(len(TREE)):
        path = [*PREFIX[:4], *(TREE_TOKENS[step] for step in path_to(TREE, node))]
        np.testing.assert_allclose(tree.logits[node], bare(model, path)[0][-1], **CLOSE)
    assert not tree.states
    for output, text, layer in ((first, PREFIX, 2), (last, [41, 2, 7], 1)):
        with torch.no_grad():
            whole = model(torch.tensor([text]), output_hidden_states=True)
        np.testing.assert_allclose(output.logits[0], whole.logits[0][-1], **CLOSE)
        np.testing.assert_allclose(
            output.states[layer], whole.hidden_states[layer][0][-len(output.states[layer]) :], **CLOSE
        )
    assert [cache.length for cache in caches] == [7, 14, 3]


def test_one_bad_request_harms_no_conversation(make_target: TargetFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    target = make_target()
    caches = [target.new_cache(), target.new_cache()]
    for cache in caches:
        target.forward(cache, PREFIX)
    with pytest.raises(TokenRangeError, match="is outside the vocabulary of"):
        target.forward_all([Request(caches[0], [1], None, [0]), Request(caches[1], [97], None, [0])])
    with pytest.raises(InternalError, match="A forward was given the same cache twice"):
        target.forward_all([Request(caches[0], [1], None, [0]), Request(caches[0], [2], None, [0])])
    with monkeypatch.context() as patch:
        patch.setattr(caches[1], "reserve", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            target.forward_all([Request(cache, TREE_TOKENS, TREE, [0]) for cache in caches])
    assert_unharmed(target, caches)


def assert_unharmed(target: Target, caches: list[KVCache]) -> None:
    expected, _ = bare(torch_model(), [*PREFIX, 9])
    for cache in caches:
        assert cache.length == len(PREFIX)
        np.testing.assert_allclose(target.forward(cache, [9]).logits[-1], expected[-1], **CLOSE)


def test_the_final_norm_is_the_one_before_the_head(make_target: TargetFactory, family: str) -> None:
    target = make_target(family)
    output = target.forward(target.new_cache(), PREFIX, want_state_layer=target.layer_count)
    np.testing.assert_allclose(target.normed(output.states[target.layer_count]), output.hidden, **CLOSE)
