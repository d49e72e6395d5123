"""The drafters for a model: those that come with moa, those in the hub's cache, and published ones that are known."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moa_shared.drafter.choice import (
    FORMS,
    Fit,
    Form,
    KnownDrafter,
    cached_drafters,
    in_hub_cache,
    known_drafter,
    known_for,
    known_of_sizes,
    names_of,
)
from moa_shared.errors import ModelSourceError, NotFoundError
from moa_shared.models.gguf.entry import identify, read_parts
from moa_shared.models.sources.cache import cache_root
from moa_shared.models.sources.files import describe_folder, gguf_fingerprint
from moa_shared.models.sources.hub import PREFIX, HubModel
from moa_shared.models.sources.packaged import PACKAGED, packaged_file
from moa_shared.models.sources.source import LocalModel, examine, find_model, installed_models, models_in
from moa_shared.programs.command_line import table
from moa_shared.programs.progress import Progress

from moa_server.listing.models import shipped_for

PLACES = PACKAGE, MACHINE, HUB = "package", "this machine", "hub"


@dataclass(frozen=True, slots=True)
class ListedDrafter:
    """A drafter of the list; `licence` and `seen` as of `KnownDrafter`."""

    name: str
    form: Form
    place: str
    target: str  # the model that it was trained for; "": it does not say
    fit: Fit
    is_run: bool
    licence: str = ""
    seen: str = ""


@dataclass(frozen=True, slots=True)
class DrafterList:
    """The drafters for a model. `is_here`: whether the model is on this machine, so that sizes could be compared."""

    model: str
    is_here: bool
    drafters: tuple[ListedDrafter, ...]


@dataclass(frozen=True, slots=True)
class _Model:
    """What is known of the model; `config` and `fingerprint` are empty where it is not on this machine."""

    name: str
    names: frozenset[str]
    config: Mapping[str, Any]
    fingerprint: str
    shipped: tuple[str, ...]


def list_drafters(spec: str, cache_dir: Path | None, progress: Progress) -> DrafterList:
    """The drafters for a model, best first.

    Args:
        spec: as of `resolve`; a model on the hub need not be on this machine.
    """
    root = cache_root(cache_dir)
    model = _look_at(spec, root, progress)
    moa = FORMS["moa"]
    rows = [ListedDrafter(name, moa, PACKAGE, model.name, Fit.MODEL, True, "apache-2.0") for name in model.shipped]
    rows += _cached(model)
    here = {row.name.partition("@")[0].casefold() for row in rows}
    rows += [row for row in _known(model) if row.name.casefold() not in here]
    fits = [*Fit]
    rows.sort(key=lambda row: (PLACES.index(row.place), fits.index(row.fit), row.form.rank))
    return DrafterList(model.name, bool(model.config), tuple(rows))


def _look_at(spec: str, root: Path, progress: Progress) -> _Model:
    path = Path(spec).expanduser()
    if spec.strip() and path.exists():
        found: LocalModel | None = _the_one_in(path)
    else:
        found = find_model(spec.removeprefix(PREFIX), installed_models())
        name = found.name if found is not None else spec
        if name in PACKAGED and (found is None or found.pieces):
            found = LocalModel(name, "package", packaged_file(name, PACKAGED[name], root, progress))
    if found is None:
        if HubModel.parse(spec) is None or path.is_absolute():
            raise NotFoundError(
                f"There is no model {spec!r}: no such file or folder, and no id on the hub.",
                hint="Name it as for `moa-server serve`; `moa-server models` shows those on this machine.",
            )
        name = spec.removeprefix(PREFIX)
        return _Model(name, frozenset({name}), {}, "", ())
    examined = examine(found)
    if examined.refusal is not None:
        raise examined.refusal
    if found.path.is_dir():  # of which all bytes are read, once
        fingerprint = describe_folder(found.path, found.name, root, progress).fingerprint
    else:
        fingerprint = gguf_fingerprint(identify(read_parts(examined.files, arrays=False)))
    names = names_of(found.name, examined.files)
    return _Model(found.name, names, examined.config, fingerprint, tuple(shipped_for(examined)))


def _the_one_in(path: Path) -> LocalModel:
    models = list(models_in(path))
    if len(models) != 1:
        holds = f"holds several models: {', '.join(model.name for model in models)}" if models else "holds no model"
        raise ModelSourceError(
            f"{path} {holds}.", hint="Name one of them." if models else "Name a model's folder or file."
        )
    return models[0]


def _cached(model: _Model) -> Iterator[ListedDrafter]:
    if not model.config:
        found = [each for each in known_for(model.names) if in_hub_cache(each.hub_id)]
        yield from (_row(each, MACHINE, Fit.MODEL) for each in found)
        return
    for each in cached_drafters(model.config, model.fingerprint):
        target, fit = model.name if each.is_of_target else each.target, each.fit(model.names)
        row = ListedDrafter(each.name, each.form, MACHINE, target, fit, True)
        if (known := known_drafter(each.name)) is not None:
            row = replace(row, licence=known.licence, seen=known.seen)
        yield row


def _known(model: _Model) -> Iterator[ListedDrafter]:
    for_it = known_for(model.names, model.config or None)
    yield from (_row(each, HUB, Fit.MODEL) for each in for_it)
    if model.config and not for_it:
        yield from (_row(each, HUB, Fit.ANOTHER) for each in known_of_sizes(model.config))


def _row(known: KnownDrafter, place: str, fit: Fit) -> ListedDrafter:
    return ListedDrafter(
        known.hub_id, known.form, place, known.target, fit, known.form.is_run, known.licence, known.seen
    )


_NOT_HERE = "{model} is not on this machine: drafters that fit it only by their sizes are not listed.\n"
_NONE = "No drafter for {model} is known. `moa-train fit` makes one, and --drafter takes any folder or id on the hub.\n"


def drafters_text(listed: DrafterList) -> str:
    note = "" if listed.is_here else _NOT_HERE.format(model=listed.model)
    if not listed.drafters:
        return _NONE.format(model=listed.model) + note
    rows = [("drafter", "kind", "where", "trained for", "licence")]
    rows += [
        (
            each.name,
            each.form.label,
            each.place if each.is_run else f"{each.place}, not run by this version",
            each.target or "not said",
            each.licence or "see its page",
        )
        for each in listed.drafters
    ]
    return table(rows) + note + _next_words(listed)


def drafters_json(listed: DrafterList) -> str:
    drafters = [
        {
            "name": each.name,
            "kind": each.form.name,
            "where": each.place,
            "trained_for": each.target or None,
            "fits_by": each.fit.value,
            "runs": each.is_run,
            "licence": each.licence or None,
            "seen": each.seen or None,
        }
        for each in listed.drafters
    ]
    told = {"model": listed.model, "on_this_machine": listed.is_here, "drafters": drafters}
    return json.dumps(told, indent=2) + "\n"


def _next_words(listed: DrafterList) -> str:
    """What to do with it."""
    first = next((each for each in listed.drafters if each.is_run and each.fit is Fit.MODEL), None)
    if first is None:
        return ""
    if first.place is HUB:
        return f"To fetch one and use it: moa-server serve {listed.model} --drafter {first.name}\n"
    return f"`moa-server serve {listed.model}` takes the best one that is here.\n"
