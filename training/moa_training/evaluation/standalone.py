"""How a drafter continues without the server: cut off at some place of an answer, it writes the rest.

Measures that looping text cannot flatter: agreement with the target's own continuation over the first tokens, the
target's likelihood of what was written, how much of it repeats itself, and how often the target would have written the
same token where the text is new. Besides, what a reader has of it, and whether the result of a task is right then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, fields
from decimal import Decimal
from itertools import accumulate
from operator import mul
from statistics import fmean, median

import numpy as np
from moa_shared.drafting.estimates import TokenConfidence, chance_of
from moa_shared.sampling.coupling import select
from moa_shared.sampling.scores import TextBefore, log_softmax
from moa_shared.sampling.settings import LEAST_CHANCE, Sampling

from moa_training.data.text import stated_result
from moa_training.evaluation.subjects import StandaloneRun
from moa_training.teacher.target_reader import GREEDY, TargetReader

FIRST = (8, 16, 32)  # after them small drafters loop, and a target agrees with a loop
_GRAM = 4


@dataclass(frozen=True, slots=True)
class AnswerAfterCut:
    """What a reader has of one answer after a cut, in tokens."""

    served: int  # by the server, before the cut
    answer: int
    useful: int  # written alone, before the first that the target would not have written
    shown: int  # written alone while the chance that all of it is right is at least LEAST_CHANCE

    @property
    def kept(self) -> int:
        """How many of the shown tokens the server will keep."""
        return min(self.shown, self.useful)


@dataclass(slots=True)
class StandaloneQuality:
    """Standalone quality: means over cuts, kept as sums, with a text for each cut."""

    questions: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)
    texts: list[AnswerAfterCut] = field(default_factory=list)

    def add(self, name: str, value: float, weight: float = 1.0) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + value * weight
        self.counts[name] = self.counts.get(name, 0.0) + weight

    def merge(self, other: StandaloneQuality) -> None:
        self.questions += other.questions
        self.texts += other.texts
        for name, total in other.sums.items():
            self.add(name, total / other.counts[name], other.counts[name])

    @property
    def means(self) -> dict[str, float]:
        """agreement_8, _16 and _32 (share of the first tokens equal to the target's own continuation, of answers that
        reach so far), repeated (share of 4-grams that occurred before), target_repeated (of the target's own
        continuation), log_likelihood (the target's, nats a token), new_agreement (target's choice equals the token,
        where the 4-gram is new).

        Of readers: served (share of the answer before the cut: all that there is without a drafter), in_hand and
        in_hand_gated (the same with the useful and the kept tokens), useful_run, shown and their medians (tokens),
        precision (kept share of all shown tokens; left out where none is).
        """
        means = {name: self.sums[name] / self.counts[name] for name in self.sums if self.counts[name]}
        texts = self.texts
        if not texts:
            return means
        means |= {
            "served": fmean(text.served / text.answer for text in texts),
            "in_hand": fmean((text.served + text.useful) / text.answer for text in texts),
            "in_hand_gated": fmean((text.served + text.kept) / text.answer for text in texts),
            "useful_run": fmean(text.useful for text in texts),
            "median_useful_run": median(text.useful for text in texts),
            "shown": fmean(text.shown for text in texts),
            "median_shown": median(text.shown for text in texts),
        }
        if shown := sum(text.shown for text in texts):
            means["precision"] = sum(text.kept for text in texts) / shown
        return means


def shown_tokens(run: StandaloneRun, confidence: TokenConfidence | None, threshold: float) -> int:
    """How many tokens that can be judged come before the chance of the run falls below the threshold."""
    chances = (chance_of(written, confidence) for written in run.written[: run.judged])
    below = (count for count, all_right in enumerate(accumulate(chances, mul)) if all_right < threshold)
    return next(below, run.judged)


def repeated_share(tokens: Sequence[int]) -> float | None:
    """Share of 4-grams that occurred earlier in the same text; None for less than two of them."""
    grams = [tuple(tokens[index : index + _GRAM]) for index in range(len(tokens) - _GRAM + 1)]
    return None if len(grams) < 2 else 1.0 - len(set(grams)) / len(grams)


def standalone_quality(
    run: StandaloneRun,
    reader: TargetReader,
    prompt: Sequence[int],
    answer: Sequence[int],
    cut: int,
    length: int,
    confidence: TokenConfidence | None = None,
    sampling: Sampling = GREEDY,
) -> StandaloneQuality:
    """One answer, cut after `cut` tokens, of which it has more, and then written on, `length` tokens at most."""
    quality = StandaloneQuality(1)
    rest, written, known = list(answer[cut:]), list(run.tokens), [*prompt, *answer[:cut]]
    quality.texts.append(AnswerAfterCut(cut, len(answer), run.right, shown_tokens(run, confidence, LEAST_CHANCE)))
    for first in FIRST:
        if len(rest) >= first <= length:
            equal = sum(ours == theirs for ours, theirs in zip(written[:first], rest[:first], strict=False))
            quality.add(f"agreement_{first}", equal / first)
    for name, text in (("repeated", written), ("target_repeated", rest[:length])):
        if (share := repeated_share(text)) is not None:
            quality.add(name, share)
    if not written:  # nothing to copy
        return quality
    read = reader.read([*known, *written])
    logits = reader.logits(read.last_hidden[len(known) - 1 : -1])
    likelihood = log_softmax(logits)[np.arange(len(written)), written]
    quality.add("log_likelihood", float(likelihood.mean()), len(written))
    positions = range(len(known), len(known) + len(written))
    before = TextBefore(known, [written[:at] for at in range(len(written))]) if sampling.reads_text else None
    choices, whole = select(logits, positions, sampling, before), [*known, *written]
    grams = [tuple(whole[max(0, at - _GRAM + 1) : at + 1]) for at in range(len(whole))]
    seen, agrees = set(grams[: len(known)]), list[bool]()
    for choice, token, gram in zip(choices, written, grams[len(known) :], strict=True):
        if gram not in seen:
            agrees.append(choice == token)
        seen.add(gram)
    if agrees:
        quality.add("new_agreement", sum(agrees) / len(agrees), len(agrees))
    return quality


@dataclass(slots=True)
class TaskAccuracy:
    """Counts over questions whose answers the cut shortens.

    The target's own are counted too: where it is never right, the drafter's accuracy says nothing. So are those of the
    cut answer as it is, which is all that somebody without a drafter has.
    """

    questions: int = 0
    right: int = 0  # the cut answer, continued by the drafter, gives the reference's result
    target_right: int = 0
    same_result: int = 0  # the target's, right or wrong
    served_right: int = 0  # of the cut answer as it is
    served_same_result: int = 0
    ended: int = 0  # the drafter ended the answer itself
    target_ended: int = 0  # before the limit

    def merge(self, other: TaskAccuracy) -> None:
        for count in fields(self):
            setattr(self, count.name, getattr(self, count.name) + getattr(other, count.name))

    @property
    def shares(self) -> dict[str, float]:
        """The counts as shares of the questions, under their own names."""
        names = [count.name for count in fields(self) if count.name != "questions"]
        return {name: getattr(self, name) / self.questions for name in names} if self.questions else {}


def task_accuracy(
    expected: Decimal,
    answer: Sequence[int],
    cut: int,
    written: Sequence[int],
    decode: Callable[[Sequence[int]], str],
    stop_ids: Collection[int],
) -> TaskAccuracy:
    """One question, whose answer was cut and then written on; not counted if the cut does not shorten it."""
    own, target_ended = _until_stop(answer, stop_ids)
    if len(own) <= cut:
        return TaskAccuracy()
    continued, ended = _until_stop(written, stop_ids)
    target, served, whole = (stated_result(decode(text)) for text in (own, own[:cut], [*own[:cut], *continued]))
    return TaskAccuracy(
        questions=1,
        right=whole == expected,
        target_right=target == expected,
        same_result=whole is not None and whole == target,
        served_right=served == expected,
        served_same_result=served is not None and served == target,
        ended=ended,
        target_ended=target_ended,
    )


def _until_stop(tokens: Sequence[int], stop_ids: Collection[int]) -> tuple[list[int], bool]:
    """Tokens before the first that ends the answer, and whether there is one."""
    end = next((place for place, token in enumerate(tokens) if token in stop_ids), None)
    return list(tokens[:end]), end is not None
