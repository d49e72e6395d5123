"""The models on this machine, each with the drafters that there are for it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from moa_shared.drafter.checkpoint.shipped import shipped_drafters_for
from moa_shared.models.gguf.entry import identify, read_parts
from moa_shared.models.sources.files import gguf_fingerprint
from moa_shared.models.sources.source import Examined, examine, installed_models, models_in
from moa_shared.programs.command_line import table
from moa_shared.programs.progress import Progress
from rich.filesize import decimal


@dataclass(frozen=True, slots=True)
class Listed:
    """A model of the list. `drafters`: that come with moa for it."""

    examined: Examined
    drafters: tuple[str, ...]


def list_models(folders: Sequence[Path], progress: Progress) -> list[Listed]:
    """What is in the usual places, then what is in the folders that are named."""
    models = [*installed_models(), *(model for folder in folders for model in models_in(folder))]
    with progress.task("Reading the headers of models", len(models)) as task:
        listed = []
        for model in models:
            examined = examine(model)
            listed.append(Listed(examined, tuple(shipped_for(examined))))
            task.advance(1)
    return listed


def shipped_for(examined: Examined) -> Iterator[str]:
    """The drafters that come with moa for a model, by name: all are for GGUF files."""
    if examined.refusal is None and not examined.model.path.is_dir():
        files = examined.files
        yield from shipped_drafters_for(
            examined.config, lambda: gguf_fingerprint(identify(read_parts(files, arrays=False)))
        )


NOTHING = """\
No models are here: neither in the hub's cache, nor in ollama's or LM Studio's folders, nor in a folder that was named.
`moa-server pull OWNER/NAME:Q4_K_M` fetches one from the hub.
"""
_MOST_REASON = 100  # characters; --json has all


def models_text(listed: Sequence[Listed]) -> str:
    if not listed:
        return NOTHING
    rows = [("name", "where", "size", "format", "family", "drafter", "served")]
    for each in listed:
        found = each.examined
        rows.append(
            (
                found.model.name,
                found.model.place,
                decimal(found.nbytes) if found.nbytes else "-",
                found.stored or "-",
                found.family or "-",
                ", ".join(each.drafters) or "-",
                _served(each),
            )
        )
    return table(rows, right=(2,))


def models_json(listed: Sequence[Listed]) -> str:
    told = [
        {
            "name": each.examined.model.name,
            "where": each.examined.model.place,
            "path": str(each.examined.model.path),
            "files": [str(path) for path in each.examined.files],
            "bytes": each.examined.nbytes,
            "format": each.examined.stored or None,
            "family": each.examined.family or None,
            "drafters": list(each.drafters),
            "chat": each.examined.can_chat,
            "served": each.examined.refusal is None,
            "reason": each.examined.refusal.message if each.examined.refusal is not None else None,
            "hint": (each.examined.refusal.hint or None) if each.examined.refusal is not None else None,
        }
        for each in listed
    ]
    return json.dumps(told, indent=2) + "\n"


def _served(each: Listed) -> str:
    """Yes, or the reason without the model's name, which the line begins with."""
    refusal, model = each.examined.refusal, each.examined.model
    if refusal is None:
        return "yes" if each.examined.can_chat else "raw text only: no chat template"
    reason = refusal.message.rstrip(".")
    for subject in (f"The GGUF file {model.path}", f"The folder {model.path}", f"{model.path}", model.name):
        if reason.startswith(f"{subject} "):
            reason = f"it {reason[len(subject) + 1 :]}"
            break
    return f"no: {reason if len(reason) <= _MOST_REASON else reason[: _MOST_REASON - 3] + '...'}"
