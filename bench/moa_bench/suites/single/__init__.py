"""One device: all ways to draft for a target, and what else a user would run."""
