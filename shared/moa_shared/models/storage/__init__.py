"""GGUF files: their header, what it says about the model, and the cache entry that such a file gets."""
