"""Levels of execution: the arithmetic that a target is computed in (docs/engine.md).

At `int8` a row's bits do not depend on what is computed with it; at `bf16` they do; at `float32` hardly.
"""

from __future__ import annotations

INT8, FLOAT32, BF16 = "int8", "float32", "bf16"
LEVELS = (INT8, FLOAT32, BF16)
