"""How users get their answers, and what they met who asked at the same time: speed, gaps, first tokens, fairness.

Pure. A user's rate is the speed at which its text comes: the tokens after each answer's first arrival, over the time
from the first arrival to the last. Waiting for the first token is counted apart. A user whose answers all came in one
piece has the rate of these: their tokens over the time from the question.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from moa_shared.errors import DataError

from moa_bench.registry import KINDS, Drafts

AUTO_AT = 0.8  # acceptance of devices next to a server that drafts: that of the aim


@dataclass(frozen=True, slots=True)
class Strategy:
    """How all users get their answers.

    Args:
        drafts: plain: none; server: the server's own; oracle: each device's, right at the rate `acceptance`; shipped:
            each device runs the drafter of the package; auto: the server's while it has time, otherwise an oracle's;
            everything: the server's while it has time, otherwise the drafter of the package.
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

    An oracle is asked at each acceptance, next to a server that drafts only at AUTO_AT, or the last one.
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
        """Seconds from the first arrival to the last."""
        return self.arrivals[-1][0] - self.arrivals[0][0] if self.arrivals else 0.0


@dataclass(frozen=True, slots=True)
class UserStats:
    """What some users met together.

    Args:
        gap_p50_ms, gap_p95_ms: between arrivals of one answer, over all users; 0: each answer came in one piece.
        first_p50_ms, first_p95_ms: from a question to its first token; what a user who never got one has waited so far
            counts too.
        slowest_tokens_per_s, median_tokens_per_s: rates of users.
    """

    tokens_per_s: float  # of all users, over the whole time from when all ask, reading prompts included
    gap_p50_ms: float
    gap_p95_ms: float
    first_p50_ms: float
    first_p95_ms: float
    tokens_an_arrival: float  # mean
    fairness: float  # Jain's index of the users' rates; 1: all alike, 1 / users: one has everything
    slowest_tokens_per_s: float
    median_tokens_per_s: float
    answers: int  # how many began
    unserved: int  # users whose text had hardly begun to come when it was over; they have no rate

    @classmethod
    def of(cls, answers: Sequence[UserAnswer], users: int, ended_s: float, apart_seconds: float = 0.0) -> "UserStats":
        """The figures of `users` users.

        Args:
            ended_s: when all broke off, on the clock of the answers.
            apart_seconds: in which users began, one after the other.
        """
        begun = [answer for answer in answers if answer.arrivals]
        rates = list(user_rates(begun).values())
        if not rates:
            raise DataError(
                "No answer was whole, and none had two arrivals.",
                hint="Ask for longer (--seconds), or with shorter prompts (--prompt-tokens).",
            )
        gaps_ms = [
            1e3 * (later - earlier) for answer in begun for (earlier, _), (later, _) in pairwise(answer.arrivals)
        ]
        served = {answer.user for answer in begun}
        firsts_ms = [1e3 * (answer.arrivals[0][0] - answer.asked_s) for answer in begun]
        firsts_ms += [1e3 * (ended_s - answer.asked_s) for answer in answers if answer.user not in served]
        gap_p50_ms, gap_p95_ms, first_p50_ms, first_p95_ms = (
            round(float(np.percentile(values, percent)), 1)
            for values in (gaps_ms or [0.0], firsts_ms)
            for percent in (50, 95)
        )
        tokens = sum(len(answer.tokens) for answer in begun)
        all_ask_s = min(answer.asked_s for answer in answers) + apart_seconds
        then = sum(count for answer in begun for at_s, count in answer.arrivals if at_s >= all_ask_s)
        return cls(
            tokens_per_s=round(then / (ended_s - all_ask_s), 3),
            gap_p50_ms=gap_p50_ms,
            gap_p95_ms=gap_p95_ms,
            first_p50_ms=first_p50_ms,
            first_p95_ms=first_p95_ms,
            tokens_an_arrival=round(tokens / sum(len(answer.arrivals) for answer in begun), 2),
            fairness=round(jain(rates), 4),
            slowest_tokens_per_s=round(min(rates), 2),
            median_tokens_per_s=round(float(np.median(rates)), 2),
            answers=len(begun),
            unserved=users - len(rates),
        )


@dataclass(frozen=True, slots=True)
class UsersCell:
    """One number of users, all in one way."""

    users: int
    way: Strategy
    met: UserStats
    client_share: float  # CPU time of all users' process over the time that passed; near 1, it is what is measured
    other_texts: int  # answers that differ from the text that was written first
    rtt_ms: float = 0.0


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


def jain(rates: Sequence[float]) -> float:
    """Jain's index of fairness: (sum of r)^2 / (n * sum of r^2) (Jain, Chiu, Hawe, DEC-TR-301, 1984)."""
    squares = sum(rate * rate for rate in rates)
    if not squares:
        raise DataError("No user got any tokens.", hint="Look at the server's log.")
    return sum(rates) ** 2 / (len(rates) * squares)


@dataclass(frozen=True, slots=True)
class UsersAt:
    """How many users get a rate each."""

    users: float  # between two measured numbers, interpolated
    at_least: bool  # the largest measured number still got the rate


def users_at(tokens_per_s: float, slowest: Sequence[tuple[int, float]]) -> UsersAt:
    """The number of users up to which each gets `tokens_per_s`; between two numbers, by the time a token takes.

    Args:
        slowest: measured numbers of users, ascending, and the slowest user's rate; with fewer users than the first
            number nothing is known, so 0 is said where that one is too slow.
    """
    before: tuple[int, float] | None = None
    for users, rate in slowest:
        if rate < tokens_per_s:
            if before is None:
                return UsersAt(0.0, at_least=False)
            share = (1 / tokens_per_s - 1 / before[1]) / (1 / rate - 1 / before[1])
            return UsersAt(round(before[0] + share * (users - before[0]), 1), at_least=False)
        before = users, rate
    return UsersAt(float(before[0]) if before else 0.0, at_least=True)
