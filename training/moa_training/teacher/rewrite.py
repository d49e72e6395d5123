"""`moa-train prepare --rewrite`: the target writes its own answers to the prompts of conversations.

Answers go to the shard a few at a time as they finish; prompts that it already answers are skipped, so that the
same command resumes where it was stopped. What is asked, in which order and at which temperature is a function of the
rows and the seed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from moa_shared.models import ModelFiles, load_target_model, load_tokenizer
from moa_shared.models.tokenizer.tokenizer import Tokenizer
from moa_shared.programs.progress import Progress

from moa_training.data.conversations import Conversation, RowCounts, read_conversations
from moa_training.data.prepare import template_ids
from moa_training.data.questions import stop_tokens
from moa_training.data.shards import ShardHeader, ShardWriter, TokenRow, read_lines, read_shard
from moa_training.teacher.generation import Answer, Generator

_FLUSH_ANSWERS = 64
_FLUSH_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class RewriteOptions:
    """How answers are written.

    Args:
        prompt_tokens: longer prompts are left out.
        answer_tokens: where an answer is cut off.
        sampled_share: of answers written at `temperature`; the others are greedy.
        slots: answers written at once; 96 serves a CPU, several hundred a GPU.
        limit: the most answers in all; None: all prompts.
    """

    prompt_tokens: int = 192
    answer_tokens: int = 224
    sampled_share: float = 0.5
    temperature: float = 0.8
    slots: int = 96
    limit: int | None = None
    seed: int = 0
    dtype: torch.dtype = torch.bfloat16
    device: torch.device = torch.device("cpu")  # noqa: RUF009


def rewrite(
    files: ModelFiles, sources: Sequence[Path], output: Path, options: RewriteOptions, progress: Progress
) -> RowCounts:
    """Adds answers to the shard `output` until every prompt has one; what was read and left out."""
    counts = RowCounts()
    vocab = int(files.config["vocab_size"])
    conversations = [
        row
        for path in sources
        for row in read_conversations(read_lines(path), counts, vocab, path.name)
        if isinstance(row, Conversation)
    ]
    random.Random(options.seed).shuffle(conversations)
    done: set[str] = set()
    if output.is_file() and output.stat().st_size:
        done = {row.key for row in read_shard(output, files.tokenizer_hash, vocab)}
    writer = ShardWriter(output, ShardHeader(files.tokenizer_hash, files.fingerprint))
    generator = Generator(
        load_target_model(files, options.dtype).to(options.device),
        slots=options.slots,
        capacity=options.prompt_tokens + options.answer_tokens + 1,
        stop_ids=stop_tokens(files),
        dtype=options.dtype,
        seed=options.seed + len(done),  # a resumed run must not repeat the first one's noise
    )
    prompts = _prompts(load_tokenizer(files), conversations, done, options, counts)
    total = min(len(conversations), options.limit or len(conversations))
    tokens, waiting, flushed, began = 0, 0, time.monotonic(), time.monotonic()
    with progress.task("the target writes", total) as bar:
        bar.advance(min(len(done), total))
        for answer in generator.run(prompts):
            writer.add(_row(answer))
            tokens += len(answer.tokens)
            waiting += 1
            bar.advance(1)
            if waiting >= _FLUSH_ANSWERS or time.monotonic() - flushed >= _FLUSH_SECONDS:
                writer.flush()
                waiting, flushed = 0, time.monotonic()
        writer.flush()
    progress.note(f"{tokens:,} tokens written, {tokens / max(1e-9, time.monotonic() - began):.0f} a second.")
    return counts


def _row(answer: Answer) -> TokenRow:
    ids = [*answer.prompt, *answer.tokens]
    return TokenRow(ids, [(len(answer.prompt), len(ids))], answer.source, answer.temperature, answer.key)


def _prompts(
    tokenizer: Tokenizer,
    conversations: Sequence[Conversation],
    done: set[str],
    options: RewriteOptions,
    counts: RowCounts,
) -> Iterator[Answer]:
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
            ids = template_ids(tokenizer, list(conversation.messages[: turn + 1]), generate=True)
            if len(ids) <= options.prompt_tokens:
                asked += 1
                yield Answer(conversation.key, conversation.source, ids, temperature, options.answer_tokens)
                break
        else:
            counts.good -= 1
            counts.bad["with too long a prompt"] += 1
