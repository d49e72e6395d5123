"""The target writes answers, many at once: a slot whose answer has ended is given the next prompt.

State: the cache, and each slot's answer so far. Prompts are read several at a time; one forward per token serves all
slots. Temperature 0 is the most likely token, otherwise plain sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from moa_shared.models.cuda_graphs import CudaGraphs
from moa_shared.sampling.coupling import select
from moa_shared.sampling.penalties import TextBefore
from moa_shared.sampling.settings import Sampling

# Prompts read together: more pad more and leave more slots empty, fewer repeat the reading of the weights.
LEAST_PREFILL_ROWS = 8
PREFILL_SHARE = 12  # of many slots, one in so many


@dataclass(slots=True)
class TargetAnswer:
    """A prompt and the answer to it.

    Args:
        most_tokens: where the answer is cut off.
        sampling: tokens are chosen as a server chooses them, whatever the temperature; None: by torch's noise.
    """

    key: str
    source: str
    prompt: list[int]
    temperature: float
    most_tokens: int
    sampling: Sampling | None = None
    tokens: list[int] = field(default_factory=list)
    finished: bool = False  # by an end-of-text token


class AnswerGenerator:
    """Answers prompts in whatever order they finish.

    Args:
        model: transformers causal LM; its attention is replaced.
        stop_ids: tokens that end an answer.
        capacity: tokens of the longest prompt and answer together.
    """

    def __init__(
        self, model: Any, *, slots: int, capacity: int, stop_ids: set[int], dtype: torch.dtype, seed: int
    ) -> None:
        from moa_training.teacher.batch_cache import BatchCache, use_batched_attention  # and all of transformers

        use_batched_attention(model)
        self._model, self._core = model, model.model
        self._device = model.lm_head.weight.device
        self._cache = BatchCache(model.config, slots, capacity, dtype, self._device)
        self._answers: list[TargetAnswer | None] = [None] * slots
        self._prefill_rows = max(LEAST_PREFILL_ROWS, slots // PREFILL_SHARE)
        self._newest = torch.zeros(slots, dtype=torch.long, device=self._device)
        self._graphs = CudaGraphs() if self._device.type == "cuda" else None
        self._steps: dict[int, tuple[Callable[[], None], torch.Tensor]] = {}  # recorded, by the columns that they read
        self._stop_ids = stop_ids
        self._random = torch.Generator(device=self._device).manual_seed(seed)

    def reseed(self, seed: int) -> None:
        """Begins the noise of sampled answers again; what was answered before has no influence on later answers."""
        self._random.manual_seed(seed)

    @torch.inference_mode()
    def run(self, prompts: Iterator[TargetAnswer]) -> Iterator[TargetAnswer]:
        """Yields each answer when it has ended."""
        exhausted = False
        while True:
            free = [slot for slot, answer in enumerate(self._answers) if answer is None]
            if not exhausted and len(free) >= min(self._prefill_rows, len(self._answers)):
                taken = []
                for _ in free[: self._prefill_rows if len(free) < len(self._answers) else len(free)]:
                    prompt = next(prompts, None)
                    if prompt is None:
                        exhausted = True
                        break
                    taken.append(prompt)
                for start in range(0, len(taken), self._prefill_rows):
                    part = taken[start : start + self._prefill_rows]
                    yield from self._read(free[start : start + len(part)], part)
                continue
            if len(free) == len(self._answers):
                return
            yield from self._step()

    def _read(self, slots: list[int], prompts: list[TargetAnswer]) -> Iterator[TargetAnswer]:
        """Reads prompts, padded at their right, into free slots."""
        lengths = [len(prompt.prompt) for prompt in prompts]
        ids = torch.zeros(len(prompts), max(lengths), dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, : lengths[row]] = torch.tensor(prompt.prompt)
        self._cache.begin_prefill(slots, lengths)
        positions = torch.arange(ids.shape[1], device=self._device)[None].expand(len(prompts), -1)
        hidden = self._forward(ids.to(self._device), positions, None)  # causal: padding comes after every token
        last = hidden[torch.arange(len(prompts)), torch.tensor(lengths) - 1]
        for slot, prompt in zip(slots, prompts, strict=True):
            self._answers[slot] = prompt
        yield from self._choose(slots, last)

    def _step(self) -> Iterator[TargetAnswer]:
        live = [slot for slot, answer in enumerate(self._answers) if answer is not None]
        self._cache.forget([slot for slot, answer in enumerate(self._answers) if answer is None])
        columns = self._cache.begin_step()
        hidden = self._step_forward() if self._graphs is None else self._recorded(self._graphs, columns)
        self._cache.end_step()
        yield from self._choose(live, hidden[live, 0])

    def _step_forward(self) -> torch.Tensor:
        """The newest token of every slot, [slots, 1, hidden]."""
        return self._forward(self._newest[:, None], *self._cache.step_inputs())

    def _recorded(self, graphs: CudaGraphs, columns: int) -> torch.Tensor:
        """The same as a CUDA graph: launching a step's kernels one by one takes longer than they do."""
        if columns not in self._steps:
            self._steps[columns] = graphs.record(self._step_forward)
        play, hidden = self._steps[columns]
        play()
        return hidden

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor, visible: torch.Tensor | None) -> torch.Tensor:
        hidden = self._core.embed_tokens(ids)
        rotary = self._core.rotary_emb(hidden, positions)
        for layer in self._core.layers:
            hidden = layer(hidden, attention_mask=visible, position_embeddings=rotary, past_key_values=self._cache)
        out: torch.Tensor = self._core.norm(hidden)
        return out

    def _choose(self, slots: list[int], hidden: torch.Tensor) -> Iterator[TargetAnswer]:
        logits = self._model.lm_head(hidden)
        answers = [answer for slot in slots if (answer := self._answers[slot]) is not None]
        hot = [row for row, answer in enumerate(answers) if answer.temperature > 0]
        if hot:
            temperature = torch.tensor([answers[row].temperature for row in hot], device=self._device)
            warm = (logits[hot].float() / temperature[:, None]).softmax(-1)
            logits = logits.float()
            logits[hot] = warm / torch.empty_like(warm).exponential_(generator=self._random)
        chosen = logits.argmax(-1)
        for row, answer in enumerate(answers):
            if answer.sampling is not None:
                text = [*answer.prompt, *answer.tokens]
                [chosen[row]] = select(
                    logits[row : row + 1].float().cpu().numpy(), [len(text)], answer.sampling, TextBefore(text, [()])
                )
        self._newest[torch.tensor(slots, device=self._device)] = chosen
        for slot, answer, token in zip(slots, answers, chosen.tolist(), strict=True):
            answer.tokens.append(token)
            answer.finished = token in self._stop_ids
            if answer.finished or len(answer.tokens) >= answer.most_tokens:
                self._answers[slot] = None
                yield answer
