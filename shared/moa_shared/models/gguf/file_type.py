"""How a GGUF model is stored, in the words by which people choose a file: Q4_K_M and so on."""

from __future__ import annotations

from collections import Counter

from moa_shared.models.gguf.header import GgufHeader

# llama.cpp's numbers of mixtures (`general.file_type`).
_NAMES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1",
    10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M",
    18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL",
    26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0",
    37: "TQ2_0", 38: "MXFP4_MOE",
}  # fmt: skip


def file_type(header: GgufHeader) -> str:
    """What the header says, else the format of most bytes."""
    number = header.integer("general.file_type")
    said = None if number is None else _NAMES.get(number)
    if said is not None:
        return said
    sizes = Counter[str]()
    for tensor in header.tensors.values():
        sizes[tensor.stored.name] += tensor.size
    return sizes.most_common(1)[0][0].upper() if sizes else ""
