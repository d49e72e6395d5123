"""Which of the drafters on this machine `--drafter auto` takes. Pure.

What has shown its worth here comes first, by how often it was right; then the more promising kind. One that is not
known to be for the model is never taken, however well its sizes fit: it is listed, and the user may name it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from moa_shared.drafter.choice.known import KNOWN, Kind, known_drafter
from moa_shared.drafter.choice.measured import MeasuredDrafter
from moa_shared.drafter.published.named_target import model_key


class Fit(Enum):
    """What speaks for a drafter being one for a model."""

    MODEL = "model"  # the table, or its own configuration, names that model
    SIZES = "sizes"  # only that all sizes fit
    ANOTHER = "another model"  # it was trained for another model of the same sizes


@dataclass(frozen=True, slots=True)
class Candidate:
    """A drafter on this machine whose sizes fit.

    Args:
        name: its id on the hub; `folder`: its snapshot.
        named_target: the model that its configuration names; "": none.
        measured: how it did here; None: it was not tried.
        is_of_target: it holds the hash of the very model that one is looked for.
    """

    name: str
    folder: Path
    kind: Kind
    named_target: str = ""
    measured: MeasuredDrafter | None = None
    is_of_target: bool = False

    def fit(self, names: Collection[str]) -> Fit:
        """How well it fits a model with these names."""
        if self.is_of_target:
            return Fit.MODEL
        known = known_drafter(self.name)
        target = known.target.hub_id if known is not None else self.named_target
        if not target:
            return Fit.SIZES
        return Fit.MODEL if model_key(target) in {model_key(name) for name in names} else Fit.ANOTHER

    @property
    def reason(self) -> str:
        """Why it is taken, for a person."""
        if self.measured is not None:
            return f"it was right in {self.measured.right_share:.0%} of its guesses here"
        return f"it is on this machine, and {self.kind.label} is the most promising kind of those that are"


def ranked(candidates: Sequence[Candidate], names: Collection[str]) -> list[Candidate]:
    """Those that may be taken for a model with these names, best first."""
    usable = [
        each
        for each in candidates
        if each.fit(names) is Fit.MODEL and not (each.measured is not None and each.measured.is_dropped)
    ]
    return sorted(usable, key=_order)


def _order(candidate: Candidate) -> tuple[float, int, int, str]:
    share = candidate.measured.right_share if candidate.measured is not None else 0.0
    known = known_drafter(candidate.name)
    return -share, candidate.kind.rank, KNOWN.index(known) if known is not None else len(KNOWN), candidate.name
