"""What a forward of an emulated larger target costs."""

from __future__ import annotations

from dataclasses import dataclass

ROW_SHARE = 1 / 50  # of a plain step, for each row more: rows of a larger target are bound by memory for longer


@dataclass(frozen=True, slots=True)
class Padding:
    """The stated cost of a forward.

    Args:
        step_ms: of a forward of one row.
        row_ms: more for each further row.
    """

    step_ms: float
    row_ms: float

    @classmethod
    def of(cls, step_ms: float | None, row_ms: float | None) -> Padding | None:
        """What the command line asks for; None: forwards are not padded."""
        if step_ms is None:
            return None
        return cls(step_ms, ROW_SHARE * step_ms if row_ms is None else row_ms)

    def seconds(self, rows: int) -> float:
        """What a forward of so many rows takes, however many conversations they are of."""
        return (self.step_ms + self.row_ms * (rows - 1)) / 1e3

    @property
    def description(self) -> str:
        """For tables."""
        return (
            f"A larger target is emulated: each forward takes {self.step_ms:g} ms, and {self.row_ms:g} ms for each row "
            "more."
        )

    @property
    def flags(self) -> list[str]:
        """For `python -m moa_bench.harness.padded_server`."""
        return ["--target-ms", str(self.step_ms), "--target-row-ms", str(self.row_ms)]
