"""The target's own answers to questions, kept in the cache folder by target, prompts, length and sampling.

Questions are answered a few at a time, always the same together: on levels that are not exact by row, an answer may
depend on those that share its forwards.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path

from moa_shared.models import ModelFiles
from moa_shared.models.sources.cache import cache_root
from moa_shared.programs.atomic import whole_file
from moa_shared.programs.progress import Progress
from moa_shared.sampling.settings import Sampling

from moa_training.data.questions import TaskQuestion, stop_tokens
from moa_training.teacher.target_reader import GREEDY, TargetReader

ANSWERED_TOGETHER = 8  # a part of an evaluation: a minute or two of one core


@dataclass(frozen=True, slots=True)
class AnsweredQuestion:
    """A question with the target's own answer."""

    category: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    result: Decimal | None = None


def answer_questions(
    questions: Sequence[TaskQuestion],
    files: ModelFiles,
    reader: TargetReader,
    most_tokens: int,
    progress: Progress,
    cache_dir: Path | None = None,
    sampling: Sampling = GREEDY,
) -> list[AnsweredQuestion]:
    """The target's answers, from the cache where they were written before."""
    answered = []
    for start in range(0, len(questions), ANSWERED_TOGETHER):
        together = questions[start : start + ANSWERED_TOGETHER]
        prompts = [question.prompt for question in together]
        answers = _answer(prompts, files, reader, most_tokens, progress, cache_dir, sampling)
        answered += [
            AnsweredQuestion(question.category, question.prompt, tuple(answer), question.result)
            for question, answer in zip(together, answers, strict=True)
        ]
    return answered


def _answer(
    prompts: Sequence[Sequence[int]],
    files: ModelFiles,
    reader: TargetReader,
    most_tokens: int,
    progress: Progress,
    cache_dir: Path | None,
    sampling: Sampling,
) -> list[list[int]]:
    how = [] if sampling == GREEDY else [asdict(sampling)]
    content = json.dumps([files.fingerprint, reader.level, most_tokens, prompts, *how])
    kept = cache_root(cache_dir) / "answers" / f"{hashlib.sha256(content.encode()).hexdigest()[:32]}.json"
    if kept.is_file():
        answers: list[list[int]] = json.loads(kept.read_text())
        return answers
    answers = reader.answers(prompts, most_tokens, stop_tokens(files), progress, sampling)
    with whole_file(kept, several_writers=True) as partial:
        partial.write_text(json.dumps(answers))
    return answers
