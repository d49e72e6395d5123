"""Questions to evaluate on, and the numbers that are their results.

Questions have the form of Spec-Bench: {"question_id", "category", "turns"}, one a line; only the first turn is asked;
`reference` or `final_answer` may name the right result.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from moa_shared.errors import DataError, NotFoundError
from moa_shared.models import ModelFiles, load_tokenizer

from moa_training.data.shards import read_lines
from moa_training.data.text import template_ids

_NUMBER = re.compile(r"(?:(?<![\w)])-)?\$?\d[\d,]*(?:\.\d+)?")
_MARKED = re.compile(r"####([^\n]*)|\\boxed\{([^}]*)\}")


@dataclass(frozen=True, slots=True)
class TaskQuestion:
    """A question with its tokens (chat template, opening of the answer included), and the number that its reference
    names as its result.
    """

    category: str
    prompt: tuple[int, ...]
    result: Decimal | None = None


def read_questions(
    path: Path, files: ModelFiles, limit: int | None, longest_prompt: int
) -> tuple[list[TaskQuestion], int]:
    """Questions of a file, or of each file of a folder that holds such, whose names are the categories then.

    Args:
        limit: the most questions of each category.
        longest_prompt: longer ones are left out.

    Returns:
        The questions, and how many rows were left out (malformed or too long).
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


def reference_result(row: dict[str, Any]) -> Decimal | None:
    """The number that a row of the questions names as its result: `final_answer`, or what the first reference marks
    (GSM8K's "#### 18").
    """
    given = row.get("final_answer")
    if given is not None:
        return _number(str(given))
    reference = row.get("reference")
    first = reference[0] if isinstance(reference, list) and reference else None
    return stated_result(first) if isinstance(first, str) and _MARKED.search(first) else None


def stated_result(text: str) -> Decimal | None:
    """The number that a text ends up with: a marked one ("#### 18", "\\boxed{18}"), or else the last one."""
    marked = [number for match in _MARKED.findall(text) if (number := _number("".join(match))) is not None]
    return marked[-1] if marked else _number(text)


def _number(text: str) -> Decimal | None:
    found = _NUMBER.findall(text)
    try:
        return Decimal(found[-1].replace(",", "").replace("$", "")) if found else None
    except InvalidOperation:
        return None
