"""The tensors that a checkpoint of each kind of drafter holds, by the authors' names where they exist. Pure."""

from __future__ import annotations

from moa_shared.drafter.checkpoint.config import DFLASH, EACH, EAGLE2, EAGLE3, JOINT, MOA, DrafterConfig

FC = "spec_model_fc"  # the authors' name of EAGLE's projection
Shapes = dict[str, tuple[int, ...]]
# Beginnings of the names of what the server runs of a Mixture of Attentions drafter; the rest runs on the device.
ENCODER_TENSORS = (
    "layer_self_attention.",
    "Ekv2E.",
    "fc.",  # without layer self-attention
    "cross_attention.input_layernorm.",
    "cross_attention.self_attn.k_proj.",
    "cross_attention.self_attn.v_proj.",
)
# The same of drafters that read the target's states; the device's half begins with what they project these to.
PROJECTION_TENSORS = ("fc.", "fc_norm.", "input_norm.", "hidden_norm.")
OWN_EMBEDDINGS, OWN_HEAD = "embed_tokens.weight", "lm_head.weight"
MARKOV_IN, MARKOV_OUT = "markov_w1.weight", "markov_w2.weight"  # DSpark's


def server_tensors(config: DrafterConfig) -> tuple[str, ...]:
    """Beginnings of the names of what only the server runs."""
    if config.kind == MOA:
        return ENCODER_TENSORS
    return PROJECTION_TENSORS if config.state_entries else ()


def expected_shapes(config: DrafterConfig) -> Shapes:
    """Shapes of the tensors that a checkpoint of this configuration holds."""
    if config.kind == EAGLE3:
        shapes = _eagle3_shapes(config)
    elif config.kind == DFLASH:
        shapes = _dflash_shapes(config)
    else:
        shapes = _moa_shapes(config) if config.kind == MOA else _baseline_shapes(config)
    if config.output_norm:
        shapes["output_norm.weight"] = (config.hidden_size,)
    if config.draft_vocab:
        shapes["draft_ids"] = (config.draft_vocab,)
    return shapes


def layer_names(config: DrafterConfig) -> list[str]:
    """Prefixes of a baseline's decoder layers: the authors' for EAGLE-2."""
    return ["spec_model"] if config.kind == EAGLE2 else [f"layers.{index}" for index in range(config.own_layers)]


