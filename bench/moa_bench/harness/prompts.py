"""The questions that the measurements ask. Written for this, so that a bare checkout can measure; never trained on."""

from collections.abc import Sequence
from pathlib import Path

from moa_shared.errors import DataError
from moa_shared.models.tokenizer.tokenizer import Tokenizer

from moa_bench.harness.questions import read_all

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

# Texts whose every token the default target chooses by a wide margin (4 bf16 steps or more, but for the first two):
# verification then never flips one, and an oracle's script stays true to the end.
SURE_QUESTIONS = tuple(
    f"Write the numbers from {first} to {last}, separated by commas."
    for first, last in ((11, 90), (20, 80), (101, 160), (201, 260), (1, 60))
)

PASSAGE = """\
The old ferry at the bend of the river had carried people, carts and animals across the water for longer than anyone \
could remember. It was a flat boat of oak planks, held by a chain that ran from one bank to the other, and it moved \
by the force of the current alone: the ferryman set the rudder at an angle, the water pushed against it, and the \
boat slid sideways along its chain. In spring, when the snow melted in the hills, the crossing took less than two \
minutes. In a dry summer it took ten, and the passengers sat on the rail and talked. The ferryman, whose name was \
Anselm, had the work from his father, who had it from his. He knew by the colour of the water whether it had rained \
in the upper valley, and by the sound of the chain whether a link was wearing thin. He took a copper coin from those \
who had one. Those who had none brought him eggs, or a bundle of wood, or the news from the market. When the council \
decided to build a bridge, an engineer came with poles and a brass instrument and measured the banks for three days. \
She asked Anselm how high the river had stood in the worst year, and he showed her a notch in the door of his hut, \
as high as her shoulder. She wrote the number into her book, and the next day she moved all of her poles. The bridge \
was built in two summers. Its pillars were set further apart than the first plan had shown, and its road lay a whole \
man's height above the notch. On the day when it was opened, Anselm took the boat across once more, empty, and \
fastened it at the near side. The council offered him the post of the bridge keeper, who reads the gauge and closes \
the road when the river is too high. He accepted, on the condition that the chain should stay where it was. Eleven \
years later the flood came. The water rose past the notch by a hand's breadth, tore the mill from its foundations \
and carried trees down the valley like straws. The bridge held. For four days, however, its road on the far side lay \
under water, and nobody could reach the doctor. On the second night Anselm went down to the boat, which was still as \
tight as on the day when he had left it there, and set the rudder. The crossing took forty seconds. He brought the \
doctor over, and two women who were expecting children, and on the way back the mail. Afterwards the council voted \
to keep the ferry in good repair for as long as there was a river, and to pay for a new chain every ten years. The \
engineer, who was old by then, sent a letter. A bridge, she wrote, is an answer to the floods that one knows of; it \
is good to keep something that floats for the ones that one does not.
"""


def questions_of(path: Path) -> Sequence[str]:
    """First turns of the questions of a file or folder, see `read_all`, which says what it raises."""
    return [question.text for question in read_all(path)]


def chat_tokens(tokenizer: Tokenizer, question: str) -> list[int]:
    """A first turn in the model's own chat template, up to where its answer begins."""
    return tokenizer.encode(
        tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True)
    )


def question_of(tokenizer: Tokenizer, tokens: int) -> str:
    """A question of about `tokens` tokens (within 5 %) in the chat template: a request about as much text as fits."""
    words: Sequence[str] = PASSAGE.split()
    low, high = 0, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        if len(chat_tokens(tokenizer, _ask_about(words[:middle]))) <= tokens:
            low = middle
        else:
            high = middle - 1
    question = _ask_about(words[:low])
    length = len(chat_tokens(tokenizer, question))
    if abs(length - tokens) > max(3, tokens // 20):
        raise DataError(f"The prompt nearest to {tokens} tokens has {length}.", hint="Ask for 50 to 650 tokens.")
    return question


def _ask_about(words: Sequence[str]) -> str:
    return "Retell this: " + " ".join(words)
