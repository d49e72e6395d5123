"""The C structures and functions of csrc/kernels.h as ctypes sees them, and the formats of weights by GGUF's names.

Nothing is checked here: callers do. The numbers of a format, which csrc/formats.h has too, are kept for good: files of
tiles hold them.
"""

import ctypes as ct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


class KernelError(Exception):
    """Shapes, weights or a processor that the kernels do not take; the text says which, for people."""


GROUP = 32  # inputs that share a scale of the activations
Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 = "q4_0", "q4_1", "q5_0", "q5_1", "q8_0"
Q2_K, Q3_K, Q4_K, Q5_K, Q6_K = "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"
IQ4_NL, IQ4_XS, MXFP4 = "iq4_nl", "iq4_xs", "mxfp4"


@dataclass(frozen=True, slots=True)
class Format:
    number: int  # in the library and in files of tiles
    values: int  # numbers of a block
    size: int  # its bytes
    halves: Sequence[int] = (0,)  # where a block has its float16 scales and minima
    exponent: int | None = None  # where it has an exponent of 8 bits instead


FORMATS = {
    Q4_1: Format(1, 32, 20, (0, 2)),
    Q8_0: Format(2, 32, 34),
    Q4_0: Format(3, 32, 18),
    Q5_0: Format(4, 32, 22),
    Q5_1: Format(5, 32, 24, (0, 2)),
    Q2_K: Format(6, 256, 84, (80, 82)),
    Q3_K: Format(7, 256, 110, (108,)),
    Q4_K: Format(8, 256, 144, (0, 2)),
    Q5_K: Format(9, 256, 176, (0, 2)),
    Q6_K: Format(10, 256, 210, (208,)),
    IQ4_NL: Format(11, 32, 18),
    IQ4_XS: Format(12, 256, 136),
    MXFP4: Format(13, 32, 17, (), 0),
}
MOST_EXPONENT = 251  # of MXFP4: 12 times 2 ** (251 - 128) is the largest number that is finite


def format_of(kind: str) -> Format:
    if kind not in FORMATS:
        raise KernelError(f"Weights of the kind {kind!r} are not computed by the kernels.")
    return FORMATS[kind]


FLOAT32 = 0  # the number of plain matrices; `FORMATS` has those of the others
LANES = 16  # outputs of a tile, and keys of a block
PAGE_ROWS = 64
F32, F16, Q8 = "f32", "f16", "q8"
KV_FORMATS = (F32, F16, Q8)  # how keys and values are kept, in the order of their numbers in kernels.h
NO_MEMORY, NOT_FINITE = -1, -2
STORED_FLOATS = {"f32": -1, "f16": -2, "bf16": -3}  # what a file may hold besides FORMATS


class CPart(ct.Structure):
    _fields_ = (("kind", ct.c_int32), ("outputs", ct.c_int32), ("tiles", ct.c_void_p))


class CLinear(ct.Structure):
    _fields_ = (
        *((name, ct.c_int32) for name in ("outputs", "inputs", "parts")),
        ("part", ct.POINTER(CPart)),
        ("bias", ct.c_void_p),
    )


class CExperts(ct.Structure):
    _fields_ = (
        *((name, ct.c_int32) for name in ("count", "chosen", "inner", "weighs_all")),
        ("scales", ct.c_void_p),
        ("router", CLinear),
        ("gate_up", ct.POINTER(CLinear)),
        ("down", ct.POINTER(CLinear)),
    )


class CHeads(ct.Structure):
    _fields_ = (("count", ct.c_int32), ("dim", ct.c_int32))


class CDeltaNet(ct.Structure):
    _fields_ = (
        *((name, ct.c_int32) for name in ("heads", "key_heads", "key_dim", "value_dim", "taps", "tiled")),
        *((name, ct.c_float) for name in ("eps", "beta_scale")),
        *((name, ct.c_int64) for name in ("state", "left")),
        *((name, ct.c_void_p) for name in ("convolution", "decay_rate", "time_bias", "norm")),
        *((name, CLinear) for name in ("gate", "decay_beta")),
    )


