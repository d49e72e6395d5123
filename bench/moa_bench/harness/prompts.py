"""The questions that the measurements ask. Written for this, so that a bare checkout can measure; never trained on."""

from collections.abc import Sequence
from pathlib import Path

from moa_shared.models.tokenizer.tokenizer import Tokenizer

from moa_bench.harness.questions import PACKAGED, read_all

QUESTIONS = (
    "Explain to a child why the sky is blue.",
    "A baker makes 24 rolls an hour and works for 7 hours. He sells 150. How many are left? Think step by step.",
    "Write a Python function that returns the longest word of a sentence, and show how to call it.",
    "What are three differences between a lake and a river?",
    "Write a short letter to a friend in which you invite her to a picnic.",
    "Summarise how bread is made, from the grain to the loaf.",
    "A train leaves at 9:40 and arrives at 13:05. How long does the journey take? Explain how you found it.",
    "Give me a list of ten things to check before a long bicycle tour.",
    "Describe a lighthouse in a storm in one paragraph.",
    "Write a SQL query that gives the three customers with the most orders, and explain it.",
    "Why do leaves change their colour in autumn?",
    "Tell the story of a clockmaker who repairs a clock that runs backwards.",
)

# Texts whose every token the default target chooses by a wide margin (4 bf16 steps or more, but for the first two): an
# arithmetic whose bits depend on what is computed together then flips none.
SURE_QUESTIONS = tuple(
    f"Write the numbers from {first} to {last}, separated by commas."
    for first, last in ((11, 90), (20, 80), (101, 160), (201, 260), (1, 60))
)

PASSAGE = (PACKAGED / "passage.txt").read_text("utf-8")  # about 650 tokens


def questions_of(path: Path) -> Sequence[str]:
    """First turns of the questions of a file or folder, see `read_all`, which says what it raises."""
    return [question.text for question in read_all(path)]


def chat_tokens(tokenizer: Tokenizer, question: str) -> list[int]:
    """A first turn in the model's own chat template, up to where its answer begins; without a template: the text."""
    if tokenizer.chat_template is None:
        return tokenizer.with_bos(tokenizer.encode(f"{question}\n"))
    return tokenizer.encode(
        tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True)
    )
