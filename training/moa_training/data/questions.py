"""Questions to evaluate on, and the tokens that end an answer.

Questions have the form of Spec-Bench: {"question_id", "category", "turns"}, one a line; only the first turn is asked;
`reference` or `final_answer` may name the right result (`task_results.py`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from moa_shared.errors import DataError, NotFoundError
from moa_shared.models import ModelFiles, load_tokenizer

from moa_training.data.prepare import template_ids
from moa_training.data.shards import read_lines
from moa_training.data.task_results import reference_result


@dataclass(frozen=True, slots=True)
class TaskQuestion:
    """A question with its tokens (chat template, opening of the answer included)."""

    category: str
    prompt: tuple[int, ...]
    result: Decimal | None = None  # the number that the reference names


def read_questions(
    path: Path, files: ModelFiles, limit: int | None, longest_prompt: int
) -> tuple[list[TaskQuestion], int]:
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
    questions: list[TaskQuestion] = []
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
            questions.append(TaskQuestion(category, tuple(ids), result))
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


def stop_tokens(files: ModelFiles) -> set[int]:
    """Tokens that end an answer: the configuration's, the generation configuration's and the tokenizer's."""
    found: set[int] = set()
    for value in (files.config.get("eos_token_id"), _generation_stop(files), load_tokenizer(files).eos_token_id):
        found |= set(value) if isinstance(value, list) else {value} if isinstance(value, int) else set()
    return found


def _generation_stop(files: ModelFiles) -> Any:
    path = files.folder / "generation_config.json"
    return json.loads(path.read_text()).get("eos_token_id") if path.is_file() else None
