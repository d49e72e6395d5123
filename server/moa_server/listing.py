"""The models on this machine, and the drafters for each: shipped ones, cached ones and published ones; the best one.

Known is the table `published.csv`: each row was seen on the page that it names; of one target the better known come
first. `--drafter auto`, where none comes with the model, takes the most promising form that is on this machine. One
that is not known to be for the model is neither taken nor listed, however well its sizes fit: the user may name it. Of
what the hub's cache has only headers are read, and pickled files whole.
"""

import contextlib
import csv
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from moa_shared.drafter.checkpoint import CONFIG_KEY, DRAFTER_FILE, drafters_folder, installed_drafters
from moa_shared.drafter.kinds import KINDS, DrafterConfig
from moa_shared.drafter.kinds.config import Published
from moa_shared.drafter.kinds.mtp import MTP
from moa_shared.drafter.published import (
    ModelHead,
    PublishedFiles,
    convert,
    drafter_in_folder,
    find_drafter,
    model_key,
    named_target,
)
from moa_shared.errors import CheckpointError, MoaError, ModelSourceError, NotFoundError
from moa_shared.models import ModelFiles
from moa_shared.models.catalogue import expand
from moa_shared.models.files import describe_folder, gguf_fingerprint
from moa_shared.models.gguf_entry import first_parts, identify, is_gguf, is_model_file, read_parts
from moa_shared.models.hub import PREFIX, HubModel, hub_cache, hub_snapshots
from moa_shared.models.source import (
    PACKAGED,
    Examined,
    LocalModel,
    examine,
    find_model,
    holds_safetensors,
    installed_models,
    packaged_file,
)
from moa_shared.models.storage.cache import cache_root
from moa_shared.models.storage.tensors import read_metadata
from moa_shared.plain_text import parse_json
from moa_shared.programs.command_line import table
from moa_shared.programs.progress import Progress
from rich.filesize import decimal


def list_models(folders: Sequence[Path], progress: Progress) -> list[tuple[Examined, Sequence[str]]]:
    """Each with the drafters that come with moa for it."""
    models = [*installed_models(), *(model for folder in folders for model in models_in(folder))]
    with progress.task("Reading the headers of models"):
        return [(examined, _shipped_for(examined)) for examined in map(examine, models)]


def _shipped_for(examined: Examined) -> Sequence[str]:
    """All are for GGUF files; more than headers is read only of a model that has the sizes of one of their targets."""
    if examined.refusal is not None or examined.model.path.is_dir():
        return ()
    sizes = {"vocab_size": "vocab_size", "hidden_size": "hidden_size", "target_layers": "num_hidden_layers"}
    folder = drafters_folder()
    for path in folder.glob(f"*/{DRAFTER_FILE}") if folder else ():
        drafter = parse_json(read_metadata(path).get(CONFIG_KEY, "{}"))
        if all(drafter.get(own) == examined.config.get(of_target) for own, of_target in sizes.items()):
            return tuple(installed_drafters(_gguf_fingerprint(examined)))
    return ()


def _gguf_fingerprint(examined: Examined) -> str:
    return gguf_fingerprint(identify(read_parts(examined.files, arrays=False)))


_MOST_REASON = 100  # characters; --json has all


def models_text(listed: Sequence[tuple[Examined, Sequence[str]]]) -> str:
    if not listed:
        places = "neither in the hub's cache, nor in ollama's or LM Studio's folders, nor in a folder that was named"
        return f"No models are here: {places}.\n`moa-server pull OWNER/NAME:Q4_K_M` fetches one from the hub.\n"
    rows = [("name", "where", "size", "format", "family", "drafter", "served")]
    for each, drafters in listed:
        size = decimal(each.nbytes) if each.nbytes else "-"
        told = (size, each.stored or "-", each.family or "-", ", ".join(drafters) or "-", _served(each))
        rows.append((each.model.name, each.model.place, *told))
    return table(rows, right=(2,))


