"""The client: owns the conversation, drafts, and talks to the server."""
