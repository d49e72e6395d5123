"""What `moa-bench split` found of each method, from rounds of answers. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moa_bench.report.spread import Spread

# What results and tables call the methods that they treat by themselves.
PLAIN = "plain streaming"
CO_LOCATED = "co-located: the server drafts"
ALL = "moa: everything on"
TREE_NODES = 8  # of an oracle's tree that is sent whole: more rows cost a core more than they bring
SYNCHRONOUS, STREAMED = "synchronous rounds", "streamed"


@dataclass(frozen=True, slots=True)
class LinkFigures:
    """A method over one link."""

    answers: list[Mapping[str, Any]]  # those that are not failures
    rates: list[float]  # tokens a second
    over_plain: list[float]  # ratios of rates to the mean of plain streaming before and after
    first_over_plain: list[float]

    @property
    def tokens(self) -> int:
        return sum(int(each["tokens"]) for each in self.answers)

    def a_token(self, field: str, scale: float = 1.0) -> float | None:
        """The sum of a field over all answers, for each token."""
        values = [each[field] for each in self.answers]
        return None if None in values or not self.tokens else scale * sum(values) / self.tokens

    @property
    def gaps_ms(self) -> list[float]:
        return [gap for each in self.answers for gap in each["gaps_ms"]]


def figures_of(rounds: Sequence[Mapping[str, Any]], method: str) -> LinkFigures:
    """A method over all rounds in which it did not fail; of plain streaming, both answers."""
    found = LinkFigures([], [], [], [])
    for each in rounds:
        plain = each["answers"][PLAIN]
        plain_rate = sum(one["tokens"] / one["seconds"] for one in plain) / len(plain)
        plain_first = sum(one["first_ms"] for one in plain) / len(plain)
        for answer in each["answers"].get(method, ()):
            if "failure" in answer:
                continue
            found.answers.append(answer)
            found.rates.append(answer["tokens"] / answer["seconds"])
            if answer["same"]:
                found.over_plain.append(found.rates[-1] / plain_rate)
                found.first_over_plain.append(answer["first_ms"] / plain_first)
    return found


def over(rounds: Sequence[Mapping[str, Any]], method: str, base: str) -> Spread | None:
    """Tokens a second of one method over another one's, question by question; None: there is no pair."""
    ratios = []
    for each in rounds:
        first, second = (next(iter(each["answers"].get(name, ())), None) for name in (method, base))
        if first and second and first.get("same") and second.get("same"):
            rate, base_rate = (float(one["tokens"]) / float(one["seconds"]) for one in (first, second))
            ratios.append(rate / base_rate)
    return Spread.of(ratios) if ratios else None
