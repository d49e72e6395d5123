"""Which questions are asked of how many there are."""

from collections.abc import Mapping, Sequence

from moa_shared.errors import DataError

from moa_bench.harness.questions import BenchQuestion


def choose(
    questions: Sequence[BenchQuestion], prompts: Mapping[str, Sequence[int]], count: int, longest: int
) -> list[BenchQuestion]:
    """The first `count` questions of each category whose prompts have at most `longest` tokens, in turn.

    Args:
        prompts: tokens by text.
    """
    found: dict[str, list[BenchQuestion]] = {}
    for question in questions:
        of_category = found.setdefault(question.category, [])
        if len(of_category) < count and len(prompts[question.text]) <= longest:
            of_category.append(question)
    chosen = [each for turn in range(count) for of_category in found.values() for each in of_category[turn : turn + 1]]
    if not chosen:
        raise DataError(f"No question has at most {longest} tokens.", hint="Name others with --questions.")
    return chosen
