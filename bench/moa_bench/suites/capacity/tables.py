"""How users get their answers, and what they met who asked at the same time: speed, gaps, first tokens, fairness.

Pure. A user's rate is the tokens after each answer's first arrival, over the time from the first arrival to the last;
of answers that all came in one piece, their tokens over the time from the question.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np
from moa_shared.errors import DataError

from moa_bench.registry import KINDS, Drafts
from moa_bench.report import Column, facts_line, table_of

AUTO_AT = 0.8  # acceptance of devices next to a server that drafts: that of the aim


@dataclass(frozen=True, slots=True)
class Strategy:
    """How all users get their answers: with no drafts, the server's, those of an oracle on each device that is right at
    the rate `acceptance`, those of the package's drafter; with auto and everything, the server's while it has time,
    otherwise as with oracle and shipped.
    """

    drafts: Drafts
    acceptance: float | None = None  # of an oracle

    @property
    def name(self) -> str:
        oracle = f"devices' drafts, acceptance {self.acceptance:g}" if self.acceptance is not None else ""
        return {
            "plain": "plain",
            "server": "server's drafts",
            "oracle": oracle,
            "shipped": "devices' drafts, shipped drafter",
            "auto": f"server's or {oracle}",
            "everything": "server's or devices' drafts, shipped drafter",
        }[self.drafts]

    @property
    def server_drafts(self) -> bool:
        return self.drafts in ("server", "auto", "everything")


def make_strategies(kinds: Sequence[Drafts], acceptances: Sequence[float]) -> list[Strategy]:
    """Plain serving, which all others are compared with, then the chosen ways.

    Next to a server that drafts an oracle is asked only at AUTO_AT, or the last acceptance.
    """
    at = {"oracle": tuple(acceptances), "auto": (AUTO_AT if AUTO_AT in acceptances else acceptances[-1],)}
    chosen = [kind for kind in KINDS if kind in kinds and kind != "plain"]
    return [Strategy("plain"), *(Strategy(kind, each) for kind in chosen for each in at.get(kind, (None,)))]


@dataclass(slots=True)
class UserAnswer:
    """One answer as its user saw it, perhaps broken off."""

    user: int  # who asked; from 0
    question: int  # which of the user's questions; from 0
    asked_s: float  # when, on the clock of the arrivals
    arrivals: list[tuple[float, int]] = field(default_factory=list)  # when some tokens came together, and how many
    tokens: list[int] = field(default_factory=list)
    is_whole: bool = False  # it was not broken off
    on_rate: Callable[[], object] = lambda: None  # called once it says how fast text comes

    def on_tokens(self, now_s: float, tokens: Sequence[int]) -> None:
        if tokens:
            self.arrivals.append((now_s, len(tokens)))
            self.tokens.extend(tokens)
            if self.streaming_s:
                self.on_rate()

    def on_end(self) -> None:
        self.is_whole = True
        self.on_rate()

    @property
    def streaming_s(self) -> float:
        return self.arrivals[-1][0] - self.arrivals[0][0] if self.arrivals else 0.0


@dataclass(frozen=True, slots=True)
class UserStats:
    """What some users met together.

    Gaps are between arrivals of one answer; 0: each came in one piece. What a user who never got a first token has
    waited so far counts too.
    """

    # Of all users, reading prompts included: once all have text, if that leaves half of the time, else from the start.
    tokens_per_s: float
    gap_p95_ms: float
    first_p50_ms: float
    fairness: float  # Jain's index of the users' rates; 1: all alike, 1 / users: one has everything
    slowest_tokens_per_s: float
    median_tokens_per_s: float
    unserved: int  # users whose text had hardly begun to come when it was over; they have no rate

    @classmethod
    def of(cls, answers: Sequence[UserAnswer], users: int, ended_s: float) -> "UserStats":
        """The figures of `users` users, who all broke off at `ended_s` on the clock of the answers."""
        begun = [answer for answer in answers if answer.arrivals]
        rates = list(user_rates(begun).values())
        if not rates:
            hint = "Ask for longer (--seconds), or with shorter prompts (--prompt-tokens)."
            raise DataError("No answer was whole, and none had two arrivals.", hint=hint)
        gaps_ms = [
            1e3 * (later - earlier) for answer in begun for (earlier, _), (later, _) in pairwise(answer.arrivals)
        ]
        served = {answer.user for answer in begun}
        firsts_ms = [1e3 * (answer.arrivals[0][0] - answer.asked_s) for answer in begun]
        firsts_ms += [1e3 * (ended_s - answer.asked_s) for answer in answers if answer.user not in served]
        start_s = min(answer.asked_s for answer in answers)
        firsts_s = {answer.user: answer.arrivals[0][0] for answer in reversed(begun)}
        if len(firsts_s) == users and max(firsts_s.values()) <= (start_s + ended_s) / 2:
            start_s = max(firsts_s.values())
        tokens = sum(count for answer in begun for when_s, count in answer.arrivals if when_s > start_s)
        return cls(
            tokens_per_s=round(tokens / (ended_s - start_s), 3),
            gap_p95_ms=round(float(np.percentile(gaps_ms or [0.0], 95)), 1),
            first_p50_ms=round(float(np.median(firsts_ms)), 1),
            # Jain, Chiu, Hawe, DEC-TR-301, 1984
            fairness=round(sum(rates) ** 2 / (len(rates) * sum(rate * rate for rate in rates)), 4),
            slowest_tokens_per_s=round(min(rates), 2),
            median_tokens_per_s=round(float(np.median(rates)), 2),
            unserved=users - len(rates),
        )


@dataclass(frozen=True, slots=True)
class UsersCell:
    users: int
    way: Strategy
    met: UserStats
    client_share: float  # CPU time of all users' process over the time that passed; near 1, it is what is measured
    other_texts: int  # answers that differ from the text that was written first
    rtt_ms: float = 0.0


def mean_cell(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A cell of what several rounds of it have met: means, and of users without text the most."""
    met = {name: round(fmean(each["met"][name] for each in rounds), 4) for name in rounds[0]["met"]}
    return {
        **rounds[0],
        "met": met | {"unserved": max(each["met"]["unserved"] for each in rounds)},
        "client_share": round(fmean(each["client_share"] for each in rounds), 3),
        "other_texts": sum(each["other_texts"] for each in rounds),
    }


