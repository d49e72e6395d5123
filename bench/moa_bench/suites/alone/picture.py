"""Quality over the share of the answer that was served."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moa_training.evaluation.share_comparison import draw_shares


def draw(result: Mapping[str, Any], folder: Path) -> list[Path]:
    path = folder / "alone.png"
    draw_shares(result["evaluations"], path)
    return [path]
