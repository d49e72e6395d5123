"""A target as an evaluation needs it: what it computes for a text, and its own answers, on any level.

`int8` runs on the kernels, as servers on CPUs do; `float32` and `bf16` in torch. State: the target's weights.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from moa_kernels import Segment
from moa_shared.models import ModelFiles
from moa_shared.models.network.network import Network
from moa_shared.models.weights.weights import WeightReader
from moa_shared.programs.progress import Progress
from moa_shared.protocol.levels import BF16, FLOAT32, INT8
from moa_shared.sampling.coupling import select
from moa_shared.sampling.penalties import TextBefore
from moa_shared.sampling.settings import Sampling

from moa_training.teacher.generation import AnswerGenerator, TargetAnswer
from moa_training.teacher.teacher import Teacher

Rows = npt.NDArray[np.float32]
GREEDY = Sampling()
_DTYPES = {FLOAT32: torch.float32, BF16: torch.bfloat16}
_CHUNK = 256  # tokens of a text read at once
_SLOTS = 24  # answers written at the same time


@dataclass(frozen=True, slots=True)
class TargetReading:
    """What a target computes for a text, float32.

    Args:
        kv: [tokens, layers, 2 * kv heads * head_dim], interleaved by KV head; no layers where `entries` are read.
        last_hidden: [tokens, hidden size], after the final norm.
        state: [tokens, hidden size] entering the first reused layer; None where none are reused.
        entries: [tokens, entries * hidden size], of a drafter's `state_entries` side by side; None where it has none.
    """

    kv: Rows
    last_hidden: Rows
    state: Rows | None
    entries: Rows | None = None


class TargetReader(Protocol):
    """The target on one level of execution."""

    level: str
    reused_layers: int

    def read(self, ids: Sequence[int]) -> TargetReading:
        """What it computes for a text."""
        ...

    def logits(self, hidden: Rows) -> Rows:
        """[rows, hidden size] after the final norm to [rows, vocab]."""
        ...

    def answers(
        self,
        prompts: Sequence[Sequence[int]],
        most_tokens: int,
        stop_ids: set[int],
        progress: Progress,
        sampling: Sampling = GREEDY,
    ) -> list[list[int]]:
        """Its answer to each prompt, the end-of-text token included; the noise is `sampling_for` the prompt."""
        ...


def sampling_for(sampling: Sampling, prompt: Sequence[int]) -> Sampling:
    """The same settings with a seed of the prompt's own, so that no two questions share their noise."""
    return sampling if sampling.greedy else replace(sampling, seed=zlib.crc32(json.dumps(list(prompt)).encode()))


def load_reader(
    files: ModelFiles, reused_layers: int, level: str, progress: Progress, entries: Sequence[int] = ()
) -> TargetReader:
    """The target on a level of `moa_shared.protocol.levels`.

    Args:
        entries: of its hidden states, to be read in place of keys and values.

    Raises:
        ModelSourceError: weights that cannot be read, or that the level does not compute.
    """
    if level == INT8:
        return KernelReader(Network(WeightReader(files), files.config, progress), reused_layers, entries)
    return TorchReader(Teacher.load(files, reused_layers, _DTYPES[level], torch.device("cpu"), entries), level)


