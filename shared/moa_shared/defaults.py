"""Defaults that several programs share, in a module that imports nothing: command lines show them."""

# That all of a standalone text is right, for it to be shown: of such text about three in five tokens are kept
# (docs/measurements/drafters.md).
LEAST_CHANCE = 0.35
