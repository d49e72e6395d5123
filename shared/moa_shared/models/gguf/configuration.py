"""config.json and generation_config.json out of a GGUF file's header, as transformers has them.

Pure over the header. Many files name one end of text only, or the wrong one: llama.cpp also ends an answer at tokens
that are spelled as the ends of known families, and so does this. Invariant: what is not understood is refused.
"""

from typing import Any

from moa_shared.errors import ModelSourceError
from moa_shared.models.families import gguf_family
from moa_shared.models.gguf.header import DAMAGED, GgufHeader
from moa_shared.models.gguf.keys import FACTOR_TENSORS, rope_parameters
from moa_shared.models.gguf.names import hugging_face_name, known_shapes
from moa_shared.models.network.served import check_family
from moa_shared.models.sources.files import GGUF_KEY, GGUF_TYPES
from moa_shared.sampling.settings import LEAST_TEMPERATURE, REPEAT_LAST_N

_EMBEDDINGS, _HEAD = "token_embd.weight", "output.weight"
_WHOLE = "Name a GGUF file of a whole model, or the first of its parts."


def make_config(header: GgufHeader) -> dict[str, Any]:
    """The content of config.json; ModelSourceError: what is not served, is missing, misshapen or not known."""
    name, family, gguf = gguf_family(header)
    if _EMBEDDINGS not in header.tensors:
        raise ModelSourceError(f"{header.path} holds no embeddings.", hint=_WHOLE)
    config = _sizes(header)
    config |= {"model_type": name, "architectures": [f"{gguf.model_class}ForCausalLM"]}
    if (mixture := family.mixture) is not None:
        own = header.architecture
        has_experts = not mixture.switch or bool(header.integer(f"{own}.expert_count"))
        if mixture.switch:
            config[mixture.switch] = has_experts
        if has_experts:
            config[mixture.count] = header.required(f"{own}.expert_count")
            config[mixture.chosen] = header.required(f"{own}.expert_used_count")
            inner = header.integer(f"{own}.expert_feed_forward_length")
            config[mixture.inner] = inner or header.required(f"{own}.feed_forward_length")
    config |= gguf.keys(header, config)
    if name != "phi3" and "partial_rotary_factor" in config["rope_parameters"]:
        raise ModelSourceError(
            f"{header.path} rotates a part of each head, which no {header.architecture} model that moa serves does.",
            hint="Use the same model as a folder of safetensors or a hub id.",
        )
    config |= special_ids(header)
    if (pooling := GGUF_TYPES.get(header.integer(f"{header.architecture}.pooling_type") or 0)) is not None:
        config[GGUF_KEY] = pooling.value
    check_family(config, header.path.name)
    _check_tensors(header, config)
    tokens = header.values("tokenizer.ggml.tokens")
    if tokens and len(tokens) != config["vocab_size"]:
        raise ModelSourceError(
            f"{header.path} has {len(tokens)} tokens, but embeddings of {config['vocab_size']}.", hint=DAMAGED
        )
    return dict(sorted(config.items()))


