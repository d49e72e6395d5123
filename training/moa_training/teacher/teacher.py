"""The frozen target as a teacher: what it computes for packed rows, in torch or on the kernels, and its own answers.

State: the target's weights, frozen. Any causal model of transformers that caches keys and values per layer.
`moa-train prepare --rewrite` skips prompts that the shard answers already, so that the same command resumes where it
was stopped: the shard's bytes are a function of the rows and the options.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from moa_kernels import Segment
from moa_shared.errors import InternalError
from moa_shared.models import ModelFiles, load_tokenizer
from moa_shared.models.files import end_of_text
from moa_shared.models.network.network import Network
from moa_shared.models.tokenizer import Tokenizer
from moa_shared.models.weights import WeightReader
from moa_shared.programs.progress import Progress
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from moa_training.data.batches import PackedBatch
from moa_training.data.shards import ShardHeader, ShardWriter, TokenRow, read_shard
from moa_training.data.text import RowCounts, TrainingConversation, read_conversations, template_ids
from moa_training.settings import PrepareOptions


@dataclass(frozen=True, slots=True)
class Activations:
    embeddings: torch.Tensor  # [batch, length, hidden] of the tokens
    kv: torch.Tensor  # [batch, length, layers, KV width], keys rotated, by KV head; no layers if a drafter reads states
    last_hidden: torch.Tensor  # [batch, length, hidden] after the final norm
    state: torch.Tensor | None  # [batch, length, hidden] that enters the first reused layer; None for N = 0
    positions: torch.Tensor  # [batch, length] absolute
    # embeddings of the tokens that the drafter reads behind block starts, where these are not the text's;
    # `last_hidden` and `state` are then the target's after these, and `kv` its of the text
    guessed: torch.Tensor | None = None
    entries: torch.Tensor | None = None  # [batch, length, entries, hidden], the states that `state_entries` names

    @property
    def entry_states(self) -> torch.Tensor:
        if self.entries is None:
            raise InternalError("A drafter that reads the target's states was trained without them.")
        return self.entries


class Teacher:
    """The target as a teacher: `model` is transformers'.

    It records the state that enters the first of the reused layers, and `entries` of the hidden states. If there are
    some, it records keys and values only where layers are reused.
    """

    def __init__(self, model: Any, reused_layers: int, entries: Sequence[int] = ()) -> None:
        self.model = model
        self.reused_layers = reused_layers
        self.entries = tuple(entries)
        self.layers = len(model.model.layers)
        self.embeddings: torch.Tensor = model.model.embed_tokens.weight  # [vocab, hidden]
        self.head: torch.Tensor = model.lm_head.weight  # [vocab, hidden]
        self.final_norm: nn.Module = model.model.norm

    @property
    def kv_layers(self) -> int:
        return self.layers if self.reused_layers or not self.entries else 0

    @property
    def reused(self) -> list[nn.Module]:
        return list(self.model.model.layers[self.layers - self.reused_layers :])

    @torch.no_grad()
    def run(self, ids: torch.Tensor, positions: torch.Tensor, visible: torch.Tensor | None) -> Activations:
        """Activations of [rows, length] tokens; each row is one conversation, unless `visible` says who sees whom."""
        states: dict[int, torch.Tensor] = {}
        first = self.layers - self.reused_layers
        readers = [*self.model.model.layers, self.final_norm]
        hooks = [
            readers[entry].register_forward_pre_hook(lambda _, inputs, at=entry: states.update({at: inputs[0]}))
            for entry in {*self.entries, *([first] if self.reused_layers else [])}
        ]
        try:
            mask = None if visible is None else visible[:, None]
            out = self.model.model(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=True)
        finally:
            for hook in hooks:
                hook.remove()
        held = out.past_key_values.layers
        shape = (*ids.shape, self.kv_layers, held[0].keys.shape[1], 2, held[0].keys.shape[3])
        kv = held[0].keys.new_empty(shape)  # [rows, length, layers, kv heads, 2, head_dim]
        for index, layer in enumerate(held[: self.kv_layers]):
            kv[:, :, index, :, 0] = layer.keys.transpose(1, 2)
            kv[:, :, index, :, 1] = layer.values.transpose(1, 2)
        return Activations(
            self.embeddings[ids],
            kv.flatten(3),
            out.last_hidden_state,
            states[first] if self.reused_layers else None,
            positions,
            entries=torch.stack([states[entry] for entry in self.entries], 2) if self.entries else None,
        )

    def run_packed(self, batch: PackedBatch) -> Activations:
        """Activations of packed rows; no conversation sees another."""
        return self.run(batch.ids, batch.positions, batch.causal)


class KernelTeacher(Teacher):
    """A teacher on the kernels: the arithmetic that is served, and on most CPUs the faster one.

    Conversations of a packed row are sessions of one forward, so none sees another. Gradients go through `model`.
    """

    def __init__(self, model: Any, network: Network, reused_layers: int, entries: Sequence[int] = ()) -> None:
        super().__init__(model, reused_layers, entries)
        self._network = network

    @torch.no_grad()
    def run_packed(self, batch: PackedBatch) -> Activations:
        rows = [self._run_row(ids, segment) for ids, segment in zip(batch.ids.cpu(), batch.segment.cpu(), strict=True)]
        kv, hidden, states = (torch.stack(parts).to(batch.ids.device) for parts in zip(*rows, strict=True))
        return Activations(
            self.embeddings[batch.ids],
            kv,
            hidden,
            states[:, :, -1] if self.reused_layers else None,
            batch.positions,
            entries=states[:, :, : len(self.entries)] if self.entries else None,
        )

    def _run_row(self, ids: torch.Tensor, segment: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Keys and values, last hidden states, and the states asked for of one row; zeros where it is padding."""
        network, dtype = self._network, self.embeddings.dtype
        lengths = np.unique(segment[segment >= 0].numpy(), return_counts=True)[1].tolist()
        used = sum(lengths)
        caches = [network.new_cache() for _ in lengths]
        segments = [Segment.chain(cache, length) for cache, length in zip(caches, lengths, strict=True)]
        wanted = [*self.entries, self.layers - self.reused_layers]
        out, entering = network.hidden(ids[:used].tolist(), segments, sorted({*wanted} - {self.layers}))
        entering[self.layers] = out
        for cache, length in zip(caches, lengths, strict=True):
            cache.length = length
        kv = [cache.read(0, length)[:, : self.kv_layers] for cache, length in zip(caches, lengths, strict=True)]
        parts = (np.concatenate(kv), network.normed(out), np.stack([entering[layer] for layer in wanted], 1))
        padded = []
        for part in parts:
            whole = torch.zeros(len(ids), *part.shape[1:], dtype=dtype)
            whole[:used] = torch.from_numpy(part).to(dtype)
            padded.append(whole)
        return padded[0], padded[1], padded[2]