def _moa_shapes(config: DrafterConfig) -> Shapes:
    hidden, width = config.hidden_size, config.kv_width
    query = config.target_heads * config.target_head_dim
    sizes = {
        "self_attention": (hidden, query, config.sa_kv_heads * config.target_head_dim, config.sa_mlp),
        "cross_attention": (hidden, query, config.ca_kv_heads * config.target_head_dim, config.ca_mlp),
    }
    shapes: Shapes = {}
    if config.lsa:
        keys = config.lsa_kv_heads * (width // config.lsa_heads)
        sizes["layer_self_attention"] = (width, width, keys, config.lsa_mlp)
        shapes = {"Ekv2E.weight": (hidden, width), "Ekv2E.bias": (hidden,)}
    if config.state_entries:
        shapes = {"fc.weight": (hidden, len(config.state_entries) * hidden)}
    for name, (model, queries, keys, inner) in sizes.items():
        shapes |= _layer_shapes(name, model, queries, keys, inner)
    if not config.ca:
        attention = ("cross_attention.self_attn.", "cross_attention.input_layernorm.")
        shapes = {each: shape for each, shape in shapes.items() if not each.startswith(attention)}
    return shapes


def _baseline_shapes(config: DrafterConfig) -> Shapes:
    """Shapes of a baseline's tensors; its layers take the sizes of `sa_kv_heads` and `sa_mlp`."""
    hidden = config.hidden_size
    query, keys = config.target_heads * config.target_head_dim, config.sa_kv_heads * config.target_head_dim
    shapes: Shapes = {}
    for name in layer_names(config):
        shapes |= _layer_shapes(name, hidden, query, keys, config.sa_mlp)
        if not config.input_norm:
            del shapes[f"{name}.input_layernorm.weight"]
        if config.qkv_bias:
            shapes |= {f"{name}.self_attn.{part}_proj.bias": (query if part == "q" else keys,) for part in "qkv"}
    if config.kind == EAGLE2:
        shapes[f"{FC}.weight"] = (hidden, 2 * hidden)
        if config.fc_bias:
            shapes[f"{FC}.bias"] = (hidden,)
    return shapes


def _eagle3_shapes(config: DrafterConfig) -> Shapes:
    """Shapes of EAGLE-3's tensors: its first layer's queries, keys and values read an embedding beside a state."""
    hidden, states = config.hidden_size, len(config.state_entries) * config.state_width
    query, keys = config.heads * config.head_dim, config.sa_kv_heads * config.head_dim
    shapes: Shapes = {"fc.weight": (hidden, states)}
    if config.feature_norm == JOINT:
        shapes["input_norm.weight"] = (states,)
    if config.feature_norm == EACH:
        shapes |= {f"fc_norm.{index}.weight": (config.state_width,) for index in range(len(config.state_entries))}
    for name in layer_names(config):
        shapes |= _layer_shapes(name, hidden, query, keys, config.sa_mlp)
        if config.head_norms:
            shapes |= {f"{name}.self_attn.{part}_norm.weight": (config.head_dim,) for part in "qk"}
    first = layer_names(config)[0]
    for part in "qkv":
        outputs = query if part == "q" else keys
        shapes[f"{first}.self_attn.{part}_proj.weight"] = (outputs, 2 * hidden)
        if config.qkv_bias:
            shapes |= {f"{name}.self_attn.{part}_proj.bias": (outputs,) for name in layer_names(config)}
    shapes |= {f"{first}.hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
    shapes[OWN_HEAD] = (config.draft_vocab or config.vocab_size, hidden)
    if config.own_embeddings:
        shapes[OWN_EMBEDDINGS] = (config.vocab_size, hidden)
    return shapes


def _dflash_shapes(config: DrafterConfig) -> Shapes:
    """Shapes of DFlash's tensors, and of DSpark's, which are two more."""
    hidden = config.hidden_size
    query, keys = config.heads * config.head_dim, config.sa_kv_heads * config.head_dim
    shapes: Shapes = {"fc.weight": (hidden, len(config.state_entries) * hidden)}
    shapes |= {"hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
    for name in layer_names(config):
        shapes |= _layer_shapes(name, hidden, query, keys, config.sa_mlp)
        if config.head_norms:
            shapes |= {f"{name}.self_attn.{part}_norm.weight": (config.head_dim,) for part in "qk"}
        if config.qkv_bias:
            widths = {"q": query, "k": keys, "v": keys, "o": hidden}
            shapes |= {f"{name}.self_attn.{part}_proj.bias": (width,) for part, width in widths.items()}
    if config.markov_rank:
        shapes[MARKOV_IN] = (config.vocab_size, config.markov_rank)
        shapes[MARKOV_OUT] = (config.draft_vocab or config.vocab_size, config.markov_rank)
    return shapes


def _layer_shapes(name: str, model: int, queries: int, keys: int, inner: int) -> Shapes:
    """Shapes of one layer with the prefix `name`; widths are of its rows, all query heads, all key heads, its MLP."""
    return {
        f"{name}.self_attn.q_proj.weight": (queries, model),
        f"{name}.self_attn.k_proj.weight": (keys, model),
        f"{name}.self_attn.v_proj.weight": (keys, model),
        f"{name}.self_attn.o_proj.weight": (model, queries),
        f"{name}.mlp.gate_proj.weight": (inner, model),
        f"{name}.mlp.up_proj.weight": (inner, model),
        f"{name}.mlp.down_proj.weight": (model, inner),
        f"{name}.input_layernorm.weight": (model,),
        f"{name}.post_attention_layernorm.weight": (model,),
    }
