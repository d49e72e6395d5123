"""The model card beside a checkpoint: what it was made from and how."""

from __future__ import annotations

from pathlib import Path

from moa_shared.drafter import DrafterConfig
from moa_shared.errors import DiskFullError
from moa_shared.models import ModelFiles

from moa_training.curves import read_points
from moa_training.run_state import Position
from moa_training.settings import FitSettings

CARD = "README.md"


def write_card(
    folder: Path,
    settings: FitSettings,
    config: DrafterConfig,
    files: ModelFiles,
    position: Position,
    conversations: int,
) -> None:
    """Writes `README.md` whole or not at all."""
    points = read_points(folder)[-10:]
    agreement = sum(point["agreement"] for point in points) / max(1, len(points))
    lsa = f"{config.lsa_heads} heads, MLP {config.lsa_mlp}"
    text = f"""# Drafter for {files.target_id}

A Mixture of Attentions drafter (arXiv 2410.03804), trained by moa. Licence: that of the target and of this package.

| | |
| --- | --- |
| target | {files.target_id}, fingerprint `{files.fingerprint[:16]}` |
| reused target layers N | {config.reused_layers} |
| draft vocabulary | {config.draft_vocab or config.vocab_size} of {config.vocab_size} tokens |
| layer self-attention | {lsa} |
| longest block trained | {config.max_block} tokens beyond the memory |
| training text | {conversations:,} conversations ({", ".join(path.name for path in settings.shards)}) |
| tokens seen | {position.tokens:,} in {position.step:,} updates, {position.epoch + 1} epoch(s) begun |
| running time | {position.seconds / 60:.0f} minutes |
| agreement with the target at the end of training | {agreement:.3f} of positions, all depths of a block |

Command: `moa-train fit CONFIG` with

```json
{settings.model_dump_json(indent=1, exclude={"output", "shards", "start_from"})}
```

![learning curves](curves.png)
"""
    beside = folder / (CARD + ".partial")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(folder / CARD)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise DiskFullError(f"The card in {folder} cannot be written ({error.strerror}).") from None
