"""Training data: conversations, questions, shards, batches."""
