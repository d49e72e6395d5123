"""Whether the split system writes, in float32, the very text of transformers' own greedy `generate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moa_shared.answer import AnswerSettings

from moa_bench.answers import AnswerClient

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class Equality:
    """Of `texts` answers of at most `tokens` tokens, `equal` were equal token for token."""

    way: str
    texts: int
    tokens: int
    equal: int


def compare_texts(
    reference: PreTrainedModel, clients: Mapping[str, AnswerClient], prompts: Sequence[Sequence[int]], tokens: int
) -> list[Equality]:
    """Every client's answers, held against the reference's.

    Args:
        reference: in float32, as transformers loads it.
        clients: of a server that runs in float32.
    """
    settings = AnswerSettings(max_tokens=tokens)
    equal = dict.fromkeys(clients, 0)
    for prompt in prompts:
        expected = _greedy(reference, prompt, tokens)
        for way, client in clients.items():
            equal[way] += list(client.ask(prompt, settings).tokens) == expected
    return [Equality(way, len(prompts), tokens, count) for way, count in equal.items()]


def _greedy(model: PreTrainedModel, prompt: Sequence[int], tokens: int) -> list[int]:
    import torch

    ids = torch.tensor([list(prompt)])
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False)
    return [int(token) for token in out[0, len(prompt) :]]
