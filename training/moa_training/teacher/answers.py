"""The target's own greedy answers to questions, kept in the cache folder by target, prompts and length.

Questions are answered a few at a time, always the same together: on levels that are not exact by row, an answer may
depend on those that share its forwards.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from moa_shared.models import ModelFiles
from moa_shared.models.sources.cache import cache_root
from moa_shared.programs.atomic import whole_file
from moa_shared.programs.progress import Progress

from moa_training.data.questions import TaskQuestion, stop_tokens
from moa_training.teacher.target_reader import TargetReader

ANSWERED_TOGETHER = 8  # a part of an evaluation: a minute or two of one core


@dataclass(frozen=True, slots=True)
class AnsweredQuestion:
    """A question with the target's own greedy answer."""

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
) -> list[AnsweredQuestion]:
    """The target's greedy answers, from the cache where they were written before."""
    answered = []
    for start in range(0, len(questions), ANSWERED_TOGETHER):
        together = questions[start : start + ANSWERED_TOGETHER]
        answers = _answer([question.prompt for question in together], files, reader, most_tokens, progress, cache_dir)
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
) -> list[list[int]]:
    content = json.dumps([files.fingerprint, reader.level, most_tokens, prompts])
    kept = cache_root(cache_dir) / "answers" / f"{hashlib.sha256(content.encode()).hexdigest()[:32]}.json"
    if kept.is_file():
        answers: list[list[int]] = json.loads(kept.read_text())
        return answers
    answers = reader.answers(prompts, most_tokens, stop_tokens(files), progress)
    with whole_file(kept, several_writers=True) as partial:
        partial.write_text(json.dumps(answers))
    return answers
