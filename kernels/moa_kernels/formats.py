"""The formats of weights that the kernels compute with, by GGUF's names: csrc/formats.h says the same to C.

The numbers of a format are kept for good: files of tiles hold them.
"""

from collections.abc import Sequence
from dataclasses import dataclass


class KernelError(Exception):
    """Shapes, weights or a processor that the kernels do not take; the text says which, for people."""


GROUP = 32  # inputs that share a scale of the activations
Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 = "q4_0", "q4_1", "q5_0", "q5_1", "q8_0"
Q2_K, Q3_K, Q4_K, Q5_K, Q6_K = "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"
IQ4_NL, IQ4_XS, MXFP4 = "iq4_nl", "iq4_xs", "mxfp4"


@dataclass(frozen=True, slots=True)
class Format:
    """How a format stores a row, in blocks."""

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
    """The format of that name; raises KernelError: the kernels do not compute with it."""
    if kind not in FORMATS:
        raise KernelError(f"Weights of the kind {kind!r} are not computed by the kernels.")
    return FORMATS[kind]
