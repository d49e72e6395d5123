"""One tiny random target for all tests, behind the kernels and on disk, with drafters of it; no torch."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from moa_kernels import QuantisedMatrix, in_four_bits
from moa_server.verifier.kernel_target import KernelTarget
from moa_shared.drafter.checkpoint import fresh_tensors, save_checkpoint
from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.drafter.kinds.weights import ArrayWeights
from moa_shared.models.network.network import Network
from moa_shared.models.network.plan import row_orders, state_shape
from moa_shared.models.storage.tensors import write_tensors
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

FAMILIES = ["llama", "qwen2", "qwen3"]
SIZES: dict[str, int] = {  # which the kernels take
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 128,
}  # fmt: skip
SMALL: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "head_dim": 8}  # for torch alone
WORDS = tuple(f"w{index}" for index in range(SIZES["vocab_size"]))
END = 2  # the token that ends a text of a target on disk
HYBRID = "qwen3_5_text"  # a family with recurrent states, which the torch levels do not compute
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", HYBRID: "Qwen3_5ForCausalLM",
}  # fmt: skip
_HYBRID = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"], "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4,
    "partial_rotary_factor": 1.0,
}  # fmt: skip
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TinyModel:
    """A model as transformers describes it and names its tensors. `tensors`: float32."""

    config: dict[str, Any]
    tensors: dict[str, Floats]

    def save(self, folder: Path) -> None:
        """Writes it into a folder, as save_pretrained does."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config), "utf-8")
        write_tensors(folder / "model.safetensors", self.tensors, {"format": "pt"})


def tiny_model(family: str = "llama", *, seed: int = 3, spread: float = 0.0, **changes: Any) -> TinyModel:
    """A model of a family.

    `spread`: of all matrices' weights; 0: so large that every token's logits depend on every other. `changes`: to the
    configuration.
    """
    config: dict[str, Any] = {
        **SIZES, "architectures": [_ARCHITECTURES[family]], "model_type": family, "dtype": "float32",
        "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
        **(_HYBRID if family == HYBRID else {}), **changes,
    }  # fmt: skip
    random = np.random.default_rng(seed)
    tensors: dict[str, Floats] = {}
    for name, shape in _shapes(family, config).items():
        if "norm" in name:
            drawn = np.ones(shape) if spread else random.normal(1.0, 0.1, shape)
        elif len(shape) == 1:
            drawn = random.normal(0.0, 0.1, shape)
        else:
            drawn = random.normal(0.0, spread or shape[1] ** -0.5, shape)
        tensors[name] = drawn.astype(np.float32)
    return TinyModel(config, tensors)


