"""The models of the catalogue as a server sees them: which of them are here or fit, and what is fetched with one."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import NamedTuple

from moa_shared.drafter.published import PATTERNS
from moa_shared.errors import MoaError
from moa_shared.models.catalogue import CATALOGUE, CatalogueModel, expand
from moa_shared.models.hub import HubModel, fetch_from_hub, pull, pulled
from moa_shared.programs.command_line import table
from moa_shared.programs.machine import free_memory
from moa_shared.programs.progress import Progress
from rich.filesize import decimal

from moa_server.listing import best_known


class Listed(NamedTuple):
    model: CatalogueModel
    drafter: str  # the best that is published and run, by its id on the hub; "": none is known
    is_here: bool
    free: int  # bytes of memory

    @property
    def fits(self) -> bool:
        return self.model.memory_bytes <= self.free

    @property
    def verdict(self) -> str:
        words = "yes" if self.fits else f"no: {decimal(self.free)} of memory are free"
        return f"{words}, and it is here" if self.is_here else words


def drafter_of(model: CatalogueModel) -> str:
    best = best_known([model.hub])
    return best.name if best is not None else ""


def list_catalogue() -> list[Listed]:
    free = free_memory().nbytes
    here = {each.name for each in CATALOGUE.values() if (on_hub := HubModel.parse(each.hub)) and pulled(on_hub)}
    return [Listed(each, drafter_of(each), each.name in here, free) for each in CATALOGUE.values()]


def catalogue_text(listed: Sequence[Listed]) -> str:
    rows = [("name", "download", "memory", "context", "licence", "companion", "drafter", "fits")]
    for each in listed:
        model, drafter = each.model, each.drafter or each.model.head or "-"
        sizes = (decimal(model.download_bytes), decimal(model.memory_bytes), str(model.context_tokens))
        rows.append((model.name, *sizes, model.licence, model.companion or "-", drafter, each.verdict))
    return table(rows, right=(1, 2, 3)) + "`moa-server serve NAME` fetches one with its drafter and companion.\n"


def catalogue_json(listed: Sequence[Listed]) -> str:
    told = [asdict(each.model) | {"drafter": each.drafter, "fits": each.fits, "here": each.is_here} for each in listed]
    return json.dumps(told, indent=2) + "\n"


def catalogue_table() -> str:
    """The table in docs/models.md."""
    lines = ["| name | on the hub | GB | memory, GB | context | licence | drafter | companion |"]
    lines += ["| --- | --- | ---: | ---: | ---: | --- | --- | --- |"]
    for each in CATALOGUE.values():
        drafter, companion = drafter_of(each) or each.head, f"`{each.companion}`" if each.companion else ""
        sizes = f"{each.download_bytes / 1e9:.1f} | {each.memory_bytes / 1e9:.1f} | {each.context_tokens}"
        lines.append(f"| `{each.name}` | {each.hub} | {sizes} | {each.licence} | {drafter} | {companion} |")
    return "\n".join(lines)


def fetch_beside(model: CatalogueModel, progress: Progress) -> None:
    """Fetches the drafter and the companion that `serve` takes for a model; one that cannot be had is only said."""
    fetches = []
    if drafter := drafter_of(model):
        fetches.append(partial(fetch_from_hub, drafter, progress, PATTERNS))
    if (companion := HubModel.parse(expand(model.companion))) is not None:
        fetches.append(partial(pull, companion, progress))
    for fetch in fetches:
        try:
            fetch()
        except MoaError as error:
            progress.note(f"{model.name} is served without it: {error}")
