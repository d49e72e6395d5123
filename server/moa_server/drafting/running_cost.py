"""The long-run cost of forwards of answers, as clients are told. Pure.

State: fading sums of a straight-line fit, and what was measured at the start, which all forwards together scale up or
down. So a measurement on a busy core is corrected by any forwards, be they plain steps or not. `ForwardCost`
knows the last few seconds, for the next forward; clients ask about the next minutes. Invariant: neither time is
negative, and nothing is told where nothing was measured at the start.
"""

from __future__ import annotations

from moa_server.drafting.forward_cost import fit_line

TOLD_FADE = 0.99  # of older forwards with each new one: about 100 count, an answer or two
PRIOR_ROWS = (1.0, 32.0)  # where the line goes through the start's times, scaled: forwards may all have the same rows
PRIOR_WEIGHT = 0.5
TOLD_OUTLIER = 3.0  # times the expected time is the most that counts: the machine did something else meanwhile


class RunningCost:
    """A forward's ms from its rows.

    Args:
        step_ms, row_ms: of a plain step, and of each further row, as measured at the start; 0: they were not.
    """

    def __init__(self, step_ms: float = 0.0, row_ms: float = 0.0) -> None:
        self._start = step_ms, row_ms
        self._expected = self._taken = step_ms  # by the start's times, and indeed
        self._sums = [0.0] * 5  # of w, w n, w n n, w t, w n t
        self._line = self._start

    @property
    def step_ms(self) -> float:
        return self._line[0]

    @property
    def row_ms(self) -> float:
        return self._line[1]

    def add(self, rows: int, ms: float) -> None:
        step_ms, row_ms = self._start
        if not step_ms:
            return
        ms = min(ms, TOLD_OUTLIER * (self.step_ms + self.row_ms * rows))
        self._expected = TOLD_FADE * self._expected + step_ms + row_ms * rows
        self._taken = TOLD_FADE * self._taken + ms
        for index, new in enumerate((1.0, rows, rows * rows, ms, rows * ms)):
            self._sums[index] = TOLD_FADE * self._sums[index] + new
        scale = self._taken / self._expected
        prior = [(x, scale * (step_ms + row_ms * x)) for x in PRIOR_ROWS]
        start, slope = fit_line(self._sums, prior, PRIOR_WEIGHT)
        self._line = (start, slope) if start > 0 else (scale * step_ms, scale * row_ms)
