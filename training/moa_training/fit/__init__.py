"""A training run: the loop, its state, its curves."""
