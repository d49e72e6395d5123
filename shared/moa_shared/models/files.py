"""`ModelFiles`: a target on this disk, its two hashes that both ends compare, and what its files say of its use.

The fingerprint covers what enters the mathematics: of a folder of safetensors those keys of the configuration and the
bytes of the weights, of a GGUF model its identity. The tokenizer's hash covers what decides the ids (vocabulary,
merges, added tokens, normaliser, pre-tokeniser), however the file is spelled. Tokenizer and chat template are tried in
a child process before anything else reads them: hostile ones can take all memory or hours. State: the files that
passed, by their hashes, under the cache folder. Invariant: equal fingerprints mean equal targets.
"""

import hashlib
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Any

from moa_shared.errors import ConfigError, ModelSourceError
from moa_shared.models.network.families import EARLIEST
from moa_shared.models.network.served import check_family
from moa_shared.models.storage.cache import canonical_json, combine, recall, remember, remembered_hash
from moa_shared.plain_text import parse_json
from moa_shared.programs.machine import collector_paused
from moa_shared.programs.progress import Progress
from moa_shared.sampling.settings import CHAT_DEFAULTS, Sampling, SamplingDefaults, sampling_defaults
from moa_shared.sandbox.child import ChildError, TextChild


def hash_tokenizer(folder: Path, root: Path) -> str:
    """sha256 (hex) of the tokenizer in `folder`; remembered under `root` by the hash of its file."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        save = f"AutoTokenizer.from_pretrained('{folder}').save_pretrained('{folder}')"
        hint = f"Save one where transformers is installed: {save}."
        raise ModelSourceError(f"The folder {folder} holds no tokenizer.json.", hint=hint)
    key = f"tokenizer-{remembered_hash(path, root)[:32]}"
    known = recall(root, key).get("meaning")
    if isinstance(known, str):
        return known
    try:
        with collector_paused():
            content = parse_json(path.read_text("utf-8"))
            digest = hashlib.sha256(canonical_json(_meaning(content))).hexdigest()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelSourceError(f"{path} cannot be read ({error}).", hint=_REFETCH) from error
    remember(root, key, {"meaning": digest})
    return digest


def _meaning(content: dict[str, Any]) -> list[object]:
    model = content["model"]
    merges = [merge.split(" ", 1) if isinstance(merge, str) else list(merge) for merge in model.get("merges") or []]
    added = sorted([token["id"], token["content"]] for token in content.get("added_tokens") or [])
    steps = [_without_defaults(content.get(step)) for step in ("normalizer", "pre_tokenizer")]
    whole_words = ["ignore_merges"] if model.get("ignore_merges") else []
    return [model.get("type"), model["vocab"], merges, added, steps, *whole_words]


def _without_defaults(value: object) -> object:
    """A step without the options that are off: newer versions add such."""
    if isinstance(value, dict):
        return {key: _without_defaults(inner) for key, inner in value.items() if inner not in (None, False)}
    if isinstance(value, list):
        return [_without_defaults(inner) for inner in value]
    return value


TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
SECONDS = 10  # of processor time: the largest vocabularies take two on a slow device
TRIAL = 5  # raised when files are tried in another way
_passed: set[str] = set()


def accept_tokenizer(folder: Path, root: Path) -> str:
    """The hash of the tokenizer in `folder`, whose files have been tried, as is remembered under `root`."""
    digest = hash_tokenizer(folder, root)
    hashes = [f"{name} {remembered_hash(folder / name, root)}" for name in TOKENIZER_FILES if (folder / name).is_file()]
    versions = [f"{TRIAL}", *map(version, ("tokenizers", "jinja2"))]
    key = f"tried-{combine([*versions, *hashes])[:32]}"
    if key not in _passed and not recall(root, key):
        try:
            with closing(TextChild(SECONDS)) as child:
                child.ask("moa_shared.sandbox.chat_template:try_files", folder=str(folder))
        except ChildError as error:
            what = f"The tokenizer or the chat template in {folder} cannot be used: {str(error).rstrip('.')}."
            hint = "The files are damaged or hostile: use another model or server."
            raise ModelSourceError(what, hint=hint) from None
        remember(root, key, {"tried": True})
    _passed.add(key)
    return digest


_REFETCH = "Fetch the model again."
RAW_TEXT_ONLY = "it continues raw text, and answers no chat"  # of a model without a chat template
# What enters the mathematics. Other keys come and go with transformers' versions and must not change the fingerprint.
_MATHEMATICS: tuple[str, ...] = (
    *("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps", "max_position_embeddings", "rope_theta"),
    *("rope_scaling", "rope_parameters", "attention_bias", "mlp_bias", "tie_word_embeddings"),
)
_MATHEMATICS_OF_LATER_FAMILIES = (
    *("hidden_activation", "layer_types", "sliding_window", "sliding_window_pattern", "rope_local_base_freq"),
    *("partial_rotary_factor", "original_max_position_embeddings", "no_rope_layers", "no_rope_layer_interval"),
    *("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "embedding_multiplier"),
    *("attention_multiplier", "residual_multiplier", "logits_scaling", "num_experts", "num_local_experts"),
    *("num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers"),
    *("swiglu_alpha", "swiglu_limit", "attention_k_eq_v", "enable_moe_block", "global_head_dim"),
    *("hidden_size_per_layer_input", "num_global_key_value_heads", "num_kv_shared_layers", "per_layer_config"),
    *("top_k_experts", "use_double_wide_mlp", "vocab_size_per_layer_input", "clip_qkv", "full_attention_interval"),
    *("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"),
    *("linear_conv_kernel_dim", "linear_allow_neg_eigval", "shared_expert_intermediate_size"),
)
_MATHEMATICS_OF_WINDOWS = ("use_sliding_window", "max_window_layers", "sliding_window", "layer_types")  # Qwen's
# Models that see, and their text's family.
_WITH_A_TEXT_PART = {
    family: f"{family}_text" for family in ("gemma3", "gemma4", "gemma4_unified", "qwen3_5", "qwen3_5_moe")
}
_OF_TEXT = ("architectures", "bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings")
GENERATION_CONFIG = "generation_config.json"
WEIGHTS_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    target_id: str  # its name for people ("SmolLM2-135M-Instruct")
    folder: Path  # holds config.json and the tokenizer
    config: Mapping[str, Any]  # the content of config.json
    weights: tuple[Path, ...]  # the safetensors files, or the GGUF files
    fingerprint: str  # sha256 (hex) over configuration and weights
    tokenizer_hash: str  # sha256 (hex) over what maps text to token ids


def describe_folder(folder: Path, target_id: str, root: Path, progress: Progress | None = None) -> ModelFiles:
    """Look at a folder in the layout of `save_pretrained`, and compute its identity; `root`: the cache folder."""
    config = read_config(folder)
    check_family(config, target_id)
    weights = find_weights(folder)
    hashes = [remembered_hash(path, root, progress) for path in weights]
    keys = _MATHEMATICS
    if config["model_type"] not in EARLIEST:
        keys += _MATHEMATICS_OF_LATER_FAMILIES
    if config.get("use_sliding_window"):
        keys += _MATHEMATICS_OF_WINDOWS
    mathematics = {key: config[key] for key in keys if config.get(key) is not None}
    fingerprint = combine([canonical_json(mathematics).decode(), *hashes])
    return ModelFiles(target_id, folder, config, weights, fingerprint, accept_tokenizer(folder, root))


def gguf_fingerprint(identity: str) -> str:
    return combine([canonical_json(["gguf", identity]).decode()])


def read_config(folder: Path) -> dict[str, Any]:
    """The content of `folder/config.json`; of a model that sees pictures too, what it says of the text's model."""
    if not (folder / "config.json").is_file():
        hint = "Name a folder as written by save_pretrained: config.json, *.safetensors and tokenizer.json."
        raise ModelSourceError(f"The folder {folder} holds no config.json.", hint=hint)
    config = _read_object(folder / "config.json")
    family, text = config.get("model_type"), config.get("text_config")
    if not isinstance(family, str) or family not in _WITH_A_TEXT_PART or not isinstance(text, dict):
        return config
    outer = {key: config[key] for key in _OF_TEXT if config.get(key) is not None}
    return {**text, **outer, "model_type": _WITH_A_TEXT_PART[family]}


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = parse_json(path.read_text("utf-8"))
        if not isinstance(content, dict):
            raise ValueError("no JSON object")
    except ValueError as error:
        raise ModelSourceError(f"{path} cannot be read ({error}).", hint=_REFETCH) from error
    return content


