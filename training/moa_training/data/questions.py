"""Questions to evaluate on, and the target's own answers to them.

Questions have the form of Spec-Bench: {"question_id", "category", "turns"}, one a line; only the first turn is asked;
`reference` or `final_answer` may name the right result (`task_results.py`).
Answers are greedy, written once and remembered in the cache folder by target, prompts and length.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from moa_shared.errors import DataError, NotFoundError
from moa_shared.models import ModelFiles, load_tokenizer
from moa_shared.models.sources.cache import cache_root
from moa_shared.programs.progress import Progress

from moa_training.data.prepare import template_ids
from moa_training.data.shards import read_lines
from moa_training.evaluation.task_results import reference_result
from moa_training.teacher.target_reader import TargetReader


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its tokens (chat template, opening of the answer included)."""

    category: str
    prompt: tuple[int, ...]
    result: Decimal | None = None  # the number that the reference names


@dataclass(frozen=True, slots=True)
class AnsweredQuestion:
    """With the target's own greedy answer."""

    category: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    result: Decimal | None = None


def read_questions(path: Path, files: ModelFiles, limit: int | None, longest_prompt: int) -> tuple[list[Question], int]:
    """Questions of a file, or of each file of a folder that holds such, whose names are the categories then.

    Args:
        limit: the most questions of each category.
        longest_prompt: longer ones are left out.

    Returns:
        The questions, and how many rows were left out (malformed or too long).

    Raises:
        NotFoundError: no such path.
        DataError: no question at all.
    """
    if not path.exists():
        raise NotFoundError(
            f"There are no questions at {path}.", hint="Name a file of JSON lines, or a folder of such."
        )
    tokenizer = load_tokenizer(files)
    questions: list[Question] = []
    taken: dict[str, int] = {}
    left_out = 0
    for file in sorted(path.glob("*.jsonl*")) if path.is_dir() else [path]:
        for line in read_lines(file):
            category, text, result = _parse(line)
            if text is None:
                left_out += not path.is_dir()  # a folder may hold files of other forms
                continue
            category = file.name.split(".")[0] if path.is_dir() or not category else category
            if limit is not None and taken.get(category, 0) >= limit:
                continue
            ids = template_ids(tokenizer, [{"role": "user", "content": text}], generate=True)
            if len(ids) > longest_prompt:
                left_out += 1
                continue
            taken[category] = taken.get(category, 0) + 1
            questions.append(Question(category, tuple(ids), result))
    if not questions:
        raise DataError(f"{path} holds no question that can be asked.", hint='A row is {"category", "turns": [text]}.')
    return questions, left_out


def _parse(line: str) -> tuple[str, str | None, Decimal | None]:
    try:
        content = json.loads(line)
        turns = content["turns"]
        text = turns[0] if isinstance(turns, list) and turns and isinstance(turns[0], str) else None
        return str(content.get("category") or ""), text, reference_result(content)
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", None, None


def answer_questions(
    questions: Sequence[Question],
    files: ModelFiles,
    reader: TargetReader,
    most_tokens: int,
    progress: Progress,
    cache_dir: Path | None = None,
) -> list[AnsweredQuestion]:
    """The target's greedy answers, remembered ones where there are."""
    content = json.dumps([files.fingerprint, reader.level, most_tokens, [question.prompt for question in questions]])
    kept = cache_root(cache_dir) / "answers" / f"{hashlib.sha256(content.encode()).hexdigest()[:32]}.json"
    answers: list[list[int]] = []
    if kept.is_file():
        answers = json.loads(kept.read_text())
    else:
        prompts = [question.prompt for question in questions]
        answers = reader.answers(prompts, most_tokens, stop_tokens(files), progress)
        kept.parent.mkdir(parents=True, exist_ok=True)
        beside = kept.with_suffix(".partial")
        beside.write_text(json.dumps(answers))
        beside.replace(kept)
    return [
        AnsweredQuestion(question.category, question.prompt, tuple(answer), question.result)
        for question, answer in zip(questions, answers, strict=True)
    ]


def stop_tokens(files: ModelFiles) -> set[int]:
    """Tokens that end an answer: the configuration's, the generation configuration's and the tokenizer's."""
    found: set[int] = set()
    for value in (files.config.get("eos_token_id"), _generation_stop(files), load_tokenizer(files).eos_token_id):
        found |= set(value) if isinstance(value, list) else {value} if isinstance(value, int) else set()
    return found


def _generation_stop(files: ModelFiles) -> Any:
    path = files.folder / "generation_config.json"
    return json.loads(path.read_text()).get("eos_token_id") if path.is_file() else None
