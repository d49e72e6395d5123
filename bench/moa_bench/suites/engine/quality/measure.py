"""How far the levels are from float32, over the float32 target's own greedy answers.

Every level reads the same prompts and answers, and its distribution of each next token is compared with float32's.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from moa_server.verifier import Target
from moa_shared.models import ModelFiles, load_tokenizer, resolve
from moa_shared.models.tokenizer.end_of_text import end_of_text
from moa_shared.models.tokenizer.tokenizer import Tokenizer
from moa_shared.programs.progress import make_progress

from moa_bench.harness.prompts import chat_tokens, questions_of
from moa_bench.harness.targets import load_level
from moa_bench.suite import Result, SuiteRun
from moa_bench.suites.engine.quality import QualityEffort

ANSWER_TOKENS = 128  # at most, of each answer
LONGEST_PROMPT = 600
BLOCK = 64  # rows whose distributions are compared at once: 13 MB of logits a level
REFERENCE, EIGHT_BITS = "float32", "int8, --kv q8"
COMPARED = ("int8", "bf16")

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Answered:
    """A prompt with the float32 target's own answer."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LevelQuality:
    """The quality of one level."""

    level: str
    details: str
    divergence: float  # mean KL(float32 || level) of the next token, in nats
    perplexity: float  # of the answers
    perplexity_ratio: float  # to float32's
    agreement: float  # share of positions with the same most likely token


@dataclass(slots=True)
class Sums:
    """Sums over positions, in nats."""

    positions: int = 0
    divergence: float = 0.0
    loss: float = 0.0
    agreed: int = 0

    def add(self, reference: Rows, logits: Rows, answer: Sequence[int]) -> None:
        """Takes in rows of logits, [positions, vocab], and the tokens that follow them."""
        expected, got = log_softmax(reference), log_softmax(logits)
        self.positions += len(answer)
        self.divergence += float((np.exp(expected) * (expected - got)).sum())
        self.loss -= float(got[np.arange(len(answer)), list(answer)].sum())
        self.agreed += int((expected.argmax(-1) == got.argmax(-1)).sum())

    def quality(self, level: str, details: str, reference: "Sums") -> LevelQuality:
        perplexity, expected = math.exp(self.loss / self.positions), math.exp(reference.loss / self.positions)
        return LevelQuality(
            level,
            details,
            self.divergence / self.positions,
            perplexity,
            perplexity / expected,
            self.agreed / self.positions,
        )


def log_softmax(logits: Rows) -> npt.NDArray[np.float64]:
    """Log probabilities, in float64 because they sum over 49,152 entries."""
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(-1, keepdims=True))
    return wide


def measure(effort: QualityEffort, run: SuiteRun) -> Result:
    progress = make_progress()
    asked = questions_of(run.questions)
    files = resolve(run.model, progress=progress)
    executions = {level: load_level(files, level, progress) for level in (REFERENCE, *COMPARED)}
    executions[EIGHT_BITS] = load_level(files, "int8", progress, kv="q8")
    targets = {level: execution.target for level, execution in executions.items()}
    sums = {level: Sums() for level in targets}
    answers = 0
    with progress.task("Answers", effort.positions) as task:
        for text in _answer(targets[REFERENCE], files, load_tokenizer(files), asked, effort.positions):
            compare(targets, text, sums)
            answers += 1
            task.advance(len(text.answer))
    return {
        "target": files.target_id,
        "positions": sums[REFERENCE].positions,
        "answers": answers,
        "levels": [each.quality(level, executions[level].details, sums[REFERENCE]) for level, each in sums.items()],
    }


def compare(targets: dict[str, Target], text: Answered, sums: dict[str, Sums]) -> None:
    """Reads one text on all levels, block by block; the first one is the reference."""
    caches = {level: target.new_cache() for level, target in targets.items()}
    for level, target in targets.items():
        if len(text.prompt) > 1:
            target.prefill(caches[level], text.prompt[:-1])
    fed = (text.prompt[-1], *text.answer[:-1])
    for start in range(0, len(fed), BLOCK):
        reference: Rows | None = None
        for level, target in targets.items():
            logits = target.forward(caches[level], fed[start : start + BLOCK]).logits
            reference = logits if reference is None else reference
            sums[level].add(reference, logits, text.answer[start : start + BLOCK])


def _answer(
    target: Target, files: ModelFiles, tokenizer: Tokenizer, questions: Sequence[str], positions: int
) -> Iterator[Answered]:
    """Answers until there are so many tokens; end of text is the last token of an answer that has one."""
    ends = end_of_text(files, tokenizer.eos_token_id)
    left = positions
    for question in questions:
        prompt = chat_tokens(tokenizer, question)
        if len(prompt) > LONGEST_PROMPT:
            continue
        cache = target.new_cache()
        logits = target.prefill(cache, prompt).logits
        answer: list[int] = []
        while True:
            answer.append(int(logits[-1].argmax()))
            if answer[-1] in ends or len(answer) == min(ANSWER_TOKENS, left):
                break
            logits = target.forward(cache, answer[-1:]).logits
        yield Answered(tuple(prompt), tuple(answer))
        left -= len(answer)
        if not left:
            return
