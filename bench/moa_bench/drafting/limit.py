"""The most that the server's drafts can bring: E / (c_v + k c_d), from steps without a network.

E tokens a verification, which takes c_v plain steps, after k steps of the drafter of c_d plain steps each. Plain steps
are those of the same questions, answered before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from moa_shared.errors import DataError
from moa_shared.protocol.finish_rule import AnswerSettings

from moa_bench.drafting.effort import DraftingEffort
from moa_bench.drafting.local_server import LocalAnswer, LocalServer
from moa_bench.report.spread import Spread

WARM_UP_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Answered:
    """A question that was answered with drafts, and by plain steps before and after."""

    prompt: Sequence[int]
    drafted: LocalAnswer
    plain: tuple[LocalAnswer, LocalAnswer]

    @property
    def steps_ratio(self) -> float:
        """How many times as fast the tokens after the first came."""
        return _mean([each.stepping_ms for each in self.plain]) / self.drafted.stepping_ms

    @property
    def whole_ratio(self) -> float:
        """How many times as fast the whole answer came, the prompt included."""
        plain_ms = _mean([each.reading_ms + each.stepping_ms for each in self.plain])
        return plain_ms / (self.drafted.reading_ms + self.drafted.stepping_ms)


@dataclass(frozen=True, slots=True)
class Limit:
    """What drafting on the server brings without any network.

    Args:
        tokens_a_verification: E; `nodes`: of a verification, on average.
        plain_ms: of a plain step.
        verification_cost: c_v; `drafting_cost`: k c_d; both in plain steps.
        first_drafting_ms: of an answer's first draft, for which the prompt is read; it is part of k c_d.
        ratio: E / (c_v + k c_d), over all tokens after the first ones.
        steps_ratio: the same, by question; `lowest`: of these.
        whole_ratio: of whole answers, by question, the time to read the prompt included.
        other_texts: answers with another text than that of plain steps.
    """

    tokens_a_verification: float
    nodes: float
    plain_ms: float
    verification_cost: float
    drafting_cost: float
    first_drafting_ms: Spread
    ratio: float
    steps_ratio: Spread
    lowest: float
    whole_ratio: Spread
    other_texts: int


def limit_of(answers: Sequence[Answered]) -> Limit:
    """The limit over at least one question, each with more than one token."""
    drafted = [step for each in answers for step in each.drafted.steps]
    plain_ms = _mean([step.forward_ms for each in answers for plain in each.plain for step in plain.steps])
    tokens = _mean([step.tokens for step in drafted])
    verification = _mean([step.forward_ms for step in drafted]) / plain_ms
    drafting = _mean([step.drafting_ms for step in drafted]) / plain_ms
    ratios = [each.steps_ratio for each in answers]
    return Limit(
        round(tokens, 4),
        round(_mean([step.nodes for step in drafted]), 2),
        round(plain_ms, 3),
        round(verification, 4),
        round(drafting, 4),
        Spread.of([each.drafted.steps[0].drafting_ms for each in answers]),
        round(tokens / (verification + drafting), 4),
        Spread.of(ratios),
        round(min(ratios), 4),
        Spread.of([each.whole_ratio for each in answers]),
        sum(each.drafted.tokens != each.plain[0].tokens for each in answers),
    )


def answer_locally(
    server: LocalServer,
    prompts: Sequence[Sequence[int]],
    effort: DraftingEffort,
    advance: Callable[[int], object] = lambda count: None,
) -> list[Answered]:
    """The first questions that are neither too long nor answered too shortly, as many as the effort wants.

    Args:
        prompts: token ids.
        advance: takes the number of questions done since the last call.

    Raises:
        DataError: there is none.
    """
    settings = AnswerSettings(max_tokens=effort.answer_tokens)
    short = [prompt for prompt in prompts if len(prompt) <= effort.longest_prompt]
    for prompt in short[:1]:
        server.ask(prompt, AnswerSettings(max_tokens=WARM_UP_TOKENS), drafts=True)
    answered: list[Answered] = []
    for prompt in short:
        before = server.ask(prompt, settings, drafts=False)
        if len(before.tokens) < effort.shortest_answer:
            continue
        drafted = server.ask(prompt, settings, drafts=True)
        answered.append(Answered(prompt, drafted, (before, server.ask(prompt, settings, drafts=False))))
        advance(1)
        if len(answered) == effort.questions:
            break
    if not answered:
        raise DataError(
            f"No question has at most {effort.longest_prompt} tokens and an answer of at least "
            f"{effort.shortest_answer}.",
            hint="Name others with --questions.",
        )
    return answered


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