def models_json(listed: Sequence[tuple[Examined, Sequence[str]]]) -> str:
    told = [
        {
            "name": each.model.name,
            "where": each.model.place,
            "path": str(each.model.path),
            "files": list(map(str, each.files)),
            "bytes": each.nbytes,
            "format": each.stored or None,
            "family": each.family or None,
            "drafters": list(drafters),
            "chat": each.can_chat,
            "served": each.refusal is None,
            "reason": each.refusal.message if each.refusal is not None else None,
            "hint": (each.refusal.hint or None) if each.refusal is not None else None,
        }
        for each, drafters in listed
    ]
    return json.dumps(told, indent=2) + "\n"


def _served(each: Examined) -> str:
    """Yes, or the reason without the model's name, which the line begins with."""
    refusal, model = each.refusal, each.model
    if refusal is None:
        return "yes" if each.can_chat else "raw text only: no chat template"
    reason = refusal.message.rstrip(".")
    for subject in (f"The GGUF file {model.path}", f"The folder {model.path}", f"{model.path}", model.name):
        if reason.startswith(f"{subject} "):
            reason = f"it {reason[len(subject) + 1 :]}"
            break
    return f"no: {reason if len(reason) <= _MOST_REASON else reason[: _MOST_REASON - 3] + '...'}"


class Form(NamedTuple):
    name: str
    label: str
    rank: int
    is_run: bool


_VARIANTS = [(name, label, kind) for kind in KINDS.values() for name, label in kind.variants.items()]
FORMS = {name: Form(name, label, rank, name not in kind.not_run) for rank, (name, label, kind) in enumerate(_VARIANTS)}


PACKAGE, MODEL, MACHINE, HUB = "package", "the model", "this machine", "hub"


@dataclass(frozen=True, slots=True)
class Drafter:
    """One that was trained for a model, as a page, its own configuration, or the model's hash in it says."""

    name: str  # its id on the hub, or that of those that come with moa or with the model
    form: Form
    target: str  # the model's id on the hub; "": it holds only its hash
    place: str = HUB
    licence: str = ""  # as its page says; "": the page that was seen does not say
    seen: str = ""  # the page that names it
    model: str = ""  # the family and size of the model, for the table
    sizes: tuple[int, ...] = ()  # hidden size, layers and vocabulary in the model's config.json; (): not known
    folder: Path = Path()  # its snapshot, on this machine


KNOWN = tuple(
    Drafter(hub_id, FORMS[form], target, HUB, licence, seen, f"{family} {size}", tuple(map(int, sizes)))
    for family, size, target, *sizes, hub_id, form, licence, seen in [
        *csv.reader(Path(__file__).with_name("published.csv").read_text("utf-8").splitlines())
    ][1:]
)


def known_for(names: Iterable[str], config: Mapping[str, Any] | None = None) -> tuple[Drafter, ...]:
    """Those that were trained for a model of these names and of the sizes in `config`, if that is known."""
    keys = set(map(model_key, names))
    sizes = tuple(config.get(key) for key in ("hidden_size", "num_hidden_layers", "vocab_size")) if config else None
    return tuple(each for each in KNOWN if model_key(each.target) in keys and sizes in (None, each.sizes))


def known_drafter(name: str) -> Drafter | None:
    return next((each for each in KNOWN if _hub_id(each) == name.partition("@")[0].casefold()), None)


def _hub_id(drafter: Drafter) -> str:
    return drafter.name.partition("@")[0].casefold()


# What is no drafter, of a layout that is not known, or with a config.json that makes no sense.
_NO_DRAFTER = (MoaError, OSError, LookupError, TypeError, ValueError)


