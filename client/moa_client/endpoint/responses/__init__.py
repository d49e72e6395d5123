"""OpenAI's API of responses."""