class CLayer(ct.Structure):
    _fields_ = (
        *((name, ct.c_void_p) for name in ("attention_norm", "mlp_norm", "attention_out_norm", "mlp_out_norm")),
        *((name, ct.c_void_p) for name in ("query_norm", "key_norm", "value_norm")),
        *((name, ct.c_void_p) for name in ("router_norm", "experts_norm", "experts_out_norm", "beside_out_norm")),
        *((name, ct.c_int32) for name in ("norms_all_heads", "window", "rotary", "rotated")),
        ("heads", CHeads),
        *((name, ct.c_int32) for name in ("inner", "cached", "writes", "keys_are_values")),
        ("query_scale", ct.c_float),
        ("out_scale", ct.c_float),
        ("sinks", ct.c_void_p),
        ("qkv", CLinear),
        ("out", CLinear),
        ("gate_up", CLinear),
        ("down", CLinear),
        ("experts", ct.POINTER(CExperts)),
        ("embedding_gate", CLinear),
        ("embedding_out", CLinear),
        ("embedding_norm", ct.c_void_p),
        ("attention_embedding_norm", ct.c_void_p),
        ("output_gate", ct.c_int32),
        ("shared_gate", ct.c_void_p),
        ("delta_net", ct.POINTER(CDeltaNet)),
    )


class CStack(ct.Structure):
    _fields_ = (
        *((name, ct.c_int32) for name in ("hidden", "heads", "layers", "kv", "only_fills", "activation", "embedding")),
        *((name, ct.c_float) for name in ("eps", "residual_scale", "score_cap", "qkv_clip")),
        *((name, ct.c_float) for name in ("gate_slope", "gate_limit")),
        ("layer", ct.POINTER(CLayer)),
        ("cached", ct.POINTER(CHeads)),
    )


class CCache(ct.Structure):
    _fields_ = (
        ("layers", ct.c_int32),
        ("kv", ct.c_int32),
        ("heads", ct.POINTER(CHeads)),
        ("pages", ct.c_void_p),
    )


class CSegment(ct.Structure):
    _fields_ = (
        ("rows", ct.c_int32),
        ("first_slot", ct.c_int32),
        *((name, ct.c_void_p) for name in ("pages", "seen", "tail_start", "tail", "states", "left")),
        ("left_size", ct.c_int64),
        *((name, ct.c_int32) for name in ("drafted", "waiting", "known")),
        *((name, ct.c_void_p) for name in ("earlier", "places", "parents")),
    )


_INT, _POINTER = ct.c_int, ct.c_void_p
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "moa_run": (
        _INT,
        [ct.POINTER(CStack), _INT, *[_POINTER] * 6, _INT, ct.POINTER(CSegment), _INT, *[_POINTER] * 2, _INT],
    ),
    "moa_linear": (_INT, [ct.POINTER(CLinear), _INT, _POINTER, _POINTER, _INT]),
    "moa_norm": (None, [_INT, _INT, ct.c_float, _POINTER, _POINTER, _POINTER]),
    "moa_cap": (None, [ct.c_int64, ct.c_float, _POINTER]),
    "moa_tile_bytes": (ct.c_int64, [_INT, _INT]),
    "moa_pack": (_INT, [*[_INT] * 7, _POINTER, _POINTER]),
    "moa_dequantise": (None, [_INT, _INT, _INT, _POINTER, _POINTER]),
    "moa_guard": (_INT, [_POINTER, ct.c_int64, ct.c_char_p]),
    "moa_unguard": (None, [_INT]),
    "moa_populate": (None, [_POINTER, ct.c_int64]),
    "moa_cache_write": (None, [ct.POINTER(CCache), _INT, _INT, _INT, _POINTER, _POINTER]),
    "moa_cache_read": (None, [ct.POINTER(CCache), *[_INT] * 5, _POINTER]),
    "moa_cache_move": (None, [ct.POINTER(CCache), _INT, _POINTER, _POINTER]),
}


def declare(library: ct.CDLL) -> ct.CDLL:
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def address(array: npt.NDArray[Any] | None) -> int | None:
    """Where an array's numbers lie; the caller keeps it alive."""
    return None if array is None else array.ctypes.data


def aligned_zeros(nbytes: int) -> npt.NDArray[np.uint8]:
    """Zeroed bytes that begin at a multiple of 64, so that no vector lies across two cache lines."""
    memory = np.zeros(nbytes + 63, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + nbytes]