def choose_drafter(
    files: ModelFiles, cache_dir: Path | None = None, progress: Progress | None = None, *, fetches: bool = False
) -> tuple[str, Path] | None:
    """The drafter to take, by its id on the hub and its checkpoint's file. Says what and why, or what could be fetched.

    One that cannot be used after all, such as a quantised one, is passed over. `fetches`: the most promising one that
    is known is fetched where none is here.
    """
    root, progress = cache_root(cache_dir), progress or Progress()
    names = names_of(files.target_id, files.weights)
    for each in drafters_here(names, files):
        try:
            if each.place is MODEL:
                path = find_drafter(each.name, files, cache_dir, progress)
            else:
                path = drafter_in_folder(each.folder, each.name, files, root, progress)
        except (CheckpointError, ModelSourceError) as error:
            progress.note(f"The drafter {each.name} is passed over: {error.message}")
            continue
        why = f"it is on this machine, and {each.form.label} is the most promising kind of those that are"
        progress.note(f"The drafter is {each.name}: {why}.")
        return each.name, path
    nothing = f"There is no drafter for {files.target_id} on this machine"
    if (best := best_known(names, files.config)) is None:
        progress.note(f"{nothing}, and none is known; `moa-train fit` makes one.")
    elif not fetches:
        progress.note(f"{nothing}. To fetch one: --drafter {best.name} ({best.form.label}).")
    else:
        try:
            return best.name, find_drafter(best.name, files, cache_dir, progress)
        except MoaError as error:
            progress.note(f"{nothing}. {error}")
    return None


def best_known(names: Iterable[str], config: Mapping[str, Any] | None = None) -> Drafter | None:
    """The most promising one of `known_for` that this version runs."""
    return min(
        (each for each in known_for(names, config) if each.form.is_run), key=lambda each: each.form.rank, default=None
    )


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


def drafters_here(names: Collection[str], files: ModelFiles) -> list[Drafter]:
    """Those of a model that are on this machine, besides shipped ones, best first: the model's own head is one."""
    found = cached_drafters(names, files.config, files.fingerprint)
    if ModelHead.find(files) is not None:
        found.append(Drafter(MTP.name, FORMS[MTP.name], files.target_id, MODEL))
    return sorted(found, key=lambda each: each.form.rank)


def cached_drafters(names: Collection[str], config: Mapping[str, Any], fingerprint: str) -> list[Drafter]:
    """The drafters in the hub's cache that are known to be for a model, best first. `config`: empty: it is not here."""
    found = []
    for name, snapshot in hub_snapshots(hub_cache()):
        with contextlib.suppress(*_NO_DRAFTER):
            if (drafter := _examine(name, snapshot, names, config, fingerprint)) is not None:
                found.append(drafter)
    places = {_hub_id(each): place for place, each in enumerate(KNOWN)}
    return sorted(found, key=lambda each: (each.form.rank, places.get(_hub_id(each), len(KNOWN)), each.name))


def _examine(
    name: str, snapshot: Path, names: Collection[str], target: Mapping[str, Any], fingerprint: str
) -> Drafter | None:
    """What a snapshot is, if it is a drafter for this model; raises one of _NO_DRAFTER if it cannot be converted."""
    if (snapshot / DRAFTER_FILE).is_file():
        own = DrafterConfig.from_json(read_metadata(snapshot / DRAFTER_FILE).get(CONFIG_KEY, ""))
        is_for_it = fingerprint and own.target_fingerprint == fingerprint
        return Drafter(name, FORMS[own.kind], "", MACHINE, folder=snapshot) if is_for_it else None
    published, known = PublishedFiles.of(snapshot), known_drafter(name)
    config = published.config()
    trained_for = known.target if known is not None else named_target(config)
    if not trained_for or model_key(trained_for) not in set(map(model_key, names)):
        return None
    form = known.form if known is not None else None
    if target:
        ours, _ = convert(Published(published.shapes(), config, target, "the target", name))
        form = form or FORMS[ours.kind]
    if known is not None:
        return replace(known, name=name, place=MACHINE, folder=snapshot)
    return Drafter(name, form, trained_for, MACHINE, folder=snapshot) if form is not None else None


def known_table() -> str:
    """The table in docs/drafters.md."""
    lines = ["| model | most promising | others |", "| --- | --- | --- |"]
    for target in dict.fromkeys(each.target for each in KNOWN):
        known = sorted((each for each in KNOWN if each.target == target), key=lambda each: each.form.rank)
        first, *others = [
            f"[{each.name}]({each.seen}) ({', '.join(filter(None, (each.form.label, each.licence)))})" for each in known
        ]
        lines.append(f"| {known[0].model}: {target} | {first} | {'; '.join(others)} |")
    return "\n".join(lines)


