"""The models on this machine, and the drafters for each: shipped ones, cached ones and published ones; the best one.

Known is the table `published.csv`, which docs/drafters.md has too: each row was seen on the page that it names, and
what a page does not say, such as a licence, is left empty. A newer one need not be there: `--drafter` takes any id. Of
one target the better known come first. `--drafter auto`, where none comes with the model, takes the most promising form
that is on this machine and fetches nothing. One that is not known to be for the model is never taken, however well
its sizes fit: it is listed, and the user may name it. Of what the hub's cache has only headers are read, and pickled
files whole.
"""

import contextlib
import csv
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from moa_shared.drafter.checkpoint.shipped import (
    CONFIG_KEY,
    DRAFTER_FILE,
    SHIPPED_DRAFTERS,
    drafters_folder,
    shipped_drafter,
)
from moa_shared.drafter.kinds import KINDS, DrafterConfig
from moa_shared.drafter.kinds.config import Published
from moa_shared.drafter.published import convert, drafter_in_folder, model_key, named_target
from moa_shared.drafter.published_files import PICKLED, PublishedFiles
from moa_shared.errors import CheckpointError, MoaError, ModelSourceError, NotFoundError
from moa_shared.models import ModelFiles
from moa_shared.models.gguf.entry import files_below, first_parts, identify, is_gguf, is_model_file, read_parts
from moa_shared.models.sources.cache import cache_root
from moa_shared.models.sources.files import describe_folder, gguf_fingerprint
from moa_shared.models.sources.hub import PREFIX, HubModel, hub_cache, hub_snapshots
from moa_shared.models.sources.packaged import PACKAGED, packaged_file
from moa_shared.models.sources.source import (
    Examined,
    LocalModel,
    examine,
    find_model,
    holds_safetensors,
    installed_models,
)
from moa_shared.models.tensors import read_metadata
from moa_shared.programs.command_line import table
from moa_shared.programs.progress import Progress, SilentProgress
from moa_shared.text.plain_text import parse_json
from rich.filesize import decimal


@dataclass(frozen=True, slots=True)
class Listed:
    """A model of the list. `drafters`: that come with moa for it."""

    examined: Examined
    drafters: tuple[str, ...]


def list_models(folders: Sequence[Path], progress: Progress) -> list[Listed]:
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


@dataclass(frozen=True, slots=True)
class Form:
    name: str
    label: str
    rank: int
    is_run: bool


_VARIANTS = [(name, label, kind) for kind in KINDS.values() for name, label in kind.variants.items()]
FORMS = {name: Form(name, label, rank, name not in kind.not_run) for rank, (name, label, kind) in enumerate(_VARIANTS)}


@dataclass(frozen=True, slots=True)
class KnownDrafter:
    family: str  # with `size`: of the model that it is for
    size: str
    target: str  # that model's id on the hub
    sizes: tuple[int, int, int]  # hidden size, layers and vocabulary of its config.json
    hub_id: str
    form: Form
    licence: str  # as its page says; "": the page that was seen does not say
    seen: str  # the page that names it


KNOWN = tuple(
    KnownDrafter(family, size, target, (int(hidden), int(layers), int(vocab)), hub_id, FORMS[form], licence, seen)
    for family, size, target, hidden, layers, vocab, hub_id, form, licence, seen in [
        *csv.reader(Path(__file__).with_name("published.csv").read_text("utf-8").splitlines())
    ][1:]
)


def known_of_sizes(config: Mapping[str, Any]) -> tuple[KnownDrafter, ...]:
    sizes = tuple(config.get(key) for key in ("hidden_size", "num_hidden_layers", "vocab_size"))
    return tuple(each for each in KNOWN if each.sizes == sizes)


def known_for(names: Iterable[str], config: Mapping[str, Any] | None = None) -> tuple[KnownDrafter, ...]:
    """The drafters that were trained for a model of these names, in the table's order; of other sizes than those of
    `config`, its config.json, it only has the name.
    """
    keys = {model_key(name) for name in names}
    known = KNOWN if config is None else known_of_sizes(config)
    return tuple(each for each in known if model_key(each.target) in keys)


def known_drafter(hub_id: str) -> KnownDrafter | None:
    wanted = hub_id.partition("@")[0].casefold()
    return next((each for each in KNOWN if each.hub_id.casefold() == wanted), None)


