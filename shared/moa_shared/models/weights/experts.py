"""Tensors that hold all experts of a layer, taken apart: one matrix, or bias, for each expert.

Pure. What is served has names like `model.layers.3.mlp.experts.5.gate_proj.weight`, whatever a file has: one tensor for
each (Qwen3-MoE, OLMoE, and Mixtral by names of its own), gate and up of all experts fused (newer transformers), three
tensors (GGUF), or gpt-oss's, whose gates and ups lie in turn: in floats [experts, inputs, outputs], or in MXFP4 as
blocks and scales. Invariant: taking apart brings nothing into memory; that happens when a part's bytes are taken.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from moa_shared.models.tensors import Bytes

_FUSED = re.compile(
    r"(?P<prefix>.+\.mlp\.experts)\.(?P<stem>gate_up|gate|up|down)_proj(?P<kind>_bias|\.bias|_blocks|\.weight|)"
)
_RENAMED = (
    ("model.language_model.", "model."),  # the text part of what sees pictures, too
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    (".block_sparse_moe.", ".mlp."),
    (".mlp.router.", ".mlp.gate."),
    (".router.proj.", ".mlp.gate."),
    (".router.scale", ".mlp.gate.scale"),
    (".router.per_expert_scale", ".mlp.gate.expert_scale"),
    (".w1.weight", ".gate_proj.weight"),
    (".w3.weight", ".up_proj.weight"),
    (".w2.weight", ".down_proj.weight"),
    (".sinks.weight", ".sinks"),
)
_EXPERTS_BESIDE = re.compile(r"(layers\.\d+)\.experts\.")  # Gemma 4's
_PAIRS = 16  # bytes of 32 codes
ROUTER_END = ".mlp.gate.weight"  # of the names of routers, which are computed in float32
BLOCKS_END, SCALES_END = "_blocks", "_scales"  # how names of gpt-oss's tensors in MXFP4 end


@dataclass(frozen=True, slots=True)
class ExpertTensor:
    name: str
    shape: tuple[int, ...]
    take: Callable[[Bytes], Bytes]  # its bytes, uint8 [..., bytes of a row], from those of the whole tensor


def known_name(name: str) -> str:
    for theirs, ours in _RENAMED:
        name = name.replace(theirs, ours)
    return _EXPERTS_BESIDE.sub(r"\1.mlp.experts.", name)


def is_of_expert(name: str) -> bool:
    return ".mlp.experts." in name


def expert_parts(name: str, shape: tuple[int, ...], *, turned: bool) -> Iterator[ExpertTensor]:
    """The experts' parts of a tensor of that shape, in numbers; none: it does not hold several experts.

    `turned`: its rows are inputs, and outputs of gates and ups lie in turn (gpt-oss's in floats).
    """
    match = _FUSED.fullmatch(name)
    is_bias = match is not None and "bias" in match["kind"]
    if match is None or len(shape) != (2 if is_bias else 3):
        return
    interleaved = turned or match["kind"] == BLOCKS_END
    flipped = turned and not is_bias and match["kind"] == ""
    outputs, kind = shape[2 if flipped else 1], "bias" if is_bias else "weight"
    parts = {f"{match['stem']}_proj": slice(0, outputs)}
    if match["stem"] == "gate_up":
        half = outputs // 2
        gate, up = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(0, half), slice(half, outputs))
        parts = {"gate_proj": gate, "up_proj": up}
    for number in range(shape[0]):
        for stem, rows in parts.items():
            own = len(range(outputs)[rows])
            yield ExpertTensor(
                f"{match['prefix']}.{number}.{stem}.{kind}",
                (own,) if is_bias else (own, shape[1] if flipped else shape[2]),
                partial(_take, number, rows, shape[1:], flipped or is_bias),
            )


def _take(number: int, rows: slice, shape: tuple[int, ...], by_number: bool, raw: Bytes) -> Bytes:
    """One expert's rows; `by_number`: of a bias, or of a matrix whose rows lie as columns."""
    own = raw[number]
    if not by_number:
        return np.ascontiguousarray(own[rows])
    numbers = own.reshape(*shape, -1)  # the bytes of each number
    if len(shape) == 1:
        return np.ascontiguousarray(numbers[rows]).reshape(-1)
    taken = np.ascontiguousarray(numbers[:, rows].swapaxes(0, 1))
    return taken.reshape(len(taken), -1)


def take_mxfp4(take: Callable[[Bytes], Bytes], all_scales: Bytes, all_blocks: Bytes) -> Bytes:
    """A part of gpt-oss's tensors in MXFP4 as GGUF has the format, [rows, bytes].

    Both have exponents of 8 bits; of 32 codes, GGUF has the first half in the low nibbles, and gpt-oss every second.
    Scales are [experts, outputs, groups], blocks [experts, outputs, 16 bytes a group].
    """
    scales = take(all_scales)
    pairs = take(all_blocks).reshape(*scales.shape, _PAIRS)
    codes = np.stack((pairs & 15, pairs >> 4), axis=-1).reshape(*scales.shape, 2 * _PAIRS)
    rows = np.concatenate((scales[..., None], codes[..., :_PAIRS] | codes[..., _PAIRS:] << 4), axis=-1)
    return rows.reshape(len(rows), -1)