class DrafterList(NamedTuple):
    model: str
    is_here: bool  # whether the model is on this machine
    drafters: Sequence[Drafter]  # best first


def list_drafters(spec: str, cache_dir: Path | None, progress: Progress) -> DrafterList:
    """`spec`: as of `resolve`; a model on the hub need not be on this machine."""
    root, spec = cache_root(cache_dir), expand(spec)
    found = _find(spec, root, progress)
    name = found.name if found is not None else spec.removeprefix(PREFIX)
    names, fingerprint = frozenset({name}), ""
    config: Mapping[str, Any] = {}
    if found is not None:
        examined = examine(found)
        if examined.refusal is not None:
            raise examined.refusal
        names, config = names_of(name, examined.files), examined.config
        if found.path.is_dir():  # of which all bytes are read, once
            fingerprint = describe_folder(found.path, name, root, progress).fingerprint
        else:
            fingerprint = _gguf_fingerprint(examined)
        here = drafters_here(names, ModelFiles(name, found.path, config, examined.files, fingerprint, ""))
    else:
        here = cached_drafters(names, config, fingerprint)
    rows = [Drafter(each, FORMS["moa"], name, PACKAGE, "apache-2.0") for each in installed_drafters(fingerprint)]
    rows += here
    known = set(map(_hub_id, rows))
    rows += sorted(
        (each for each in known_for(names, config) if _hub_id(each) not in known), key=lambda each: each.form.rank
    )
    return DrafterList(name, found is not None, rows)


def _find(spec: str, root: Path, progress: Progress) -> LocalModel | None:
    """The model on this machine; None: it is on the hub, if anywhere."""
    path = Path(spec).expanduser()
    if spec.strip() and path.exists():
        models = list(models_in(path))
        if len(models) == 1:
            return models[0]
        names = ", ".join(model.name for model in models)
        hint = "Name one of them." if models else "Name a model's folder or file."
        raise ModelSourceError(f"{path} holds {f'several models: {names}' if models else 'no model'}.", hint=hint)
    found = find_model(spec.removeprefix(PREFIX), installed_models())
    if spec in PACKAGED and (found is None or found.pieces):
        return LocalModel(spec, "package", packaged_file(spec, PACKAGED[spec], root, progress))
    if found is None and (HubModel.parse(spec) is None or path.is_absolute()):
        hint = "Name it as for `moa-server serve`; `moa-server models` shows those on this machine."
        raise NotFoundError(f"There is no model {spec!r}: no such file or folder, and no id on the hub.", hint=hint)
    return found


def drafters_text(listed: DrafterList) -> str:
    if not listed.drafters:
        makes = "`moa-train fit` makes one, and --drafter takes any folder or id on the hub."
        return f"No drafter for {listed.model} is known. {makes}\n"
    rows = [("drafter", "kind", "where", "trained for", "licence")]
    for each in listed.drafters:
        where = each.place if each.form.is_run else f"{each.place}, not run by this version"
        rows.append((each.name, each.form.label, where, each.target or listed.model, each.licence or "see its page"))
    note, first = "", next((each for each in listed.drafters if each.form.is_run), None)
    if first is not None and first.place is HUB:
        note = f"To fetch one and use it: moa-server serve {listed.model} --drafter {first.name}\n"
    elif first is not None:
        note = f"`moa-server serve {listed.model}` takes the best one that is here.\n"
    return table(rows) + note


def drafters_json(listed: DrafterList) -> str:
    drafters = [
        {
            "name": each.name,
            "kind": each.form.name,
            "where": each.place,
            "trained_for": each.target or listed.model,
            "runs": each.form.is_run,
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
    files = sorted(place.rglob("*"))
    folders = {each.parent for each in files if each.suffix == ".safetensors" and holds_safetensors(each.parent)}
    paths = first_parts(list(filter(is_model_file, files)))
    for path in sorted([*folders, *paths]):
        yield LocalModel(str(path), "folder", path)
