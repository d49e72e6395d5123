"""The model card next to a checkpoint: what it was made from and how."""

from __future__ import annotations

from pathlib import Path

from moa_shared.drafter import DrafterConfig
from moa_shared.errors import DiskFullError, NotFoundError
from moa_shared.models import ModelFiles
from moa_shared.programs.atomic import whole_file

from moa_training.fit.curves import gain_per_doubling, read_points
from moa_training.fit.run_state import Position
from moa_training.settings import FitSettings

CARD = "README.md"
_ACCEPTANCE = "## Acceptance"


def write_card(
    folder: Path,
    settings: FitSettings,
    config: DrafterConfig,
    files: ModelFiles,
    position: Position,
    conversations: int,
) -> None:
    """Writes `README.md`, whole or not at all."""
    gain = gain_per_doubling(read_points(folder))
    points = read_points(folder)[-10:]
    agreement = sum(point["agreement"] for point in points) / max(1, len(points))
    rows = "\n".join(f"| {name} | {value} |" for name, value in config.traits.form(config).items())
    text = f"""# Drafter for {files.target_id}

{config.traits.about}, trained by moa. Licence: that of the target and of this package.

| | |
| --- | --- |
| target | {files.target_id}, fingerprint `{files.fingerprint[:16]}` |
| draft vocabulary | {config.draft_vocab or config.vocab_size} of {config.vocab_size} tokens |
{rows}
| training text | {conversations:,} conversations ({", ".join(path.name for path in settings.shards)}) |
| tokens seen | {position.tokens:,} in {position.step:,} updates, {position.epoch + 1} epoch(s) begun |
| running time | {position.seconds / 60:.0f} minutes |
| agreement with the target at the end of training | {agreement:.3f} of the positions that it was trained on |
| each doubling of the tokens brought | {"unknown, too short a run" if gain is None else f"{gain:.3f} of agreement"} |

Command: `moa-train fit CONFIG` with

```json
{_shown(settings).model_dump_json(indent=1, exclude={"output", "shards", "start_from"})}
```

![learning curves](curves.png)
"""
    _replace(folder / CARD, text)


def _shown(settings: FitSettings) -> FitSettings:
    """The settings without folders of this machine."""
    memory_of = settings.drafter.memory_of
    if memory_of is None:
        return settings
    named = Path(memory_of.parent.name if memory_of.suffix else memory_of.name)
    return settings.model_copy(update={"drafter": settings.drafter.model_copy(update={"memory_of": named})})


def add_acceptance(card: Path, table: str, command: str) -> None:
    """Puts an evaluation's table at the end of a card, in place of an earlier one.

    Raises:
        NotFoundError: no such card.
    """
    if not card.is_file():
        raise NotFoundError(f"There is no card {card}.", hint="Train with moa-train fit, which writes one.")
    text = card.read_text(encoding="utf-8").split(_ACCEPTANCE)[0].rstrip()
    _replace(card, f"{text}\n\n{_ACCEPTANCE}\n\nTokens per target forward, by `{command}`:\n\n```\n{table}\n```\n")


def _replace(path: Path, text: str) -> None:
    try:
        with whole_file(path) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DiskFullError(f"The card {path} cannot be written ({error.strerror}).") from None
