"""A stack of transformer layers, its cache of keys and values, and what one forward feeds it."""