def load_teacher(
    files: ModelFiles,
    reused_layers: int,
    dtype: torch.dtype,
    device: torch.device,
    entries: Sequence[int] = (),
    kernels: Progress | None = None,
) -> Teacher:
    """The target as a teacher. `kernels`: to run it on the level int8, and hear of what that takes; None: in torch."""
    from moa_shared.models import load_target_model  # and with it all of transformers

    model = load_target_model(files, dtype).to(device)
    if kernels is None:
        return Teacher(model, reused_layers, entries)
    network = Network(WeightReader(files), files.config, kernels)
    return KernelTeacher(model, network, reused_layers, entries)


Texts = Sequence[Sequence[int]]
# From the texts so far, [texts, length], with zeros before shorter prompts, and the logits of their next tokens,
# [texts, vocab], to these tokens, [texts].
Choice = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@torch.inference_mode()
def write_answers(model: Any, prompts: Texts, most_tokens: int, stop_ids: set[int], choose: Choice) -> list[list[int]]:
    """The answers to prompts, in one batch; each ends with an end-of-text token, or after `most_tokens`."""
    from transformers import GenerationConfig, LogitsProcessorList  # and with them all of transformers

    device = model.lm_head.weight.device
    rows = [torch.tensor(prompt) for prompt in prompts]
    ids, seen = (
        pad_sequence(parts, batch_first=True, padding_side="left").to(device)
        for parts in (rows, [torch.ones_like(row) for row in rows])
    )

    def only_chosen(texts: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        best = torch.full_like(scores, float("-inf"))
        return best.scatter(1, choose(texts, scores).to(scores.device)[:, None], 0.0)

    model.generation_config = GenerationConfig()  # without what the model's own files say of sampling
    written = model.generate(
        ids,
        attention_mask=seen,
        max_new_tokens=most_tokens,
        do_sample=False,
        eos_token_id=sorted(stop_ids) or None,
        pad_token_id=0,
        logits_processor=LogitsProcessorList([only_chosen]),
    )
    answers = []
    for row in written[:, ids.shape[1] :].tolist():
        end = next((at for at, token in enumerate(row) if token in stop_ids), len(row) - 1)
        answers.append(row[: end + 1])
    return answers


def rewrite(
    files: ModelFiles,
    sources: Sequence[Path],
    output: Path,
    options: PrepareOptions,
    progress: Progress,
    dtype: torch.dtype = torch.bfloat16,
) -> RowCounts:
    """Adds answers to the shard `output` until every prompt has one; what was read and left out."""
    counts = RowCounts()
    vocab = int(files.config["vocab_size"])
    conversations = list(read_conversations(sources, counts))
    random.Random(options.seed).shuffle(conversations)
    done: set[str] = set()
    if output.is_file() and output.stat().st_size:
        done = {row.key for row in read_shard(output, files.tokenizer_hash, vocab)}
    writer = ShardWriter(output, ShardHeader(files.tokenizer_hash, files.fingerprint))
    tokenizer = load_tokenizer(files)
    prompts = list(_prompts(tokenizer, conversations, done, options, counts))
    counts.good = len(done) + len(prompts)  # of the shard, not of what was read
    if prompts:
        from moa_shared.models import load_target_model  # and with it all of transformers

        if options.threads:
            torch.set_num_threads(options.threads)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = load_target_model(files, dtype).to(device)
        stop_ids = set(end_of_text(files, tokenizer.eos_token_id))
        with progress.task("the target writes", len(prompts)) as bar:
            for start in range(0, len(prompts), options.slots):
                together = prompts[start : start + options.slots]
                choose = noise(together, options.seed, device)
                answers = write_answers(model, [row.ids for row in together], options.answer_tokens, stop_ids, choose)
                for row, answer in zip(together, answers, strict=True):
                    ids = [*row.ids, *answer]
                    writer.add(TokenRow(ids, [(len(row.ids), len(ids))], row.source, row.temperature, row.key))
                writer.flush()
                bar.advance(len(together))
    writer.flush()  # the header, where there was nothing to answer
    return counts


def noise(rows: Sequence[TokenRow], seed: int, device: str) -> Choice:
    """Chooses the tokens of prompts that are answered together: the likeliest where the temperature is 0."""
    temperatures = torch.tensor([row.temperature or 0.0 for row in rows], device=device)[:, None]
    # By the first prompt: no two batches have the same noise, and none depends on those before it.
    first = random.Random(f"{seed}:{rows[0].key}").getrandbits(63)
    generator = torch.Generator(device).manual_seed(first)

    def choose(_: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        gumbel = -torch.empty(logits.shape, device=device).exponential_(generator=generator).log()
        return (logits.float() + temperatures * gumbel).argmax(-1)

    return choose


def _prompts(
    tokenizer: Tokenizer,
    conversations: Sequence[TrainingConversation],
    done: set[str],
    options: PrepareOptions,
    counts: RowCounts,
) -> Iterator[TokenRow]:
    """What is still to be answered: up to a user's turn drawn by the row, or the first where that is too long."""
    asked = len(done)
    for conversation in conversations:
        draw = random.Random(f"{options.seed}:{conversation.key}")
        temperature = options.temperature if draw.random() < options.sampled_share else 0.0
        turns = [index for index, message in enumerate(conversation.messages) if message["role"] == "user"]
        drawn = draw.choice(turns)
        if conversation.key in done:
            continue
        if options.limit is not None and asked >= options.limit:
            return
        for turn in (drawn, turns[0]):
            ids = template_ids(tokenizer, conversation.messages[: turn + 1], generate=True)
            if len(ids) <= options.prompt_tokens:
                asked += 1
                yield TokenRow(ids, (), conversation.source, temperature, conversation.key)
                break
        else:
            counts.bad["with too long a prompt"] += 1
