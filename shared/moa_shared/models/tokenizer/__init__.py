"""The target's tokenizer: text to tokens and back, its hash, what ends a text."""
