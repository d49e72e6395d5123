"""What a model on this disk is, and whether it is served: from its headers, by the checks that loading makes.

State: where the vocabulary ends in the header of each GGUF file, under the cache folder, so that a list of hundreds is
read in seconds once and at once later. Invariant: no weight is read, and no file that is broken raises.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moa_shared.errors import MoaError, ModelSourceError
from moa_shared.models.gguf.configuration import make_config
from moa_shared.models.gguf.file_type import file_type
from moa_shared.models.gguf.header import GgufHeader
from moa_shared.models.gguf.parts import find_parts, join_headers, read_parts
from moa_shared.models.gguf.vocabulary import check_vocabulary
from moa_shared.models.library.local_model import LocalModel
from moa_shared.models.network.served import check_served
from moa_shared.models.sources.digest import recall, remember
from moa_shared.models.sources.files import ModelFiles, find_weights, read_config
from moa_shared.models.tensors.safetensors import map_tensors
from moa_shared.models.weights.weights import EMBEDDINGS, FINAL_NORM, HEAD, WeightReader
from moa_shared.sandbox.tokenizer_files import DEFAULT, read_templates

_TOKENIZER = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class Examined:
    """What was found.

    Args:
        files: with the weights; empty where they are not all there.
        nbytes: of these.
        stored: their format: Q4_K_M, BF16; "": it cannot be said.
        family: as the file calls it; "": it cannot be said.
        config: as config.json would be; empty where it is not served.
        can_chat: whether it has a chat template.
        refusal: why it is not served; None: it is.
    """

    model: LocalModel
    files: tuple[Path, ...] = ()
    nbytes: int = 0
    stored: str = ""
    family: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    can_chat: bool = False
    refusal: MoaError | None = None


def examine(model: LocalModel, root: Path) -> Examined:
    """Look at a model's headers.

    Args:
        root: the cache folder.
    """
    facts: dict[str, Any] = {}
    refusal: MoaError | None = None
    try:
        if model.refusal:
            raise ModelSourceError(f"{model.name} {model.refusal}.")
        if model.path.is_dir():
            _examine_folder(model, facts)
        else:
            _examine_gguf(model, root, facts)
    except MoaError as error:
        refusal = error
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:  # of a config.json that makes no sense
        reason = f"{type(error).__name__}: {error}"
        refusal = ModelSourceError(f"{model.path} makes no sense ({reason}).", hint="Fetch the model again.")
    except OSError as error:
        refusal = ModelSourceError(f"{model.path} cannot be read ({error.strerror or error}).")
    return Examined(model, **facts, refusal=refusal)


def _examine_gguf(model: LocalModel, root: Path, facts: dict[str, Any]) -> None:
    """Fills in what is found until something is wrong."""
    path = model.path
    facts |= {"files": (path,), "nbytes": path.stat().st_size}
    paths = model.pieces or find_parts(path)
    nbytes = sum(each.stat().st_size for each in paths)
    facts |= {"files": paths, "nbytes": nbytes}
    header = join_headers(_headers(paths[:1], root, nbytes) if model.pieces else _headers(paths, root))
    facts |= {"stored": file_type(header), "family": header.architecture}
    facts["can_chat"] = bool(header.text("tokenizer.chat_template"))
    config = make_config(header)
    check_vocabulary(header)
    check_served(config, path.name)
    facts["config"] = config


def _examine_folder(model: LocalModel, facts: dict[str, Any]) -> None:
    """As `_examine_gguf`, of a folder as save_pretrained writes it."""
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
    if not (folder / _TOKENIZER).is_file():
        raise ModelSourceError(f"The folder {folder} holds no {_TOKENIZER}.")
    facts["can_chat"] = bool(read_templates(folder).get(DEFAULT))
    reader = WeightReader(ModelFiles(model.name, folder, config, paths, "", ""))
    last = f"model.layers.{int(config['num_hidden_layers']) - 1}.self_attn.o_proj.weight"
    for name in (EMBEDDINGS, FINAL_NORM, HEAD, last):  # drafters for a model look like one, and lack these
        reader.shape(name)
    facts["config"] = config


def _headers(paths: tuple[Path, ...], root: Path, file_bytes: int | None = None) -> list[GgufHeader]:
    """The headers, without their vocabulary; `file_bytes` as of `read_header`."""
    stat = paths[0].stat()
    identity = [str(paths[0].absolute()), stat.st_size, stat.st_mtime_ns, stat.st_ino]
    key = f"header-{hashlib.sha256(str(identity[0]).encode()).hexdigest()[:32]}"
    known = recall(root, key)
    ends: dict[int, int] = {}
    if known.get("identity") == identity and isinstance(known.get("ends"), list):
        ends = {begin: end for begin, end in known["ends"] if 0 < begin < end}
    told = len(ends)
    headers = read_parts(paths, arrays=False, array_ends=ends, file_bytes=file_bytes)
    if len(ends) > told:
        remember(root, key, {"identity": identity, "ends": list(ends.items())})
    return headers
