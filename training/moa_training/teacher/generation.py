"""The target writes answers, many at once, by transformers' `generate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

# From the texts so far, [texts, length], and the logits of their next tokens, [texts, vocab], to these tokens, [texts].
Choice = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@torch.inference_mode()
def write_answers(
    model: Any, prompts: Sequence[Sequence[int]], most_tokens: int, stop_ids: set[int], choose: Choice
) -> list[list[int]]:
    """The answers to prompts, in one batch; each ends with an end-of-text token, or after `most_tokens`.

    Args:
        model: transformers causal LM.
        choose: is given texts that begin with zeros where others have longer prompts.
    """
    from transformers import GenerationConfig, LogitsProcessorList  # and with them all of transformers

    device = model.lm_head.weight.device
    lengths = [len(prompt) for prompt in prompts]
    longest = max(lengths)
    ids = torch.zeros(len(prompts), longest, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
    seen = torch.arange(longest) >= longest - torch.tensor(lengths)[:, None]

    def only_chosen(texts: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        best = torch.full_like(scores, float("-inf"))
        return best.scatter(1, choose(texts, scores).to(scores.device)[:, None], 0.0)

    model.generation_config = GenerationConfig()  # without what the model's own files say of sampling
    written = model.generate(
        ids.to(device),
        attention_mask=seen.long().to(device),
        max_new_tokens=most_tokens,
        do_sample=False,
        eos_token_id=sorted(stop_ids) or None,
        pad_token_id=0,
        logits_processor=LogitsProcessorList([only_chosen]),
    )
    answers = []
    for row in written[:, longest:].tolist():
        end = next((at for at, token in enumerate(row) if token in stop_ids), len(row) - 1)
        answers.append(row[: end + 1])
    return answers
