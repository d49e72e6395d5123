"""`moa-train prepare --rewrite`: the target writes its own answers to the prompts of conversations.

Prompts are cut into parts, which are answered one by one or by many workers, and go to the shard in order. Prompts that
it already answers are skipped, so that the same command resumes where it was stopped. Invariant: the shard's bytes are
a function of the rows and the options; which worker answered which part, and what stopped them, leaves no trace.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from moa_shared.models import ModelFiles, load_tokenizer
from moa_shared.models.tokenizer.tokenizer import Tokenizer
from moa_shared.programs.progress import Progress

from moa_training.cluster.finished import FinishedParts
from moa_training.cluster.parts import Advance, plan_parts
from moa_training.cluster.run import InProcess, Runner, run_parts
from moa_training.data.conversations import RowCounts, TrainingConversation, read_conversations
from moa_training.data.prepare import template_ids
from moa_training.data.questions import stop_tokens
from moa_training.data.shards import ShardHeader, ShardWriter, TokenRow, read_lines, read_shard
from moa_training.teacher.generation import AnswerGenerator, TargetAnswer
from moa_training.teacher.same_target import SameTarget, name_anywhere


@dataclass(frozen=True, slots=True)
class RewriteOptions:
    """How answers are written.

    Args:
        prompt_tokens: longer prompts are left out.
        answer_tokens: where an answer is cut off.
        sampled_share: of answers written at `temperature`; the others are greedy.
        slots: answers written at once; 96 serves a CPU, several hundred a GPU.
        limit: the most answers in all; None: all prompts.
        part_answers: answers of a part. More keep the slots busier; a kill loses the parts under way.
    """

    prompt_tokens: int = 192
    answer_tokens: int = 224
    sampled_share: float = 0.5
    temperature: float = 0.8
    slots: int = 96
    limit: int | None = None
    seed: int = 0
    dtype: torch.dtype = torch.bfloat16
    threads: int = 0
    part_answers: int = 256

    def basis(self) -> list[float]:
        """What the tokens of an answer depend on besides its part's prompts."""
        return [self.prompt_tokens, self.answer_tokens, self.slots, self.seed, self.dtype.itemsize]


def rewrite(
    files: ModelFiles,
    sources: Sequence[Path],
    output: Path,
    options: RewriteOptions,
    progress: Progress,
    *,
    target: str | None = None,
    runner: Runner | None = None,
) -> RowCounts:
    """Adds answers to the shard `output` until every prompt has one; what was read and left out.

    Args:
        target: how workers name the target; None: by its folder.
        runner: who answers; None: this process.

    Raises:
        MoaError: the shard is another tokenizer's, the disk is full, or a worker failed. What is finished is kept.
    """
    counts = RowCounts()
    vocab = int(files.config["vocab_size"])
    conversations = [
        row
        for path in sources
        for row in read_conversations(read_lines(path), counts, vocab, path.name)
        if isinstance(row, TrainingConversation)
    ]
    random.Random(options.seed).shuffle(conversations)
    done: set[str] = set()
    if output.is_file() and output.stat().st_size:
        done = {row.key for row in read_shard(output, files.tokenizer_hash, vocab)}
    writer = ShardWriter(output, ShardHeader(files.tokenizer_hash, files.fingerprint))
    prompts = list(_prompts(load_tokenizer(files), conversations, done, options, counts))
    counts.good = len(done) + len(prompts)  # of the shard, not of what was read
    parts = plan_parts([files.fingerprint, *options.basis()], prompts, options.part_answers)
    finished = FinishedParts(output.with_name(f"{output.name}.parts"))
    job = RewriteJob(SameTarget(name_anywhere(target or str(files.folder)), files.fingerprint), options)
    results = run_parts(job, parts, finished, runner or InProcess(progress), "the target writes", progress)
    for part, result in results:
        for (key, source, prompt, temperature), tokens in zip(json.loads(part.items), json.loads(result), strict=True):
            ids = [*prompt, *tokens]
            writer.add(TokenRow(ids, [(len(prompt), len(ids))], source, temperature, key))
        writer.flush()
        finished.drop(part.name)
    writer.flush()  # the header, where there was nothing to answer
    finished.clear()
    return counts


@dataclass(frozen=True, slots=True)
class RewriteJob:
    """Answers the prompts of a part: items are (key, source, prompt, temperature), results the answers' tokens."""

    target: SameTarget
    options: RewriteOptions

    def start(self, progress: Progress) -> Callable[[str, Advance], str]:
        from moa_shared.models import load_target_model  # and with it all of transformers

        options, files = self.options, self.target.find(progress)
        if options.threads:
            torch.set_num_threads(options.threads)
        generator = AnswerGenerator(
            load_target_model(files, options.dtype).to("cuda" if torch.cuda.is_available() else "cpu"),
            slots=options.slots,
            capacity=options.prompt_tokens + options.answer_tokens + 1,
            stop_ids=stop_tokens(files),
            dtype=options.dtype,
            seed=options.seed,
        )

        def work(items: str, advance: Advance) -> str:
            asked = [
                TargetAnswer(key, source, prompt, temperature, options.answer_tokens)
                for key, source, prompt, temperature in json.loads(items)
            ]
            # By the part's first prompt: no two parts have the same noise, and none depends on those before it.
            generator.reseed(random.Random(f"{options.seed}:{asked[0].key}").getrandbits(63))
            for _ in generator.run(iter(asked)):
                advance(1)
            return json.dumps([answer.tokens for answer in asked], separators=(",", ":"))

        return work


def _prompts(
    tokenizer: Tokenizer,
    conversations: Sequence[TrainingConversation],
    done: set[str],
    options: RewriteOptions,
    counts: RowCounts,
) -> Iterator[tuple[str, str, list[int], float]]:
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
                yield conversation.key, conversation.source, ids, temperature
                break
        else:
            counts.bad["with too long a prompt"] += 1
