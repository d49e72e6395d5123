"""What a user would run instead: transformers and llama.cpp."""