class TorchReader:
    """The target in torch."""

    def __init__(self, teacher: Teacher, level: str) -> None:
        self.level, self.reused_layers = level, teacher.reused_layers
        self._teacher = teacher

    @torch.inference_mode()
    def read(self, ids: Sequence[int]) -> TargetReading:
        run = self._teacher.run(torch.tensor([list(ids)]), torch.arange(len(ids))[None], None)
        state = None if run.state is None else _array(run.state[0])
        entries = None if run.entries is None else _array(run.entries[0].flatten(1))
        return TargetReading(_array(run.kv[0]), _array(run.last_hidden[0]), state, entries)

    @torch.inference_mode()
    def logits(self, hidden: Rows) -> Rows:
        head = self._teacher.head
        return _array(torch.from_numpy(hidden).to(head.dtype) @ head.t())

    def answers(
        self,
        prompts: Sequence[Sequence[int]],
        most_tokens: int,
        stop_ids: set[int],
        progress: Progress,
        sampling: Sampling = GREEDY,
    ) -> list[list[int]]:
        model: Any = self._teacher.model
        generator = AnswerGenerator(
            model,
            slots=min(_SLOTS, len(prompts)),
            capacity=max(map(len, prompts)) + most_tokens + 1,
            stop_ids=stop_ids,
            dtype=model.dtype,
            seed=0,
        )
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        chosen_by = [None if sampling == GREEDY else sampling_for(sampling, prompt) for prompt in prompts]
        asked = (
            TargetAnswer(str(index), "", list(prompts[index]), 0.0, most_tokens, chosen_by[index]) for index in order
        )
        answers: dict[int, list[int]] = {}
        with progress.task("the target answers", len(prompts)) as bar:
            for answer in generator.run(asked):
                answers[int(answer.key)] = answer.tokens
                bar.advance(1)
        return [answers[index] for index in range(len(prompts))]


class KernelReader:
    """The target on the kernels."""

    level = INT8

    def __init__(self, network: Network, reused_layers: int, entries: Sequence[int] = ()) -> None:
        self.reused_layers = reused_layers
        self._entries = tuple(entries)
        self._network = network

    def read(self, ids: Sequence[int]) -> TargetReading:
        network, cache = self._network, self._network.new_cache()
        first = network.layer_count - self.reused_layers
        hidden: list[Rows] = []
        states: list[Rows] = []
        entries: list[Rows] = []
        for start in range(0, len(ids), _CHUNK):
            chunk = ids[start : start + _CHUNK]
            wanted = sorted({*self._entries, *([first] if self.reused_layers else [])})
            out, entering = network.hidden(chunk, [Segment.chain(cache, len(chunk))], wanted)
            cache.length += len(chunk)
            hidden.append(network.normed(out))
            if self.reused_layers:
                states.append(entering[first])
            if self._entries:
                entries.append(np.concatenate([entering[entry] for entry in self._entries], axis=-1))
        kv = np.empty((len(ids), 0, 0), np.float32) if self._entries else cache.read(0, len(ids))
        return TargetReading(kv, np.concatenate(hidden), _joined(states), _joined(entries))

    def logits(self, hidden: Rows) -> Rows:
        return self._network.logits(hidden)

    def answers(
        self,
        prompts: Sequence[Sequence[int]],
        most_tokens: int,
        stop_ids: set[int],
        progress: Progress,
        sampling: Sampling = GREEDY,
    ) -> list[list[int]]:
        answers: list[list[int]] = [[] for _ in prompts]
        with progress.task("the target answers", len(prompts)) as bar:
            for index, prompt in enumerate(prompts):
                cache, feed, chosen_by = self._network.new_cache(), list(prompt), sampling_for(sampling, prompt)
                while len(answers[index]) < most_tokens and not stop_ids.intersection(answers[index][-1:]):
                    for start in range(0, len(feed), _CHUNK):
                        chunk = feed[start : start + _CHUNK]
                        segment = Segment.chain(cache, len(chunk))
                        last = [len(chunk) - 1] if start + len(chunk) == len(feed) else []
                        output = self._network.forward(chunk, [segment], last)
                        cache.length += len(chunk)
                    text = [*prompt, *answers[index]]
                    feed = select(output.logits[:1], [len(text)], chosen_by, TextBefore(text, [()]))
                    answers[index] += feed
                bar.advance(1)
        return answers


def _joined(parts: Sequence[Rows]) -> Rows | None:
    return np.concatenate(parts) if parts else None


def _array(tensor: torch.Tensor) -> Rows:
    array: Rows = tensor.float().numpy()
    return array
