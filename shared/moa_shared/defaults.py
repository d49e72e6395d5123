"""Names and defaults that several programs share, in a module that imports nothing: command lines show them.

Levels of execution are the arithmetic that a target is computed in (docs/engine.md): at `int8` a row's bits do not
depend on what is computed with it; at `bf16` they do; at `float32` hardly.
"""

# That all of a standalone text is right, for it to be shown: of such text about three in five tokens are kept
# (docs/measurements/drafters.md).
LEAST_CHANCE = 0.35
INT8, FLOAT32, BF16 = "int8", "float32", "bf16"
LEVELS = (INT8, FLOAT32, BF16)