def _sizes(header: GgufHeader) -> dict[str, Any]:
    family = header.architecture
    hidden = header.required(f"{family}.embedding_length")
    heads = header.required(f"{family}.attention.head_count")
    head_dim = header.integer(f"{family}.attention.key_length")
    if not head_dim and family != "phi3":  # which may rotate a part of a head
        head_dim = header.integer(f"{family}.rope.dimension_count")
    head_dim = head_dim or (hidden // heads if heads > 0 else 0)
    epsilon = header.real(f"{family}.attention.layer_norm_rms_epsilon")
    if epsilon is None:
        raise header.wrong("does not set the epsilon of its norms")
    return {
        "attention_bias": family != "qwen2" and "blk.0.attn_q.bias" in header.tensors,
        "attention_dropout": 0.0,
        "dtype": "float32",
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": _first(header, f"{family}.feed_forward_length")
        or header.required(f"{family}.feed_forward_length"),
        "max_position_embeddings": header.required(f"{family}.context_length"),
        "mlp_bias": "blk.0.ffn_up.bias" in header.tensors,
        "num_attention_heads": heads,
        "num_hidden_layers": header.required(f"{family}.block_count"),
        "num_key_value_heads": _first(header, f"{family}.attention.head_count_kv")
        or header.integer(f"{family}.attention.head_count_kv")
        or heads,
        # GGUF stores epsilon as float32 (9.9999997e-06); the shortest decimal that rounds to it is the number meant.
        "rms_norm_eps": float(f"{epsilon:.7g}"),
        "rope_parameters": rope_parameters(header, head_dim),
        "tie_word_embeddings": _HEAD not in header.tensors,
        "use_cache": True,
        "vocab_size": header.tensors[_EMBEDDINGS].shape[0],
    }


def _first(header: GgufHeader, key: str) -> int | None:
    """The first layer's number, where Gemma 4 has one for each; None: there is none, or no whole number."""
    said = header.metadata.get(key)
    is_by_layer = header.architecture == "gemma4" and isinstance(said, list) and said
    return said[0] if is_by_layer and isinstance(said, list) and type(said[0]) is int else None


def _check_tensors(header: GgufHeader, config: dict[str, Any]) -> None:
    names = [name for name in header.tensors if name not in FACTOR_TENSORS]
    unknown = sorted(name for name in names if hugging_face_name(name, config["model_type"]) is None)
    if unknown and unknown[0].startswith("blk.0.ffn_down.0."):
        raise ModelSourceError(
            f"{header.path} has a tensor for each expert, as files from before April 2024 do.",
            hint="Use a newer GGUF file of the model: moa 0.2.0 was the last that read such files.",
        )
    if unknown:
        raise ModelSourceError(
            f"{header.path} holds {unknown[0]}, which no {header.architecture} model that moa serves has.",
            hint="Choose a model without experts or other additions to its family.",
        )
    required, others = known_shapes(config)
    missing = [name for name in required if name not in header.tensors]
    if missing:
        raise ModelSourceError(f"{header.path} lacks {len(missing)} tensors, {missing[0]} among them.", hint=_WHOLE)
    shapes = required | others
    for name in names:
        shape = header.tensors[name].shape
        if name not in shapes:
            experts = config.get("num_experts") or config.get("num_local_experts")
            counts = f"{config['num_hidden_layers']} layers" + (f" with {experts} experts each" if experts else "")
            raise ModelSourceError(
                f"{header.path} holds {name}, which a model of {counts} does not have.", hint=DAMAGED
            )
        if shape != shapes[name]:
            raise ModelSourceError(
                f"{name} of {header.path} has the shape {list(shape)}, expected {list(shapes[name])}.", hint=DAMAGED
            )


_NAMED = {"bos": "bos", "pad": "padding", "unk": "unknown"}
_ENDS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
_TURN = "<|end|>"
_SPELLINGS = frozenset(
    (
        *(_TURN, "<|eot_id|>", "<|im_end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>"),
        *("<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>"),
        *("<eos>", "<turn|>", "<|tool_response>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "[e~["),
    )
)
# Ends an answer only where it is a special token: in Gemma's vocabulary it is HTML (llama.cpp ends answers there too).
_SENTENCE = "</s>"
_CONTROL = 3  # of `tokenizer.ggml.token_type`
# Where both of these are there, that one ends a part of an answer only (gpt-oss, Solar).
_UNLESS = (({"<|return|>", "<|call|>"}, _TURN), ({"<|calls|>", "<|flush|>"}, _TURN))


def special_ids(header: GgufHeader) -> dict[str, Any]:
    """`bos_token_id` and so on of config.json; `eos_token_id` is a list where several tokens end an answer."""
    tokens = header.values("tokenizer.ggml.tokens")
    found: dict[str, Any] = {f"{key}_token_id": header.token_id(name) for key, name in _NAMED.items()}
    kinds = header.values("tokenizer.ggml.token_type") or [_CONTROL] * len(tokens)
    spelled = {
        token: index
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
        if token in _SPELLINGS or (token == _SENTENCE and kind == _CONTROL)
    }
    all_ends = dict.fromkeys([*(header.token_id(name) for name in _ENDS), *spelled.values()])
    for present, is_none in _UNLESS:
        if present <= spelled.keys():
            all_ends.pop(spelled.get(is_none), None)
    ends = [index for index in all_ends if index is not None]
    found["eos_token_id"] = ends[0] if len(ends) == 1 else ends or None
    return {key: value for key, value in found.items() if value is not None}


SMOLLM2_135M_INSTRUCT = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# Of models whose files say nothing, by identity. Temperature and top-p are those of the model's card. Without the
# penalty 3 of 16 ordinary answers repeat themselves for ever (9 of 64 at temperature 0.7 and top-p 0.95), with it none
# of 48.
_SAMPLING = {
    SMOLLM2_135M_INSTRUCT: {
        "temperature": 0.2,
        "top_p": 0.9,
        "repetition_penalty": 1.1,
        "repeat_last_n": REPEAT_LAST_N,
    }
}


def make_generation(header: GgufHeader, identity: str) -> dict[str, Any]:
    """generation_config.json: how llama.cpp would sample the model of that identity; empty: nothing is said.

    Its other samplers (mirostat, XTC) are not read: their text is no function of this one's settings.
    """

    def real(name: str) -> float | None:
        value = header.real(f"general.sampling.{name}")
        return None if value is None else float(f"{value:.7g}")  # the decimal that was meant, out of a float32

    temperature, top_p, min_p, penalty = map(real, ("temp", "top_p", "min_p", "penalty_repeat"))
    window = header.integer("general.sampling.penalty_last_n")
    is_greedy = temperature is not None and temperature < LEAST_TEMPERATURE  # in llama.cpp too
    values = {
        "temperature": 0.0 if is_greedy else temperature,
        "top_k": header.integer("general.sampling.top_k"),
        "top_p": None if top_p is None else min(1.0, top_p),
        "min_p": None if min_p is None else max(0.0, min_p),
        "repetition_penalty": penalty,
        "repeat_last_n": REPEAT_LAST_N if window is None and penalty is not None else window,
    }
    said = {name: value for name, value in values.items() if value is not None}
    return said or dict(_SAMPLING.get(identity, {}))
