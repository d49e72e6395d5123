"""Whether int8 writes what llama.cpp writes from the same GGUF file.

llama.cpp continues prompts greedily, and this engine reads the same tokens: where its own first choice is another one,
the two are apart by so many nats in its eyes. Perplexity is over the same text in both.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from moa_server.verifier import Target
from moa_shared.models import load_tokenizer, resolve
from moa_shared.models.tokenizer.tokenizer import Tokenizer
from moa_shared.programs.progress import make_progress
from moa_shared.protocol.levels import INT8

from moa_bench.harness.prompts import PASSAGE, questions_of
from moa_bench.harness.targets import load_level
from moa_bench.harness.workers import WorkerProcess, running_workers
from moa_bench.suite import Result, SuiteRun
from moa_bench.suites.engine.quality.measure import BLOCK, log_softmax
from moa_bench.suites.engine.same_text import SameTextEffort, wanted_folder
from moa_bench.suites.engine.subjects import llama_subject

SCRIPT = Path(__file__).with_name("same_text.mjs")
TOKENS = 32  # of each continuation
TEXT_TOKENS = 2000  # whose perplexity is compared, at most
NEAR_TIE_NATS = 0.1  # two choices that are closer than this change places by rounding
_QUESTIONS = 12
_FIRST_WORDS = 9  # of a sentence of the passage, as a prompt

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SameText:
    """How alike two engines write.

    Args:
        perplexity, theirs: of the text, here and in llama.cpp.
    """

    tokens: int  # that llama.cpp wrote
    alike: int  # of them, those that are this engine's first choice too
    near_ties: int  # of the others, those that it has within 0.1 nats of its first choice
    whole: int  # prompts whose tokens are all alike
    perplexity: float
    theirs: float

    def __str__(self) -> str:
        others = self.tokens - self.near_ties
        ratio = self.perplexity / self.theirs - 1
        return (
            f"{self.alike} of {self.tokens} tokens are alike ({self.alike / self.tokens:.2%}),"
            f" {self.alike / others:.2%} without {self.near_ties} near ties; {self.whole} prompts in every token\n"
            f"perplexity {self.perplexity:.4f}, llama.cpp's {self.theirs:.4f} ({ratio:+.2%})"
        )


def measure(effort: SameTextEffort, run: SuiteRun) -> Result:
    progress = make_progress()
    files = resolve(run.model, progress=progress)
    subject = llama_subject(wanted_folder(run), files, SCRIPT)
    tokenizer, target = load_tokenizer(files), load_level(files, INT8, progress).target
    passage = PASSAGE if effort.text is None else effort.text.read_text("utf-8")
    with running_workers([subject], None, progress) as (worker,):
        same = compare(target, worker, tokenizer, prompts(), passage)
    return {"target": files.target_id, "same_text": same}


def prompts() -> list[str]:
    """The bench's questions, beginnings of sentences, and half and all of a passage."""
    sentences = PASSAGE.replace("\n", " ").strip().split(". ")
    beginnings = [" ".join(sentence.split()[:_FIRST_WORDS]) for sentence in sentences]
    return [*questions_of()[:_QUESTIONS], *beginnings, PASSAGE[: len(PASSAGE) // 2], PASSAGE]


def compare(
    target: Target, worker: WorkerProcess, tokenizer: Tokenizer, asked: Sequence[str], passage: str
) -> SameText:
    """Both engines over these prompts, and over the beginning of a text."""
    tokens = alike = near_ties = whole = 0
    for prompt in asked:
        read = tokenizer.with_bos(tokenizer.encode(prompt))
        written = worker.ask({"write": read, "count": TOKENS})["tokens"]
        _, gaps = _judge(target, [*read, *written], len(read) - 1)
        tokens += len(written)
        alike += int((gaps == 0).sum())
        near_ties += int(((gaps > 0) & (gaps < NEAR_TIE_NATS)).sum())
        whole += bool((gaps == 0).all())
    text = tokenizer.with_bos(tokenizer.encode(passage))[:TEXT_TOKENS]
    ours, _ = _judge(target, text, 0)
    theirs = np.log(worker.ask({"score": text})["chances"])
    return SameText(tokens, alike, near_ties, whole, math.exp(-ours.mean()), math.exp(-theirs.mean()))


def _judge(target: Target, tokens: Sequence[int], start: int) -> tuple[Numbers, Numbers]:
    """Of each token after `start`: its log probability, and how many nats that is below the first choice's."""
    cache = target.new_cache()
    chances, gaps = [], []
    try:
        for at in range(0, len(tokens) - 1, BLOCK):
            rows = tokens[at : min(at + BLOCK, len(tokens) - 1)]
            wanted = range(max(0, start - at), len(rows))
            logits = target.forward(cache, rows, logits_for=wanted).logits
            if len(wanted):
                log_chances = log_softmax(np.asarray(logits, np.float32))
                own = log_chances[np.arange(len(wanted)), [tokens[at + row + 1] for row in wanted]]
                chances.append(own)
                gaps.append(log_chances.max(-1) - own)
    finally:
        cache.release()
    return np.concatenate(chances), np.concatenate(gaps)
