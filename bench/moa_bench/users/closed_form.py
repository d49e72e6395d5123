"""What arithmetic says of many users on one server, to compare measurements with. Pure.

A forward over n rows takes C(n) = plain + row (n - 1). With g draft tokens of acceptance a each, a user's verification
has 1 + g rows and commits E = (1 - a^(g + 1)) / (1 - a) tokens on average. So each of u users gets E / C(u (1 + g));
the best g is taken, 0 among them. Links and drafts that come late are left out.

A server that drafts for itself spends g draft steps of t_d besides each verification of t_v. With the drafts on the
devices it serves 1 + g t_d / t_v times as many users at the same speed (arXiv 2606.25091).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MOST_DRAFTED = 16


@dataclass(frozen=True, slots=True)
class ForwardTimes:
    """What a server's forwards take, in ms: `row` more for each row beyond the first."""

    plain: float
    row: float

    def ms(self, rows: float) -> float:
        return self.plain + self.row * (rows - 1)

    @classmethod
    def fit(cls, measured: Sequence[tuple[int, float]]) -> ForwardTimes | None:
        """A straight line through times of plain steps of so many users, by least squares; None: too few numbers."""
        if len({users for users, _ in measured}) < 2:
            return None
        count = len(measured)
        mean_rows = sum(rows for rows, _ in measured) / count
        mean_ms = sum(ms for _, ms in measured) / count
        spread = sum((rows - mean_rows) ** 2 for rows, _ in measured)
        row = max(0.0, sum((rows - mean_rows) * (ms - mean_ms) for rows, ms in measured) / spread)
        return cls(max(row, mean_ms - row * (mean_rows - 1)), row)  # no forward takes less than its one row


def expected_tokens(acceptance: float, drafted: int) -> float:
    """Mean tokens of a verification of a chain, the bonus token included."""
    return sum(acceptance**place for place in range(drafted + 1))


def best_drafted(times: ForwardTimes, users: float, acceptance: float) -> int:
    """The length of chains at which so many users get most tokens a second."""
    return max(
        range(MOST_DRAFTED + 1),
        key=lambda drafted: expected_tokens(acceptance, drafted) / times.ms(users * (1 + drafted)),
    )


def tokens_per_s(times: ForwardTimes, users: float, acceptance: float) -> float:
    """What each of so many users gets; acceptance 0: plain serving."""
    drafted = best_drafted(times, users, acceptance)
    return 1e3 * expected_tokens(acceptance, drafted) / times.ms(users * (1 + drafted))


def users_at(times: ForwardTimes, rate: float, acceptance: float) -> float:
    """How many users get `rate` tokens a second each; acceptance 0: of plain serving.

    Infinite where a row costs nothing; less than 1 where one user gets less.
    """
    if times.row <= 0:
        return float("inf")
    return max(
        0.0,
        *(
            (1e3 * expected_tokens(acceptance, drafted) / rate - times.plain + times.row) / (times.row * (1 + drafted))
            for drafted in range(MOST_DRAFTED + 1)
        ),
    )


def users_over_colocated(drafted: int, draft_ms: float, verify_ms: float) -> float:
    """How many times as many users a server serves whose devices draft, as one that drafts for them."""
    return 1 + drafted * draft_ms / verify_ms
