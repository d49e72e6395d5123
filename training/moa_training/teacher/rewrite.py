"""`moa-train prepare --rewrite`: the target writes its own answers to the prompts of conversations.

Prompts that the shard answers already are skipped, so that the same command resumes where it was stopped. Invariant:
the shard's bytes are a function of the rows and the options; what stopped the command leaves no trace.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from moa_shared.models import ModelFiles, load_tokenizer
from moa_shared.models.files import end_of_text
from moa_shared.models.tokenizer import Tokenizer
from moa_shared.programs.progress import Progress

from moa_training.data.shards import ShardHeader, ShardWriter, TokenRow, read_shard
from moa_training.data.text import RowCounts, TrainingConversation, read_conversations, template_ids
from moa_training.options import PrepareOptions
from moa_training.teacher.teacher import Choice, write_answers


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
