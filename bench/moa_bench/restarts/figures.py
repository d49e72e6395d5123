"""What restarts did to the answers of many clients. Pure.

Times are seconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from moa_bench.fleet.asked import Asked
from moa_bench.fleet.replicas import Restart


@dataclass(frozen=True, slots=True)
class Survived:
    """What the clients met.

    Args:
        answers: in all; `through`: of these, those under way during a restart.
        lost: that ended with an error, or not at all; `different`: whose text is another than without restarts.
        stall_median_s, stall_longest_s: of the longest wait that each client had in each restart.
        away_median_s: of restarts, from the signal until the server could be called.
        failures: sentences of lost answers, each once.
    """

    answers: int
    through: int
    lost: int
    different: int
    stall_median_s: float
    stall_longest_s: float
    away_median_s: float
    failures: tuple[str, ...]

    @classmethod
    def of(cls, asked: Sequence[Asked], texts: Sequence[Sequence[int]], restarts: Sequence[Restart]) -> Survived:
        """The figures of these answers.

        Args:
            texts: what each would be without restarts.
        """
        stalls: dict[tuple[int, int], float] = {}
        for each in asked:
            for number, window in enumerate(restarts):
                if (stall_s := each.stall_s(window)) > 0:
                    key = each.client, number
                    stalls[key] = max(stalls.get(key, 0.0), stall_s)
        whole = [each for each in asked if not each.failure]
        return cls(
            len(asked),
            sum(any(each.meets(window) for window in restarts) for each in asked),
            len(asked) - len(whole),
            sum(each.tokens != tuple(texts[each.text]) for each in whole),
            round(median(stalls.values()), 3) if stalls else 0.0,
            round(max(stalls.values(), default=0.0), 3),
            round(median(each.up_s - each.down_s for each in restarts), 3) if restarts else 0.0,
            tuple(sorted({each.failure for each in asked if each.failure})),
        )
