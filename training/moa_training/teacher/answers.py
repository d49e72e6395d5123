"""The target's own greedy answers to questions, kept in the cache folder by target, prompts and length."""

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

from moa_training.data.questions import Question, stop_tokens
from moa_training.teacher.target_reader import TargetReader


@dataclass(frozen=True, slots=True)
class AnsweredQuestion:
    """A question with the target's own greedy answer."""

    category: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    result: Decimal | None = None


def answer_questions(
    questions: Sequence[Question],
    files: ModelFiles,
    reader: TargetReader,
    most_tokens: int,
    progress: Progress,
    cache_dir: Path | None = None,
) -> list[AnsweredQuestion]:
    """The target's greedy answers, from the cache where they were written before."""
    content = json.dumps([files.fingerprint, reader.level, most_tokens, [question.prompt for question in questions]])
    kept = cache_root(cache_dir) / "answers" / f"{hashlib.sha256(content.encode()).hexdigest()[:32]}.json"
    answers: list[list[int]] = []
    if kept.is_file():
        answers = json.loads(kept.read_text())
    else:
        prompts = [question.prompt for question in questions]
        answers = reader.answers(prompts, most_tokens, stop_tokens(files), progress)
        with whole_file(kept, several_writers=True) as partial:
            partial.write_text(json.dumps(answers))
    return [
        AnsweredQuestion(question.category, question.prompt, tuple(answer), question.result)
        for question, answer in zip(questions, answers, strict=True)
    ]
