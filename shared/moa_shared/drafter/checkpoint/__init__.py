"""A drafter's checkpoint: configuration and tensors."""