def _shapes(family: str, config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Of all tensors."""
    hidden, mlp, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    rows = {"q": config["num_attention_heads"] * head, "k": config["num_key_value_heads"] * head}
    rows["v"] = rows["k"]
    layer: dict[str, tuple[int, ...]] = {
        **{f"self_attn.{name}_proj.weight": (count, hidden) for name, count in rows.items()},
        "self_attn.o_proj.weight": (hidden, rows["q"]), "mlp.gate_proj.weight": (mlp, hidden),
        "mlp.up_proj.weight": (mlp, hidden), "mlp.down_proj.weight": (hidden, mlp),
        "input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,),
    }  # fmt: skip
    if family == "qwen2":
        layer |= {f"self_attn.{name}_proj.bias": (count,) for name, count in rows.items()}
    if family in ("qwen3", HYBRID):
        layer |= {f"self_attn.{name}_norm.weight": (head,) for name in "qk"}
    layers = range(config["num_hidden_layers"])
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    shapes |= {f"model.layers.{index}.{name}": shape for index in layers for name, shape in layer.items()}
    if family == HYBRID:
        shapes = _with_states(shapes, config)
    shapes |= {"model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = shapes["model.embed_tokens.weight"]
    return shapes


def _with_states(shapes: dict[str, tuple[int, ...]], config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The same with gates behind queries, and with gated delta nets in some layers."""
    hidden, state = config["hidden_size"], state_shape(config)
    width = state.heads * state.value_dim
    net = {
        "in_proj_qkv.weight": (state.channels, hidden), "in_proj_z.weight": (width, hidden),
        "in_proj_a.weight": (state.heads, hidden), "in_proj_b.weight": (state.heads, hidden),
        "conv1d.weight": (state.channels, 1, state.taps), "A_log": (state.heads,), "dt_bias": (state.heads,),
        "norm.weight": (state.value_dim,), "out_proj.weight": (hidden, width),
    }  # fmt: skip
    nets = [f"model.layers.{at}." for at, kind in enumerate(config["layer_types"]) if kind == "linear_attention"]
    kept = {name: shape for name, shape in shapes.items() if not name.startswith(tuple(f"{each}self" for each in nets))}
    gated = {name: (2 * rows, *rest) for name, (rows, *rest) in kept.items() if "q_proj" in name}
    return kept | gated | {f"{each}linear_attn.{name}": shape for each in nets for name, shape in net.items()}


class ModelWeights(ArrayWeights):
    """The tensors of a model, as `Network` reads them.

    `packed`: which matrices are given in 4-bit blocks, by a part of their names.
    """

    def __init__(self, model: TinyModel, packed: Sequence[str] = ()) -> None:
        orders, self.tensors = row_orders(model.config), dict[str, Floats]()
        for name, tensor in model.tensors.items():
            prefix, dot, stem = name.partition("_attn.")
            parts = orders.get(stem, {stem: slice(None)})
            self.tensors |= {f"{prefix}{dot}{part}": tensor[rows] for part, rows in parts.items()}
        super().__init__(self.tensors)
        self.packed = tuple(packed)

    def blocks(self, name: str) -> QuantisedMatrix | None:
        return in_four_bits(self.array(name)) if any(part in name for part in self.packed) else None


def tiny_kernel_target(
    model: TinyModel,
    context_length: int | None = None,
    *,
    packed: Sequence[str] = ("q_proj", "k_proj", "v_proj", "down_proj"),
    plain: bool = False,
) -> KernelTarget:
    """A model behind the kernels: as served (int8, keys and values in float16), or `plain`: in float32 throughout."""
    network = Network(ModelWeights(model, () if plain else packed), model.config, plain=plain)
    trained = int(model.config["max_position_embeddings"])
    return KernelTarget(network, trained, context_length, kv="f32" if plain else "f16")


def save_tokenizer(folder: Path, words: Sequence[str] = WORDS, *, end: int = END, template: str = "") -> None:
    """Adds a tokenizer to the folder of a model: a word a token, the first of them for all that is unknown."""
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(words[index], special=True) for index in (0, end)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": words[end], "unk_token": words[0], "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    if template:
        (folder / "chat_template.jinja").write_text(template, "utf-8")


def save_tiny_model(folder: Path, family: str = "llama", *, template: str = "", **changes: Any) -> Path:
    """A tiny model with a tokenizer, as save_pretrained writes them."""
    tiny_model(family, **{"eos_token_id": END, **changes}).save(folder)
    save_tokenizer(folder, template=template)
    return folder


def small_drafter(**changes: Any) -> DrafterConfig:
    """The shapes of a drafter for `tiny_model()`."""
    shapes = {
        "vocab_size": SIZES["vocab_size"], "hidden_size": SIZES["hidden_size"], "target_layers": SIZES["num_hidden_layers"],
        "target_heads": 4, "target_kv_heads": 2, "target_head_dim": SIZES["head_dim"], "sa_kv_heads": 2, "sa_mlp": 16, "ca_kv_heads": 2,
        "ca_mlp": 16, "lsa_heads": 4, "lsa_kv_heads": 2, "lsa_mlp": 16,
    }  # fmt: skip
    return DrafterConfig(**{**shapes, **changes})


def assistant_options(**text: Any) -> dict[str, Any]:
    """What `small_drafter` is given for a Gemma 4's assistant, as if the tiny target were one."""
    kinds = {"sliding_attention": {"rope_theta": 1e4}, "full_attention": {"rope_theta": 1e4}}
    config = {
        **SIZES, "model_type": "gemma4_text", "num_hidden_layers": 2, "layer_types": list(kinds), "rope_parameters": kinds,
        "global_head_dim": SIZES["head_dim"], "sliding_window": 2, "hidden_size_per_layer_input": 0, **text,
    }  # fmt: skip
    return {
        "kind": "assistant", "own_layers": 2, "sa_mlp": SIZES["intermediate_size"], "target_hidden_size": SIZES["hidden_size"],
        "layer_config": json.dumps(config), "memory_layers": (2, 1), "memory_widths": (128, 128),
    }  # fmt: skip


def save_drafter(path: Path, config: DrafterConfig, seed: int = 1) -> Path:
    """A random drafter of these shapes."""
    save_checkpoint(path, config, fresh_tensors(config, seed=seed))
    return path
