"""What this device has counted of a companion's agreement with a target, kept in the cache folder.

State: a record for each two models under `<cache>/hashes`. A record that is damaged counts as none.
"""

from __future__ import annotations

from pathlib import Path

from moa_shared.drafting.agreement import MOST_TOKENS, Agreement
from moa_shared.models.sources.digest import combine, recall, remember


def remember_agreement(root: Path, companion: str, target: str, agreement: Agreement) -> None:
    """Keeps what was counted.

    Args:
        root: the cache folder.
        companion, target: fingerprints.
    """
    remember(root, _key(companion, target), {"tokens": agreement.tokens, "right": agreement.right})


def recall_agreement(root: Path, companion: str, target: str) -> Agreement:
    """What was counted before; nothing where there is no record."""
    known = recall(root, _key(companion, target))
    tokens, right = known.get("tokens"), known.get("right")
    if isinstance(tokens, int) and isinstance(right, int) and 0 <= right <= tokens <= MOST_TOKENS:
        return Agreement(tokens, right)
    return Agreement()


def _key(companion: str, target: str) -> str:
    return f"agreement-{combine([companion, target])[:32]}"