_MOST_LAYERS = 8  # of a published drafter
# What is no drafter, one for another target, of a layout that is not known, or with a config.json that makes no sense.
_NO_DRAFTER = (MoaError, OSError, LookupError, TypeError, ValueError)
_SIZES = {"vocab_size": "vocab_size", "hidden_size": "hidden_size", "target_layers": "num_hidden_layers"}


class Fit(Enum):
    """What speaks for a drafter being one for a model."""

    MODEL = "model"  # the table, or its own configuration, names that model
    SIZES = "sizes"  # only that all sizes fit
    ANOTHER = "another model"  # it was trained for another model of the same sizes


@dataclass(frozen=True, slots=True)
class Candidate:
    name: str  # its id on the hub
    folder: Path  # its snapshot
    form: Form
    target: str = ""  # the model that the table or its configuration names; "": none
    is_of_target: bool = False  # it holds the hash of the very model that one is looked for

    def fit(self, names: Collection[str]) -> Fit:
        if self.is_of_target or not self.target:
            return Fit.MODEL if self.is_of_target else Fit.SIZES
        return Fit.MODEL if model_key(self.target) in map(model_key, names) else Fit.ANOTHER


def choose_drafter(
    files: ModelFiles, cache_dir: Path | None = None, progress: Progress | None = None
) -> tuple[str, Path] | None:
    """The id on the hub of the drafter to take, and its checkpoint's file; None: there is none.

    One that cannot be used after all, such as a quantised one, is passed over. Says what it takes and why, or what
    could be fetched.
    """
    root, progress = cache_root(cache_dir), progress or SilentProgress()
    names = names_of(files.target_id, files.weights)
    candidates = cached_drafters(files.config, files.fingerprint)
    for each in ranked(candidates, names):
        try:
            path = drafter_in_folder(each.folder, each.name, files, root, progress)
        except CheckpointError as error:
            progress.note(f"The drafter {each.name} is passed over: {error.message}")
            continue
        why = f"it is on this machine, and {each.form.label} is the most promising kind of those that are"
        progress.note(f"The drafter is {each.name}: {why}.")
        return each.name, path
    nothing = f"There is no drafter for {files.target_id} on this machine"
    fetchable = [each for each in known_for(names, files.config) if each.form.is_run]
    if fetchable:
        best = min(fetchable, key=lambda each: each.form.rank)
        progress.note(f"{nothing}. To fetch one: --drafter {best.hub_id} ({best.form.label}).")
    elif candidates:
        listed = f"`moa-server drafters {files.target_id}`"
        progress.note(f"{nothing} that is known to be for it; {listed} lists those that fit by their sizes.")
    else:
        progress.note(f"{nothing}, and none is known; `moa-train fit` makes one.")
    return None


def ranked(candidates: Iterable[Candidate], names: Collection[str]) -> list[Candidate]:
    """Those that may be taken for a model with these names, best first."""
    places = {each.hub_id.casefold(): place for place, each in enumerate(KNOWN)}

    def order(each: Candidate) -> tuple[int, int, str]:
        return each.form.rank, places.get(each.name.partition("@")[0].casefold(), len(KNOWN)), each.name

    return sorted((each for each in candidates if each.fit(names) is Fit.MODEL), key=order)


def names_of(name: str, paths: Sequence[Path]) -> frozenset[str]:
    """By which names a model is known: its own, and those that its GGUF file, whose header is read, gives it."""
    if not paths or not is_gguf(paths[0]):
        return frozenset({name})
    try:
        header = read_parts(paths, arrays=False)[0]
    except ModelSourceError:  # it says so when it is loaded
        return frozenset({name, paths[0].name})
    said = (header.text(key) for key in ("general.name", "general.base_model.0.name"))
    return frozenset({name, paths[0].name, *filter(None, said)})


def cached_drafters(config: Mapping[str, Any], fingerprint: str) -> list[Candidate]:
    """The drafters in the hub's cache that can be converted for a target; fingerprint "": not known."""
    found = []
    for name, snapshot in hub_snapshots(hub_cache()):
        with contextlib.suppress(*_NO_DRAFTER):
            found.append(_examine(name, snapshot, config, fingerprint))
    return found


