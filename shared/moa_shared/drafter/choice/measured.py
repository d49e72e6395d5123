"""How published drafters have done on this machine: the result of each one's trial, kept in the cache folder.

State: a record for each drafter and target under `<cache>/hashes`. A record that is damaged counts as none.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from moa_shared.drafting.trial import DrafterTrial
from moa_shared.models.sources.digest import recall, remember


@dataclass(frozen=True, slots=True)
class MeasuredDrafter:
    """The result of a trial.

    Args:
        tokens: by which it was decided; `right`: those that the drafter's first choice was, `looked_up`: those that the
            text repeats.
        is_dropped: whether it was worse than look-up.
    """

    tokens: int
    right: int
    looked_up: int
    is_dropped: bool

    @property
    def right_share(self) -> float:
        """Right first choices."""
        return self.right / self.tokens


def remember_trial(root: Path, name: str, target_fingerprint: str, trial: DrafterTrial) -> None:
    """Keeps the result of a trial that is decided.

    Args:
        name: of the drafter, as the server calls it.
    """
    content = {
        "tokens": trial.tokens,
        "right": trial.right,
        "looked_up": trial.looked_up,
        "dropped": trial.is_dropped,
    }
    remember(root, _key(name, target_fingerprint), content)


def recall_trial(root: Path, name: str, target_fingerprint: str) -> MeasuredDrafter | None:
    """The result kept; None: there is none."""
    known = recall(root, _key(name, target_fingerprint))
    counts = [known.get(field) for field in ("tokens", "right", "looked_up")]
    if not all(isinstance(count, int) and count >= 0 for count in counts) or not known["tokens"]:
        return None
    return MeasuredDrafter(known["tokens"], known["right"], known["looked_up"], known.get("dropped") is True)


def _key(name: str, target_fingerprint: str) -> str:
    return f"trial-{hashlib.sha256(f'{name} {target_fingerprint}'.encode()).hexdigest()[:32]}"
