"""The experiment of `moa-bench network`: ways to answer, over links, at acceptances, against plain streaming.

Everything runs in one server; for each link and prompt plain streaming is measured before and after the other ways, and
each ratio is to the mean of those two, so that slow changes of the machine cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from moa_shared.errors import MoaError
from moa_shared.protocol.finish_rule import AnswerSettings

from moa_bench.network.emulated import Link, RunningLink, linked
from moa_bench.network.oracle import Script
from moa_bench.report.answers import AnswerClient, PlainClient, TimedAnswer
from moa_bench.report.spread import Spread

# Texts whose every token the default target chooses by a wide margin (4 bf16 steps or more, but for the first two):
# verification then never flips one, and the oracle's script stays true to the end.
SURE_QUESTIONS = tuple(
    f"Write the numbers from {first} to {last}, separated by commas."
    for first, last in ((11, 90), (20, 80), (101, 160), (201, 260), (1, 60))
)
ACCEPTANCES = (0.0, 0.35, 0.65, 0.8, 0.9)


@dataclass(frozen=True, slots=True)
class Way:
    """A way to answer with a drafter.

    Args:
        connect: makes a client for a link, its address, and what an oracle is to play (None for a real drafter).
        predict: the seconds that the simulation expects, from an answer by plain streaming; None: it cannot say.
        acceptances: of the oracle at which it is measured; None: at all.
    """

    name: str
    connect: Callable[[Link, str, Script | None], AnswerClient]
    predict: Callable[[Link, Script, TimedAnswer], float] | None = None
    acceptances: tuple[float, ...] | None = None

    def runs_at(self, acceptance: float | None) -> bool:
        return acceptance is None or self.acceptances is None or acceptance in self.acceptances


@dataclass(frozen=True, slots=True)
class Cell:
    """How one way does over one link.

    Args:
        acceptance: of the oracle, a token; None: a real drafter's own.
        ratio: of tokens a second over the whole answer, to plain streaming on the same prompt.
        predicted: that ratio by the simulation; `error`: measured over predicted, less one, answer by answer.
        first_ratio: of the time to the first token.
        other_texts: answers that are not plain streaming's, token for token.
        failures: why answers failed; ratios and rates are of the others, and None where there is none.
        lowest: ratio of an answer.
    """

    link: str
    acceptance: float | None
    way: str
    ratio: Spread | None
    first_ratio: Spread | None
    tokens_per_s: Spread | None
    plain_tokens_per_s: Spread
    other_texts: int
    failures: tuple[str, ...] = ()
    predicted: Spread | None = None
    error: Spread | None = None
    lowest: float | None = None


@dataclass(frozen=True, slots=True)
class _Pair:
    answer: TimedAnswer | MoaError
    plain: tuple[TimedAnswer, TimedAnswer]
    predicted_s: float | None = None

    @property
    def plain_tokens_per_s(self) -> float:
        return sum(answer.tokens_per_s for answer in self.plain) / 2

    @property
    def plain_first_ms(self) -> float:
        return sum(answer.first_ms for answer in self.plain) / 2


@dataclass(frozen=True, slots=True)
class Plan:
    """The answers to run.

    Args:
        prompts: token ids.
        seed: of links and oracles.
        ignore_end_of_text: answers have all their tokens, whatever the target chooses.
    """

    links: Sequence[Link]
    ways: Sequence[Way]
    acceptances: Sequence[float | None]
    prompts: Sequence[Sequence[int]]
    answer_tokens: int
    vocab_size: int
    seed: int = 0
    ignore_end_of_text: bool = True

    @property
    def answers(self) -> int:
        """Answers in all, for a progress bar."""
        per_prompt = 2 + sum(way.runs_at(acceptance) for acceptance in self.acceptances for way in self.ways)
        return len(self.links) * len(self.prompts) * per_prompt


def run_plan(
    plan: Plan, server: str, cores: set[int] | None, advance: Callable[[int], object] = lambda count: None
) -> list[Cell]:
    """Run the whole plan against one server.

    Args:
        server: its "host:port".
        cores: of the emulated links.
        advance: takes the number of answers done since the last call.

    Raises:
        MoaError: a link, the server or plain streaming fails. Where another way fails, its cell says so.
    """
    cells = []
    for link in plan.links:
        with linked(link, server, seed=plan.seed, cores=cores) as running:
            cells += _run_link(plan, link, running, advance)
    return cells


def _run_link(plan: Plan, link: Link, running: RunningLink, advance: Callable[[int], object]) -> list[Cell]:
    settings = AnswerSettings(max_tokens=plan.answer_tokens, ignore_end_of_text=plan.ignore_end_of_text)
    pairs: dict[tuple[float | None, str], list[_Pair]] = {}
    plain = PlainClient(running.address)
    try:
        plain.ask(plan.prompts[0], AnswerSettings(max_tokens=2))  # opens the connection
        for number, prompt in enumerate(plan.prompts):
            before = plain.ask(prompt, settings)
            advance(1)
            answers = {}
            for acceptance in plan.acceptances:
                script = None
                if acceptance is not None:
                    script = Script((*prompt, *before.tokens), acceptance, plan.seed + number, plan.vocab_size)
                for way in plan.ways:
                    if not way.runs_at(acceptance):
                        continue
                    asked = partial(way.connect, link, running.address, script)
                    found = _ask(asked, prompt, settings)
                    predicted = way.predict(link, script, before) if way.predict and script else None
                    answers[acceptance, way.name] = (found, predicted)
                    advance(1)
            after = plain.ask(prompt, settings)
            advance(1)
            for key, (answer, predicted) in answers.items():
                pairs.setdefault(key, []).append(_Pair(answer, (before, after), predicted))
    finally:
        plain.close()
    return [_cell(link.name, acceptance, way, found) for (acceptance, way), found in pairs.items()]


def _ask(
    connect: Callable[[], AnswerClient], prompt: Sequence[int], settings: AnswerSettings
) -> TimedAnswer | MoaError:
    """One answer over a connection that is already open, as plain streaming's is; or why there is none."""
    try:
        client = connect()
    except MoaError as error:
        return error
    try:
        return client.ask(prompt, settings)
    except MoaError as error:
        return error
    finally:
        client.close()


def _cell(link: str, acceptance: float | None, way: str, pairs: Sequence[_Pair]) -> Cell:
    ratios, first_ratios, rates, failures, predictions, errors = [], [], [], [], [], []
    other_texts = 0
    for pair in pairs:
        answer = pair.answer
        if isinstance(answer, MoaError):
            failures.append(str(answer))
            continue
        ratios.append(answer.tokens_per_s / pair.plain_tokens_per_s)
        first_ratios.append(answer.first_ms / pair.plain_first_ms)
        rates.append(answer.tokens_per_s)
        if pair.predicted_s is not None:
            predictions.append(pair.plain[0].arrivals_s[-1] / pair.predicted_s)
            errors.append(answer.tokens_per_s / pair.plain_tokens_per_s / predictions[-1] - 1)
        other_texts += answer.tokens != pair.plain[0].tokens
    return Cell(
        link,
        acceptance,
        way,
        Spread.of(ratios) if ratios else None,
        Spread.of(first_ratios) if first_ratios else None,
        Spread.of(rates) if rates else None,
        Spread.of([pair.plain_tokens_per_s for pair in pairs]),
        other_texts,
        tuple(failures),
        Spread.of(predictions) if predictions else None,
        Spread.of(errors) if errors else None,
        round(min(ratios), 4) if ratios else None,
    )
