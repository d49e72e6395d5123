"""What measurements ask: questions of JSON lines as Spec-Bench and MT-bench have them, by category."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from moa_shared.errors import DataError, NotFoundError

if TYPE_CHECKING:
    from moa_shared.models.tokenizer import Tokenizer

PACKAGED = Path(str(files("moa_bench") / "questions"))  # asked unless a user names others; LICENCES.md beside them
EXAMPLE = 'A line is {"turns": ["text"]}.'
# Spec-Bench puts the eight kinds of MT-bench next to five tasks of its own, and reports them as one.
OF_MT_BENCH = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}
OF_SPEC_BENCH = {"translation", "summarization", "qa", "math_reasoning", "rag"}
# Texts whose every token the default target chooses by a wide margin (4 bf16 steps or more, but for the first two): an
# arithmetic whose bits depend on what is computed together then flips none.
SURE_QUESTIONS = tuple(
    f"Write the numbers from {first} to {last}, separated by commas."
    for first, last in ((11, 90), (20, 80), (101, 160), (201, 260), (1, 60))
)


@dataclass(frozen=True, slots=True)
class BenchQuestion:
    """What a user asks: the first turn."""

    category: str
    text: str


def read_all(path: Path = PACKAGED) -> list[BenchQuestion]:
    """The questions of a file, whose lines name their category, or of a folder's .jsonl files, which take turns."""
    if not path.exists():
        hint = "Name a file of JSON lines, or a folder of such."
        raise NotFoundError(f"There are no questions at {path}.", hint=hint)
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
    return BenchQuestion(str(fields.get("category") or file.stem), turns[0])


def questions_of(path: Path = PACKAGED) -> Sequence[str]:
    return [question.text for question in read_all(path)]


def chat_tokens(tokenizer: "Tokenizer", question: str) -> list[int]:
    """A first turn in the model's own chat template, up to where its answer begins; without a template: the text."""
    if tokenizer.chat_template is None:
        return tokenizer.with_bos(tokenizer.encode(f"{question}\n"))
    return tokenizer.encode(
        tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True)
    )
