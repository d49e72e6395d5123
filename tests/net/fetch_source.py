"""A tiny model and a drafter of it on disk, for tests that fetch them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.tiny_models import save_drafter, save_tiny_model, small_drafter


@dataclass(frozen=True)
class Source:
    model: Path
    drafter: Path


def make_source(folder: Path, *, reused_layers: int = 0, tied: bool = False) -> Source:
    """Random weights."""
    template = "{% for m in messages %}w4 {{ m.content }} w2 {% endfor %}w5 "
    sizes: dict[str, Any] = {"max_position_embeddings": 256, "tie_word_embeddings": tied}
    model = save_tiny_model(folder / "model", template=template, seed=1, **sizes)
    return Source(model, save_drafter(folder / "drafter.safetensors", small_drafter(reused_layers=reused_layers)))
