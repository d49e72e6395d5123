"""What the measurements ask: questions of files, as prompts; a passage; texts that are sure at every token."""

from collections.abc import Sequence
from pathlib import Path

from moa_shared.models.tokenizer.tokenizer import Tokenizer

from moa_bench.harness.questions import PACKAGED, read_all

# Texts whose every token the default target chooses by a wide margin (4 bf16 steps or more, but for the first two): an
# arithmetic whose bits depend on what is computed together then flips none.
SURE_QUESTIONS = tuple(
    f"Write the numbers from {first} to {last}, separated by commas."
    for first, last in ((11, 90), (20, 80), (101, 160), (201, 260), (1, 60))
)

PASSAGE = (PACKAGED / "passage.txt").read_text("utf-8")  # about 650 tokens


def questions_of(path: Path = PACKAGED) -> Sequence[str]:
    """First turns of the questions of a file or folder, see `read_all`, which says what it raises."""
    return [question.text for question in read_all(path)]


def chat_tokens(tokenizer: Tokenizer, question: str) -> list[int]:
    """A first turn in the model's own chat template, up to where its answer begins; without a template: the text."""
    if tokenizer.chat_template is None:
        return tokenizer.with_bos(tokenizer.encode(f"{question}\n"))
    return tokenizer.encode(
        tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True)
    )
