"""Text to the ids of tokens and back, as a tokenizer.json describes it. Pure; knows no models and no files."""
