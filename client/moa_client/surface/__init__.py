"""What chat, page and endpoint share: a conversation as they see it, and its updates as JSON messages."""
