"""What arithmetic makes of a round trip, to compare measurements with. Pure.

A round of g drafts and their verification takes g t_d + t_v where there is no network, and brings E tokens. Over a link
with the round trip R, as arXiv 2606.25091 has it,

- synchronous rounds bring E tokens every g t_d + t_v + R;
- one round ahead brings E at most every max(g t_d + t_v, t_v + R): drafting hides the round trip, if all is right;
- where the server drafts, and in plain streaming, a link delays the first token and no other.

Drafts that are streamed to a server that never waits bring at least plain streaming, whatever R is
(docs/architecture.md). g t_d + t_v, t_v and what comes before the first token are measured; so is E, over each link.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from moa_bench.report.spread import Spread
from moa_bench.suites.split.names import AHEAD, CO_LOCATED, PLAIN, SYNCHRONOUS

BASE = "RTT 0"


def over_plain(
    rounds: Sequence[Mapping[str, Any]], link: str, links: Mapping[str, Mapping[str, Any]]
) -> dict[str, float]:
    """Tokens a second over plain streaming's on the same link, by method; medians over the questions.

    Args:
        rounds: over all links.
        links: their "rtt_ms", and whether they are "recorded", by name. Of recorded links little is said beforehand.

    Returns:
        Nothing without measurements over BASE, and nothing for BASE itself.
    """
    if link == BASE or BASE not in links or links[link]["recorded"]:
        return {}
    base, here = ([each for each in rounds if each["link"] == name] for name in (BASE, link))
    plain_s = _period_s(base, PLAIN)
    rtt_s = links[link]["rtt_ms"] / 1e3
    forms: dict[str, Callable[[float], float]] = {
        SYNCHRONOUS: lambda period_s: period_s + rtt_s,
        AHEAD: lambda period_s: max(period_s, plain_s + rtt_s),
        CO_LOCATED: lambda period_s: period_s,
    }
    found = {}
    for method in dict.fromkeys(name for each in here for name in each["answers"]):
        form = next((form for name, form in forms.items() if method.endswith(name)), None)
        period_s = _period_s(base, method)
        if form is None or not period_s:
            continue
        ratios = [
            _plain_s(each) / (answer["first_ms"] / 1e3 + form(period_s) * _later_forwards(answer))
            for each in here
            for answer in each["answers"].get(method, ())
            if answer.get("same")
        ]
        if ratios:
            found[method] = Spread.of(ratios).median
    return found


def _period_s(rounds: Sequence[Mapping[str, Any]], method: str) -> float:
    """From one verdict to the next, on average; 0: it failed everywhere."""
    answers = [one for each in rounds for one in each["answers"].get(method, ()) if "failure" not in one]
    forwards = sum(_later_forwards(one) for one in answers)
    return sum(one["seconds"] - one["first_ms"] / 1e3 for one in answers) / forwards if forwards else 0.0


def _later_forwards(answer: Mapping[str, Any]) -> int:
    """Forwards after the one that brought the first tokens."""
    return int(answer["forwards"]) - 1


def _plain_s(each: Mapping[str, Any]) -> float:
    """What plain streaming took for the answer, on average of both times."""
    plain = each["answers"][PLAIN]
    return float(sum(one["seconds"] for one in plain) / len(plain))
