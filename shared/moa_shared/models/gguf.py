"""A GGUF file becomes a folder of safetensors, configuration and tokenizer, once, in the cache.

transformers' own reader de-quantises. The weights are stored in float32, exactly as the reader gives them: a float32
target then equals what transformers makes of the same file to the last bit, and a bfloat16 target is its rounding.
(bfloat16 on disk would halve the size, but round the float32 target too.)
State: cache entries `gguf-<sha256 of the file>`. Invariant: an entry is whole, finite and in its manifest.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moa_shared.errors import MoaError, ModelSourceError, NotFoundError
from moa_shared.models.cache import building, is_disk_full, locked
from moa_shared.models.digest import remembered_hash
from moa_shared.models.family import FAMILIES, check_family
from moa_shared.models.manifest import FORMAT, MANIFEST, check_manifest, write_manifest
from moa_shared.progress import Progress

if TYPE_CHECKING:
    import torch
    from gguf import GGUFReader
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_TOKENIZER_BYTES = 30_000_000  # tokenizer.json of the largest vocabularies served (Qwen: 11 MB), with room
_DAMAGED = "The file is truncated or corrupt: fetch it again."
# What a header may say in `tokenizer.ggml.pre` for transformers' reader to split text as the model was trained.
_PRE_PLAIN = frozenset({"default", "gpt-2", "gpt2"})
_PRE_SMOLLM = "smollm"  # known to llama.cpp, not to transformers 5: see _fix_tokenizer


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What is read before anything is converted."""

    architecture: str
    name: str
    pre_tokenizer: str | None
    head_dim: int | None
    parameters: int


def entry_of(sha256: str, root: Path) -> Path:
    """The cache entry of the GGUF file with that hash."""
    return root / "models" / f"gguf-{sha256[:32]}-v{FORMAT}"


def is_converted(entry: Path) -> bool:
    """Whether the entry stands. Entries appear whole, so a look at the manifest's presence is enough."""
    return (entry / MANIFEST).is_file()


def convert_gguf(path: Path, root: Path, progress: Progress, *, target_id: str, sha256: str | None = None) -> Path:
    """The folder that `path` was converted to, now or before.

    Args:
        target_id: the name for people.
        sha256: of the file, where the caller knows it.

    Raises:
        NotFoundError: no such file.
        ModelSourceError: not a GGUF file, truncated, corrupt, or of a family that is not served.
        DiskFullError: no room for the converted weights.
        ChecksumError: the entry in the cache was damaged.
    """
    if not path.is_file():
        raise NotFoundError(f"There is no file {path}.")
    if sha256 is None:
        sha256 = remembered_hash(path, root, progress)
    entry = entry_of(sha256, root)
    if not is_converted(entry):
        header = read_header(path)
        with locked(entry):
            if not is_converted(entry):  # another process may have built it while we waited
                needed = 4 * header.parameters + _TOKENIZER_BYTES
                with building(entry, needed, f"the converted model of {path.name}") as part:
                    _convert(path, header, part, progress)
                    write_manifest(part, target_id, sha256)
    check_manifest(entry, root, progress)
    return entry


def read_header(path: Path) -> GgufHeader:
    """Read metadata and tensor table; refuse what cannot be converted faithfully.

    Raises:
        ModelSourceError: not GGUF, truncated, another family, or rotary scaling that the reader would drop.
    """
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelSourceError(f"{path} is not a GGUF file.", hint=_DAMAGED)
    try:
        from gguf import GGUFReader

        reader = GGUFReader(path)  # maps every tensor, so a file that ends too early fails here
        tensors = {tensor.name: int(tensor.n_elements) for tensor in reader.tensors}
        architecture = str(_field(reader, "general.architecture"))
        name = _field(reader, "general.name")
        pre_tokenizer = _field(reader, "tokenizer.ggml.pre")
        scaling = _field(reader, f"{architecture}.rope.scaling.type")
        head_dim = _number(reader, f"{architecture}.attention.key_length")
        rotated = _number(reader, f"{architecture}.rope.dimension_count")
    except Exception as error:  # the reader raises whatever numpy or struct raise on nonsense
        raise ModelSourceError(f"The GGUF file {path} cannot be read ({error}).", hint=_DAMAGED) from error
    if architecture not in FAMILIES:
        raise ModelSourceError(
            f"{path} is of the model family {architecture!r}, which moa does not serve.",
            hint=f"Choose a model of one of the families {', '.join(FAMILIES)}.",
        )
    partial = head_dim is not None and rotated is not None and rotated != head_dim
    if "rope_freqs.weight" in tensors or scaling not in (None, "none") or partial:
        raise ModelSourceError(
            f"{path} scales its rotary positions, or rotates part of a head, which transformers' GGUF reader drops.",
            hint="Use the same model as a folder of safetensors or a hub id.",
        )
    if not tensors:
        raise ModelSourceError(f"{path} holds no tensors.", hint="Name a GGUF file of a whole model.")
    dialect = str(pre_tokenizer) if pre_tokenizer else None
    return GgufHeader(architecture, str(name or path.stem), dialect, head_dim, sum(tensors.values()))


