"""How a drafter continues without the server: cut off after some tokens of an answer, it writes the rest.

Measures that looping text cannot flatter: agreement with the target's own continuation over the first tokens, the
target's likelihood of what was written, how much of it repeats itself, and how often the target would have written the
same token where the text is new. Pure but for the networks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from moa_shared.sampling.scores import log_softmax

from moa_training.evaluation.acceptance import Subject

CUTS = (8, 32, 64)
FIRST = (8, 16)  # after them small drafters loop, and a target agrees with a loop
_GRAM = 4


@dataclass(slots=True)
class StandaloneQuality:
    """Standalone quality: means over questions, kept as sums.

    Attributes:
        questions: whose answers reach far enough beyond the cut.
    """

    questions: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, value: float, weight: float = 1.0) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + value * weight
        self.counts[name] = self.counts.get(name, 0.0) + weight

    def merge(self, other: StandaloneQuality) -> None:
        self.questions += other.questions
        for name, total in other.sums.items():
            self.add(name, total / other.counts[name], other.counts[name])

    @property
    def means(self) -> dict[str, float]:
        """agreement_8 and agreement_16 (share of the first tokens equal to the target's own continuation), repeated
        (share of 4-grams that occurred before), target_repeated (of the target's own continuation), log_likelihood (the
        target's, nats a token), new_agreement (target's choice equals the token, where the 4-gram is new).
        """
        return {name: self.sums[name] / self.counts[name] for name in self.sums if self.counts[name]}


def repeated_share(tokens: Sequence[int]) -> float | None:
    """Share of 4-grams that occurred earlier in the same text; None for less than two of them."""
    grams = [tuple(tokens[index : index + _GRAM]) for index in range(len(tokens) - _GRAM + 1)]
    return None if len(grams) < 2 else 1.0 - len(set(grams)) / len(grams)


def standalone_quality(
    subject: Subject, prompt: Sequence[int], answer: Sequence[int], cut: int, length: int, *, memory: bool = True
) -> StandaloneQuality:
    """One answer, cut after `cut` tokens; the drafter writes `length` tokens.

    Args:
        memory: whether the drafter has that of what was before.

    Answers that end less than 8 tokens after the cut are not counted.
    """
    quality = StandaloneQuality()
    rest = list(answer[cut:])
    if len(rest) < FIRST[0]:
        return quality
    quality.questions = 1
    known = [*prompt, *answer[:cut]]
    written = subject.write(known, length, memory=memory)
    for first in FIRST:
        if len(rest) >= first:
            equal = sum(ours == theirs for ours, theirs in zip(written[:first], rest[:first], strict=False))
            quality.add(f"agreement_{first}", equal / first)
    for name, text in (("repeated", written), ("target_repeated", rest[:length])):
        share = repeated_share(text)
        if share is not None:
            quality.add(name, share)
    if not written:  # nothing to copy
        return quality
    ids = [*known, *written]
    read = subject.reader.read(ids)
    logits = subject.reader.logits(read.last_hidden[len(known) - 1 : -1])
    likelihood = log_softmax(logits)[np.arange(len(written)), written]
    quality.add("log_likelihood", float(likelihood.mean()), len(written))
    agrees = (logits.argmax(-1) == np.asarray(written)).tolist()
    fresh = _fresh(known, written)
    if any(fresh):
        share = sum(a and f for a, f in zip(agrees, fresh, strict=True)) / sum(fresh)
        quality.add("new_agreement", share, sum(fresh))
    return quality


def _fresh(known: Sequence[int], written: Sequence[int]) -> list[bool]:
    """For each written token whether the 4-gram that it ends is new to the text."""
    text = [*known, *written]
    seen: set[tuple[int, ...]] = set()
    fresh = []
    for index in range(len(text)):
        gram = tuple(text[max(0, index - _GRAM + 1) : index + 1])
        if index >= len(known):
            fresh.append(gram not in seen)
        seen.add(gram)
    return fresh
