"""A companion: an ordinary small language model with the target's vocabulary, which drafts and writes on its own."""