def find_weights(folder: Path) -> tuple[Path, ...]:
    if (folder / "model.safetensors").is_file():
        return (folder / "model.safetensors",)
    if not (folder / WEIGHTS_INDEX).is_file():
        hint = "Weights in other formats are not read: save the model with safe_serialization."
        raise ModelSourceError(f"The folder {folder} holds no model.safetensors and no {WEIGHTS_INDEX}.", hint=hint)
    return indexed_files(folder / WEIGHTS_INDEX)


def indexed_files(index: Path) -> tuple[Path, ...]:
    try:
        names = sorted({str(name) for name in parse_json(index.read_text("utf-8"))["weight_map"].values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelSourceError(f"{index} cannot be read: {error}.", hint=_REFETCH) from error
    for name in names:
        if name != Path(name).name or not (index.parent / name).is_file():
            raise ModelSourceError(f"{index} names {name}, which is not there.", hint=_REFETCH)
    return tuple(index.parent / name for name in names)


OWN_SETTINGS = "own"


def read_generation(files: ModelFiles) -> Mapping[str, Any]:
    path = files.folder / GENERATION_CONFIG
    return _read_object(path) if path.is_file() else {}


def read_sampling_defaults(files: ModelFiles) -> SamplingDefaults:
    try:
        return sampling_defaults(read_generation(files))
    except (ConfigError, ValueError, OverflowError) as error:
        reason = (error.message if isinstance(error, ConfigError) else str(error)).removesuffix(".")
        path, hint = files.folder / GENERATION_CONFIG, "Correct that value in the model's folder, or remove it."
        raise ModelSourceError(f"{path} cannot be used: {reason}.", hint=hint) from None


def asked_sampling(temperature: str, files: ModelFiles) -> Sampling:
    """How a measurement's answers are sampled: at a temperature, or "own": as a chat's."""
    if temperature == OWN_SETTINGS:
        return Sampling(**{**CHAT_DEFAULTS, **read_sampling_defaults(files)})
    try:
        return Sampling(temperature=float(temperature))
    except ValueError:
        raise ConfigError(f"--temperature is {temperature!r}, expected a number or {OWN_SETTINGS}.") from None


def end_of_text(files: ModelFiles, tokenizer_eos: int | None) -> frozenset[int]:
    """The token ids that end an answer: of the model, of its generation settings and of its tokenizer."""
    found: set[int] = set()
    generation = read_generation(files)
    try:
        for value in (files.config.get("eos_token_id"), generation.get("eos_token_id"), tokenizer_eos):
            found.update(value if isinstance(value, list) else [] if value is None else [value])
        return frozenset(int(token) for token in found)
    except (ValueError, TypeError) as error:
        path = files.folder / GENERATION_CONFIG
        raise ModelSourceError(f"{path} cannot be read ({error}).", hint=_REFETCH) from None


GGUF_KEY = "pooling_type"  # of the configuration that is made of a GGUF file


class Pooling(Enum):
    MEAN = "mean"  # of all tokens' states
    LAST = "last"  # the last token's state


GGUF_TYPES = {1: Pooling.MEAN, 3: Pooling.LAST}  # llama.cpp's `llama_pooling_type`
