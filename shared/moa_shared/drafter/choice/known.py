"""The published drafters that moa knows, and for which model each was trained: the table `published.csv`. Pure.

Each row was seen on the page that it names; what a page does not say, such as a licence, is left empty. A newer one
need not be there: `--drafter` takes any id. docs/drafters.md has the same table. Of one target the better known come
first: where nothing else decides, the first one is taken.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moa_shared.drafter.kinds import KINDS
from moa_shared.drafter.published.find import model_key


@dataclass(frozen=True, slots=True)
class Form:
    """A form in which a kind of drafter is published."""

    name: str
    label: str
    rank: int
    is_run: bool


_VARIANTS = [(name, label, kind) for kind in KINDS.values() for name, label in kind.variants.items()]
FORMS = {name: Form(name, label, rank, name not in kind.not_run) for rank, (name, label, kind) in enumerate(_VARIANTS)}


@dataclass(frozen=True, slots=True)
class KnownDrafter:
    """A published drafter.

    Args:
        family, size, target: of the model that it is for, and its id on the hub.
        sizes: hidden size, layers and vocabulary of that model's config.json.
        licence: as its page says; "": the page that was seen does not say.
        seen: the page that names it.
    """

    family: str
    size: str
    target: str
    sizes: tuple[int, int, int]
    hub_id: str
    form: Form
    licence: str
    seen: str


def _read(path: Path) -> tuple[KnownDrafter, ...]:
    with path.open(encoding="utf-8", newline="") as table:
        _, *rows = csv.reader(table)
    return tuple(
        KnownDrafter(family, size, target, (int(hidden), int(layers), int(vocab)), hub_id, FORMS[form], licence, seen)
        for family, size, target, hidden, layers, vocab, hub_id, form, licence, seen in rows
    )


KNOWN = _read(Path(__file__).with_name("published.csv"))


def known_of_sizes(config: Mapping[str, Any]) -> tuple[KnownDrafter, ...]:
    sizes = tuple(config.get(key) for key in ("hidden_size", "num_hidden_layers", "vocab_size"))
    return tuple(each for each in KNOWN if each.sizes == sizes)


def known_for(names: Iterable[str], config: Mapping[str, Any] | None = None) -> tuple[KnownDrafter, ...]:
    """The drafters that were trained for a model, in the table's order.

    Args:
        names: of the model: its id, its file's.
        config: its config.json; where its sizes are other ones, it only has the name. None: not known.
    """
    keys = {model_key(name) for name in names}
    return tuple(
        each for each in (KNOWN if config is None else known_of_sizes(config)) if model_key(each.target) in keys
    )


def known_drafter(hub_id: str) -> KnownDrafter | None:
    """The entry of an id; None: there is none."""
    wanted = hub_id.partition("@")[0].casefold()
    return next((each for each in KNOWN if each.hub_id.casefold() == wanted), None)


def known_table() -> str:
    lines = ["| model | most promising | others |", "| --- | --- | --- |"]
    for target in dict.fromkeys(each.target for each in KNOWN):
        first, *others = sorted((each for each in KNOWN if each.target == target), key=lambda each: each.form.rank)
        model = f"{first.family} {first.size}: {target}"
        lines.append(f"| {model} | {_cell(first)} | {'; '.join(map(_cell, others))} |")
    return "\n".join(lines)


def _cell(known: KnownDrafter) -> str:
    licence = f", {known.licence}" if known.licence else ""
    return f"[{known.hub_id}]({known.seen}) ({known.form.label}{licence})"
