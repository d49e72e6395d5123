"""A target as an evaluation needs it: what it computes for a text, and its own answers, on any level.

`int8` runs on the kernels, as servers on CPUs do; `float32` and `bf16` in torch. State: the target's weights.
"""

import hashlib
import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from moa_kernels import Segment
from moa_shared.models import ModelFiles
from moa_shared.models.network.network import Network
from moa_shared.models.storage.cache import cache_root
from moa_shared.models.weights import WeightReader
from moa_shared.programs.atomic import whole_file
from moa_shared.programs.progress import Progress
from moa_shared.sampling.coupling import select
from moa_shared.sampling.scores import TextBefore
from moa_shared.sampling.settings import BF16, FLOAT32, INT8, Sampling

from moa_training.teacher.teacher import Teacher, Texts, load_teacher, write_answers

Rows = npt.NDArray[np.float32]
GREEDY = Sampling()
_DTYPES = {FLOAT32: torch.float32, BF16: torch.bfloat16}
_CHUNK = 256  # tokens of a text read at once
TOGETHER = 8  # questions that are asked in one batch, always the same: on levels that are not exact by row that matters


@dataclass(frozen=True, slots=True)
class TargetReading:
    kv: Rows  # [tokens, layers, 2 * kv heads * head_dim], interleaved by KV head; no layers where `entries` are read
    last_hidden: Rows  # [tokens, hidden size], after the final norm
    state: Rows | None  # [tokens, hidden size] entering the first reused layer; None where none are reused
    # [tokens, entries * hidden size], of a drafter's `state_entries` side by side; None where it has none
    entries: Rows | None = None


class TargetReader(ABC):
    """The target on one level of execution."""

    level: str
    reused_layers: int

    @abstractmethod
    def read(self, ids: Sequence[int]) -> TargetReading:
        """What it computes for a text."""

    @abstractmethod
    def logits(self, hidden: Rows) -> Rows:
        """[rows, hidden size] after the final norm to [rows, vocab]."""

    @abstractmethod
    def write(self, prompts: Texts, most_tokens: int, stop_ids: set[int], sampling: Sampling) -> list[list[int]]:
        """Its answer to each prompt, the end-of-text token included; the noise is `sampling_for` the prompt."""

    def answers(
        self, prompts: Texts, files: ModelFiles, most_tokens: int, stop_ids: set[int], sampling: Sampling
    ) -> list[list[int]]:
        """Its answers, from the cache folder where they were written before."""
        how = [] if sampling == GREEDY else [asdict(sampling)]
        content = json.dumps([files.fingerprint, self.level, most_tokens, prompts, *how])
        kept = cache_root() / "answers" / f"{hashlib.sha256(content.encode()).hexdigest()[:32]}.json"
        if kept.is_file():
            answers: list[list[int]] = json.loads(kept.read_text())
            return answers
        answers = self.write(prompts, most_tokens, stop_ids, sampling)
        with whole_file(kept, several_writers=True) as partial:
            partial.write_text(json.dumps(answers))
        return answers


def sampling_for(sampling: Sampling, prompt: Sequence[int]) -> Sampling:
    """The same settings with a seed of the prompt's own, so that no two questions share their noise."""
    return sampling if sampling.greedy else replace(sampling, seed=zlib.crc32(json.dumps(list(prompt)).encode()))


def _choose(text: Sequence[int], logits: Rows, sampling: Sampling) -> int:
    """The token after a text, as a server chooses it, by its logits [1, vocab]."""
    return select(logits, [len(text)], sampling, TextBefore(text, [()]))[0]


def load_reader(
    files: ModelFiles, reused_layers: int, level: str, progress: Progress, entries: Sequence[int] = ()
) -> TargetReader:
    """The target on a level; `entries` of its hidden states are read in place of keys and values."""
    if level == INT8:
        return KernelReader(Network(WeightReader(files), files.config, progress), reused_layers, entries)
    return TorchReader(load_teacher(files, reused_layers, _DTYPES[level], torch.device("cpu"), entries), level)


class TorchReader(TargetReader):
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

    def write(self, prompts: Texts, most_tokens: int, stop_ids: set[int], sampling: Sampling) -> list[list[int]]:
        own = [sampling_for(sampling, prompt) for prompt in prompts]
        longest = max(map(len, prompts))

        def choose(texts: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
            rows = zip(texts.tolist(), _array(logits), prompts, own, strict=True)
            chosen = [_choose(text[longest - len(prompt) :], row[None], by) for text, row, prompt, by in rows]
            return torch.tensor(chosen)

        return write_answers(self._teacher.model, prompts, most_tokens, stop_ids, choose)


class KernelReader(TargetReader):
    level = INT8

    def __init__(self, network: Network, reused_layers: int, entries: Sequence[int] = ()) -> None:
        self.reused_layers = reused_layers
        self._entries = tuple(entries)
        self._network = network

    def read(self, ids: Sequence[int]) -> TargetReading:
        network, cache = self._network, self._network.new_cache()
        first = network.layer_count - self.reused_layers
        wanted = sorted({*self._entries, *([first] if self.reused_layers else [])})
        hidden: list[Rows] = []
        entering: dict[int, list[Rows]] = {entry: [] for entry in wanted}
        for start in range(0, len(ids), _CHUNK):
            chunk = ids[start : start + _CHUNK]
            out, states = network.hidden(chunk, [Segment.chain(cache, len(chunk))], wanted)
            cache.length += len(chunk)
            hidden.append(network.normed(out))
            for entry in wanted:
                entering[entry].append(states[entry])
        whole = {entry: np.concatenate(parts) for entry, parts in entering.items()}
        entries = np.concatenate([whole[entry] for entry in self._entries], axis=-1) if self._entries else None
        kv = np.empty((len(ids), 0, 0), np.float32) if self._entries else cache.read(0, len(ids))
        state = whole[first] if self.reused_layers else None
        return TargetReading(kv, np.concatenate(hidden), state, entries)

    def logits(self, hidden: Rows) -> Rows:
        return self._network.logits(hidden)

    def write(self, prompts: Texts, most_tokens: int, stop_ids: set[int], sampling: Sampling) -> list[list[int]]:
        answers: list[list[int]] = [[] for _ in prompts]
        for prompt, answer in zip(prompts, answers, strict=True):
            cache, feed, chosen_by = self._network.new_cache(), list(prompt), sampling_for(sampling, prompt)
            while len(answer) < most_tokens and not stop_ids.intersection(answer[-1:]):
                for start in range(0, len(feed), _CHUNK):
                    chunk = feed[start : start + _CHUNK]
                    last = [len(chunk) - 1] if start + len(chunk) == len(feed) else []
                    logits, *_ = self._network.forward(chunk, [Segment.chain(cache, len(chunk))], last)
                    cache.length += len(chunk)
                feed = [_choose([*prompt, *answer], logits[:1], chosen_by)]
                answer += feed
        return answers


def _array(tensor: torch.Tensor) -> Rows:
    array: Rows = tensor.float().numpy()
    return array
