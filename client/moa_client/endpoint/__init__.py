"""The endpoint for programs that are written for the APIs of OpenAI and others."""
