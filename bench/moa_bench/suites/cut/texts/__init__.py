"""`moa-bench texts`: whole answers through split inference over a link that is cut, against the server's own."""

from dataclasses import dataclass

from moa_bench.options import option
from moa_bench.suite import Suite

LOADING_S = 20.0
ANSWER_S = 3.0  # the server's own and that over the link, its cuts included


@dataclass(frozen=True, slots=True)
class TextsEffort:
    """How many answers, and over which link."""

    link: str = option("5G", "The link that is cut.", metavar="NAME")
    drafter: str = option("default", "As for moa-client chat.")
    answers: int = option(200, "Every second one is sampled.", least=1)
    tokens: int = option(64, "Longest answer.", least=2)


SUITE = Suite(
    "texts",
    "Whole answers over a link that is cut, against the server's own, token by token.",
    "moa_bench.suites.cut.texts",
    TextsEffort(),
    TextsEffort(answers=4),
    ("model", "level", "pin", "questions"),
    lambda effort: LOADING_S + ANSWER_S * effort.answers,
)
