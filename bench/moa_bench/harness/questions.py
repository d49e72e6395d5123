"""Questions from files: JSON lines as Spec-Bench and MT-bench have them, alone or in a folder, by category.

Each line is {"turns": [text, ...]}, with "question_id" and "category" if it likes.
"""

import json
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path

from moa_shared.errors import DataError, NotFoundError

PACKAGED = Path(str(files("moa_bench") / "questions"))  # asked unless a user names others; LICENCES.md beside them
EXAMPLE = 'A line is {"turns": ["text"]}.'
# Spec-Bench puts the eight kinds of MT-bench next to five tasks of its own, and reports them as one.
OF_MT_BENCH = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}
OF_SPEC_BENCH = {"translation", "summarization", "qa", "math_reasoning", "rag"}


@dataclass(frozen=True, slots=True)
class BenchQuestion:
    """What a user says in turn."""

    identity: str  # its number in its file, as text, or the line's
    category: str
    turns: tuple[str, ...]  # at least one

    @property
    def text(self) -> str:
        return self.turns[0]


def read_all(path: Path) -> list[BenchQuestion]:
    """The questions of a file, or of a folder's .jsonl files, which take turns: the first ones are of all kinds.

    In a folder each file is a category. In a file each line names its own; a file of Spec-Bench has its tasks.
    """
    if not path.exists():
        raise NotFoundError(
            f"There are no questions at {path}.", hint="Name a file of JSON lines, or a folder of such."
        )
    if path.is_dir():
        read = [[replace(each, category=file.stem) for each in _read(file)] for file in sorted(path.glob("*.jsonl"))]
        questions = [each for turn in zip_longest(*read) for each in turn if each is not None]
    else:
        questions = _read(path)
        if len({each.category for each in questions} & OF_SPEC_BENCH) > 1:
            questions = [
                replace(each, category="mt_bench") if each.category in OF_MT_BENCH else each for each in questions
            ]
    if not questions:
        raise DataError(f"{path} holds no questions.", hint=EXAMPLE)
    return questions


def _read(file: Path) -> list[BenchQuestion]:
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise DataError(f"{file} cannot be read as text.", hint="Name a file of JSON lines in UTF-8.") from None
    return [_parse(file, number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _parse(file: Path, number: int, line: str) -> BenchQuestion:
    try:
        fields = json.loads(line)
        turns = fields["turns"]
    except (ValueError, KeyError, TypeError):
        turns = None
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise DataError(f"Line {number} of {file} is not a question.", hint=EXAMPLE)
    identity = str(fields.get("question_id", number))
    return BenchQuestion(identity, str(fields.get("category") or file.stem), tuple(turns))
