"""The models that are on this disk already: where other programs keep them, what each is, and which a name means.

Invariant: no weight is read, and no file that is broken raises.
"""

from __future__ import annotations

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
from moa_shared.models.gguf.parts import (
    file_type,
    files_below,
    find_parts,
    first_parts,
    is_gguf,
    is_model_file,
    join_headers,
    read_parts,
    storage_label,
)
from moa_shared.models.gguf.vocabulary import check_vocabulary
from moa_shared.models.network.served import check_served
from moa_shared.models.sources.files import ModelFiles, find_weights, read_config
from moa_shared.models.sources.hub import hub_cache, hub_snapshots
from moa_shared.models.sources.packaged import PACKAGED, find_installed
from moa_shared.models.tensors import map_tensors
from moa_shared.models.weights.weights import EMBEDDINGS, FINAL_NORM, HEAD, WeightReader
from moa_shared.text.json_text import parse_json
from moa_shared.tokenization.tokenizer_json import DEFAULT, read_templates

_OLLAMAS_SERVICE = Path("/usr/share/ollama/.ollama/models")  # of the user that it runs as
_OLLAMAS_WEIGHTS, _ADAPTER = "application/vnd.ollama.image.model", "application/vnd.ollama.image.adapter"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class LocalModel:
    name: str  # by which it can be served
    place: str  # who keeps it: "hub", "ollama" and so on
    path: Path  # its GGUF file (the first one of several), or its folder of safetensors


def installed_models() -> list[LocalModel]:
    """All models in the usual places: installed packages, the hub's cache, ollama's and LM Studio's folders."""
    packaged = [(name, find_installed(model)) for name, model in PACKAGED.items()]
    named = os.environ.get("OLLAMA_MODELS")
    ollama = [Path(named)] if named else [Path.home() / ".ollama" / "models", _OLLAMAS_SERVICE]
    lm_studio = [Path.home() / ".lmstudio" / "models", Path.home() / ".cache" / "lm-studio" / "models"]
    return [
        *(LocalModel(name, "package", each[0]) for name, each in packaged if each and len(each) == 1),
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
    if _holds_safetensors(folder):
        yield LocalModel(name, place, folder)
    paths = first_parts(sorted(path for path, _ in files_below(folder) if is_model_file(path)))
    labels = [storage_label(path.name) for path in paths]
    often = Counter(label.casefold() for label in labels if label is not None)
    for path, label in zip(paths, labels, strict=True):
        alone = label is not None and often[label.casefold()] == 1
        yield LocalModel(f"{name}:{label if alone else path.relative_to(folder).as_posix()}", place, path)


def _holds_safetensors(folder: Path) -> bool:
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def models_in(place: Path) -> Iterator[LocalModel]:
    """The models below a folder, by their paths; or the one that is a file."""
    if place.is_file():
        if is_gguf(place):
            yield LocalModel(str(place), "folder", place)
        return
    if not place.is_dir():
        raise NotFoundError(f"There is no folder {place}.")
    files = sorted(files_below(place))
    folders = {folder for path, folder in files if path.suffix == ".safetensors" and _holds_safetensors(folder)}
    paths = first_parts([path for path, _ in files if is_model_file(path)])
    for path in sorted([*folders, *paths]):
        yield LocalModel(str(path), "folder", path)


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
    paths = find_parts(path)
    facts |= {"files": paths, "nbytes": sum(each.stat().st_size for each in paths)}
    header = join_headers(read_parts(paths, arrays=False))
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
    facts["can_chat"] = bool(read_templates(folder).get(DEFAULT))
    reader = WeightReader(ModelFiles(model.name, folder, config, paths, "", ""))
    last = f"model.layers.{int(config['num_hidden_layers']) - 1}.self_attn.o_proj.weight"
    for name in (EMBEDDINGS, FINAL_NORM, HEAD, last):  # drafters for a model look like one, and lack these
        reader.shape(name)
    facts["config"] = config