def _field(reader: GGUFReader, key: str) -> object | None:
    field = reader.get_field(key)
    return None if field is None else field.contents()


def _number(reader: GGUFReader, key: str) -> int | None:
    value = _field(reader, key)
    return None if value is None else int(str(value))


def _convert(path: Path, header: GgufHeader, part: Path, progress: Progress) -> None:
    """Read everything with transformers and write it to `part` in the layout of `save_pretrained`."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    try:
        with progress.task(f"Converting {path.name} (once)", 3) as task, _quiet_reader():
            tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
            _fix_tokenizer(tokenizer, header, progress)
            task.advance(1)
            config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
            if header.head_dim is not None:
                config.head_dim = header.head_dim  # the reader takes the family's usual one
            model = AutoModelForCausalLM.from_pretrained(
                path.parent, gguf_file=path.name, config=config, dtype=torch.float32
            )
            task.advance(1)
            clean = _clean_config(model)
            check_family(clean, path.name)
            state = _state_to_store(model)
            for name, tensor in state.items():
                if not bool(torch.isfinite(tensor).all()):
                    raise ModelSourceError(f"The tensor {name} of {path} holds no finite numbers.", hint=_DAMAGED)
            (part / "config.json").write_text(json.dumps(clean, indent=2, sort_keys=True) + "\n", "utf-8")
            save_file(state, part / "model.safetensors", metadata={"format": "pt"})
            tokenizer.save_pretrained(part)
            task.advance(1)
    except MoaError:
        raise
    except ImportError as error:
        raise ModelSourceError(
            f"GGUF files cannot be read here ({error}).", hint="Install moa with its client or server extra."
        ) from error
    except Exception as error:  # as in read_header: the reader has no error type of its own
        if is_disk_full(error):
            raise  # `building` says what is needed, and where
        raise ModelSourceError(f"The GGUF file {path} cannot be converted ({error}).", hint=_DAMAGED) from error


def _clean_config(model: PreTrainedModel) -> dict[str, Any]:
    """The configuration without the traces of quantisation: a GGUF-loaded model cannot be saved as it is."""
    config = model.config.to_dict()
    unwanted = {"quantization_config", "_model_name_or_path", "_name_or_path", "transformers_version"}
    clean = {key: value for key, value in config.items() if key not in unwanted}
    clean["architectures"] = [type(model).__name__]
    clean["dtype"] = "float32"
    # GGUF stores epsilon as float32 (9.9999997e-06); the shortest decimal that rounds to it is the number meant.
    clean["rms_norm_eps"] = float(f"{config['rms_norm_eps']:.7g}")
    return clean


def _state_to_store(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The tensors by name; a tied head is the embeddings and is stored once."""
    tied = bool(model.config.tie_word_embeddings)
    state = model.state_dict()
    return {k: v.contiguous() for k, v in state.items() if not (tied and k == "lm_head.weight")}


def _fix_tokenizer(tokenizer: PreTrainedTokenizerBase, header: GgufHeader, progress: Progress) -> None:
    """Split text before BPE as the header says, where transformers' reader does not know that dialect."""
    from tokenizers import pre_tokenizers
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    if header.pre_tokenizer == _PRE_SMOLLM:
        # Each digit stands alone, first; without it "\n\n1" loses its double newline token. As in the model's own
        # tokenizer.json and in llama.cpp (LLAMA_VOCAB_PRE_TYPE_SMOLLM).
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    elif header.pre_tokenizer and header.pre_tokenizer not in _PRE_PLAIN | set(GGUF_PRE_TOKENIZER_SPLITS):
        progress.note(
            f"The tokenizer dialect {header.pre_tokenizer!r} of this GGUF file is not known here: text may be cut"
            " into tokens a little differently than the model was trained on."
        )


@contextlib.contextmanager
def _quiet_reader() -> Iterator[None]:
    """Keep the reader's own bars and remarks off the terminal: our progress says what happens."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
