"""Models by short names: which file of the hub is meant, what it takes, and which companion goes with it.

Ids, formats and sizes are those of the page https://huggingface.co/OWNER/NAME of each row, as projects that pin these
files by size and hash give them too (November 2026). Memory is that of the weights, the keys and values of 4,096
tokens and the program; a drafter adds its own file's. Invariant: a file or folder of the same name goes first.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

from moa_shared.models.hub import PREFIX


@dataclass(frozen=True, slots=True)
class CatalogueModel:
    name: str
    hub: str  # OWNER/NAME:WHICH, as of `HubModel`
    download_bytes: int
    memory_bytes: int
    context_tokens: int
    licence: str
    head: str  # what drafts for it out of its own file; "": nothing
    companion: str  # by its name here; "": none is known


with Path(__file__).with_name("catalogue.csv").open(encoding="utf-8", newline="") as table:
    CATALOGUE = {
        name: CatalogueModel(name, hub, int(nbytes), round(float(memory_gb) * 1e9), int(context), *rest)
        for name, hub, nbytes, memory_gb, context, *rest in [*csv.reader(table)][1:]
    }


def find_listed(spec: str) -> CatalogueModel | None:
    """The model of the catalogue that a user means."""
    return None if Path(spec).exists() else CATALOGUE.get(spec.casefold())


def expand(spec: str) -> str:
    """A name of the catalogue as `hub:OWNER/NAME:WHICH`; whatever else names a model as it is."""
    model = find_listed(spec)
    return f"{PREFIX}{model.hub}" if model is not None else spec