def user_rates(answers: Iterable[UserAnswer]) -> dict[int, float]:
    """Tokens a second of each user while its text came; users whose text did not come are left out."""
    begun = [answer for answer in answers if answer.arrivals]
    in_one_piece = _rates(
        (answer.user, len(answer.tokens), answer.arrivals[-1][0] - answer.asked_s)
        for answer in begun
        if answer.is_whole and not answer.streaming_s
    )
    return in_one_piece | _rates(
        (answer.user, sum(count for _, count in answer.arrivals[1:]), answer.streaming_s) for answer in begun
    )


def _rates(parts: Iterable[tuple[int, int, float]]) -> dict[int, float]:
    """Tokens over seconds of each user, from its parts: user, tokens, seconds."""
    tokens, seconds = Counter[int](), defaultdict[int, float](float)
    for user, count, took_s in parts:
        tokens[user] += count
        seconds[user] += took_s
    return {user: tokens[user] / took_s for user, took_s in seconds.items() if took_s}


PLAIN = Strategy("plain")
CELLS: tuple[Column, ...] = (
    ("way", "{0.cell.way.name}"),
    ("round trip, ms", "{0.cell.rtt_ms:g}"),
    ("users", "{0.cell.users}"),
    ("tokens a second in all", "{0.met.tokens_per_s:.0f}"),
    ("over plain's", lambda row: _over(row.met.tokens_per_s, row.plain and row.plain.met.tokens_per_s)),
    ("of one user's", lambda row: _over(row.met.tokens_per_s, row.first.users == 1 and row.first.met.tokens_per_s)),
    ("gap p95, ms", "{0.met.gap_p95_ms:.0f}"),
    ("over plain's", lambda row: _over(row.met.gap_p95_ms, row.plain and row.plain.met.gap_p95_ms)),
    ("first token, ms", "{0.met.first_p50_ms:.0f}"),
    ("a user, tokens a second: median", "{0.met.median_tokens_per_s:.1f}"),
    ("slowest", "{0.met.slowest_tokens_per_s:.1f}"),
    ("Jain's index", "{0.met.fairness:.3f}"),
    ("users without text", "{0.met.unserved}"),
    ("clients' core busy", lambda row: f"{100 * row.cell.client_share:.0f} %"),
)


@dataclass(frozen=True, slots=True)
class CapacityRow:
    cell: UsersCell
    first: UsersCell  # of the same way, with the fewest users
    plain: UsersCell | None  # of as many users, over the same links

    @property
    def met(self) -> UserStats:
        return self.cell.met


def _over(value: float, base: float | None) -> str:
    return f"{value / base:.2f}" if base else ""


def render(result: Mapping[str, Any]) -> str:
    effort = result["effort"]
    cells = [
        UsersCell(**{**cell, "way": Strategy(**cell["way"]), "met": UserStats(**cell["met"])})
        for cell in result["cells"]
    ]
    ways: dict[tuple[float, Strategy], list[UsersCell]] = {}
    for cell in cells:
        ways.setdefault((cell.rtt_ms, cell.way), []).append(cell)
    plain = {(cell.rtt_ms, cell.users): cell for cell in cells if cell.way == PLAIN}
    rows = [
        CapacityRow(cell, of_way[0], plain.get((cell.rtt_ms, cell.users)))
        for of_way in ways.values()
        for cell in of_way
    ]
    note = (
        f"Prompts of {effort.prompt_tokens[0]} to {effort.prompt_tokens[1]} tokens, answers of {effort.answer_tokens}, "
        f"{result['level']}. "
        f"All users ask for {effort.seconds:g} s in each row and round; rounds: {effort.rounds}. "
        f"Drafts: chains of an oracle, {effort.draft_ms:g} ms a draft step; "
        f"trees of the package's drafter ({result['drafter']}). "
        f"Answers that differ from the text written for the same prompt before: "
        f"{sum(cell.other_texts for cell in cells)}.\n"
    )
    return "\n".join([facts_line(result), note, table_of(CELLS, rows), _too_short(effort, cells)])


def _too_short(effort: Any, cells: Sequence[UsersCell]) -> str:
    """What to do where prompts took so much of the time that the rates are those of a few users."""
    without = [cell for cell in cells if 2 * cell.met.unserved >= cell.users]
    if not without:
        return ""
    most = max(without, key=lambda cell: cell.met.unserved / cell.users)
    return (
        f"In {len(without)} of {len(cells)} rows half of the users or more had no text when the "
        f"{effort.seconds:g} s were over ({most.met.unserved} of {most.users} at most): "
        "prompts took the time, and the rates are those of the others. "
        "Give --seconds more, or --prompt-tokens less.\n"
    )
