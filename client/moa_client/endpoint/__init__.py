"""The endpoint for programs that are written for OpenAI's API: completions of chats and of texts."""
