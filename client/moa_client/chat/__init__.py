"""What a user sees: the chat, the terminal, lines of JSON."""