def in_hub_cache(hub_id: str) -> bool:
    return any(name.partition("@")[0].casefold() == hub_id.casefold() for name, _ in hub_snapshots(hub_cache()))


def _examine(name: str, snapshot: Path, target: Mapping[str, Any], fingerprint: str) -> Candidate:
    """What a snapshot is; raises one of _NO_DRAFTER if it is no drafter for this target."""
    if (snapshot / DRAFTER_FILE).is_file():
        own = DrafterConfig.from_json(read_metadata(snapshot / DRAFTER_FILE).get(CONFIG_KEY, ""))
        fits = all(getattr(own, mine) == target.get(theirs) for mine, theirs in _SIZES.items())
        if not fits or (own.target_fingerprint and own.target_fingerprint != fingerprint):
            raise CheckpointError("It is for another target.")
        return Candidate(name, snapshot, FORMS[own.kind], is_of_target=bool(own.target_fingerprint))
    published = PublishedFiles.of(snapshot)
    config = published.config()
    if any(path.suffix in PICKLED for path in published.weights):  # to look at its tensors is to read them all
        layers, hidden = config.get("num_hidden_layers", 1), int(target["hidden_size"])
        if not isinstance(layers, int) or layers > _MOST_LAYERS:
            raise CheckpointError(f"{name} is a whole model.")
        if hidden not in (config.get("hidden_size"), config.get("target_hidden_size")):
            raise CheckpointError(f"{name} is for another target.")
    ours, _ = convert(Published(published.shapes(), config, target, "the target", name))
    known = known_drafter(name)
    if known is not None:
        return Candidate(name, snapshot, known.form, known.target)
    return Candidate(name, snapshot, FORMS[ours.kind], named_target(config))


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


PLACES = PACKAGE, MACHINE, HUB = "package", "this machine", "hub"


@dataclass(frozen=True, slots=True)
class ListedDrafter:
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
    """The drafters for a model, best first. `spec`: as of `resolve`; a model on the hub need not be on this machine."""
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


def drafters_text(listed: DrafterList) -> str:
    note = f"{listed.model} is not on this machine: drafters that fit it only by their sizes are not listed.\n"
    note = "" if listed.is_here else note
    if not listed.drafters:
        makes = "`moa-train fit` makes one, and --drafter takes any folder or id on the hub."
        return f"No drafter for {listed.model} is known. {makes}\n{note}"
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
    first = next((each for each in listed.drafters if each.is_run and each.fit is Fit.MODEL), None)
    if first is not None and first.place is HUB:
        note += f"To fetch one and use it: moa-server serve {listed.model} --drafter {first.name}\n"
    elif first is not None:
        note += f"`moa-server serve {listed.model}` takes the best one that is here.\n"
    return table(rows) + note


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


def models_in(place: Path) -> Iterator[LocalModel]:
    """The models below a folder, by their paths; or the one that is a file."""
    if place.is_file():
        if is_gguf(place):
            yield LocalModel(str(place), "folder", place)
        return
    if not place.is_dir():
        raise NotFoundError(f"There is no folder {place}.")
    files = sorted(files_below(place))
    folders = {folder for path, folder in files if path.suffix == ".safetensors" and holds_safetensors(folder)}
    paths = first_parts([path for path, _ in files if is_model_file(path)])
    for path in sorted([*folders, *paths]):
        yield LocalModel(str(path), "folder", path)


def shipped_drafters_for(config: Mapping[str, Any], fingerprint: Callable[[], str]) -> list[str]:
    """The names of the drafters that come with moa for a target."""
    from moa_shared.models.tensors import read_metadata

    sizes = {"vocab_size": "vocab_size", "hidden_size": "hidden_size", "target_layers": "num_hidden_layers"}
    folder = drafters_folder()
    for path in sorted(folder.glob(f"*/{DRAFTER_FILE}")) if folder else ():
        drafter = parse_json(read_metadata(path).get(CONFIG_KEY, "{}"))
        if all(drafter.get(own) == config.get(of_target) for own, of_target in sizes.items()):
            known = fingerprint()
            return [name for name in SHIPPED_DRAFTERS if shipped_drafter(known, name)]
    return []
